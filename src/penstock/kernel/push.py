"""Push: jobs come in. Here is the way in, and what may refuse a push before anything is changed.

Two ways on: `append.py` appends whole runs to the packed columns with no work per job; `batch.py`
takes jobs one by one where they have keys, groups, headers or dependencies.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kernel.append import append_plain, append_single
from penstock.kernel.batch import Batch
from penstock.kernel.commands import Load, Push
from penstock.kernel.limits import Meter
from penstock.model.errors import Invalid, Overloaded, RateLimited
from penstock.model.store import Pushed

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def push(kernel: "Kernel", command: Push) -> Pushed:
    loads = command.loads
    if len(loads) == 1 and command.producer is None and command.bulk is None:
        # The hot path: one run of plain jobs into a queue without bounds.
        load = loads[0]
        if (
            load.keys is None
            and load.groups is None
            and load.headers is None
            and load.depends_on is None
            and load.run_at is None
        ):
            tenant = kernel.tenants.get(command.tenant)
            queue = tenant.queues.get(load.queue) if tenant is not None else None
            if queue is not None and not queue.bounded:
                if len(load.ends) == 1 and load.option_of is None and load.delay_ms is None:
                    return Pushed((append_single(kernel, queue, load),))
                return Pushed((append_plain(kernel, queue, load),))
    return _push(kernel, command)


def push_replacing(kernel: "Kernel", command: Push, leaving: int) -> Pushed:
    """A push in whose wake that many waiting jobs of its queue will vanish."""
    return _push(kernel, command, leaving)


def _push(kernel: "Kernel", command: Push, leaving: int = 0) -> Pushed:
    tenant_name = command.tenant
    producer = None
    if command.producer is not None:
        producer = kernel.producer(tenant_name, command.producer)
        answer = producer.recall(command.sequence, command.content) if producer else None
        if producer is not None and answer is not None:
            kernel.changes.producers.touch((tenant_name, command.producer))
            producer.used_at = max(producer.used_at, kernel.now)
            return answer
        if producer is None and len(kernel.producers) >= kernel.caps.producers:
            raise Overloaded(f"{kernel.caps.producers} producers are remembered", "producer")
    bulk = kernel.open_bulk(tenant_name, command.bulk) if command.bulk is not None else None
    _check_queues(kernel, tenant_name, command.loads)
    _check_ttls(kernel, command.loads)
    batch = Batch(kernel, tenant_name, command.loads, bulk)
    batch.decide()
    batch.foresight.check_room()
    _check_bounds(kernel, tenant_name, command.loads, batch, leaving)
    pushed = batch.apply(command.part)
    if command.producer is not None:
        kernel.remember(tenant_name, command.producer, command.sequence, command.content, pushed)
    return pushed


# -- what may refuse a push ------------------------------------------------------------------------


def _check_queues(kernel: "Kernel", tenant_name: str, loads: Sequence[Load]) -> None:
    tenant = kernel.tenants.get(tenant_name)
    known = tenant.queues if tenant is not None else {}
    new = {load.queue for load in loads if load.queue not in known}
    if new and kernel.queue_count + len(new) > kernel.caps.queues:
        kernel.sweep_queues()
    if new and kernel.queue_count + len(new) > kernel.caps.queues:
        raise Overloaded(f"the store holds {kernel.caps.queues} queues", "queue")


def _check_ttls(kernel: "Kernel", loads: Sequence[Load]) -> None:
    """An absolute run_at is only known to lie behind the ttl now."""
    for load in loads:
        if load.run_at is None or not any(o.ttl_ms is not None for o in load.options):
            continue
        for index in range(len(load.ends)):
            run_at = load.run_at if isinstance(load.run_at, int) else load.run_at[index]
            ttl = load.option(index).ttl_ms
            if ttl is not None and run_at is not None and run_at - kernel.now >= ttl:
                raise Invalid(f"a ttl of {ttl} ms ends before run_at", "ttl_ms")


def _check_bounds(
    kernel: "Kernel", tenant_name: str, loads: Sequence[Load], batch: "Batch", leaving: int
) -> None:
    tenant = kernel.tenants.get(tenant_name)
    if tenant is None:
        return
    jobs: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for load, created in zip(loads, batch.created(), strict=True):
        jobs[load.queue] = jobs.get(load.queue, 0) + len(created)
        size = 0
        for index in created:
            size += load.ends[index] - (load.ends[index - 1] if index else 0)
        sizes[load.queue] = sizes.get(load.queue, 0) + size
    meters: list[tuple[Meter, int]] = []
    for name, n in jobs.items():
        queue = tenant.queues.get(name)
        if queue is None or not queue.bounded or not n:
            continue
        bounds = queue.config.bounds
        _fits("jobs", queue.live + n - leaving, bounds.jobs, f"queue {name!r}")
        _fits("bytes", queue.bytes + sizes[name], bounds.bytes, f"queue {name!r}")
        if queue.push_meter is not None:
            queue.touch()
            meters.append((queue.push_meter, n))
    total = sum(jobs.values())
    if total:
        _fits("jobs", tenant.live + total - leaving, tenant.bounds.jobs, "the tenant")
        _fits("bytes", tenant.bytes + sum(sizes.values()), tenant.bounds.bytes, "the tenant")
        if tenant.meter is not None:
            kernel.changes.tenants.touch(tenant_name)
            meters.append((tenant.meter, total))
    for meter, n in meters:
        if meter.room(kernel.elapsed) < n:
            rate = meter.rate
            raise RateLimited(f"at most {rate.tokens} pushes per {rate.per_ms} ms", "push_rate")
    for meter, n in meters:
        meter.take(kernel.elapsed, n)


def _fits(field: str, would_be: int, most: int | None, whose: str) -> None:
    if most is not None and would_be > most:
        raise Overloaded(f"{whose} may hold {most} {field}; this push makes it {would_be}", field)
