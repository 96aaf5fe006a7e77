"""One job by itself goes short ways; whatever can be seen of it is as on the general ones.

The same history is played by each of the ways, with the same clock and the same tokens, and what was
answered, refused, read and told is compared word by word.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kernel import append, claim, push
from penstock.model.errors import PenstockError
from penstock.model.event import Event
from penstock.model.job import JobError, JobOptions, Lease
from penstock.model.policy import Backoff, Bounds, Caps, Limits, QueueConfig, Rate
from penstock.model.store import UNNUMBERED, Number, Store
from penstock.protocol.short import JobKinds
from penstock.stores import claims
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.granting import grant_of, lease_of
from penstock.stores.remote import RemoteStore
from tests.served import ServedStore
from tests.unit.served import turns
from tests.unit.test_prompt import by_a_callback

HOUR = 3_600_000
STEPS = 250
CAPS = Caps(waiters=6, answers_per_producer=4)
ODD: Any = object()

TENANTS = ("default", "default", "default", "other", "no tenant", 7)
QUEUES = ("a", "a", "a", "b", "no queue", "", None)
PAYLOADS: tuple[Any, ...] = (
    *[b"1", b"{}", b'{"a":1}', b'{"a":":"}', b'[{"a":1},{"a":2}]', b"null"] * 3,
    *(
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":"\\u003a","a":1}',
        b'"\\ud800"',
        b"NaN",
        b"",
    ),
    *(b"\xff", b"[" * 101 + b"]" * 101, bytearray(b"1"), "1", None),
)
SETS: tuple[Any, ...] = (
    *[(JobOptions(),), (JobOptions(task="t", priority=3),)] * 4,
    (JobOptions(codec="bytes"),),
    (JobOptions(codec="msgpack", ttl_ms=40),),
    (JobOptions(lifo=True, max_attempts=1),),
    (JobOptions(lease_ms=60, timeout_ms=90, backoff=Backoff(kind="none")),),
    (JobOptions(retain_ms=0, tags=("x",)),),
    (JobOptions(priority=1 << 40),),
    (JobOptions(task="x" * 600),),
    (JobOptions(), JobOptions()),
    (),
    [JobOptions()],
    (ODD,),
)
CONTENTS = (bytes(16), bytes(16), b"another content.")
CONFIGS = (
    *[QueueConfig()] * 4,
    QueueConfig(paused=True),
    QueueConfig(bounds=Bounds(jobs=3)),
    QueueConfig(bounds=Bounds(push_rate=Rate(tokens=2, per_ms=50))),
    QueueConfig(limits=Limits(concurrency=2)),
    QueueConfig(limits=Limits(rate=Rate(tokens=2, per_ms=50))),
)


DEEDS = {
    "push": 40,
    "claim": 8,
    "wait": 16,
    "end": 20,
    "time": 8,
    "cancel": 2,
    "configure": 4,
    "rebuild": 2,
}
# Somebody waits nearly always, and is given what comes.
CALM_DEEDS = DEEDS | {"push": 30, "claim": 2, "wait": 50, "time": 4, "configure": 1}


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: list[Event]) -> None:
        self.events += events


class Played:
    """A history by the short ways. `behind` is the store that a server serves, if one does."""

    def __init__(
        self, seed: int, store: Store, behind: EmbeddedStore, clock: ManualClock, calm: bool = False
    ) -> None:
        self.store = store
        self._calm = calm  # nearly always the first of what there is to choose from
        self.behind = behind
        self.clock = clock
        self.seen: list[object] = []
        self._draw = random.Random(seed)
        self._waiting: dict[int, asyncio.Task[Lease | None]] = {}
        self._tokens: list[str] = []
        self._ids: list[int] = [1]

    async def one(self, *said: Any) -> int:
        return await self.store.push_one(*said)

    async def play(self) -> list[object]:
        draw = self._draw
        deeds = CALM_DEEDS if self._calm else DEEDS
        for step in range(STEPS):
            (deed,) = draw.choices(list(deeds), list(deeds.values()))
            self.seen.append((step, deed))
            if deed == "push":
                said = [self._choice(each) for each in (TENANTS, QUEUES, PAYLOADS, SETS)]
                for _ in range(self._choice((1, 1, 3))):  # what is said again is known
                    await self._tried(self.one(*said, self._number()))
                    await self._quiet()
            elif deed == "claim":
                await self._tried(self._claim(0))
            elif deed == "wait":
                self._waiting[step] = asyncio.create_task(self._claim(draw.choice((60, HOUR))))
            elif deed == "end" and self._tokens:
                await self._tried(self._end(draw.choice(self._tokens[-6:])))
            elif deed == "time":
                self.clock.advance(draw.choice((1, 10, 70)))
                await self.behind.tick()
            elif deed == "cancel" and self._waiting:
                self._waiting[draw.choice(list(self._waiting))].cancel()
            elif deed == "configure":
                await self._tried(self.store.configure("default", "a", self._choice(CONFIGS)))
            elif deed == "rebuild":
                self.behind.rebuild()
            await self._quiet()
            await self._look()
        for task in self._waiting.values():
            task.cancel()
        await self._quiet()
        return self.seen

    def _choice(self, each: Sequence[Any]) -> Any:
        usual = self._calm and self._draw.random() < 0.98
        return each[0] if usual else self._draw.choice(each)

    def _number(self) -> Number:
        draw = self._draw
        if self._choice((True, False)):
            return UNNUMBERED
        producer: Any = draw.choice(("p", "p", "p", "r", "x" * 600, None))
        sequence: Any = draw.choice((*range(12), *range(12), -1, None, True))
        return producer, sequence, draw.choice((*CONTENTS, None, b"short"))

    def _claim(self, wait_ms: int) -> Coroutine[Any, Any, Lease | None]:
        draw = self._draw
        queues = draw.choice((["a"], ["a"], ["b", "a"], ["b"]))
        n, lease_ms = draw.choice((1, 1, 1, 3)), self._choice((None, 100))
        return self.store.claim(
            "default", queues, n, lease_ms=lease_ms, worker="w", wait_ms=wait_ms
        )

    def _end(self, token: str) -> Awaitable[object]:
        how, store = self._choice(("ack", "fail", "release", "extend")), self.store
        if how == "ack":
            return store.ack("default", token)
        if how == "fail":
            return store.fail("default", token, error=JobError(kind="E", message="m"))
        if how == "release":
            return store.release("default", token)
        return store.extend("default", token, 80)

    async def _tried(self, call: Awaitable[object]) -> None:
        try:
            answer = await call
        except asyncio.CancelledError:
            answer = "cancelled"
        except PenstockError as error:
            answer = (type(error), error.field, error.message)
        if isinstance(answer, Lease):
            self._tokens.append(answer.token)
            lease = answer
            answer = (lease.token, lease.queue, lease.expires_at, lease.ids, lease.jobs)
        elif type(answer) is int:
            self._ids.append(answer)
        self.seen.append(answer)

    async def _quiet(self) -> None:
        """Until whoever was given something has it."""
        await turns(3)
        for _ in range(10_000):
            under_way = sum(not task.done() for task in self._waiting.values())
            if self.behind.engine.waiting == under_way:
                break
            await asyncio.sleep(0)
        for step, task in list(self._waiting.items()):
            if task.done():
                del self._waiting[step]
                self.seen.append(f"of step {step}:")
                await self._tried(task)

    async def _look(self) -> None:
        """At whatever there is to see."""
        self.seen.append(await self.store.queues("default"))
        self.seen.append(await self.store.get("default", self._ids[-4:]))
        self.seen.append(self.behind.engine.waiting)


class General(Played):
    """The same by the general ways."""

    async def one(self, *said: Any) -> int:
        return await Store.push_one(self.store, *said)


class Apart(Played):
    """Pushed over a connection that nobody claims on: by short frames, and whoever waits on another
    one is told of a job before it is written down."""

    other: RemoteStore

    async def one(self, *said: Any) -> int:
        return await self.other.push_one(*said)


class Outside(Played):
    """Pushed by whoever is no task: somebody who waits goes on within the turn."""

    async def one(self, *said: Any) -> int:
        ids: list[int] = []

        def push() -> None:
            try:
                self.store.push_one(*said).send(None)
            except StopIteration as done:
                ids.append(done.value)

        await by_a_callback(push)
        return ids[0]


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Leases have the same tokens in each history; called, they begin anew."""

    def anew() -> None:
        numbers = count()
        made = SimpleNamespace(urandom=lambda size: next(numbers).to_bytes(size))
        monkeypatch.setattr(claims, "os", made)

    return anew


