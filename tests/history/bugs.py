"""Stores with one bug each, by the rule that has to catch it. Each names its bug."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from penstock.model.answers import Acked, BulkInfo, Pushed, QueueInfo, Released, Result
from penstock.model.errors import Conflict, Deadline, LeaseLost, PenstockError
from penstock.model.job import IGNORED, UPDATED, Ids, JobOptions, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Limits, QueueConfig
from penstock.stores.embedded import EmbeddedStore
from tests.history.recorder import BROKE

HOUR_MS: Final = 3_600_000
replace = msgspec.structs.replace


class Buggy(EmbeddedStore):
    """A store that can count: most bugs show now and then."""

    def __init__(self) -> None:
        sound = EmbeddedStore.in_memory(seed=1)
        super().__init__(sound.engine, "memory")
        self._turns = 0

    def now_and_then(self, every: int) -> bool:
        self._turns += 1
        return self._turns % every == 0


class LosesPushes(Buggy):
    """Every 50th acknowledged push goes to nobody."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if self.now_and_then(50):
            return await super().push("nobody", runs)
        return await super().push(tenant, runs, **more)


class ReleasesIntoTheGrave(Buggy):
    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        failed = await self.fail(tenant, lease, ids, error=BROKE, dead=True)
        return Released(Ids.of(job.id for job in failed.jobs), failed.lost)


class ForgetsAcks(Buggy):
    """Says acked, and hands the jobs out again."""

    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        if self.now_and_then(10):
            released = await self.release(tenant, lease, ids)
            return Acked(released.released, released.lost)
        return await super().ack(tenant, lease, ids, **more)


class RevivesTheDead(Buggy):
    """A read takes a dead job for one that is ready."""

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Any]:
        jobs = await super().get(tenant, ids)
        return [
            replace(job, state=State.READY) if job and job.state is State.DEAD else job
            for job in jobs
        ]


