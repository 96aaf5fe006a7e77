"""Long random histories from a seed, as data: they can be played, cut down and played again.

Hypothesis is good at short surprising histories and at shrinking them; plain dice reach further
into long ones. Both drive the same `Machine`, whose arguments are places and not ids, so that what
is left of a history still means something after steps were taken out of it.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from penstock.model.job import KeyClaim
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every
from tests.oracle import strategies as say
from tests.oracle.compare import Disagreement
from tests.oracle.machine import CHANGES, HOUR, Machine

T = TypeVar("T")
Step = tuple[str, dict[str, Any]]

CLEAN_EACH = 40  # steps, for one that cleans
INSTANTS_EACH = 30  # steps, for one that puts or drops instants


class Dice:
    """Draws the arguments of the machine's steps."""

    def __init__(self, seed: int, features: Sequence[str]) -> None:
        self.random = Random(seed)
        count = self.random.randint(1, 5)
        drawn = self.random.sample(sorted(say.FEATURES), count)
        self.features = sorted(features or drawn)

    def one_of(self, *values: T) -> T:
        return self.random.choice(values)

    def tenant(self) -> str:
        return self.one_of(*say.TENANTS[:1] * 9, *say.TENANTS[1:])

    def queue(self) -> str:
        return self.one_of("a", "a", "a", "b")

    def place(self) -> int:
        return min(int(self.random.expovariate(0.25)), 15)

    def places(self) -> list[int] | None:
        if self.random.random() < 0.5:
            return None
        return [self.place() for _ in range(self.random.randint(1, 4))]

    def picks(self) -> list[tuple[int, int]]:
        roll = self.random.randint
        return [(roll(0, 30), roll(0, 7)) for _ in range(roll(0, 5))]

    def jobs(self) -> list[list[tuple[int, int]]]:
        return [self.picks() for _ in range(self.random.randint(1, 4))]

    def lease_ms(self) -> int | None:
        return self.one_of(None, 50, 120, 10_000)

    def rate(self) -> Rate | None:
        rates = (Rate(tokens=2, per_ms=100), Rate(tokens=3, per_ms=90, burst=1))
        return self.one_of(None, None, *rates)

    def config(self) -> QueueConfig:
        limits = Limits(
            rate=self.rate(),
            concurrency=self.one_of(None, None, 1, 3),
            group_rate=self.rate(),
            group_concurrency=self.one_of(1, 1, 2),
        )
        return self.one_of(
            QueueConfig(),
            QueueConfig(limits=limits),
            QueueConfig(limits=limits),
            QueueConfig(
                retain_ms=self.one_of(0, 70, HOUR),
                retain_count=self.one_of(0, 1, 3, 1_000),
                retain_dead_ms=self.one_of(0, 90, HOUR),
            ),
            QueueConfig(paused=True),
        )

    def bounds(self) -> Bounds:
        bounds = Bounds(
            jobs=self.one_of(None, 10, 25), bytes=self.one_of(None, 60), push_rate=self.rate()
        )
        return self.one_of(Bounds(), Bounds(), bounds)

    def several_keys(self) -> list[tuple[KeyClaim, ...]]:
        def claim(key: str) -> KeyClaim:
            return KeyClaim(key, self.one_of(*say.ON_CONFLICT), self.one_of(*say.KEEP_KEY))

        def some() -> tuple[KeyClaim, ...]:
            return tuple(map(claim, self.random.sample(say.KEYS, self.random.randint(0, 2))))

        return [some() for _ in range(self.random.randint(1, 3))]

    def cron(self) -> CronSpec:
        return CronSpec(
            name=self.one_of(*say.CRONS),
            queue=self.queue(),
            schedule=Every(every_ms=self.one_of(100_000, 600_000)),
            payload=self.one_of(*say.PAYLOADS),
            overlap=self.one_of("allow", "skip"),
            missed=self.one_of("last", "all", "none"),
            limit=self.one_of(None, None, 2),
        )


