"""What the operations of a history did to each job, for the rules to read. Nothing is judged here.

*May have* runs through all of it: an unknown operation counts as one that happened wherever that
excuses the store, and as one that did not wherever that excuses it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import msgspec

from penstock.model.job import Outcome
from penstock.model.lifecycle import LIVE, State
from penstock.model.policy import DEFAULT_CONFIG, LEASE_MS, QueueConfig
from tests.history import record as r
from tests.history.final import FinalState
from tests.history.operations import NEVER, History, Operation

# -- what was said of a job ------------------------------------------------------------------------


class Saying(msgspec.Struct, frozen=True, eq=False):
    """One job in one push, with what the push answered for it."""

    serial: r.Serial
    queue: str
    said: r.Said
    push: Operation
    id: int | None = None  # unless the push is unknown or failed
    outcome: Outcome | None = None


def sayings(push: Operation) -> Iterator[Saying]:
    answers = push.answer.runs if push.ok else [[] for _ in push.call.runs]
    for run, answered in zip(push.call.runs, answers, strict=True):
        given = iter(
            [(i, outcome) for first, n, outcome in answered for i in range(first, first + n)]
        )
        for said in run.jobs:
            for serial in said.serials:
                job_id, outcome = next(given, (None, None))
                yield Saying(serial, run.queue, said, push, job_id, outcome)


# -- what became of it -----------------------------------------------------------------------------


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """One job handed out by one claim."""

    id: int
    serial: r.Serial
    attempt: int
    group: str | None
    claim: Operation

    @property
    def lease(self) -> str:
        return self.claim.answer.lease  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        return self.claim.answer.queue  # type: ignore[no-any-return]


def deliveries(claim: Operation) -> Iterator[Delivery]:
    for handed in claim.answer.jobs:
        for index in range(handed.count):
            serial = (handed.maker, handed.first + index)
            yield Delivery(handed.id + index, serial, handed.attempt, handed.group, claim)


class Sighting(msgspec.Struct, frozen=True, eq=False):
    """A job as somebody met it."""

    id: int
    queue: str
    state: State
    operation: Operation | None = None  # None: at the end

    @property
    def operations(self) -> tuple[Operation, ...]:
        return () if self.operation is None else (self.operation,)


class Life:
    """Everything that a history tells of one id."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id
        self.created: list[Saying] = []  # more than one is a fault, or the repeat of a producer
        self.updated: list[Saying] = []
        self.deliveries: list[Delivery] = []
        self.fails: list[tuple[Operation, r.FailedOne]] = []
        self.shown: list[tuple[Operation, r.Seen]] = []
        # By kind of call: the answered ones that touched it, and the unknown ones that name it.
        self.certain: defaultdict[type, list[Operation]] = defaultdict(list)
        self.maybe: defaultdict[type, list[Operation]] = defaultdict(list)

    @property
    def birth(self) -> Saying:
        return self.created[0]

    @property
    def queue(self) -> str:
        return self.birth.queue

    @property
    def acks(self) -> list[Operation]:
        return self.certain[r.Ack]

    @property
    def cancels(self) -> list[Operation]:
        return self.certain[r.Cancel]

    def may(self, kind: type) -> list[Operation]:
        """The operations of this kind that touched it, or may have."""
        return self.certain[kind] + self.maybe[kind]

    def proofs_of_life(self) -> Iterator[Operation]:
        """Answers which show that the job was alive when they were given."""
        yield from (delivery.claim for delivery in self.deliveries)
        for kind in (r.Ack, r.Fail, r.Release, r.Cancel):
            yield from self.certain[kind]
        yield from (operation for operation, seen in self.shown if seen.state in LIVE)


