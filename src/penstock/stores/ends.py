"""How jobs end: for whoever asks, and for those who wait until one does."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.kernel import read
from penstock.model.answers import Result
from penstock.model.duration import say_ms
from penstock.model.errors import Deadline, NotFound, Overloaded
from penstock.stores.payloads import piece
from penstock.stores.waiting import Awaited

if TYPE_CHECKING:
    from penstock.stores.engine import Engine


class Ends:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.awaited = Awaited()

    async def result(self, end: read.End) -> Result:
        """How a job ended, once that is safe."""
        engine = self._engine
        value = None
        if end.result is not None:
            value = piece(await engine.fetch([end.result[0]]), end.result)
        if engine.keeper is not None:
            await engine.keeper.safe(engine.keeper.level)
        return _result(end, value)

    async def wait(self, job_id: int, wait_ms: int) -> Result:
        engine = self._engine
        kernel = engine.kernel
        if len(self.awaited) >= kernel.caps.waiters:
            raise Overloaded(f"{kernel.caps.waiters} callers are waiting", "wait_ms")
        future = self.awaited.join(job_id, engine.callers.elapsed_ms() + wait_ms)
        kernel.awaited[job_id] = 1
        engine.arm(wait_ms)
        try:
            ended = await future
        finally:
            if self.awaited.leave(job_id, future):
                engine.kernel.awaited.pop(job_id, None)
        if ended is None:
            raise Deadline(f"job {job_id} has not ended within {say_ms(wait_ms)}", "wait_ms")
        assert isinstance(ended, Result)
        return ended

    def wake(self) -> None:
        """Those whose jobs have ended are told when that is safe."""
        kernel = self._engine.kernel
        for job_id, end in kernel.ends.items():
            kernel.awaited.pop(job_id, None)
            self._engine.when_safe(self._told(job_id, end))
        kernel.ends.clear()

    def _told(self, job_id: int, end: read.End | None) -> Callable[[], None]:
        """What tells those who wait for this job how it ended."""
        error, result = None, None
        if end is None:
            error = NotFound(f"job {job_id} was purged", "job_id")
        else:
            value = None
            if end.result is not None:
                # It came with the command that ended the job, so it is at hand.
                chunks = self._engine.payloads.at_hand([end.result[0]])
                assert chunks is not None
                value = piece(chunks, end.result)
            result = _result(end, value)
        waiting = self.awaited.settle(job_id)
        return lambda: _tell_all(waiting, result, error)

    def lapse(self, elapsed: int) -> None:
        """Those who have waited as long as they wanted get their answer."""
        for future in self.awaited.lapsed(elapsed):
            if not future.done():
                future.set_result(None)


def _result(end: read.End, value: bytes | None) -> Result:
    return Result(
        state=end.state,
        value=value,
        codec=end.codec,
        error=end.error,
        dead_reason=end.dead_reason,
    )


def _tell_all(
    waiting: "list[asyncio.Future[Any]]", result: Result | None, error: Exception | None
) -> None:
    for future in waiting:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