# How often each step comes, and what it says.
STEPS: dict[str, tuple[int, Callable[[Dice], dict[str, Any]]]] = {
    "push": (10, lambda d: {"tenant": d.tenant(), "queue": d.queue(), "jobs": d.jobs()}),
    "push_one": (8, lambda d: {"tenant": d.tenant(), "queue": d.queue(), "picks": d.picks()}),
    "push_into_two_queues": (
        3,
        lambda d: {"tenant": d.tenant(), "jobs": d.jobs(), "cut": d.one_of(0, 1, 2, 3)},
    ),
    "push_alike": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "count": d.one_of(1, 2, 5),
            "picks": d.picks(),
            "delay_ms": d.one_of(None, None, 50),
        },
    ),
    "push_with_several_keys": (
        2,
        lambda d: {"tenant": d.tenant(), "queue": d.queue(), "keys": d.several_keys()},
    ),
    "push_as_producer": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "picks": d.picks(),
            "sequence": d.one_of(0, 1, 2, 3),
            "content": d.one_of(None, None, b"sixteen bytes: A", b"sixteen bytes: B"),
            "again": d.one_of(True, False),
        },
    ),
    "push_held": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "jobs": d.jobs(),
            "bulk": d.one_of("x", "x", "y"),
            "part": d.one_of("", "1"),
            "deadline_ms": d.one_of(None, HOUR, HOUR, 1_000),
        },
    ),
    "end_bulk": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "bulk": d.one_of("x", "x", "y"),
            "parts": d.one_of(None, None, [""], ["1"], ["2"], "abort"),
        },
    ),
    "claim": (
        10,
        lambda d: {
            "tenant": d.tenant(),
            "queues": d.one_of(["a"], ["b"], ["a", "b"], ["b", "a"]),
            "n": d.one_of(1, 1, 2, 5),
            "lease_ms": d.lease_ms(),
            "worker": d.one_of("", "w"),
        },
    ),
    "work": (
        8,
        lambda d: {
            "tenant": d.tenant(),
            "n": d.one_of(1, 3),
            "how": d.one_of("ack", "fail", "fail", ""),
        },
    ),
    "wait": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "n": d.one_of(1, 3),
            "lease_ms": d.lease_ms(),
            "job": d.one_of(None, d.place()),
        },
    ),
    "give_up_waiting": (1, lambda d: {"place": d.place()}),
    "ack": (
        6,
        lambda d: {"lease": d.place(), "places": d.places(), "results": d.one_of(True, False)},
    ),
    "fail": (
        6,
        lambda d: {
            "lease": d.place(),
            "places": d.places(),
            "retry_in_ms": d.one_of(None, None, None, 0, 45),
            "dead": d.one_of(False, False, False, True),
        },
    ),
    "release": (4, lambda d: {"lease": d.place(), "places": d.places()}),
    "keep": (
        4,
        lambda d: {
            "lease": d.place(),
            "lease_ms": d.lease_ms(),
            "job": d.one_of(None, d.place()),
            "progress": d.one_of(None, 5),
        },
    ),
    "cancel": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "places": d.places() or [d.place()],
            "discard": d.one_of(True, False),
        },
    ),
    "edit": (
        4,
        lambda d: {"tenant": d.tenant(), "place": d.place(), "change": d.one_of(*CHANGES)},
    ),
    "redrive": (
        3,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "places": d.places(),
            "limit": d.one_of(None, None, 1),
        },
    ),
    "configure": (
        3,
        lambda d: {"tenant": d.tenant(), "queue": d.queue(), "config": d.config()},
    ),
    "bound": (
        1,
        lambda d: {"tenant": d.tenant(), "queue": d.one_of("a", "b", None), "bounds": d.bounds()},
    ),
    "clear": (
        1,
        lambda d: {
            "tenant": d.tenant(),
            "queue": d.queue(),
            "how": d.one_of("purge_dead", "drain", "purge"),
        },
    ),
    "cron": (
        1,
        lambda d: {
            "tenant": d.tenant(),
            "spec": d.cron(),
            "how": d.one_of("put", "put", "refresh", "drop"),
        },
    ),
    "advance": (14, lambda d: {"ms": d.one_of(1, 10, 25, 50, 50, 100, 300, 1_000, 90_000)}),
    "jump": (1, lambda d: {"ms": d.one_of(-HOUR, HOUR, -100, 100)}),
    "meanwhile": (3, lambda d: {"what": d.one_of("tick", "look", "restart")}),
}