class Case:
    """A history and the state in which the store was found: all that a rule may look at."""

    def __init__(
        self,
        history: History,
        final: FinalState,
        *,
        claims_survive: bool = True,
        claims_repeated: int = 0,
        stood_ms: int = 0,
    ) -> None:
        self.history = history
        self.final = final
        self.claims_survive = claims_survive
        self.claims_repeated = claims_repeated
        self.stood_ms = stood_ms
        self.lives: dict[int, Life] = {}
        self.sayings: defaultdict[r.Serial, list[Saying]] = defaultdict(list)
        self.deliveries: list[Delivery] = []
        self.by_kind: defaultdict[type, list[Operation]] = defaultdict(list)
        self._leases: dict[str, list[Delivery]] = {}
        self._configs: dict[str, list[QueueConfig]] = {}
        self._versions: dict[int, list[Saying]] = {}
        self._extends: defaultdict[str, list[Operation]] = defaultdict(list)
        for operation in history.operations:
            self.by_kind[type(operation.call)].append(operation)
        self._note_pushes()
        self._note_claims()
        self._note_leases()
        self._note_changes()

    # -- gathering -------------------------------------------------------------------------------

    def of(self, *kinds: type) -> list[Operation]:
        """The operations of these kinds that happened or may have."""
        return [op for kind in kinds for op in self.by_kind[kind] if op.maybe]

    def oks(self, kind: type) -> list[Operation]:
        return [operation for operation in self.by_kind[kind] if operation.ok]

    def life(self, job_id: int) -> Life:
        return self.lives.setdefault(job_id, Life(job_id))

    @cached_property
    def born(self) -> list[Life]:
        """The jobs that an answered push created, by id."""
        return [life for _, life in sorted(self.lives.items()) if life.created]

    @cached_property
    def born_in(self) -> Counter[str]:
        """How many of them each queue has."""
        return Counter(life.queue for life in self.born)

    def _note_pushes(self) -> None:
        for push in self.of(r.Push):
            for saying in sayings(push):
                self.sayings[saying.serial].append(saying)
                if saying.id is not None and saying.outcome == "created":
                    self.life(saying.id).created.append(saying)
                elif saying.id is not None and saying.outcome == "updated":
                    self.life(saying.id).updated.append(saying)

    def _note_claims(self) -> None:
        for claim in self.oks(r.Claim):
            if isinstance(claim.answer, r.Leased):
                handed = list(deliveries(claim))
                self._leases[claim.answer.lease] = handed
                self.deliveries += handed
                for delivery in handed:
                    self.life(delivery.id).deliveries.append(delivery)

    def _note_leases(self) -> None:
        for operation in self.of(r.Ack, r.Fail, r.Release):
            if operation.ok:
                self._note_ok(operation)
            else:
                for job_id in self.named(operation):
                    self.life(job_id).maybe[type(operation.call)].append(operation)
        for operation in self.of(r.Extend):
            self._extends[operation.call.lease].append(operation)

    def _note_ok(self, operation: Operation) -> None:
        if isinstance(operation.call, r.Fail):
            for failed in operation.answer.jobs:
                self.life(failed.id).fails.append((operation, failed))
                self.life(failed.id).certain[r.Fail].append(operation)
            return
        for job_id in r.each(operation.answer.ids):
            self.life(job_id).certain[type(operation.call)].append(operation)

    def _note_changes(self) -> None:
        for operation in self.of(r.Cancel):
            for job_id in r.each(operation.answer.ids if operation.ok else operation.call.ids):
                life = self.life(job_id)
                (life.cancels if operation.ok else life.maybe[r.Cancel]).append(operation)
        for operation in self.oks(r.Redrive):
            for job_id in r.each(operation.answer.ids):
                self.life(job_id).certain[r.Redrive].append(operation)
        for operation in self.of(r.Redrive):
            if not operation.ok:
                for life in self._named_in_queue(operation):
                    life.maybe[r.Redrive].append(operation)
        for operation in self.oks(r.Get):
            for seen in operation.answer.jobs:
                self.life(seen.id).shown.append((operation, seen))

    def _named_in_queue(self, operation: Operation) -> Iterator[Life]:
        named = operation.call.ids
        chosen = None if named is None else set(r.each(named))
        for life in self.lives.values():
            inside = not life.created or life.queue == operation.call.queue
            if inside and (chosen is None or life.id in chosen):
                yield life

    # -- leases ----------------------------------------------------------------------------------

    def held_by(self, lease: str) -> list[Delivery]:
        """What a claim handed out on this lease."""
        return self._leases.get(lease, [])

    def named(self, operation: Operation) -> list[int]:
        """The ids that an ack, fail or release is about, whatever it was answered."""
        if operation.call.ids is not None:
            return list(r.each(operation.call.ids))
        return [delivery.id for delivery in self.held_by(operation.call.lease)]

    def lease_ms(self, claim: Operation) -> int:
        if claim.call.lease_ms is not None:
            return claim.call.lease_ms  # type: ignore[no-any-return]
        own = [self.said(delivery) for delivery in self.held_by(claim.answer.lease)]
        return max((said.lease_ms if said and said.lease_ms else LEASE_MS) for said in own)

    def expires_earliest(self, claim: Operation) -> int:
        """The lease does not end on its own before this instant (elapsed)."""
        own = self.lease_ms(claim)
        bound = claim.asked_at + own
        told = claim.told
        for extend in self._extends[claim.answer.lease]:
            renewed = extend.asked_at + (extend.call.lease_ms or own)
            # One that may have come first, or not at all, can only have shortened it.
            certain = extend.ok and told < extend.asked
            bound = renewed if certain else min(bound, renewed)
            told = max(told, extend.told)
        return bound

    def expires_latest(self, claim: Operation, asked: Operation) -> int:
        """The lease has ended by this instant (elapsed), as far as `asked` may count on it."""
        own = self.lease_ms(claim)
        extends = [op for op in self._extends[claim.answer.lease] if op.asked < asked.asked]
        ends = [extend.told_at + (extend.call.lease_ms or own) for extend in extends]
        return max([claim.told_at + own, *ends]) + self.stood_ms

    def surely_held(self, delivery: Delivery) -> tuple[int, int]:
        """The lines from which and until which this job was certainly active on this lease."""
        claim, life = delivery.claim, self.lives[delivery.id]
        ends = [self.history.line_at(self._runs_out(delivery))]
        for kind in (r.Ack, r.Fail, r.Release):
            ends += [op.asked for op in life.may(kind) if op.call.lease == delivery.lease]
        taking = life.may(r.Cancel) + self.sweeps(delivery.queue, r.Purge)
        ends += [op.asked for op in taking if op.told > claim.asked]
        if not self.claims_survive:
            ends.append(self.history.next_opened(claim.told))
        return claim.told, min(ends)

    def _runs_out(self, delivery: Delivery) -> int:
        said = self.said(delivery)
        ends = [self.expires_earliest(delivery.claim)]
        if said is not None and said.timeout_ms is not None:
            ends.append(delivery.claim.asked_at + said.timeout_ms)
        return min(ends)

    # -- what rules ask --------------------------------------------------------------------------

    def said(self, delivery: Delivery) -> r.Said | None:
        """What the producer said of a job that was handed out; None if nobody said anything."""
        said = self.sayings.get(delivery.serial)
        return said[0].said if said else None

    def sweeps(self, queue: str, *kinds: type) -> list[Operation]:
        return [
            op
            for op in self.of(*(kinds or (r.Drain, r.Purge, r.PurgeDead)))
            if op.call.queue == queue
        ]

    def configs(self, queue: str) -> list[QueueConfig]:
        """Every configuration that may have been in force while jobs of the queue were claimed."""
        if queue not in self._configs:
            self._configs[queue] = self._find_configs(queue)
        return self._configs[queue]

    def _find_configs(self, queue: str) -> list[QueueConfig]:
        said = [op for op in self.of(r.Configure) if op.call.queue == queue]
        first = min((d.claim.asked for d in self.deliveries if d.queue == queue), default=NEVER)
        known = [op.call.config for op in said]
        settled = any(op.ok and op.told < first for op in said)
        return known if settled else [DEFAULT_CONFIG, *known]

    def unknown_claims(self, queue: str) -> list[Operation]:
        """Claims that may have taken jobs of the queue without anybody hearing of it."""
        return [
            op for op in self.by_kind[r.Claim] if op.status == "unknown" and queue in op.call.queues
        ]

    def versions(self, life: Life) -> list[Saying]:
        """Everything that may have been this job's content: said of it, or in an unknown push."""
        if life.id not in self._versions:
            self._versions[life.id] = self._find_versions(life)
        return self._versions[life.id]

    def _find_versions(self, life: Life) -> list[Saying]:
        certain = life.created + life.updated
        serials = {d.serial for d in life.deliveries} | {seen.serial for _, seen in life.shown}
        if life.id in self.final.jobs:
            serials.add(self.final.jobs[life.id].serial)
        met = [one for serial in serials for one in self.sayings.get(serial, ()) if one.id is None]
        keys = {(one.queue, one.said.key) for one in certain + met if one.said.key is not None}
        unknown = [one for place in keys for one in self._unknown_replaces.get(place, ())]
        return certain + [one for one in met if one not in unknown] + unknown

    def is_one_version(self, life: Life) -> bool:
        """Whether nobody can have given this job another content, or the same again."""
        return len({id(self.origin(one.push)) for one in self.versions(life)}) == 1

    @cached_property
    def _unknown_replaces(self) -> dict[tuple[str, str], list[Saying]]:
        found: defaultdict[tuple[str, str], list[Saying]] = defaultdict(list)
        for said in self.sayings.values():
            for one in said:
                if one.id is None and one.said.key and one.said.on_conflict == "replace":
                    found[one.queue, one.said.key].append(one)
        return dict(found)

    def origin(self, push: Operation) -> Operation:
        """The first push under the same producer and sequence: it may be the one that counted."""
        if push.call.producer is None:
            return push
        return self._sequences[push.call.producer, push.call.sequence][0]

    def available(self, life: Life) -> tuple[int, int] | None:
        """The lines between which this job came alive; None if that is not certain."""
        push = life.birth.push
        if push.call.bulk is None:
            return self.origin(push).asked, push.told
        story = self.bulks[push.call.bulk]
        if story.committed is None:
            return None
        return min(commit.asked for commit in story.commits), story.committed.told

    def lived_past(self, life: Life, line: int) -> bool:
        """Whether something shows that the job had not ended at this line."""
        found = self.final.jobs.get(life.id)
        if found is not None and found.state in LIVE:
            return True
        return any(operation.asked > line for operation in life.proofs_of_life())

    @cached_property
    def _sequences(self) -> dict[tuple[str, int], list[Operation]]:
        found: defaultdict[tuple[str, int], list[Operation]] = defaultdict(list)
        for push in self.by_kind[r.Push]:
            if push.call.producer is not None:
                found[push.call.producer, push.call.sequence].append(push)
        return dict(found)

    @property
    def sequences(self) -> Iterable[list[Operation]]:
        return self._sequences.values()

    @cached_property
    def bulks(self) -> dict[str, "BulkStory"]:
        found: dict[str, BulkStory] = {}
        for push in self.of(r.Push):
            if push.call.bulk is not None:
                found.setdefault(push.call.bulk, BulkStory(push.call.bulk)).pushes.append(push)
        for operation in self.of(r.CommitBulk, r.AbortBulk):
            story = found.setdefault(operation.call.bulk, BulkStory(operation.call.bulk))
            committing = isinstance(operation.call, r.CommitBulk)
            (story.commits if committing else story.aborts).append(operation)
        return found

    @cached_property
    def sightings(self) -> dict[r.Serial, list[Sighting]]:
        """Where each serial was met."""
        met: defaultdict[r.Serial, list[Sighting]] = defaultdict(list)
        for delivery in self.deliveries:
            one = Sighting(delivery.id, delivery.queue, State.ACTIVE, delivery.claim)
            met[delivery.serial].append(one)
        for life in self.lives.values():
            for operation, seen in life.shown:
                met[seen.serial].append(Sighting(seen.id, seen.queue, seen.state, operation))
        for seen in self.final.jobs.values():
            met[seen.serial].append(Sighting(seen.id, seen.queue, seen.state))
        return met


class BulkStory:
    def __init__(self, name: str) -> None:
        self.name = name
        self.pushes: list[Operation] = []
        self.commits: list[Operation] = []
        self.aborts: list[Operation] = []

    @property
    def committed(self) -> Operation | None:
        return next((commit for commit in self.commits if commit.ok), None)

    @property
    def aborted(self) -> Operation | None:
        return next((abort for abort in self.aborts if abort.ok), None)

    def names(self, push: Operation) -> bool:
        """Whether a commit, certain or possible, publishes the part of this push."""
        parts = [commit.call.parts for commit in self.commits]
        return any(named is None or push.call.part in named for named in parts)


class Finding(msgspec.Struct, frozen=True):
    """What a rule found: a sentence, and the operations that it is about."""

    text: str
    operations: tuple[Operation, ...] = ()


Rule = Callable[[Case], Iterator[Finding]]