def _the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_claim_single", lambda *said: None)
    monkeypatch.setattr(
        claims,
        "lease_at_once",
        lambda kernel, record, chunks: lease_of(grant_of(kernel, record), chunks),
    )


async def _in_memory(
    way: type[Played], seed: int, calm: bool
) -> tuple[list[object], list[Event], str]:
    told, clock = Told(), ManualClock()
    store = EmbeddedStore.in_memory(clock=clock, caps=CAPS, events=told, seed=1)
    seen = await way(seed, store, store, clock, calm).play()
    digest = store.kernel.digest()
    await store.close()
    return seen, told.events, digest


async def _served(seed: int, calm: bool) -> tuple[list[object], list[Event]]:
    told, clock = Told(), ManualClock()
    store = await ServedStore.open("unix", clock=clock, caps=CAPS, events=told, seed=1)
    seen = await Played(seed, store, store.inner, clock, calm).play()
    await store.close()
    return seen, told.events


async def _served_apart(seed: int, calm: bool) -> tuple[list[object], list[Event]]:
    told, clock = Told(), ManualClock()
    store = await ServedStore.open("unix", clock=clock, caps=CAPS, events=told, seed=1)
    played = Apart(seed, store, store.inner, clock, calm)
    played.other = RemoteStore(store.target)
    await played.other.connect()
    seen = await played.play()
    await played.other.close()
    await store.close()
    return seen, told.events


