"""A push whose jobs are decided one by one: they have keys, groups, headers or dependencies."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.append import (
    append_held,
    append_payload,
    append_plain,
    extend_options,
    raise_bounds,
)
from penstock.kernel.blocks import Block, Version
from penstock.kernel.bulks import Bulk, HeldPush
from penstock.kernel.codes import (
    BLOCKED,
    COUNTER_OF,
    ENDED,
    FIRST_CLASS,
    HELD,
    READY,
    SCHEDULED,
)
from penstock.kernel.commands import Load, due
from penstock.kernel.ending import pin, run_cascade, size_of, unpin
from penstock.kernel.flows import Dependencies, check_graph, die_of_dependency, has_failed, resolve
from penstock.kernel.foresight import Foresight
from penstock.kernel.replace import replace
from penstock.model.answers import Pushed, PushedRun
from penstock.model.job import CREATED, IGNORED, UPDATED

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue, Tenant


class Batch:
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

    def created_in(self) -> dict[str, int]:
        """How many jobs will be created, by queue."""
        counts: dict[str, int] = {}
        for load, indices in zip(self.loads, self.created(), strict=True):
            counts[load.queue] = counts.get(load.queue, 0) + len(indices)
        return counts

    def growth(self) -> dict[str, int]:
        """By how many payload bytes the queues will grow; a job counts with what is said last."""
        grown = dict.fromkeys((load.queue for load in self.loads), 0)
        sizes: dict[int, tuple[str, int]] = {}  # of keyed jobs
        for load, decisions, start in zip(self.loads, self.decisions, self.starts, strict=False):
            if decisions is None:
                grown[load.queue] += load.ends[-1]
                continue
            for index, (outcome, known) in enumerate(decisions):
                if outcome != IGNORED:
                    _, begin, end = load.place(index)
                    sizes[known or -(start + index + 1)] = (load.queue, end - begin)
        for job, (queue, size) in sizes.items():
            found = self.kernel.locate(self.tenant_name, job) if job > 0 else None
            before = size_of(*found, found[1] + 1, None) if found is not None else 0
            grown[queue] += size - before
        return grown

    def decide(self) -> None:
        kernel = self.kernel
        keyed = self.bulk is None and any(load.keys is not None for load in self.loads)
        self.starts = list(accumulate((len(load.ends) for load in self.loads), initial=0))
        self.foresight = Foresight(kernel, self.tenant_name, self._said)
        for which, load in enumerate(self.loads):
            if load.keys is not None and keyed:
                self.decisions.append(
                    [self._decide(which, index) for index in range(len(load.ends))]
                )
                continue
            self.decisions.append(None)
            if load.depends_on is not None and keyed:  # one that dies may free another's key
                for index in range(len(load.ends)):
                    self._decide(which, index)
        if any(load.depends_on is not None for load in self.loads):
            self.dependencies = check_graph(
                kernel, self.tenant_name, self.loads, self.bulk, self.decisions
            )

    def _decide(self, which: int, index: int) -> tuple[int, int]:
        load = self.loads[which]
        return self.foresight.decide(
            -(self.starts[which] + index + 1),
            load.queue,
            load.keys[index] if load.keys is not None else (),
            load.digest(index),
            load.depends_on[index] if load.depends_on is not None else (),
        )

    def _said(self, job: int) -> Version:
        """What a job of this push says, by its place."""
        place = -job - 1
        which = bisect_right(self.starts, place) - 1
        return self.loads[which].version(place - self.starts[which])

    # Applying.

    def apply(self, part: str) -> Pushed:
        kernel = self.kernel
        tenant = kernel.tenant(self.tenant_name)
        ids: list[int] = []  # of every job of the push, in order
        answers: list[PushedRun] = []
        tables: list[bytearray] = []  # outcomes per load
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
                    answers.append(append_plain(kernel, queue, load, first))
                else:
                    answers.append(append_held(kernel, queue, load, first))
                    self._hold(load, first, count, part)
                ids.extend(range(first, first + count))
                tables.append(bytearray())
                continue
            outcomes = bytearray(
                CREATED if decisions is None else decisions[index][0]
                for index in range(len(load.ends))
            )
            tables.append(outcomes)
            for index, outcome in enumerate(outcomes):
                job_id = self.expected[len(ids)]
                ids.append(job_id)
                if outcome == CREATED:
                    self._create(queue, load, which, index, job_id)
                if not linked:
                    self._act(load, which, index, job_id, outcome)
            if self.bulk is not None:
                self._hold(load, first, count, part)
            if kernel.events is not None and count and not linked:
                tell.pushed(kernel, queue, first, count, held=self.bulk is not None)
            mine = tuple(ids[len(ids) - len(load.ends) :])
            answers.append(PushedRun(first, count, None if decisions is None else mine))
            queue.stir()
        if linked:
            self._act_all(tenant, firsts, created, tables)
        answers = [
            run if run.ids is None else PushedRun(run.first, run.count, run.ids, bytes(outcomes))
            for run, outcomes in zip(answers, tables, strict=True)
        ]
        if self.bulk is not None:
            for (which, _), dependencies in self.dependencies.items():
                if self.decisions[which] is None:
                    pin(kernel, self.tenant_name, dependencies.ids(self.expected))
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
        for name in totals:
            self.kernel.queue(tenant, name).begin_anew()
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
            if decisions is None:
                ids.extend(range(job_id, job_id + len(load.ends)))
                continue
            for outcome, known in decisions:
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
        extend_options(block, number, 1)
        block.note_created(offset, now)
        until = due(load.run_at, None, index, now) if self.bulk is not None else None
        block.note_due(offset, until or 0)
        append_payload(block, offset, load.chunk, load.start + begin, size)
        block.live += 1
        kernel.chunks[load.chunk] = kernel.chunks.get(load.chunk, 0) + 1
        if queue.bounded:
            raise_bounds(queue, 1, size)
        self._note_side(block, offset, load, which, index)
        queue.counts[HELD] += 1

    def _act_all(
        self,
        tenant: "Tenant",
        firsts: list[int],
        created: list[Sequence[int]],
        tables: list[bytearray],
    ) -> None:
        """Every job stands; now they come alive or change, in the order of the push.

        Meanwhile what they depend on is kept: one of them may be dead before another needs it.
        """
        kernel = self.kernel
        needed = self._needed() if self.bulk is None else ()
        pin(kernel, self.tenant_name, needed)
        place = 0
        for which, load in enumerate(self.loads):
            queue = kernel.queue(tenant, load.queue)
            if self._individual(load):
                for index in range(len(load.ends)):
                    job_id = self.expected[place + index]
                    self._act(load, which, index, job_id, tables[which][index])
                    if kernel.cascade:
                        run_cascade(kernel)
                if kernel.events is not None and created[which]:
                    held = self.bulk is not None
                    tell.pushed(kernel, queue, firsts[which], len(created[which]), held=held)
            place += len(load.ends)
        unpin(kernel, self.tenant_name, needed)

    def _needed(self) -> tuple[int, ...]:
        """What jobs of this push depend on, if one of them will be dead at once."""
        kernel, tenant = self.kernel, self.tenant_name
        named = [dependencies.ids(self.expected) for dependencies in self.dependencies.values()]
        if any(has_failed(kernel, tenant, job_id) for ids in named for job_id in ids):
            return tuple(dict.fromkeys(job_id for ids in named for job_id in ids))
        return ()

    def _act(self, load: Load, which: int, index: int, job_id: int, outcome: int) -> None:
        """Publish what was created, carry out what replaces."""
        if outcome == UPDATED:
            self._update(load, which, index, job_id)
        elif outcome == CREATED and self.bulk is None:
            self._publish(load, index, job_id)

    def _publish(self, load: Load, index: int, job_id: int) -> None:
        kernel = self.kernel
        now = kernel.now
        found = kernel.locate(self.tenant_name, job_id)
        assert found is not None
        block, offset = found
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

    def _update(self, load: Load, which: int, index: int, job_id: int) -> None:
        kernel = self.kernel
        found = kernel.locate(self.tenant_name, job_id)
        assert found is not None, "decided a moment ago"
        dependencies = self.dependencies.get((which, index))
        assert load.keys is not None
        version = load.version(index)
        version.run_at = due(load.run_at, load.delay_ms, index, kernel.now)
        version.depends_on = dependencies.ids(self.expected) if dependencies else ()
        replace(kernel, *found, version, load.keys[index])


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
            side.keys = queue.keys.open_to(side.keys, block.base + offset, at, new=True)
            kernel.take_keys(queue, block.base + offset, side.keys, side.digest, at)
        if side.group is not None:
            queue.group(side.group).jobs += 1
        if side.depends_on:
            failed = resolve(kernel, block, offset, side, pinned=not fresh)
            if failed or side.unmet:
                queue.counts[BLOCKED] += 1
                block.codes[offset] = BLOCKED
                side.run_at = until
                if failed:
                    die_of_dependency(kernel, block, offset, failed, at)
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
        if ready != at and not block.note_last_due(offset, -ready):
            block.side(offset).ready_at = ready
        block.codes[offset] = block.code_of[number]
        queue.stir()
        return
    if ready != block.due_at(offset):
        block.side(offset).ready_at = ready
    queue.make_ready(block, offset, ready)
