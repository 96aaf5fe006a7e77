"""A push whose jobs are decided one by one: they have keys, groups, headers or dependencies."""

from collections.abc import Sequence
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
    COMPLETED,
    COUNTER_OF,
    ENDED,
    FIRST_CLASS,
    HELD,
    READY,
    SCHEDULED,
)
from penstock.kernel.commands import Load, due
from penstock.kernel.ending import pin
from penstock.kernel.flows import Dependencies, check_graph, die_of_dependency, resolve
from penstock.kernel.keys import outlives
from penstock.kernel.replace import identical, replace
from penstock.model.errors import Conflict, Overloaded
from penstock.model.job import CREATED, IGNORED, UPDATED, KeyClaim
from penstock.model.store import Pushed, PushedRun

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.keys import KeyRecord
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

    # Deciding keys: what stands in the store, overlaid with what this push has decided so far. A
    # job created by this push stands for itself as (load, index).

    def decide(self) -> None:
        kernel = self.kernel
        tenant = kernel.tenants.get(self.tenant_name)
        # (queue, key) → who has it by now: an id or −(place in this push + 1), and its digest.
        self.overlay: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.fresh_keys = 0
        self.doomed: set[int] = set()  # places of jobs that will be dead at once
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
                free = tuple(c for c in claims if self._owner(queue, load, c) in (0, outcome[1]))
                self._overlay(load, free, outcome[1], digest)
            return outcome
        place = sum(len(load.ends) for load in self.loads[:which]) + index
        if self._doomed(load, index):
            self.doomed.add(place)
            claims = tuple(claim for claim in claims if outlives(claim.keep_key))
        self._overlay(load, claims, -(place + 1), digest)
        self.fresh_keys += sum(1 for claim in claims if outlives(claim.keep_key))
        return CREATED, 0

    def _owner(self, queue: "Queue | None", load: Load, claim: KeyClaim) -> int:
        """Who has a key by now: an id, −(place in this push + 1), or 0 for nobody."""
        mine = self.overlay.get((load.queue, claim.key))
        if mine is not None:
            return mine[0]
        record = queue.keys.find(claim.key, self.kernel.now) if queue is not None else None
        return 0 if record is None else record.id

    def _doomed(self, load: Load, index: int) -> bool:
        """Whether the job will be dead as soon as it is there, of a dependency that has failed."""
        refs = load.depends_on[index] if load.depends_on is not None else ()
        if not refs or load.option(index).on_dependency_failure != "fail":
            return False
        for ref in refs:
            if ref < 0:
                if -ref - 1 in self.doomed:
                    return True
                continue
            found = self.kernel.locate(self.tenant_name, ref)
            code = COUNTER_OF[found[0].codes[found[1]]] if found is not None else COMPLETED
            if code in ENDED and code != COMPLETED:
                return True
        return False

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
    ) -> tuple[int, int] | None:
        """A key that an earlier job of this very push took or renewed; None as in `_against`."""
        if claim.on_conflict == "replace" and -owner - 1 in self.doomed:
            return None  # that one will have ended by then
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
                    self._act(queue, load, which, index, job_id, outcomes)
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
        extend_options(block, number, 1)
        block.note_created(offset, now)
        block.note_due(offset, 0)
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
        """Every job stands; now they come alive or change, in the order of the push."""
        place = 0
        for which, load in enumerate(self.loads):
            queue = self.kernel.queue(tenant, load.queue)
            if self._individual(load):
                for index in range(len(load.ends)):
                    job_id = self.expected[place + index]
                    self._act(queue, load, which, index, job_id, tables[which])
                if self.kernel.events is not None and created[which]:
                    held = self.bulk is not None
                    tell.pushed(self.kernel, queue, firsts[which], len(created[which]), held=held)
            place += len(load.ends)

    def _act(
        self, queue: "Queue", load: Load, which: int, index: int, job_id: int, outcomes: bytearray
    ) -> None:
        """Publish what was created, carry out what replaces."""
        if outcomes[index] == UPDATED:
            outcomes[index] = self._update(queue, load, which, index, job_id)
        elif outcomes[index] == CREATED and self.bulk is None:
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
    block.touch()
    side = block.sides.get(offset)
    queue.counts[HELD] -= 1
    if side is not None:
        if side.keys:
            kernel.take_keys(queue, block.base + offset, side.keys, side.digest, at)
        if side.group is not None:
            queue.group(side.group).jobs += 1
        if side.depends_on:
            failed = resolve(kernel, block, offset, side, pinned=not fresh)
            if failed:
                queue.counts[BLOCKED] += 1
                block.codes[offset] = BLOCKED
                die_of_dependency(kernel, block, offset, failed, at)
                return
            if side.unmet:
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
        if ready != at and not block.note_last_due(offset, -ready):
            block.side(offset).ready_at = ready
        block.codes[offset] = block.code_of[number]
        queue.stir()
        return
    if ready != block.due_at(offset):
        block.side(offset).ready_at = ready
    queue.make_ready(block, offset, ready)