class WaitsAnHour(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if self.now_and_then(20):
            runs = [replace(run, delay_ms=HOUR_MS) for run in runs]
        return await super().push(tenant, runs, **more)


class NeverReplaces(Buggy):
    """Says updated, and keeps the old version."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        keyed = any(run.keys for run in runs)
        if not keyed or runs[0].options[0].on_conflict != "replace":
            return await super().push(tenant, runs, **more)
        options = replace(runs[0].options[0], on_conflict="return")
        pushed = await super().push(tenant, [replace(runs[0], options=(options,))], **more)
        (run,) = pushed.runs
        if run.outcomes is not None:
            run = replace(run, outcomes=run.outcomes.replace(bytes([IGNORED]), bytes([UPDATED])))
        return Pushed((run,))


class ForgetsResults(Buggy):
    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        return await super().ack(tenant, lease, ids)


class TellsSuccessOfTheDead(Buggy):
    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        told = await super().result(tenant, job_id, wait_ms=wait_ms)
        return replace(told, state=State.COMPLETED, value=b'"well done"')


class CountsOneTooMany(Buggy):
    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        infos = await super().queues(tenant, names)
        return [
            replace(info, counts=info.counts | {State.DEAD: info.counts[State.DEAD] + 1})
            for info in infos
        ]


class FindsLessThanItHas(Buggy):
    async def find(self, tenant: str, queue: str, **more: Any) -> Any:
        page = await super().find(tenant, queue, **more)
        return replace(page, jobs=page.jobs[:-1])


class AcksTwice(Buggy):
    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        chosen = None if ids is None else list(ids)
        try:
            return await super().ack(tenant, lease, chosen, **more)
        except LeaseLost:
            if chosen is None:
                raise
            return Acked(Ids.of(chosen))


class IgnoresCancels(Buggy):
    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        live = [job.id for job in await self.get(tenant, list(ids)) if job and not job.finished_at]
        return Acked(Ids.of(live))


class HandsOutTwice(Buggy):
    """Every 5th lease is one that somebody else has."""

    last: Lease | None = None

    async def claim(self, tenant: str, queues: Sequence[str], n: int = 1, **more: Any) -> Any:
        if self.last is not None and self.now_and_then(5):
            return replace(self.last, token=f"{self._turns:032x}")
        self.last = await super().claim(tenant, queues, n, **more)
        return self.last


class LosesLeases(Buggy):
    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        if self.now_and_then(5):
            await self.release(tenant, lease)
            raise LeaseLost("lost without a reason")
        return await super().ack(tenant, lease, ids, **more)


class LeasesForTooLong(Buggy):
    async def claim(self, tenant: str, queues: Sequence[str], n: int = 1, **more: Any) -> Any:
        more["lease_ms"] += 500
        return await super().claim(tenant, queues, n, **more)


class _OtherOptions(Buggy):
    """Pushes with options other than those that were said."""

    def changed(self, options: JobOptions) -> JobOptions:
        raise NotImplementedError

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        runs = [replace(run, options=tuple(map(self.changed, run.options))) for run in runs]
        return await super().push(tenant, runs, **more)


class TriesForEver(_OtherOptions):
    def changed(self, options: JobOptions) -> JobOptions:
        return replace(options, max_attempts=0)


class CountsNoAttempts(Buggy):
    async def claim(self, tenant: str, queues: Sequence[str], n: int = 1, **more: Any) -> Any:
        lease = await super().claim(tenant, queues, n, **more)
        if lease is None:
            return None
        runs = [
            replace(
                run, individual={i: replace(own, attempt=1) for i, own in run.individual.items()}
            )
            for run in lease.runs
        ]
        return replace(lease, runs=tuple(runs))


class RefusesAfterThePush(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        pushed = await super().push(tenant, runs, **more)
        if self.now_and_then(20):
            raise Conflict("no")
        return pushed


class PushesTwice(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        pushed = await super().push(tenant, runs, **more)
        if self.now_and_then(10) and not more.get("producer"):
            await super().push(tenant, runs, **more)
        return pushed


class ReusesIds(Buggy):
    last: Pushed | None = None

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        single = len(runs) == 1 and len(runs[0]) == 1 and not runs[0].keys
        if not single:
            return await super().push(tenant, runs, **more)
        if self.last is not None and self.now_and_then(10):
            return self.last
        self.last = await super().push(tenant, runs, **more)
        return self.last


class GivesIdsBackwards(Buggy):
    """Ids of one call change their places."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        pushed = await super().push(tenant, runs, **more)
        some = tuple(
            replace(
                run,
                ids=tuple(range(run.first + run.count - 1, run.first - 1, -1)),
                outcomes=bytes(run.count),
            )
            if run.ids is None
            else run
            for run in pushed.runs
        )
        return Pushed(some)


class ForgetsKeys(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if self.now_and_then(3):
            runs = [replace(run, keys=None) for run in runs]
        return await super().push(tenant, runs, **more)


class KeysNameNobody(Buggy):
    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        return None


class ForgetsProducers(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        return await super().push(tenant, runs, **(more | {"producer": None, "sequence": None}))


class PushesHalf(Buggy):
    """Fails in the middle of every 10th batch, and leaves the beginning."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if len(runs[0]) < 2 or not self.now_and_then(10):
            return await super().push(tenant, runs, **more)
        half = Run.pack(runs[0].queue, list(runs[0].payloads())[: len(runs[0]) // 2])
        await super().push(tenant, [half])
        raise Deadline("the rest was too much")


class CommitsHalf(Buggy):
    """Every second push into a bulk goes into a bulk that nobody commits."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if more.get("bulk") is not None and self.now_and_then(2):
            await super().open_bulk(tenant, "nowhere")
            more["bulk"] = "nowhere"
        return await super().push(tenant, runs, **more)

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        try:
            return await super().commit_bulk(tenant, bulk, parts)
        except PenstockError:
            return BulkInfo(bulk=bulk, state="committed")


class CommitsWhatWasAborted(Buggy):
    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        info = await super().commit_bulk(tenant, bulk)
        return replace(info, state="aborted")


class HoldsNothing(Buggy):
    """What is pushed into a bulk is there at once."""

    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        return await super().push(tenant, runs, **(more | {"bulk": None, "part": ""}))


class ForgetsGroups(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        if self.now_and_then(2):
            runs = [replace(run, groups=None) for run in runs]
        return await super().push(tenant, runs, **more)


class _OtherLimits(Buggy):
    limits: ClassVar[dict[str, Any]]

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        limits: Limits = replace(config.limits, **self.limits)
        await super().configure(tenant, queue, replace(config, limits=limits))


class RunsGroupsWide(_OtherLimits):
    limits: ClassVar = {"group_concurrency": 50}


class KnowsNoConcurrency(_OtherLimits):
    limits: ClassVar = {"concurrency": None}


class KnowsNoRate(_OtherLimits):
    limits: ClassVar = {"rate": None}


class DeliversEarly(Buggy):
    async def push(self, tenant: str, runs: Sequence[Run], **more: Any) -> Pushed:
        return await super().push(tenant, [replace(run, delay_ms=None) for run in runs], **more)


class RetriesEarly(Buggy):
    async def fail(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Any:
        asked = more.pop("retry_in_ms")
        failed = await super().fail(tenant, lease, ids, retry_in_ms=asked and asked // 2, **more)
        if asked is None:
            return failed
        later = [
            job if job.run_at is None else replace(job, run_at=job.run_at + asked - asked // 2)
            for job in failed.jobs
        ]
        return replace(failed, jobs=tuple(later))


BUGS: Final[dict[type[Buggy], str]] = {
    LosesPushes: "acknowledged_jobs_are_kept",
    ReleasesIntoTheGrave: "states_are_explained",
    ForgetsAcks: "what_ended_stays_ended",
    RevivesTheDead: "what_ended_stays_ended",
    WaitsAnHour: "nothing_is_stuck",
    NeverReplaces: "new_versions_replace_old_ones",
    ForgetsResults: "results_are_what_was_acked",
    TellsSuccessOfTheDead: "results_are_what_was_acked",
    CountsOneTooMany: "counters_equal_a_scan",
    FindsLessThanItHas: "counters_equal_a_scan",
    AcksTwice: "acked_at_most_once",
    IgnoresCancels: "nothing_is_acked_after_a_cancel",
    HandsOutTwice: "one_live_lease_per_job",
    LosesLeases: "live_leases_are_honoured",
    LeasesForTooLong: "expired_leases_change_nothing",
    TriesForEver: "attempts_are_counted",
    CountsNoAttempts: "attempts_are_counted",
    RefusesAfterThePush: "nothing_is_unexpected",
    PushesTwice: "nothing_is_unexpected",
    ReusesIds: "ids_are_used_once_and_ascend",
    GivesIdsBackwards: "ids_are_used_once_and_ascend",
    ForgetsKeys: "a_key_stands_for_one_job",
    KeysNameNobody: "found_keys_stand_for_their_jobs",
    ForgetsProducers: "repeats_give_the_first_answer",
    PushesHalf: "pushes_are_whole",
    CommitsHalf: "bulks_appear_whole_or_not_at_all",
    CommitsWhatWasAborted: "bulks_appear_whole_or_not_at_all",
    HoldsNothing: "bulks_appear_whole_or_not_at_all",
    ForgetsGroups: "groups_go_in_order",
    RunsGroupsWide: "groups_keep_to_their_concurrency",
    KnowsNoConcurrency: "queues_keep_to_their_concurrency",
    KnowsNoRate: "rates_are_kept",
    DeliversEarly: "nothing_is_early",
    RetriesEarly: "nothing_is_early",
}
