"""Push: jobs come in.

Two ways: `_push_plain` appends whole runs to the packed columns with no work per job; `_Batch`
takes jobs one by one where they have keys, groups, headers or dependencies. What can refuse a
push is looked at before anything is changed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import SIZE, Block, Version
from penstock.kernel.bulks import Bulk, HeldPush
from penstock.kernel.codes import (
    BLOCKED,
    BYTE,
    COUNTER_OF,
    ENDED,
    FIRST_CLASS,
    HELD,
    LIFO,
    READY,
    SCHEDULED,
)
from penstock.kernel.commands import Load, Push, due
from penstock.kernel.flows import Dependencies, check_graph, die_of_dependency, resolve
from penstock.kernel.keys import outlives
from penstock.kernel.limits import Meter
from penstock.kernel.replace import identical, replace
from penstock.model.errors import Conflict, Invalid, Overloaded, RateLimited
from penstock.model.job import CREATED, IGNORED, UPDATED, KeyClaim
from penstock.model.store import Pushed, PushedRun

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.keys import KeyRecord
    from penstock.kernel.queue import Queue, Tenant


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
                return Pushed((_push_plain(kernel, queue, load),))
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
            producer.used_at = kernel.now
            return answer
        if producer is None and len(kernel.producers) >= kernel.caps.producers:
            raise Overloaded(f"{kernel.caps.producers} producers are remembered", "producer")
    bulk = kernel.open_bulk(tenant_name, command.bulk) if command.bulk is not None else None
    _check_queues(kernel, tenant_name, command.loads)
    _check_ttls(kernel, command.loads)
    batch = _Batch(kernel, tenant_name, command.loads, bulk)
    batch.decide()
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
    kernel: "Kernel", tenant_name: str, loads: Sequence[Load], batch: "_Batch", leaving: int
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
            meters.append((queue.push_meter, n))
    total = sum(jobs.values())
    if total:
        _fits("jobs", tenant.live + total - leaving, tenant.bounds.jobs, "the tenant")
        _fits("bytes", tenant.bytes + sum(sizes.values()), tenant.bounds.bytes, "the tenant")
        if tenant.meter is not None:
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


# -- plain runs ----------------------------------------------------------------------------------


def _push_plain(
    kernel: "Kernel", queue: "Queue", load: Load, first: int | None = None
) -> PushedRun:
    """Jobs without anything of their own, by whole columns. `first`: where ids are reserved."""
    ends = load.ends
    n = len(ends)
    now = kernel.now
    if first is None:
        first = queue.reserve(n)
    if now >= queue.ready_clock:
        queue.ready_clock = now
        ready = 0  # as created
    else:
        ready = queue.ready_clock
    delayed = load.delay_ms is not None or load.run_at is not None
    if n == 1 and not delayed and load.option_of is None:
        _append_single(kernel, queue, load, first, now, ready)
    elif delayed:
        _append_delayed(kernel, queue, load, first, now, ready)
    else:
        index = 0
        while index < n:
            block = queue.block_for(first + index)
            m = min(n - index, SIZE - len(block.codes))
            _append_run(kernel, queue, block, load, index, m, now, ready)
            index += m
    chunks = kernel.chunks
    chunks[load.chunk] = chunks.get(load.chunk, 0) + n
    if queue.bounded:
        _raise_bounds(queue, n, ends[-1])
    if kernel.events is not None:
        tell.pushed(kernel, queue, first, n)
    if queue.watched:
        kernel.stirred[queue] = None
    return PushedRun(first, n)


def _push_held(kernel: "Kernel", queue: "Queue", load: Load, first: int) -> PushedRun:
    """The same for jobs of a bulk: they lie in their places, held."""
    n = len(load.ends)
    index = 0
    while index < n:
        block = queue.block_for(first + index)
        m = min(n - index, SIZE - len(block.codes))
        position = len(block.codes)
        if load.option_of is None:
            _extend_options(block, block.option(load.options[0]), m)
        else:
            part = load.option_of[index : index + m]
            numbers = {which: block.option(load.options[which]) for which in sorted(set(part))}
            block.opts.extend(numbers[which] for which in part)
        block.codes += BYTE[HELD] * m
        block.note_created(position, kernel.now)
        if block.due_ms:
            block.note_due(position, 0)
        _append_payloads(block, load, index, m, position)
        block.live += m
        index += m
    queue.counts[HELD] += n
    kernel.chunks[load.chunk] = kernel.chunks.get(load.chunk, 0) + n
    if queue.bounded:
        _raise_bounds(queue, n, load.ends[-1])
    if kernel.events is not None:
        tell.pushed(kernel, queue, first, n, held=True)
    return PushedRun(first, n)


def _raise_bounds(queue: "Queue", n: int, size: int) -> None:
    queue.bytes += size
    queue.tenant.live += n
    queue.tenant.bytes += size


def _append_single(
    kernel: "Kernel", queue: "Queue", load: Load, job_id: int, now: int, ready: int
) -> None:
    block = queue.block_for(job_id)
    position = len(block.codes)
    options = load.options[0]
    index = block.last_index if options is block.last_options else block.option(options)
    code = block.code_of[index]
    block.codes.append(code)
    block.opts.append(index)
    if not block.created_ms or block.created_ms[-1] != now:
        block.created_pos.append(position)
        block.created_ms.append(now)
    if ready or block.due_ms:
        block.note_due(position, ready)
    append_payload(block, position, load.chunk, load.start, load.ends[0])
    block.live += 1
    queue.counts[READY] += 1
    if code < FIRST_CLASS:
        lane = queue.lane(options.priority)
        (lane.put_lifo if code == LIFO else lane.put)(ready or now, job_id)
    if options.ttl_ms is not None:
        kernel.expire_at(now + options.ttl_ms, job_id, 1)


def append_payload(block: Block, position: int, chunk: int, start: int, size: int) -> None:
    """One payload at the end of the columns; it goes on with the last record if it can."""
    if block.pay_chunk and block.pay_chunk[-1] == chunk and position > block.pay_pos[-1]:
        before = block.ends[-1]
        if start == block.pay_origin[-1] + before:
            block.ends.append(before + size)
            return
    block.note_payload(position, chunk, start)
    block.ends.append(size)


def _append_run(
    kernel: "Kernel",
    queue: "Queue",
    block: Block,
    load: Load,
    index: int,
    m: int,
    now: int,
    ready: int,
) -> None:
    """m ready jobs from `index` on, all into this block."""
    position = len(block.codes)
    option_of = load.option_of
    if option_of is None:
        number = block.option(load.options[0])
        code = block.code_of[number]
        block.codes += BYTE[code] * m
        _extend_options(block, number, m)
        if code < FIRST_CLASS:
            lane = queue.lane(load.options[0].priority)
            (lane.put_lifo if code == LIFO else lane.put)(ready or now, block.base + position, m)
    else:
        _append_mixed(queue, block, load, index, m, ready or now)
    block.note_created(position, now)
    if ready or block.due_ms:
        block.note_due(position, ready)
    _append_payloads(block, load, index, m, position)
    block.live += m
    queue.counts[READY] += m
    for options in load.options:
        if options.ttl_ms is not None:
            kernel.expire_at(now + options.ttl_ms, block.base + position, m)


def _extend_options(block: Block, number: int, m: int) -> None:
    if isinstance(block.opts, bytearray):
        block.opts += BYTE[number] * m
    else:
        block.opts.extend([number] * m)


def _append_mixed(queue: "Queue", block: Block, load: Load, index: int, m: int, ready: int) -> None:
    """Codes and option indices of jobs with several option sets, by translation tables."""
    assert load.option_of is not None
    part = load.option_of[index : index + m]
    position = len(block.codes)
    used = sorted(set(part))
    numbers = {which: block.option(load.options[which]) for which in used}
    if isinstance(block.opts, bytearray) and isinstance(part, bytes):
        to_number, to_code = bytearray(256), bytearray(256)
        for which, number in numbers.items():
            to_number[which] = number
            to_code[which] = block.code_of[number]
        block.opts += part.translate(to_number)
        block.codes += part.translate(to_code)
    else:
        block.opts.extend(numbers[which] for which in part)
        block.codes.extend(block.code_of[numbers[which]] for which in part)
    if all(block.code_of[number] >= FIRST_CLASS for number in numbers.values()):
        return
    for offset in range(position, position + m):
        code = block.codes[offset]
        if code < FIRST_CLASS:
            lane = queue.lane(block.options[block.opts[offset]].priority)
            (lane.put_lifo if code == LIFO else lane.put)(ready, block.base + offset)


def _append_payloads(block: Block, load: Load, index: int, m: int, position: int) -> None:
    ends = load.ends
    if index == 0:
        block.note_payload(position, load.chunk, load.start)
        block.ends.extend(ends if m == len(ends) else ends[:m])
    else:
        before = ends[index - 1]
        block.note_payload(position, load.chunk, load.start + before)
        block.ends.extend([end - before for end in ends[index : index + m]])


def _append_delayed(
    kernel: "Kernel", queue: "Queue", load: Load, first: int, now: int, ready: int
) -> None:
    """Jobs that may lie ahead: one instant for all, or one each."""
    n = len(load.ends)
    index = 0
    while index < n:
        block = queue.block_for(first + index)
        m = min(n - index, SIZE - len(block.codes))
        position = len(block.codes)
        block.note_created(position, now)
        _append_payloads(block, load, index, m, position)
        block.live += m
        at = index
        while at < index + m:
            until = due(load.run_at, load.delay_ms, at, now)
            alike = at + 1
            if load.option_of is None and _one_for_all(load):
                alike = index + m
            _append_due(kernel, queue, block, load, at, alike - at, now, until, ready)
            at = alike
        for options in load.options:
            if options.ttl_ms is not None:
                kernel.expire_at(now + options.ttl_ms, block.base + position, m)
        index += m


def _one_for_all(load: Load) -> bool:
    return not isinstance(load.delay_ms, Sequence) and not isinstance(load.run_at, Sequence)


def _append_due(
    kernel: "Kernel",
    queue: "Queue",
    block: Block,
    load: Load,
    index: int,
    m: int,
    now: int,
    until: int | None,
    ready: int,
) -> None:
    """m jobs with one option set that are due at `until` (None: now)."""
    position = len(block.codes)
    options = load.option(index)
    number = block.option(options)
    _extend_options(block, number, m)
    if until is not None:
        block.codes += BYTE[SCHEDULED] * m
        block.note_due(position, until)
        queue.counts[SCHEDULED] += m
        kernel.promote_at(until, block.base + position, m)
        return
    code = block.code_of[number]
    block.codes += BYTE[code] * m
    block.note_due(position, ready)
    queue.counts[READY] += m
    if code < FIRST_CLASS:
        lane = queue.lane(options.priority)
        (lane.put_lifo if code == LIFO else lane.put)(ready or now, block.base + position, m)


# -- jobs with facts of their own ------------------------------------------------------------------


class _Batch:
    """A push whose jobs are decided one by one: `decide` changes nothing, `apply` cannot fail."""

    def __init__(
        self, kernel: "Kernel", tenant: str, loads: Sequence[Load], bulk: Bulk | None
    ) -> None:
        self.kernel = kernel
        self.tenant_name = tenant
        self.loads = loads
        self.bulk = bulk
        self.decisions: list[list[tuple[int, int]] | None] = []  # (outcome, id or −order) per job
        self.dependencies: dict[tuple[int, int], Dependencies] = {}

    def created(self) -> list[Sequence[int]]:
        """Indices of the jobs that will be created, per load."""
        return [
            range(len(load.ends))
            if decisions is None
            else [index for index, (outcome, _) in enumerate(decisions) if outcome == CREATED]
            for load, decisions in zip(self.loads, self.decisions, strict=True)
        ]

    # Deciding keys: what stands in the store, overlaid with what this push has decided so far. A
    # job created by this push stands for itself as (load, index).

    def decide(self) -> None:
        kernel = self.kernel
        tenant = kernel.tenants.get(self.tenant_name)
        # (queue, key) → who has it by now: an id or −(place in this push + 1), and its digest.
        self.overlay: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.fresh_keys = 0
        for which, load in enumerate(self.loads):
            if load.keys is None or self.bulk is not None:
                self.decisions.append(None)
                continue
            queue = tenant.queues.get(load.queue) if tenant is not None else None
            self.decisions.append(
                [self._decide(queue, which, index) for index in range(len(load.ends))]
            )
        if kernel.kept_keys + self.fresh_keys > kernel.caps.kept_keys:
            raise Overloaded(f"{kernel.caps.kept_keys} keys are kept beyond their jobs", "key")
        if any(load.depends_on is not None for load in self.loads):
            self.dependencies = check_graph(
                kernel, self.tenant_name, self.loads, self.bulk, self.decisions
            )

    def _decide(self, queue: "Queue | None", which: int, index: int) -> tuple[int, int]:
        load = self.loads[which]
        assert load.keys is not None
        claims = load.keys[index]
        digest = load.digest(index)
        for claim in claims:
            mine = self.overlay.get((load.queue, claim.key))
            if mine is not None:
                outcome = self._against_own(claim, *mine, digest)
            else:
                record = queue.keys.find(claim.key, self.kernel.now) if queue is not None else None
                if record is None:
                    continue
                outcome = self._against(claim, record, load, index, digest)
            if outcome is None:
                continue
            if outcome[0] == UPDATED:
                self._overlay(load, claims, outcome[1], digest)
            return outcome
        place = sum(len(load.ends) for load in self.loads[:which]) + index
        self._overlay(load, claims, -(place + 1), digest)
        self.fresh_keys += sum(1 for claim in claims if outlives(claim.keep_key))
        return CREATED, 0

    def _overlay(self, load: Load, claims: tuple[KeyClaim, ...], owner: int, digest: bytes) -> None:
        for claim in claims:
            self.overlay[load.queue, claim.key] = (owner, digest)

    def _against(
        self, claim: KeyClaim, record: "KeyRecord", load: Load, index: int, digest: bytes
    ) -> tuple[int, int] | None:
        """A key that stands in the store; None if the job may be created all the same."""
        if claim.on_conflict == "reject":
            raise Conflict(f"key {claim.key!r} is taken by job {record.id}", "key")
        if claim.on_conflict == "match" and record.digest != digest:
            raise Conflict(f"key {claim.key!r} stands for another payload", "key")
        if claim.on_conflict != "replace":
            return IGNORED, record.id
        found = self.kernel.locate(self.tenant_name, record.id)
        if found is None or COUNTER_OF[found[0].codes[found[1]]] in ENDED:
            return None
        if identical(*found, load, index, digest):
            return IGNORED, record.id
        return UPDATED, record.id

    def _against_own(
        self, claim: KeyClaim, owner: int, before: bytes, digest: bytes
    ) -> tuple[int, int]:
        """A key that an earlier job of this very push took or renewed."""
        if claim.on_conflict == "reject":
            raise Conflict(f"key {claim.key!r} stands twice in this push", "key")
        if claim.on_conflict == "match" and before != digest:
            raise Conflict(f"key {claim.key!r} stands in this push for another payload", "key")
        return (UPDATED if claim.on_conflict == "replace" else IGNORED), owner

    # Applying.

    def apply(self, part: str) -> Pushed:
        kernel = self.kernel
        tenant = kernel.tenant(self.tenant_name)
        ids: list[int] = []  # of every job of the push, in order
        answers: list[PushedRun] = []
        created = self.created()
        firsts = self._reserve(tenant, created)
        self.expected: list[int] = self._expected(created, firsts)
        # Jobs may depend on later ones of the same push: then all stand before any is published.
        linked = bool(self.dependencies)
        for which, load in enumerate(self.loads):
            queue = kernel.queue(tenant, load.queue)
            first, count = firsts[which], len(created[which])
            decisions = self.decisions[which]
            if decisions is None and not self._individual(load):
                if self.bulk is None:
                    answers.append(_push_plain(kernel, queue, load, first))
                else:
                    answers.append(_push_held(kernel, queue, load, first))
                    self._hold(load, first, count, part)
                ids.extend(range(first, first + count))
                continue
            outcomes = bytearray()
            for index in range(len(load.ends)):
                outcome = decisions[index][0] if decisions is not None else CREATED
                job_id = self.expected[len(ids)]
                if outcome == UPDATED:
                    outcome = self._update(queue, load, which, index, job_id)
                elif outcome == CREATED:
                    self._create(queue, load, which, index, job_id)
                    if self.bulk is None and not linked:
                        self._publish(load, index, job_id)
                outcomes.append(outcome)
                ids.append(job_id)
            if self.bulk is not None:
                self._hold(load, first, count, part)
            if decisions is None:
                answers.append(PushedRun(first, count))
            else:
                mine = tuple(ids[len(ids) - len(load.ends) :])
                answers.append(PushedRun(first, count, mine, bytes(outcomes)))
            if kernel.events is not None and count:
                tell.pushed(kernel, queue, first, count, held=self.bulk is not None)
            queue.stir()
        if linked and self.bulk is None:
            self._publish_all(created)
        if self.bulk is not None:
            kernel.renew_bulk(self.tenant_name, self.bulk)
        return Pushed(tuple(answers))

    def _hold(self, load: Load, first: int, count: int, part: str) -> None:
        assert self.bulk is not None
        held = HeldPush(load.queue, first, count, load.delay_ms, load.run_at)
        self.bulk.parts.setdefault(part, []).append(held)

    def _individual(self, load: Load) -> bool:
        return (
            load.groups is not None
            or load.headers is not None
            or load.depends_on is not None
            or load.keys is not None
        )

    def _reserve(self, tenant: "Tenant", created: list[Sequence[int]]) -> list[int]:
        """The first id of each load. Loads of one queue get one contiguous stretch."""
        totals: dict[str, int] = {}
        for load, indices in zip(self.loads, created, strict=True):
            totals[load.queue] = totals.get(load.queue, 0) + len(indices)
        starts = {
            name: self.kernel.queue(tenant, name).reserve(n) if n else 0
            for name, n in totals.items()
        }
        firsts = []
        for load, indices in zip(self.loads, created, strict=True):
            firsts.append(starts[load.queue] if indices else 0)
            starts[load.queue] += len(indices)
        return firsts

    def _expected(self, created: list[Sequence[int]], firsts: list[int]) -> list[int]:
        """The id that each job of the push will have or stands for."""
        ids: list[int] = []
        for which, load in enumerate(self.loads):
            decisions = self.decisions[which]
            job_id = firsts[which]
            for index in range(len(load.ends)):
                outcome, known = decisions[index] if decisions is not None else (CREATED, 0)
                if outcome == CREATED:
                    ids.append(job_id)
                    job_id += 1
                else:
                    ids.append(known if known > 0 else ids[-known - 1])
        return ids

    def _create(self, queue: "Queue", load: Load, which: int, index: int, job_id: int) -> None:
        kernel = self.kernel
        now = kernel.now
        options = load.option(index)
        block = queue.block_for(job_id)
        offset = len(block.codes)
        number = block.option(options)
        begin = load.ends[index - 1] if index else 0
        size = load.ends[index] - begin
        block.codes.append(HELD)
        _extend_options(block, number, 1)
        block.note_created(offset, now)
        block.note_due(offset, 0)
        append_payload(block, offset, load.chunk, load.start + begin, size)
        block.live += 1
        kernel.chunks[load.chunk] = kernel.chunks.get(load.chunk, 0) + 1
        if queue.bounded:
            _raise_bounds(queue, 1, size)
        self._note_side(block, offset, load, which, index)
        queue.counts[HELD] += 1

    def _publish_all(self, created: list[Sequence[int]]) -> None:
        base = 0
        for which, load in enumerate(self.loads):
            if self.decisions[which] is not None or self._individual(load):
                for index in created[which]:
                    self._publish(load, index, self.expected[base + index])
            base += len(load.ends)

    def _publish(self, load: Load, index: int, job_id: int) -> None:
        kernel = self.kernel
        now = kernel.now
        found = kernel.locate(self.tenant_name, job_id)
        assert found is not None
        block, offset = found
        if block.codes[offset] != HELD:
            return  # replaced by a later job of this push, and published with that
        publish(kernel, block, offset, now, due(load.run_at, load.delay_ms, index, now), fresh=True)
        ttl = load.option(index).ttl_ms
        if ttl is not None and COUNTER_OF[block.codes[offset]] not in ENDED:
            kernel.expire_at(now + ttl, job_id, 1)

    def _note_side(self, block: Block, offset: int, load: Load, which: int, index: int) -> None:
        """Write down what only this job has."""
        group = load.groups[index] if load.groups is not None else None
        headers = load.headers[index] if load.headers is not None else None
        claims = load.keys[index] if load.keys is not None else ()
        dependencies = self.dependencies.get((which, index))
        if not (group or headers or claims or dependencies):
            return
        side = block.side(offset)
        side.group, side.headers, side.keys = group, headers, claims
        if claims:
            side.digest = load.digest(index)
            side.said_run_at = load.said_run_at(index)
        if dependencies:
            side.depends_on = dependencies.ids(self.expected)

    def _update(self, queue: "Queue", load: Load, which: int, index: int, job_id: int) -> int:
        kernel = self.kernel
        found = kernel.locate(self.tenant_name, job_id)
        assert found is not None, "decided a moment ago"
        block, offset = found
        digest = load.digest(index)
        if identical(block, offset, load, index, digest):
            return IGNORED  # equal to what an earlier job of this push left behind
        dependencies = self.dependencies.get((which, index))
        assert load.keys is not None
        version = Version(
            options=load.option(index),
            payload=load.place(index),
            digest=digest,
            said_run_at=load.said_run_at(index),
            run_at=due(load.run_at, load.delay_ms, index, kernel.now),
            group=load.groups[index] if load.groups is not None else None,
            headers=load.headers[index] if load.headers is not None else None,
            depends_on=dependencies.ids(self.expected) if dependencies else (),
        )
        replace(kernel, block, offset, version, load.keys[index])
        return UPDATED


def publish(
    kernel: "Kernel", block: Block, offset: int, at: int, until: int | None, *, fresh: bool
) -> None:
    """A held job becomes what it is meant to be: keys taken, dependencies looked at, in line.

    `fresh`: it is the newest of its queue, so a cursor may find it.
    """
    queue = block.queue
    side = block.sides.get(offset)
    queue.counts[HELD] -= 1
    if side is not None:
        if side.keys:
            side.key_taken_at = at
            kernel.take_keys(queue, block.base + offset, side.keys, side.digest, at)
        if side.group is not None:
            queue.group(side.group).jobs += 1
        if side.depends_on:
            failed = resolve(kernel, block, offset, side)
            if failed:
                queue.counts[BLOCKED] += 1
                block.codes[offset] = BLOCKED
                die_of_dependency(kernel, block, offset, failed, at)
                return
            if side.waiting:
                queue.counts[BLOCKED] += 1
                block.codes[offset] = BLOCKED
                if until is not None:
                    side.run_at = until
                return
    if until is not None:
        queue.counts[SCHEDULED] += 1
        block.codes[offset] = SCHEDULED
        if not (fresh and block.note_last_due(offset, until)):
            side = block.side(offset)
            side.run_at = side.ready_at = until
        kernel.promote_at(until, block.base + offset, 1)
        return
    queue.counts[READY] += 1
    ready = queue.clamp(at)
    number = block.opts[offset]
    if fresh and (side is None or side.group is None) and block.code_of[number] >= FIRST_CLASS:
        if ready != at and not block.note_last_due(offset, ready):
            block.side(offset).ready_at = ready
        block.codes[offset] = block.code_of[number]
        queue.stir()
        return
    if ready != block.due_at(offset):
        block.side(offset).ready_at = ready
    queue.make_ready(block, offset, ready)