def history(seed: int, length: int, features: Sequence[str] = ()) -> list[Step]:
    """The first step opens; so many follow. Features that are not said are drawn."""
    dice = Dice(seed, features)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.random.choices(list(STEPS), weights, k=length)
    steps = [(name, STEPS[name][1](dice)) for name in names]
    if not features:
        _add_cleaning(steps, Dice(seed, ["cleaning"]))
        _add_instants(steps, Dice(seed, ["instants"]))
    return [("open", {"features": dice.features}), *steps]


def _add_cleaning(steps: list[Step], dice: "Dice") -> None:
    """Drawn apart: one more kind of step would make other histories of all that are known."""
    for _ in range(len(steps) // CLEAN_EACH):
        arguments = {
            "tenant": dice.tenant(),
            "queue": dice.queue(),
            "state": dice.one_of(*(s for s in State if s not in (State.ACTIVE, State.HELD))),
            "older_ms": dice.one_of(0, 0, 40),
            "limit": dice.one_of(None, 1, 2),
        }
        steps.insert(dice.random.randrange(len(steps)), ("clean", arguments))


def _add_instants(steps: list[Step], dice: "Dice") -> None:
    for _ in range(len(steps) // INSTANTS_EACH):
        arguments = {
            "tenant": dice.tenant(),
            "queue": dice.queue(),
            "name": dice.one_of(*say.CRONS),
            "config": dice.one_of(*say.CONFIGS, None),
            "ahead": [dice.random.randint(-1, 4) for _ in range(dice.one_of(0, 1, 2, 3))],
            "payload": dice.one_of(*say.PAYLOADS),
            "how": dice.one_of("put", "put", "refresh", "drop"),
        }
        steps.insert(dice.random.randrange(len(steps)), ("instants", arguments))


def play(machine: Machine, steps: list[Step]) -> None:
    """Take the steps that are possible; any disagreement is raised."""
    try:
        for name, arguments in steps:
            if possible(machine, name):
                getattr(machine, name)(**arguments)
    finally:
        machine.teardown()


def possible(machine: Machine, name: str) -> bool:
    """As the rules' own preconditions say, which count only for Hypothesis."""
    if name in ("ack", "fail", "release", "keep"):
        return bool(machine.leases)
    if name == "give_up_waiting":
        return bool(machine.pair.waiting)
    return True


def shortest(make: Callable[[], Machine], steps: list[Step]) -> tuple[list[Step], AssertionError]:
    """Take steps out, ever smaller stretches of them, as long as it still ends in disagreement."""
    found = failure_of(make, steps)
    assert found is not None, "there is nothing to shorten"
    size = len(steps) // 2
    while size:
        start = 1
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            failure = failure_of(make, fewer)
            if failure is None:
                start += size
            else:
                steps, found = fewer, failure
        size //= 2
    return steps, found


def check_history(make: Callable[[], Machine], seed: int, length: int) -> None:
    """Play the history of a seed; a disagreement is shown with the fewest steps that lead to it."""
    steps = history(seed, length)
    first = failure_of(make, steps)
    if first is None:
        return
    if failure_of(make, steps) is None:
        raise Disagreement(f"seed {seed}, not every time: {first}")
    fewest, failure = shortest(make, steps)
    taken = "\n  ".join(f"{name} {arguments}" for name, arguments in fewest)
    raise Disagreement(f"seed {seed}: {failure}\nin the steps\n  {taken}")


def failure_of(make: Callable[[], Machine], steps: list[Step]) -> AssertionError | None:
    try:
        play(make(), steps)
    except AssertionError as error:
        return error
    return None
