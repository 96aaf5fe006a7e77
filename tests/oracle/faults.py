"""Oracles with one fault each, to see whether the comparison notices. Each names its fault."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.model.answers import Acked, Failed, Pushed, QueueInfo, Released
from penstock.model.job import JobError
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds
from tests.oracle.store import OracleStore


class KeepsTheGroupSlotOnRelease(OracleStore):
    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        answer = await super().release(tenant, lease, ids)
        for job_id in answer.released:
            job = self.world.jobs.get(job_id)
            if job is not None and job.said.group is not None and job.state is State.READY:
                job.owns_slot = True
        return answer


class WaitsTwiceAsLongAtFirst(OracleStore):
    async def fail(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Failed:
        answer = await super().fail(
            tenant, lease, ids, error=error, retry_in_ms=retry_in_ms, dead=dead
        )
        for failed in answer.jobs:
            job = self.world.jobs.get(failed.id)
            if job is not None and job.state is State.SCHEDULED and job.attempt == 1:
                job.run_at += job.run_at - self.world.now
        return answer


class ReusesTheIdsOfAPurgedQueue(OracleStore):
    async def purge(self, tenant: str, queue: str) -> int:
        first = min((job.id for job in self.world.of_queue(tenant, queue)), default=None)
        count = await super().purge(tenant, queue)
        if first is not None:
            self.world.stretches[tenant, queue] = (first, self.world.stretches[tenant, queue][1])
        return count


class LosesKeysInARestart(OracleStore):
    def restart(self) -> None:
        self.world.keys.clear()


class LosesGroupSlotsInARestart(OracleStore):
    def restart(self) -> None:
        for job in self.world.jobs.values():
            job.owns_slot = False


class HoldsALeaseOneMillisecondTooLong(OracleStore):
    async def claim(self, tenant: str, queues: Sequence[str], n: int = 1, **more: Any) -> Any:
        lease = await super().claim(tenant, queues, n, **more)
        if lease is not None and lease.token in self.world.leases:
            self.world.leases[lease.token].ends += 1
        return lease


class SpendsOneTokenForABatch(OracleStore):
    async def claim(self, tenant: str, queues: Sequence[str], n: int = 1, **more: Any) -> Any:
        lease = await super().claim(tenant, queues, n, **more)
        if lease is not None and len(lease) > 1:
            bucket = self.world.buckets.get(("rate", tenant, lease.queue))
            if bucket is not None:
                bucket.level += len(lease) - 1
        return lease


class MiscountsAfterACancel(OracleStore):
    cancelled = 0

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        answer = await super().cancel(tenant, ids, discard=discard)
        self.cancelled += len(answer.acked)
        return answer

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        infos = await super().queues(tenant, names)
        if infos and self.cancelled:
            infos[0].counts[State.READY] += 1
        return infos


class FreesAKeptKeyAtTheEnd(OracleStore):
    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        answer = await super().ack(tenant, lease, ids, **more)
        for place, record in list(self.world.keys.items()):
            if record.until is not None and record.job_id in answer.acked:
                del self.world.keys[place]
        return answer


class DropsTheNewVersionAtTheAck(OracleStore):
    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **more: Any
    ) -> Acked:
        for job in self.world.jobs.values():
            if job.lease == lease:
                job.waiting = None
        return await super().ack(tenant, lease, ids, **more)


class ForgetsTheTtlOnlyAtTheAck(OracleStore):
    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        answer = await super().release(tenant, lease, ids)
        for job_id in answer.released:
            job = self.world.jobs.get(job_id)
            if job is not None and job.state is State.READY and job.said.options.ttl_ms:
                job.ttl_ends = job.created_at + job.said.options.ttl_ms
        return answer


class ServesTheLatestWaiterFirst(OracleStore):
    def serve(self) -> None:
        self.claims.reverse()
        super().serve()
        self.claims.reverse()


class LetsLeasesRunOnTheWallClock(OracleStore):
    offset: int | None = None

    def serve(self) -> None:
        jumped = self.world.now - self.world.elapsed
        if self.offset is not None and jumped != self.offset:
            for lease in self.world.leases.values():
                lease.ends -= jumped - self.offset
        self.offset = jumped
        super().serve()


class StrandsTheDependantsOfWhatIsForgottenAtOnce(OracleStore):
    async def push(self, tenant: str, runs: Any, **more: Any) -> Pushed:
        answer = await super().push(tenant, runs, **more)
        for job_id in answer.ids:
            job = self.world.jobs.get(job_id)
            if job is None or job.state is not State.BLOCKED:
                continue
            for dep in job.said.depends_on:
                known = self.world.jobs.get(dep)
                if known is not None and known.said.options.retain_ms == 0:
                    self.world.dependants[dep] = ()
        return answer


class CancelsForAnyTenant(OracleStore):
    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        named = list(ids)
        owners = {self.world.jobs[i].tenant for i in named if i in self.world.jobs}
        return await super().cancel(max(owners, default=tenant), named, discard=discard)


class AnswersARepeatedPushAnew(OracleStore):
    async def push(self, tenant: str, runs: Any, **more: Any) -> Pushed:
        if more.get("producer") is not None:
            self.world.producers.clear()
        return await super().push(tenant, runs, **more)


class PublishesEveryPart(OracleStore):
    async def commit_bulk(self, tenant: str, bulk: str, parts: Sequence[str] | None = None) -> Any:
        known = self.world.bulks.get((tenant, bulk))
        whole = None if parts is None or known is None or parts[0] not in known.parts else parts
        return await super().commit_bulk(tenant, bulk, None if whole else parts)


class ForgetsABound(OracleStore):
    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        await super().configure_tenant(tenant, Bounds(jobs=bounds.jobs, bytes=bounds.bytes))


class GivesAJobTwice(OracleStore):
    """Once a lease has been extended, its jobs are ready for others too."""

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Any:
        answer = await super().extend(tenant, lease, lease_ms)
        for job in self.world.jobs.values():
            if job.lease == lease:
                job.state = State.READY
        return answer


# Each with the features of the histories in which it is looked for; none: of any histories.
FAULTS: dict[type[OracleStore], list[str]] = {
    KeepsTheGroupSlotOnRelease: ["groups"],
    WaitsTwiceAsLongAtFirst: [],
    ReusesTheIdsOfAPurgedQueue: [],
    LosesKeysInARestart: [],
    LosesGroupSlotsInARestart: ["groups", "attempts"],
    HoldsALeaseOneMillisecondTooLong: [],
    SpendsOneTokenForABatch: [],
    MiscountsAfterACancel: [],
    FreesAKeptKeyAtTheEnd: ["keys"],
    DropsTheNewVersionAtTheAck: ["keys"],
    ForgetsTheTtlOnlyAtTheAck: ["time"],
    ServesTheLatestWaiterFirst: [],
    LetsLeasesRunOnTheWallClock: [],
    StrandsTheDependantsOfWhatIsForgottenAtOnce: ["flows", "retention"],
    CancelsForAnyTenant: [],
    AnswersARepeatedPushAnew: [],
    PublishesEveryPart: [],
    ForgetsABound: [],
    GivesAJobTwice: [],
}
