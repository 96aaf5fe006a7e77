"""`Telemetry`: a Store around a Store that times and counts every call, and changes nothing.

What happened to jobs is counted by the `Meter`, by range: a call's answer does not tell it (a
repeated push adds nothing, a lease expires without a call).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.job import JobOptions
from penstock.model.store import Pusher, Store
from penstock.model.wrapper import FREQUENT, PUSH_ONE, Call, Wrapper
from penstock.protocol.command import Figures
from penstock.telemetry.meter import Histogram, Meter

T = TypeVar("T")

# Upper ends, in seconds: a call into memory takes microseconds, one that waits for a disk longer.
CALL_BUCKETS_S: Final[tuple[float, ...]] = (
    *(0.00001, 0.00003, 0.0001, 0.0003),
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
)
UNEXPECTED: Final = "internal"  # the code of an error that is none of ours


class Operation:
    """The calls of one method."""

    __slots__ = ("errors", "took")

    def __init__(self) -> None:
        self.took = Histogram(CALL_BUCKETS_S)
        self.errors: defaultdict[str, int] = defaultdict(int)  # by code

    def ended(self, began: float, error: BaseException | None = None) -> None:
        seconds, took = perf_counter() - began, self.took
        took.counts[bisect_left(took.bounds, seconds)] += 1
        took.sum += seconds
        if isinstance(error, Exception):  # and nobody's wish to stop
            self.errors[error.code if isinstance(error, PenstockError) else UNEXPECTED] += 1


class Telemetry(Wrapper):
    def __init__(self, store: Store, meter: Meter) -> None:
        self._inner = store
        self.meter = meter
        self.operations: defaultdict[str, Operation] = defaultdict(Operation)
        for name in FREQUENT:
            setattr(self, name, _timed(getattr(store, name), self.operations[name]))
        setattr(self, PUSH_ONE, _timed(store.push_one, self.operations["push"]))

    @property
    def inner(self) -> Store:
        return self._inner

    def pusher(
        self,
        tenant: str,
        queue: str,
        options: tuple[JobOptions, ...],
        producer: str | None = None,
        content: bytes | None = None,
    ) -> Pusher | None:
        push = self._inner.pusher(tenant, queue, options, producer, content)
        return None if push is None else _timed_push(push, self.operations["push"])

    def figures(self, tenant: str) -> Figures:
        return self.meter.figures(tenant)

    def errors(self, code: str) -> int:
        """How many calls were refused with that code."""
        return sum(operation.errors[code] for operation in self.operations.values())

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        return _timed(lambda: call, self.operations[name])()


def _timed(method: Callable[..., Call[T]], operation: Operation) -> Callable[..., Call[T]]:
    """The method, timed and counted. Bound once, it is one call between caller and store."""
    ended = operation.ended

    async def call(*said: Any, **named: Any) -> T:
        began = perf_counter()
        try:
            answer = await method(*said, **named)
        except BaseException as error:
            ended(began, error)
            raise
        ended(began)
        return answer

    return call


def _timed_push(push: Pusher, operation: Operation) -> Pusher:
    """The same for pushes that are made at once."""
    ended = operation.ended

    def call(payload: bytes, sequence: int | None) -> int:
        began = perf_counter()
        try:
            job_id = push(payload, sequence)
        except BaseException as error:
            ended(began, error)
            raise
        ended(began)
        return job_id

    return call
