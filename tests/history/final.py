"""How a store is found after the faults: everything finished that can be, then read as it stands."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.model.errors import LeaseLost
from penstock.model.job import MAX_BATCH, Job
from penstock.model.lifecycle import ENDED, State
from penstock.model.store import Store
from tests.history import record as r
from tests.history.recorder import Recorder, seen

WAIT_MS: Final = 40
PAGE: Final = 1_000
READINGS: Final = 20


class FinalState(msgspec.Struct, frozen=True, kw_only=True):
    """What the store said at the end."""

    now: int  # wall clock, when the reading began
    jobs: dict[int, r.Seen]  # by scan
    by_id: dict[int, State]  # by get: those scanned and those that a history has heard of
    counts: dict[str, dict[State, int]]
    owners: dict[tuple[str, str], int | None]  # by (queue, key), for the keys of the jobs scanned
    patient_until: int  # wall clock: what was due by then has had its time


async def settle(
    recorder: Recorder, *, known: Iterable[int] = (), patience_ms: int = 15_000
) -> FinalState:
    """Claim and ack until nothing is left that can be claimed, and read what there is.

    Jobs that lie further ahead than the patience goes stay as they are, so do held ones. `known`
    are ids to be asked for besides those that a scan finds (`History.ids`).
    """
    clock = recorder.clock
    began = clock.elapsed_ms()
    horizon = clock.now_ms() + patience_ms
    while await _unfinished(recorder, horizon) and clock.elapsed_ms() < began + patience_ms:
        await _finish_some(recorder)
    return await read_final(recorder, known, horizon)


async def _finish_some(recorder: Recorder) -> None:
    """Take and ack what is ready, and wait a little where nothing is."""
    queues = await _queues(recorder)
    while lease := await recorder.claim(
        queues, 500, lease_ms=60_000, worker="settle", wait_ms=WAIT_MS
    ):
        try:
            await recorder.ack(lease.token)
        except LeaseLost:
            return  # as the history tells; the checker says whether rightly


async def _unfinished(recorder: Recorder, horizon: int) -> bool:
    for queue in await _queues(recorder):
        for job in await _scan(recorder, queue):
            if is_unfinished(job, horizon):
                return True
    return False


def is_unfinished(job: r.Seen, horizon: int) -> bool:
    """Whether a worker should have met this job by then."""
    if job.state in ENDED or job.state in (State.HELD, State.BLOCKED):
        return False
    return job.state is not State.SCHEDULED or job.run_at <= horizon


async def read_final(recorder: Recorder, known: Iterable[int], horizon: int) -> FinalState:
    """The whole state, read several times over if it moves meanwhile."""
    ids = set(known)
    final = await _read_once(recorder, ids, horizon)
    for _ in range(READINGS):
        if await _counts(recorder) == final.counts:
            break
        final = await _read_once(recorder, ids, horizon)
    return final


async def _read_once(recorder: Recorder, known: set[int], horizon: int) -> FinalState:
    counts = await _counts(recorder)
    now = recorder.clock.now_ms()
    jobs = {job.id: job for queue in counts for job in await _scan(recorder, queue)}
    return FinalState(
        now=now,
        jobs=jobs,
        by_id=await _by_id(recorder, sorted(known | jobs.keys())),
        counts=counts,
        owners=await _owners(recorder, jobs.values()),
        patient_until=horizon,
    )


async def _queues(recorder: Recorder) -> list[str]:
    return [info.queue for info in await recorder.store.queues(recorder.tenant)]


async def _counts(recorder: Recorder) -> dict[str, dict[State, int]]:
    return {info.queue: info.counts for info in await recorder.store.queues(recorder.tenant)}


async def _scan(recorder: Recorder, queue: str) -> list[r.Seen]:
    return [seen(job) for job in await every_job(recorder.store, recorder.tenant, queue)]


async def every_job(store: Store, tenant: str, queue: str) -> list[Job]:
    jobs: list[Job] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await store.find(tenant, queue, cursor=cursor, limit=PAGE)
        jobs += page.jobs
        cursor = page.cursor
    return jobs


async def _by_id(recorder: Recorder, ids: Sequence[int]) -> dict[int, State]:
    states = {}
    for start in range(0, len(ids), MAX_BATCH):
        some = ids[start : start + MAX_BATCH]
        for job in await recorder.store.get(recorder.tenant, some):
            if job is not None:
                states[job.id] = job.state
    return states


async def _owners(recorder: Recorder, jobs: Iterable[r.Seen]) -> dict[tuple[str, str], int | None]:
    names = {(job.queue, job.key) for job in jobs if job.key is not None}
    return {
        (queue, key): await recorder.store.by_key(recorder.tenant, queue, key)
        for queue, key in sorted(names)
    }
