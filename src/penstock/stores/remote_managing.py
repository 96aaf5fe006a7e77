"""What whoever looks after queues and schedules asks of a server: the commands of `native_manage`.

Here as in `remote.py` every call is checked and then becomes one command.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.model import checks
from penstock.model.answers import Acked, CronInfo, PushedInstead, QueueInfo, Redriven
from penstock.model.errors import Invalid, Unavailable
from penstock.model.job import Codec, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.model.store import Store
from penstock.protocol import native_manage
from penstock.protocol.command import Request
from penstock.protocol.runs import packed_run, spoken
from penstock.stores.link import Link


class RemoteManaging(Store):
    @abstractmethod
    def _link(self) -> Link:
        """The connection of this loop and process."""

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        checks.check_tenant(tenant)
        checks.check_bool(discard, "discard")
        named, ranges = spoken(checks.check_ids(ids))
        request = native_manage.CancelJobs(tenant=tenant, ids=named, ranges=ranges, discard=discard)
        done = await self._link().ask(request)
        return Acked(done.acked, done.lost)

    async def edit(
        self,
        tenant: str,
        job_id: int,
        *,
        priority: int | None = None,
        run_at: int | None = None,
        delay_ms: int | None = None,
        payload: bytes | None = None,
        codec: Codec | None = None,
    ) -> None:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_edit(priority, run_at, delay_ms, payload, codec)
        request = native_manage.Edit(
            tenant=tenant,
            job_id=job_id,
            priority=priority,
            run_at=run_at,
            delay_ms=delay_ms,
            payload=payload,
            codec=codec,
        )
        await self._link().ask(request)

    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        limit: int | None = None,
        fingerprint: str | None = None,
    ) -> Redriven:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_redrive(limit, fingerprint)
        named, ranges = named_ids(ids)
        request = native_manage.Redrive(
            tenant=tenant,
            queue=queue,
            ids=named,
            ranges=ranges,
            limit=limit,
            fingerprint=fingerprint,
        )
        done = await self._link().ask(request)
        return Redriven(done.ids, done.conflicts)

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        named, ranges = named_ids(ids)
        request = native_manage.PurgeDead(tenant=tenant, queue=queue, ids=named, ranges=ranges)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    # -- queues ----------------------------------------------------------------------------------

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        checks.check_tenant(tenant)
        for name in names or ():
            checks.check_queue(name)
        wanted = None if names is None else list(names)
        request = native_manage.Queues(tenant=tenant, names=wanted)
        return (await self._link().ask(request, repeat=True)).queues  # type: ignore[no-any-return]

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_config(config)
        request = native_manage.Configure(tenant=tenant, queue=queue, config=config)
        await self._link().ask(request, repeat=True)

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        checks.check_tenant(tenant)
        checks.check_bounds(bounds)
        request = native_manage.ConfigureTenant(tenant=tenant, bounds=bounds)
        await self._link().ask(request, repeat=True)

    async def drain(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        request = native_manage.DrainQueue(tenant=tenant, queue=queue)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    async def clean(
        self,
        tenant: str,
        queue: str,
        state: State,
        *,
        older_ms: int = 0,
        limit: int | None = None,
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_clean(state, older_ms, limit)
        request = native_manage.Clean(
            tenant=tenant, queue=queue, state=state, older_ms=older_ms, limit=limit
        )
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    async def purge(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        request = native_manage.Purge(tenant=tenant, queue=queue)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    # -- schedules -------------------------------------------------------------------------------

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        checks.check_tenant(tenant)
        checks.check_cron(spec)
        command = native_manage.RefreshCron if refresh else native_manage.PutCron
        request = command(tenant=tenant, spec=spec)
        return (await self._link().ask(request, repeat=True)).cron  # type: ignore[no-any-return]

    async def crons(self, tenant: str) -> list[CronInfo]:
        checks.check_tenant(tenant)
        request = native_manage.Crons(tenant=tenant)
        return (await self._link().ask(request, repeat=True)).crons  # type: ignore[no-any-return]

    async def drop_cron(self, tenant: str, name: str) -> bool:
        checks.check_tenant(tenant)
        checks.check_name(name, "name")
        request = native_manage.DropCron(tenant=tenant, name=name)
        return (await self._link().ask(request)).dropped  # type: ignore[no-any-return]

    async def put_instants(
        self, tenant: str, name: str, config_hash: str, run: Run, *, refresh: bool = False
    ) -> PushedInstead:
        checks.check_instants(tenant, name, config_hash, run, contents=False)
        checks.check_bool(refresh, "refresh")
        command = native_manage.RefreshInstants if refresh else native_manage.PutInstants
        request = command(tenant=tenant, name=name, config_hash=config_hash, run=packed_run(run))
        done = await self._ask_newer(request, repeat=True)
        return PushedInstead(done.runs, done.removed)

    async def drop_instants(
        self, tenant: str, queue: str, name: str, config_hash: str | None = None
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_instants_of(queue, name, config_hash)
        request = native_manage.DropInstants(
            tenant=tenant, queue=queue, name=name, config_hash=config_hash
        )
        return (await self._ask_newer(request)).count  # type: ignore[no-any-return]

    async def _ask_newer(self, request: Request, *, repeat: bool = False) -> Any:
        """The answer to a command that servers have not always had."""
        try:
            return await self._link().ask(request, repeat=repeat)
        except Invalid as error:
            if error.field != "cmd":
                raise
            raise Unavailable(f"the server is older than this client: {error.message}") from error


def named_ids(ids: Iterable[int] | None) -> tuple[Any, Any]:
    return (None, None) if ids is None else spoken(checks.check_ids(ids))
