"""What a claim was given: taken down at once, made into a lease when its payloads are at hand.

Jobs may change, and their payloads go, as soon as the next command is applied; so a grant holds
everything about the jobs but the bytes, and says in which chunks those lie.
"""

import msgspec

from penstock.kernel import read
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.model.job import ClaimedRun, Lease
from penstock.stores.payloads import Chunks, piece


class Grant(msgspec.Struct):
    tenant: str
    token: str
    queue: str
    expires_at: int
    cuts: list[read.Cut]
    chunks: Chunks | None = None  # None: they have to be read
    position: int = 0  # of the claim
    rests_on: tuple[int, int] = (0, 0)  # (position, level) of the pushes of its jobs


def grant_of(kernel: Kernel, record: LeaseRecord) -> Grant:
    return Grant(
        record.queue.tenant.name,
        record.token,
        record.queue.name,
        kernel.now + record.expires - kernel.elapsed,
        [cut for held in record.runs for cut in read.cuts(held)],
    )


def chunks_of(grant: Grant) -> list[int]:
    """The chunks in which the payloads lie, each once."""
    found: dict[int, None] = {}
    for cut in grant.cuts:
        if cut.stretch is not None:
            found[cut.stretch[0]] = None
        else:
            assert cut.places is not None
            found.update((place[0], None) for place in cut.places)
    return list(found)


def lease_of(grant: Grant, chunks: Chunks) -> Lease:
    runs = []
    for cut in grant.cuts:
        if cut.stretch is not None:
            data, ends = piece(chunks, cut.stretch), cut.ends
        else:
            assert cut.places is not None
            pieces = [piece(chunks, place) for place in cut.places]
            data = b"".join(pieces)
            ends, total = [], 0
            for one in pieces:
                total += len(one)
                ends.append(total)
        runs.append(
            ClaimedRun(
                ids=cut.ids,
                data=data,
                ends=ends,
                options=cut.options,
                option_of=cut.option_of,
                created_at=cut.created_at,
                run_at=cut.run_at,
                individual=cut.individual,
            )
        )
    return Lease(
        token=grant.token, queue=grant.queue, expires_at=grant.expires_at, runs=tuple(runs)
    )