class Counted:
    """How often a way was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.times = 0
        made = getattr(owner, name)

        def counted(*said: Any) -> Any:
            answer = made(*said)
            self.times += answer is not None and answer is not False
            return answer

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("calm", (False, True))
@pytest.mark.parametrize("seed", (0, 1, 2, 11))
def test_one_job_is_the_same_by_every_way(
    seed: int, calm: bool, tokens: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens()
    seen, told, digest = asyncio.run(_in_memory(Played, seed, calm))
    assert any(isinstance(each, tuple) and len(each) == 5 for each in seen), "somebody got a job"
    tokens()
    assert _alike(seen, asyncio.run(_in_memory(Outside, seed, calm))[0])
    tokens()
    served, told_by_it = asyncio.run(_served(seed, calm))
    assert _alike(seen, served)
    assert _alike(told, told_by_it)
    tokens()
    foretold = Counted(monkeypatch, claims.Claims, "foretell")
    short = Counted(monkeypatch, JobKinds, "frame")
    apart, told_apart = asyncio.run(_served_apart(seed, calm))
    assert _alike(seen, apart)
    assert _alike(told, told_apart)
    assert not calm or foretold.times >= short.times > 8
    tokens()
    _the_long_way(monkeypatch)
    general, told_then, digest_then = asyncio.run(_in_memory(General, seed, calm))
    assert _alike(seen, general)
    assert _alike(told, told_then)
    assert digest == digest_then
    tokens()
    monkeypatch.setattr(push, "append_ready", append.append_plain)  # notes payloads otherwise
    general, told_then, _ = asyncio.run(_in_memory(General, seed, calm))
    assert _alike(seen, general)
    assert _alike(told, told_then)


def _alike(one: list[Any], other: list[Any]) -> bool:
    for at, (this, that) in enumerate(zip(one, other, strict=False)):
        assert this == that, one[max(at - 6, 0) : at]
    return len(one) == len(other)
