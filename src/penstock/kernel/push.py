"""Push: jobs come in. Here is the way in, and what may refuse a push before anything is changed.

Two ways on: `append.py` appends whole runs to the packed columns with no work per job; `batch.py`
takes jobs one by one where they have keys, groups, headers or dependencies.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.kernel import instants
from penstock.kernel.append import append_plain, append_ready
from penstock.kernel.batch import Batch
from penstock.kernel.blocks import Block
from penstock.kernel.commands import Instead, Load, Push
from penstock.kernel.ending import size_of
from penstock.kernel.limits import Meter
from penstock.kernel.producers import Producer
from penstock.model.answers import Pushed, PushedInstead, PushedRun
from penstock.model.duration import say_ms
from penstock.model.errors import Invalid, NotFound, Overloaded, RateLimited
from penstock.model.policy import PRODUCER_IDLE_MS, Bounds

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def push(kernel: "Kernel", command: Push) -> Pushed:
    loads = command.loads
    if len(loads) == 1 and command.bulk is None:
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
                producer = None
                if command.producer is not None:
                    producer = kernel.producers.get((command.tenant, command.producer))
                    # Nearly always it is the next one of a producer that is known.
                    if producer is None or command.sequence != producer.next:
                        answer = _recalled(kernel, command)
                        if answer is not None:
                            return answer
                if load.option_of is None and load.delay_ms is None:
                    pushed = Pushed((append_ready(kernel, queue, load),))
                else:
                    pushed = Pushed((append_plain(kernel, queue, load),))
                if producer is not None and not kernel.era:  # as `_remember` would
                    if kernel.now > producer.used_at:
                        producer.used_at = kernel.now
                    most = kernel.caps.answers_per_producer
                    producer.remember(command.sequence, command.content, pushed, most)
                elif command.producer is not None:
                    _remember(kernel, command, pushed, producer)
                return pushed
    if command.instead is not None:
        return _push_instead(kernel, command, command.instead)
    return _push(kernel, command)


def _recalled(kernel: "Kernel", command: Push) -> Pushed | None:
    """The answer that this producer got for this sequence; None if it is new."""
    assert command.producer is not None
    spot = (command.tenant, command.producer)
    producer = kernel.producers.get(spot)
    if producer is None:
        if len(kernel.producers) >= kernel.caps.producers:
            raise Overloaded(f"{kernel.caps.producers} producers are remembered", "producer")
        return None
    if command.sequence >= producer.next:
        return None
    answer = producer.recall(command.sequence, command.content)
    if answer is not None:
        kernel.changes.producers.touch(spot)
        producer.used_at = max(producer.used_at, kernel.now)
    return answer


def _remember(kernel: "Kernel", command: Push, pushed: Pushed, producer: Producer | None) -> None:
    assert command.producer is not None
    now = kernel.now
    if producer is None or kernel.era:
        spot = (command.tenant, command.producer)
        kernel.changes.producers.touch(spot)
        if producer is None:
            producer = kernel.producers[spot] = Producer(now)
            kernel.calendar.add(now + PRODUCER_IDLE_MS, "producer", spot)
    if now > producer.used_at:
        producer.used_at = now
    most = kernel.caps.answers_per_producer
    producer.remember(command.sequence, command.content, pushed, most)


class Leaving(NamedTuple):
    """How much vanishes from a queue in the wake of a push."""

    queue: str = ""
    jobs: int = 0
    bytes: int = 0


NOTHING = Leaving()


def push_replacing(kernel: "Kernel", command: Push, leaving: Sequence[tuple[Block, int]]) -> Pushed:
    """A push that is not refused for the sake of jobs, all of one queue, that leave for it."""
    if not leaving:
        return _push(kernel, command)
    size = sum(size_of(block, offset, offset + 1, None) for block, offset in leaving)
    return _push(kernel, command, Leaving(leaving[0][0].queue.name, len(leaving), size))


def _push_instead(kernel: "Kernel", command: Push, instead: Instead) -> PushedInstead:
    """Instants of one config come, those of others leave: both, or neither if a bound says no."""
    tenant = command.tenant
    # Another config would have removed what waits of this one.
    if instead.refresh and instants.one_waits(kernel, tenant, command.loads):
        return PushedInstead(_push(kernel, command).runs)
    known = instants.waiting(kernel, tenant, instead.queue, instead.name)
    leaving = [each.place for each in known if each.config != instead.config_hash]
    if instead.refresh:
        # Ids ascend as jobs are pushed: whoever has the highest came last.
        if known and known[-1].config != instead.config_hash:
            raise NotFound("another config was put after this one", "name")
        leaving = []
    runs: tuple[PushedRun, ...] = ()
    if command.loads:  # first what may be refused
        runs = push_replacing(kernel, command, leaving).runs
    instants.vanish(kernel, leaving)
    return PushedInstead(runs, len(leaving))


def _push(kernel: "Kernel", command: Push, leaving: Leaving = NOTHING) -> Pushed:
    tenant_name = command.tenant
    if command.producer is not None:
        answer = _recalled(kernel, command)
        if answer is not None:
            return answer
    bulk = kernel.open_bulk(tenant_name, command.bulk) if command.bulk is not None else None
    _check_queues(kernel, tenant_name, command.loads)
    _check_ttls(kernel, command.loads)
    batch = Batch(kernel, tenant_name, command.loads, bulk)
    batch.decide()
    batch.foresight.check_room()
    _check_bounds(kernel, tenant_name, batch, leaving)
    pushed = batch.apply(command.part)
    if command.producer is not None:
        producer = kernel.producers.get((tenant_name, command.producer))
        _remember(kernel, command, pushed, producer)
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
                raise Invalid(f"a ttl of {say_ms(ttl)} ends before run_at", "ttl_ms")


def _check_bounds(kernel: "Kernel", tenant_name: str, batch: "Batch", leaving: Leaving) -> None:
    tenant = kernel.tenants.get(tenant_name)
    if tenant is None:
        return
    jobs = batch.created_in()
    queues = [tenant.queues[name] for name in jobs if name in tenant.queues]
    if tenant.bounds == Bounds() and not any(queue.bounded for queue in queues):
        return
    growth = batch.growth()
    meters: list[tuple[Meter, int]] = []
    for queue in queues:
        name, n = queue.name, jobs[queue.name]
        less = leaving if leaving.queue == name else NOTHING
        live, held = queue.live - less.jobs, queue.bytes - less.bytes
        _fit(queue.config.bounds, f"queue {name!r}", live, n, held, growth[name])
        if queue.push_meter is not None and n:
            queue.touch()
            meters.append((queue.push_meter, n))
    total = sum(jobs.values())
    live, held = tenant.live - leaving.jobs, tenant.bytes - leaving.bytes
    _fit(tenant.bounds, "the tenant", live, total, held, sum(growth.values()))
    if tenant.meter is not None and total:
        kernel.changes.tenants.touch(tenant_name)
        meters.append((tenant.meter, total))
    for meter, n in meters:
        if meter.room(kernel.elapsed) < n:
            rate = meter.rate
            raise RateLimited(
                f"at most {rate.tokens} pushes per {say_ms(rate.per_ms)}", "push_rate"
            )
    for meter, n in meters:
        meter.take(kernel.elapsed, n)


def _fit(bounds: Bounds, whose: str, live: int, jobs: int, held: int, growth: int) -> None:
    """May so many jobs, and bytes, come to what is there? What adds nothing always may."""
    if jobs and bounds.jobs is not None and live + jobs > bounds.jobs:
        raise Overloaded(
            f"{whose} may hold {bounds.jobs} jobs; this push makes it {live + jobs}", "jobs"
        )
    if (jobs or growth > 0) and bounds.bytes is not None and held + growth > bounds.bytes:
        raise Overloaded(
            f"{whose} may hold {bounds.bytes} bytes; this push makes it {held + growth}", "bytes"
        )
