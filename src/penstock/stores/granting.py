"""What a claim was given: taken down at once, made into a lease when its payloads are at hand.

Jobs may change, and their payloads go, as soon as the next command is applied; so a grant holds
everything about the jobs but the bytes, and says in which chunks those lie.
"""

import msgspec

from penstock.kernel import read
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.model.job import ClaimedRun, Lease
from penstock.protocol.runs import lease_of_one
from penstock.stores.payloads import Chunks, piece


class Grant(msgspec.Struct):
    token: str
    queue: str
    expires_at: int
    cuts: list[read.Cut]
    chunks: Chunks | None = None  # None: they have to be read
    position: int = 0  # of the claim
    rests_on: tuple[int, int] = (0, 0)  # (position, level) of the pushes of its jobs


def grant_of(kernel: Kernel, record: LeaseRecord) -> Grant:
    return Grant(
        record.token,
        record.queue.name,
        kernel.now + record.expires - kernel.elapsed,
        read.cuts(record.runs[0])
        if len(record.runs) == 1
        else [cut for held in record.runs for cut in read.cuts(held)],
    )


def lease_at_once(kernel: Kernel, record: LeaseRecord, chunks: Chunks) -> Lease:
    """The lease itself, where nothing has to become safe and every payload is in memory."""
    runs = record.runs
    held = runs[0]
    block, offset = held.block, held.lo
    if (
        len(runs) > 1
        or held.hi - offset > 1
        or offset in block.sides
        or block.commits
        or (block.due_ms and block.said_due(offset) > 0)
    ):
        return lease_of(grant_of(kernel, record), chunks)
    # One plain job, as an idle worker is given: `read.cuts` says what this means.
    chunk, begin, end = block.pushed_place(offset)
    created_at = block.created_ms[-1]
    if offset < block.created_pos[-1]:  # not of the newest
        created_at = block.created_at(offset)
    return lease_of_one(
        record.token,
        record.queue.name,
        kernel.now + record.expires - kernel.elapsed,
        block.base + offset,
        bytes(chunks[chunk][begin:end]),
        (block.options[block.opts[offset]],),
        created_at,
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
        stretch = cut.stretch
        if stretch is not None:
            chunk, begin, end = stretch
            data, ends = bytes(chunks[chunk][begin:end]), cut.ends
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
