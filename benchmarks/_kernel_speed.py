"""Push, claim and ack by batch size: the kernel, the memory store, a heap of objects, the oracle.

Each subject has its loops written out by hand, so that nothing but the subject is measured: what
the loop adds is an iteration over instants made beforehand.
"""

import os
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, Protocol, TypeVar

from benchmarks._heap_queue import HeapQueue
from benchmarks._measure import ROUNDS, Figure, clock_ns, interleave, repeats
from penstock.kernel.commands import Ack, Claim, Load, Push
from penstock.kernel.kernel import Kernel
from penstock.model.job import JobOptions, Run
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.payloads import SHARED, SMALL
from tests.oracle.store import OracleStore

BATCHES: Final = (1, 10, 100, 1_000, 10_000)
PAYLOAD: Final = b'{"to":"someone@example.org","order":1234567}'  # 44 bytes
DEPTH: Final = 4_000  # jobs pushed before the first is claimed, where phases are timed apart
KEPT: Final = 10_000  # finished jobs that a queue keeps by default
LEASE_MS: Final = 30_000
START: Final = 1_700_000_000_000
JOBS_PER_MS: Final = 100  # how fast the clock goes by
SLICE_NS: Final = 12_000_000  # about so long a subject is measured before it is the next one's turn
STATED: Final = {
    "options": "default but codec bytes, and the priority where there are three",
    "payload_bytes": len(PAYLOAD),
    "lease_ms": LEASE_MS,
    "retain_count": KEPT,
    "events": False,
}

Phases = tuple[int, int, int]  # ns of push, claim, ack
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What is pushed: batches of one size, with one priority or several that alternate."""

    name: str
    batch: int
    priorities: tuple[int, ...]

    @property
    def options(self) -> tuple[JobOptions, ...]:
        return tuple(JobOptions(codec="bytes", priority=one) for one in self.priorities)

    @property
    def option_of(self) -> bytes | None:
        if len(self.priorities) == 1:
            return None
        return bytes(islice(cycle(range(len(self.priorities))), self.batch))

    @property
    def payloads(self) -> list[bytes]:
        return [PAYLOAD] * self.batch

    @property
    def ends(self) -> "array[int]":
        return array("I", range(len(PAYLOAD), len(PAYLOAD) * self.batch + 1, len(PAYLOAD)))


class Subject(Protocol):
    def cycles(self, rounds: int) -> int:
        """ns of that many times push, claim, ack of one batch."""

    def phases(self, rounds: int) -> Phases:
        """ns of that many pushes, then as many claims, then as many acks."""


class KernelSubject:
    """`Kernel.apply`, with the commands that the embedded store makes. Events off."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.kernel = Kernel(seed=1)
        self.done = 0  # batches pushed so far
        self.chunk = 1
        self.start = 0

    def _steps(self, rounds: int) -> list[tuple[int, int, int]]:
        """(now, chunk, start) of each push: where the store would put its payloads."""
        steps = []
        size = self.work.batch * len(PAYLOAD)
        for _ in range(rounds):
            if size > SMALL or self.start + size > SHARED:
                self.chunk += 1
                self.start = 0
            now = START + self.done * self.work.batch // JOBS_PER_MS
            steps.append((now, self.chunk, self.start))
            self.start += size
            self.done += 1
        return steps

    def cycles(self, rounds: int) -> int:
        steps = self._steps(rounds)
        work, apply, freed = self.work, self.kernel.apply, self.kernel.freed
        n, ends, options, option_of = work.batch, work.ends, work.options, work.option_of
        urandom = os.urandom
        began = clock_ns()
        for now, chunk, start in steps:
            load = Load(
                queue="work",
                chunk=chunk,
                start=start,
                ends=ends,
                options=options,
                option_of=option_of,
            )
            apply(Push(tenant="default", loads=[load]), now, now)
            token = urandom(16).hex()
            apply(Claim("default", ("work",), n, token, LEASE_MS, "w"), now, now)
            apply(Ack("default", token), now, now)
            if freed:
                freed.clear()
        return clock_ns() - began

    def phases(self, rounds: int) -> Phases:
        steps = self._steps(rounds)
        now = steps[-1][0]
        work, apply, freed = self.work, self.kernel.apply, self.kernel.freed
        n, ends, options, option_of = work.batch, work.ends, work.options, work.option_of
        urandom = os.urandom
        tokens: list[str] = []
        began = clock_ns()
        for at, chunk, start in steps:
            load = Load(
                queue="work",
                chunk=chunk,
                start=start,
                ends=ends,
                options=options,
                option_of=option_of,
            )
            apply(Push(tenant="default", loads=[load]), at, at)
        pushed = clock_ns()
        for _ in steps:
            token = urandom(16).hex()
            apply(Claim("default", ("work",), n, token, LEASE_MS, "w"), now, now)
            tokens.append(token)
        claimed = clock_ns()
        for token in tokens:
            apply(Ack("default", token), now, now)
            if freed:
                freed.clear()
        acked = clock_ns()
        return pushed - began, claimed - pushed, acked - claimed


