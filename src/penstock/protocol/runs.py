"""Jobs on the wire: packed as they are in memory, so that nothing is paid for each of them.

A run's payloads travel end to end in `data`; `ends` says where each of them ends, as integers or
packed: 32 bits each, unsigned, lowest byte first. Bytes are base64 in JSON.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final

import msgspec

from penstock.model.errors import BatchTooLarge, Invalid
from penstock.model.job import (
    DEFAULT_OPTIONS,
    MAX_BATCH,
    ClaimedRun,
    IdRun,
    Individual,
    JobOptions,
    KeyClaim,
    Lease,
    Run,
)

Ends = bytes | list[int]
Ranges = list[tuple[int, int]]  # (first, count): that many ids from the first on

TOKEN: Final = 32  # ASCII characters of a lease's token, as the stores make them that serve

_SWAPPED: Final = sys.byteorder == "big"


def pack_ends(ends: Sequence[int]) -> bytes:
    packed = ends if type(ends) is array and ends.typecode == "I" else array("I", ends)
    if _SWAPPED:
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def unpack_ends(ends: Ends) -> Sequence[int]:
    if type(ends) is list:
        return ends
    try:
        unpacked = array("I", ends)  # as they lie there
    except ValueError:
        raise Invalid(f"has {len(ends)} bytes, which is no multiple of 4", "ends") from None
    if _SWAPPED:
        unpacked.byteswap()
    return unpacked


class PushedJobs(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`model.job.Run`, packed. Lists are as long as the run, or left out for "no job"."""

    queue: str
    data: bytes  # the payloads, end to end
    ends: Ends  # where each of them ends in `data`
    options: tuple[JobOptions, ...] = (DEFAULT_OPTIONS,)
    option_of: bytes | list[int] | None = None  # index into `options` per job; none: all the first
    delay_ms: int | list[int | None] | None = None  # one for all, or one each
    run_at: int | list[int | None] | None = None
    keys: list[str | None] | None = None
    more_keys: list[tuple[KeyClaim, ...]] | None = None
    groups: list[str | None] | None = None
    headers: list[dict[str, str] | None] | None = None
    depends_on: list[tuple[int, ...]] | None = None  # ids; -k names the k-th job of the same push

    def run(self) -> Run:
        return Run(
            queue=self.queue,
            data=self.data,
            ends=unpack_ends(self.ends),
            options=the_same(self.options),
            option_of=self.option_of,
            delay_ms=self.delay_ms,
            run_at=self.run_at,
            keys=self.keys,
            more_keys=self.more_keys,
            groups=self.groups,
            headers=self.headers,
            depends_on=self.depends_on,
        )


@lru_cache(maxsize=256)
def _known(options: tuple[JobOptions, ...]) -> tuple[JobOptions, ...]:
    return options


_last: tuple[JobOptions, ...] = ()


def the_same(options: tuple[JobOptions, ...]) -> tuple[JobOptions, ...]:
    """One object for equal options: a queue knows again what it was given last, and looks no
    further. What was decoded has the very types it should have, so that equal is alike."""
    global _last  # noqa: PLW0603 - to compare takes half of what a hash of them takes
    last = _last  # looked at once: another thread may have another one's any time
    if options != last:
        _last = last = _known(options)
    return last


def packed_run(run: Run) -> PushedJobs:
    """A run that has passed its checks, for the wire: its columns are lists, tuples or arrays."""
    option_of = run.option_of
    return PushedJobs(
        queue=run.queue,
        data=run.data,
        ends=pack_ends(run.ends),
        options=run.options,
        option_of=option_of if isinstance(option_of, bytes) else _listed(option_of),
        delay_ms=run.delay_ms if isinstance(run.delay_ms, int) else _listed(run.delay_ms),
        run_at=run.run_at if isinstance(run.run_at, int) else _listed(run.run_at),
        keys=run.keys,  # type: ignore[arg-type] # a list or a tuple: the same on the wire
        more_keys=run.more_keys,  # type: ignore[arg-type]
        groups=run.groups,  # type: ignore[arg-type]
        headers=run.headers,  # type: ignore[arg-type]
        depends_on=run.depends_on,  # type: ignore[arg-type]
    )


def packed_plain(run: Run) -> PushedJobs:
    """The same for a run whose jobs differ in nothing but their payload: half of the time."""
    ends = pack_ends(run.ends)
    return PushedJobs(queue=run.queue, data=run.data, ends=ends, options=run.options)


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


