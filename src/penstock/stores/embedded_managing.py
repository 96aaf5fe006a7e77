"""What whoever looks after queues and schedules asks of an embedded store.

Here as in `embedded.py` every call is checked, made into a command, and given to the engine.
"""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.kernel import commands as c
from penstock.kernel import crons as kernel_crons
from penstock.kernel import read
from penstock.model import checks
from penstock.model.answers import Acked, CronInfo, PushedInstead, QueueInfo, Redriven
from penstock.model.errors import NotFound
from penstock.model.job import Codec, JobOptions, KeyClaim, Run
from penstock.model.lifecycle import State
from penstock.model.payload import check_json, digest
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import CronSpec, config_hash, instant_key, keep_key_ms, plan
from penstock.model.store import Store
from penstock.stores.engine import Engine
from penstock.stores.loading import bare, load_of


class EmbeddedManaging(Store):
    engine: Engine

    def _load(self, tenant: str, run: Run) -> c.Load:
        return load_of(run, *self.engine.payloads.add(f"{tenant}/{run.queue}", run.data))

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        checks.check_tenant(tenant)
        checks.check_bool(discard, "discard")
        return await self.engine.do(c.Cancel(tenant, checks.check_ids(ids), discard))  # type: ignore[no-any-return]

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
        command = c.Edit(
            tenant=tenant, job_id=job_id, priority=priority, run_at=run_at, delay_ms=delay_ms
        )
        if payload is None:
            await self.engine.do(command)
            return
        found = self.engine.look().locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        codec = codec or found[0].options_of(found[1]).codec
        self.engine.admit(None, len(payload))
        if codec == "json":  # the other two are opaque, as at a push
            check_json(payload)
        chunk, start = self.engine.payloads.add(f"{tenant}/{found[0].queue.name}", payload)
        command.payload = (chunk, start, start + len(payload))
        command.digest = digest(codec, payload)
        command.codec = codec
        load = bare(chunk, start)
        await self.engine.do_loads(command, [load])

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
        chosen = None if ids is None else checks.check_ids(ids)
        return await self.engine.do(  # type: ignore[no-any-return]
            c.Redrive(tenant=tenant, queue=queue, ids=chosen, limit=limit, fingerprint=fingerprint)
        )

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        chosen = None if ids is None else checks.check_ids(ids)
        return await self.engine.do(c.PurgeDead(tenant, queue, chosen))  # type: ignore[no-any-return]

    # -- queues ----------------------------------------------------------------------------------

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        checks.check_tenant(tenant)
        for name in names or ():
            checks.check_queue(name)
        return read.queues(self.engine.look(), tenant, None if names is None else list(names))

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_config(config)
        await self.engine.do(c.Configure(tenant, queue, config))

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        checks.check_tenant(tenant)
        checks.check_bounds(bounds)
        await self.engine.do(c.ConfigureTenant(tenant, bounds))

    async def drain(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        return await self.engine.do(c.Drain(tenant, queue))  # type: ignore[no-any-return]

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
        command = c.Drain(tenant, queue, state, older_ms, limit)
        return await self.engine.do(command)  # type: ignore[no-any-return]

    async def purge(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        return await self.engine.do(c.Purge(tenant, queue))  # type: ignore[no-any-return]

    # -- schedules -------------------------------------------------------------------------------

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        checks.check_tenant(tenant)
        checks.check_cron(spec)
        kernel = self.engine.look()
        marker = config_hash(spec)
        known = kernel.crons.get((tenant, spec.name))
        if known is not None and known.config_hash != marker:
            known = None
        until = known.installed_until if known is not None else None
        instants = plan(spec, now_ms=kernel.now, installed_until_ms=until).instants
        if spec.limit is not None:
            used = known.executions + len(known.pending) if known is not None else 0
            instants = instants[: max(spec.limit - used, 0)]
        load = None
        if instants:
            self.engine.admit(None, len(spec.payload) * len(instants))
            keys = [instant_key(spec.name, marker, instant) for instant in instants]
            run = Run(
                queue=spec.queue,
                data=spec.payload * len(instants),
                ends=[len(spec.payload) * (i + 1) for i in range(len(instants))],
                options=tuple(_cron_options(spec, instant, kernel.now) for instant in instants),
                option_of=range(len(instants)),
                run_at=list(instants),
                more_keys=[
                    (KeyClaim(key, "return", keep_key_ms(instant, kernel.now)),)
                    for key, instant in zip(keys, instants, strict=True)
                ],
            )
            load = self._load(tenant, run)
        command = c.PutCron(
            tenant=tenant,
            spec=spec,
            config_hash=marker,
            instants=instants,
            load=load,
            refresh=refresh,
        )
        return await self.engine.do_loads(command, [load] if load else [])  # type: ignore[no-any-return]

    async def crons(self, tenant: str) -> list[CronInfo]:
        checks.check_tenant(tenant)
        return [
            kernel_crons.info(record)
            for (owner, _), record in sorted(
                self.engine.look().crons.items(), key=lambda item: item[0]
            )
            if owner == tenant
        ]

    async def drop_cron(self, tenant: str, name: str) -> bool:
        checks.check_tenant(tenant)
        checks.check_name(name, "name")
        return await self.engine.do(c.DropCron(tenant, name))  # type: ignore[no-any-return]

    async def put_instants(
        self, tenant: str, name: str, config_hash: str, run: Run, *, refresh: bool = False
    ) -> PushedInstead:
        instants = checks.check_instants(tenant, name, config_hash, run)
        checks.check_bool(refresh, "refresh")
        loads = []
        if instants:
            now = self.engine.look().now
            self.engine.admit(None, len(run.data))
            keys = [
                (KeyClaim(instant_key(name, config_hash, at), "return", keep_key_ms(at, now)),)
                for at in instants
            ]
            loads.append(self._load(tenant, msgspec.structs.replace(run, more_keys=keys)))
        instead = c.Instead(queue=run.queue, name=name, config_hash=config_hash, refresh=refresh)
        command = c.Push(tenant=tenant, loads=loads, instead=instead)
        return await self.engine.do_loads(command, loads)  # type: ignore[no-any-return]

    async def drop_instants(
        self, tenant: str, queue: str, name: str, config_hash: str | None = None
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_instants_of(queue, name, config_hash)
        command = c.DropCron(tenant, name, queue, config_hash)
        return await self.engine.do(command)  # type: ignore[no-any-return]


def _cron_options(spec: CronSpec, instant: int, now: int) -> JobOptions:
    """The options of one instant's job: its ttl counts from the instant, not from the install."""
    ttl = spec.options.ttl_ms
    if ttl is not None:
        ttl += max(instant - now, 0)
    return msgspec.structs.replace(spec.options, codec=spec.codec, ttl_ms=ttl)