class HeapSubject:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.queue = HeapQueue(KEPT)
        self.done = 0

    def _instants(self, rounds: int) -> list[int]:
        first, batch = self.done, self.work.batch
        self.done += rounds
        return [START + at * batch // JOBS_PER_MS for at in range(first, self.done)]

    def _push(self) -> tuple[Callable[..., range], Any]:
        work, options = self.work, self.work.options
        if work.option_of is None:
            return self.queue.push, options[0]
        return self.queue.push_mixed, [options[which] for which in work.option_of]

    def cycles(self, rounds: int) -> int:
        instants = self._instants(rounds)
        push, options = self._push()
        claim, ack = self.queue.claim, self.queue.ack
        n, payloads = self.work.batch, self.work.payloads
        began = clock_ns()
        for now in instants:
            push(payloads, options, now)
            lease = claim(n, LEASE_MS, now)
            assert lease is not None
            ack(lease[0], now)
        return clock_ns() - began

    def phases(self, rounds: int) -> Phases:
        instants = self._instants(rounds)
        now = instants[-1]
        push, options = self._push()
        claim, ack = self.queue.claim, self.queue.ack
        n, payloads = self.work.batch, self.work.payloads
        tokens: list[str] = []
        began = clock_ns()
        for at in instants:
            push(payloads, options, at)
        pushed = clock_ns()
        for _ in instants:
            lease = claim(n, LEASE_MS, now)
            assert lease is not None
            tokens.append(lease[0])
        claimed = clock_ns()
        for token in tokens:
            ack(token, now)
        acked = clock_ns()
        return pushed - began, claimed - pushed, acked - claimed


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The outcome of a call that has nothing to wait for, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        outcome: T = stopped.value
        return outcome
    raise RuntimeError("the call waits for something")


class StoreSubject:
    """A Store with checks, payload bytes and the lease as its claimer sees it."""

    def __init__(self, work: Work, make: Callable[[ManualClock], Store]) -> None:
        self.work = work
        self.clock = ManualClock(START)
        self.store = make(self.clock)

    def _runs(self, rounds: int) -> list[list[Run]]:
        """One run per push, each with bytes of its own: the store keeps what it is given."""
        work = self.work
        packed = [b"".join(work.payloads) for _ in range(rounds)]
        ends, options, option_of = work.ends, work.options, work.option_of
        return [
            [Run(queue="work", data=data, ends=ends, options=options, option_of=option_of)]
            for data in packed
        ]

    def cycles(self, rounds: int) -> int:
        runs, store, n = self._runs(rounds), self.store, self.work.batch
        began = clock_ns()
        for run in runs:
            finish(store.push("default", run))
            lease = finish(store.claim("default", ("work",), n, lease_ms=LEASE_MS, worker="w"))
            assert lease is not None
            finish(store.ack("default", lease.token))
        spent = clock_ns() - began
        self.clock.advance(max(1, rounds * n // JOBS_PER_MS))
        return spent

    def phases(self, rounds: int) -> Phases:
        runs, store, n = self._runs(rounds), self.store, self.work.batch
        tokens: list[str] = []
        began = clock_ns()
        for run in runs:
            finish(store.push("default", run))
        pushed = clock_ns()
        for _ in runs:
            lease = finish(store.claim("default", ("work",), n, lease_ms=LEASE_MS, worker="w"))
            assert lease is not None
            tokens.append(lease.token)
        claimed = clock_ns()
        for token in tokens:
            finish(store.ack("default", token))
        acked = clock_ns()
        self.clock.advance(max(1, rounds * n // JOBS_PER_MS))
        return pushed - began, claimed - pushed, acked - claimed


SUBJECTS: Final[dict[str, Callable[[Work], Subject]]] = {
    "kernel": KernelSubject,
    "heap": HeapSubject,
    "store": lambda work: StoreSubject(
        work, lambda clock: EmbeddedStore.in_memory(clock=clock, seed=1)
    ),
    "oracle": lambda work: StoreSubject(work, lambda clock: OracleStore(clock=clock)),
}
LABELS: Final = {
    "kernel": "kernel (apply)",
    "heap": "heap of objects",
    "store": "memory store",
    "oracle": "oracle",
}
OPERATIONS: Final = ("push", "claim", "ack", "cycle")
ORACLE_JOBS: Final = 20  # per sample; it looks at every job it knows at every call
ORACLE_BATCH: Final = 1_000  # the largest it is asked for


def measure(work: Work, *, slices: int, rounds: int = ROUNDS) -> list[Figure]:
    """jobs/s of push, claim, ack and the whole cycle, for every subject, interleaved."""
    takes: dict[str, Callable[[], Sequence[float]]] = {}
    for name, make in SUBJECTS.items():
        if name == "oracle":
            if work.batch <= ORACLE_BATCH:
                takes[name] = partial(_take_fresh, make, work)
            continue
        subject = make(work)
        depth = max(1, DEPTH // work.batch)
        subject.cycles(KEPT // work.batch + 1)  # from here on each end makes one be forgotten
        often = repeats(subject.cycles, SLICE_NS, most=1_000_000)
        phased = repeats(partial(_phases_ns, subject, depth), SLICE_NS, most=1_000)
        takes[name] = partial(_take, subject, often, phased, depth)
    figures = []
    for name, samples in interleave(takes, rounds, slices).items():
        for at, operation in enumerate(OPERATIONS):
            rates = tuple(work.batch * 1e9 / sample[at] for sample in samples)
            label = f"{work.name} · {operation} by {work.batch:,} · {LABELS[name]}"
            figures.append(Figure(label, "jobs/s", rates, _settings(work, name, operation)))
    return figures


def _settings(work: Work, name: str, operation: str) -> dict[str, Any]:
    ahead = ORACLE_JOBS if name == "oracle" else DEPTH
    return {
        "subject": name,
        "operation": operation,
        "batch": work.batch,
        "work": work.name,
        "priorities": len(work.priorities),
        "queued_ahead": work.batch if operation == "cycle" else max(work.batch, ahead),
        **STATED,
    }


def _take(subject: Subject, often: int, phased: int, depth: int) -> Sequence[float]:
    """ns per batch of push, claim, ack and the whole cycle."""
    parts = [ns / (phased * depth) for ns in _phases(subject, depth, phased)]
    return [*parts, subject.cycles(often) / often]


def _take_fresh(make: Callable[[Work], Subject], work: Work) -> Sequence[float]:
    """The same for a subject that slows down with all it has ever seen."""
    often = max(1, ORACLE_JOBS // work.batch)
    return _take(make(work), often, 1, often)


def _phases_ns(subject: Subject, depth: int, times: int) -> int:
    return sum(_phases(subject, depth, times))


def _phases(subject: Subject, depth: int, times: int) -> Phases:
    push = claim = ack = 0
    for _ in range(times):
        parts = subject.phases(depth)
        push, claim, ack = push + parts[0], claim + parts[1], ack + parts[2]
    return push, claim, ack