class ClaimedJobs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`model.job.ClaimedRun`, packed. Lists are as long as the jobs are many."""

    # It has everything that a ClaimedRun has, by the same names, and is one wherever a lease is
    # looked at: what came is unpacked as far as somebody asks. The one job that a worker at rest
    # waits for starts before anybody does.

    first: int  # ids from here on: all `span` of them, or those whose byte in `mask` is 1
    span: int
    mask: bytes | None = None
    data: bytes
    packed_ends: bytes = msgspec.field(name="ends")
    options: tuple[JobOptions, ...]
    option_of: bytes | list[int] | None = None
    created_at: int | list[int]  # one for all, or one each
    run_at: int | list[int]
    individual: dict[int, Individual] = {}  # by id: what only that job has, its attempt too

    @property
    def ids(self) -> IdRun:
        return IdRun(self.first, self.span, self.mask)

    @property
    def ends(self) -> Sequence[int]:
        return unpack_ends(self.packed_ends)


def packed_claimed(run: ClaimedRun | ClaimedJobs) -> ClaimedJobs:
    if type(run) is ClaimedJobs:
        return run
    ids, ends = run.ids, run.ends
    return ClaimedJobs(
        first=ids.first,
        span=ids.span,
        mask=ids.mask,
        data=run.data,
        packed_ends=ends[0].to_bytes(4, "little") if len(ends) == 1 else pack_ends(ends),
        options=run.options,
        option_of=run.option_of,  # type: ignore[arg-type] # bytes, a list or a tuple
        created_at=run.created_at,  # type: ignore[arg-type]
        run_at=run.run_at,  # type: ignore[arg-type]
        individual=run.individual,
    )


class Single(msgspec.Struct):
    """What a lease of one plain job says."""

    token: str  # of TOKEN characters
    queue: str
    expires_at: int
    job_id: int
    payload: bytes
    options: tuple[JobOptions, ...]  # one
    created_at: int  # and ready

    def lease(self) -> Lease:
        return lease_of_one(*msgspec.structs.astuple(self))


def lease_of_one(
    token: str,
    queue: str,
    expires_at: int,
    job_id: int,
    payload: bytes,
    options: tuple[JobOptions, ...],
    created_at: int,
) -> Lease:
    run: Any = ClaimedJobs(  # packed, as it may have to travel: it is a ClaimedRun for everybody
        first=job_id,
        span=1,
        data=payload,
        packed_ends=len(payload).to_bytes(4, "little"),
        options=options,
        created_at=created_at,
        run_at=created_at,
    )
    return Lease(token=token, queue=queue, expires_at=expires_at, runs=(run,))


def fitting(lease: Lease, size: int) -> Lease:
    """As many of the jobs, from the first on, as have payloads of that size together; one at least.

    A claim says how many jobs it wants, and not how large they may be.
    """
    runs: list[ClaimedRun] = []
    for run in lease.runs:
        if len(run.data) <= size:
            size -= len(run.data)
            runs.append(run)
            continue
        count = bisect_right(run.ends, size)
        if not runs:
            count = max(count, 1)
        if count:
            runs.append(_first(run, count))
        break
    return Lease(
        token=lease.token, queue=lease.queue, expires_at=lease.expires_at, runs=tuple(runs)
    )


def _first(run: ClaimedRun, count: int) -> ClaimedRun:
    """The first so many jobs of a run."""
    ids = list(islice(run.ids, count))
    span = ids[-1] - run.ids.first + 1
    mask = None if run.ids.mask is None else run.ids.mask[:span]
    created_at, run_at = run.created_at, run.run_at
    return ClaimedRun(
        ids=IdRun(run.ids.first, span, mask),
        data=run.data[: run.ends[count - 1]],
        ends=run.ends[:count],
        options=run.options,
        option_of=None if run.option_of is None else run.option_of[:count],
        created_at=created_at if isinstance(created_at, int) else created_at[:count],
        run_at=run_at if isinstance(run_at, int) else run_at[:count],
        individual={job_id: own for job_id in ids if (own := run.individual.get(job_id))},
    )


# -- ids -----------------------------------------------------------------------------------------


def named(ids: list[int] | None, ranges: Ranges | None) -> Iterable[int] | None:
    """The ids that a request names, one by one or in ranges; None if it names none."""
    if ranges is None:
        return ids
    if ids is not None:
        raise Invalid("cannot go with ids; give one of them", "ranges")
    total = 0
    for _, count in ranges:
        if count < 1:
            raise Invalid(f"has a range of {count} ids", "ranges")
        total += count
    if total > MAX_BATCH:
        raise BatchTooLarge(f"more than {MAX_BATCH} ids in one call", "ids")
    return list(chain.from_iterable(range(first, first + count) for first, count in ranges))


def spoken(ids: list[int]) -> tuple[list[int] | None, Ranges | None]:
    """The same for the wire: what lies in a row is one range."""
    first, count = ids[0], len(ids)
    if ids[-1] - first == count - 1 and ids == list(range(first, first + count)):
        return None, [(first, count)]
    return ids, None
