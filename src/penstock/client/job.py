"""A job that was pushed, in the hands of whoever pushed it or knows its id: its end, its result."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from penstock.client.arguments import decoded
from penstock.client.errors import BadResult, JobFailed
from penstock.model.answers import Explanation, PushedRun, Result
from penstock.model.checks import check_job_id
from penstock.model.duration import Duration, duration_ms, say_ms
from penstock.model.errors import Deadline, NotFound
from penstock.model.job import OUTCOMES, Job, Outcome
from penstock.model.lifecycle import State

if TYPE_CHECKING:
    from penstock.client.home import Home

T = TypeVar("T")

WAIT_MS: Final = 30_000  # of one call; a longer wait is several
RETAIN: Final = "1d"  # what is offered to whoever came too late


class PushedJob(Generic[T]):
    """Synchronous calls block; each has an asynchronous twin that begins with `a`."""

    __slots__ = ("_home", "_returns", "id", "outcome")

    def __init__(
        self, home: "Home", job_id: int, outcome: Outcome | None, returns: Any = Any
    ) -> None:
        self.id = job_id
        # created; updated or ignored where a key was taken; unset of one that was asked for by its id
        self.outcome = outcome
        self._home = home
        self._returns = returns

    def __repr__(self) -> str:
        return f"<job {self.id}>" if self.outcome is None else f"<job {self.id} {self.outcome}>"

    def __int__(self) -> int:
        return self.id

    async def aresult(self, timeout: Duration | None = None) -> T:  # noqa: ASYNC109 - as people say it
        """What the handler answered, waiting for it; without a timeout as long as it takes.

        Raises JobFailed if the job ended otherwise, Deadline if the time was not enough, NotFound
        if nothing is known of it any more, and BadResult if the handler answered something else
        than its annotation says.
        """
        result = await self._ended(None if timeout is None else duration_ms(timeout, "timeout"))
        if result.state is not State.COMPLETED:
            raise JobFailed(self.id, result)
        try:
            return decoded(result.codec, result.value, self._returns)  # type: ignore[no-any-return]
        except msgspec.MsgspecError as error:
            raise BadResult(f"the result of job {self.id} is not as annotated: {error}") from None

    async def _ended(self, timeout_ms: int | None) -> Result:
        store = await self._home.store()
        left = timeout_ms
        while True:
            wait = WAIT_MS if left is None else min(left, WAIT_MS)
            try:
                return await store.result(self._home.tenant, self.id, wait_ms=wait)
            except Deadline:
                if left is not None:
                    left -= wait
                if not self._home.patient:
                    raise  # with what to do in a test
                if left is not None and left <= 0:
                    raise Deadline(
                        f"job {self.id} has not ended within {say_ms(timeout_ms or 0)}", "timeout"
                    ) from None
            except NotFound:
                raise self._forgotten() from None

    def result(self, timeout: Duration | None = None) -> T:
        return self._home.run(self.aresult(timeout), "result()", "aresult()")

    async def aget(self) -> Job:
        """Everything that is known of it now."""
        store = await self._home.store()
        (job,) = await store.get(self._home.tenant, [self.id])
        if job is None:
            raise self._forgotten()
        return job

    def _forgotten(self) -> NotFound:
        return NotFound(
            f"job {self.id} is not known, or not any more: what has ended is forgotten after a while;"
            f" keep it longer with retain={RETAIN!r} (dead ones: retain_dead) where it is pushed"
        )

    def get(self) -> Job:
        return self._home.run(self.aget(), "get()", "aget()")

    async def acancel(self) -> bool:
        """Cancel it, also while it runs; False if it had ended."""
        store = await self._home.store()
        return bool((await store.cancel(self._home.tenant, [self.id])).acked)

    def cancel(self) -> bool:
        return self._home.run(self.acancel(), "cancel()", "acancel()")

    async def aexplain(self) -> Explanation:
        """Why it is not running."""
        store = await self._home.store()
        try:
            return await store.explain(self._home.tenant, self.id)
        except NotFound:
            raise self._forgotten() from None

    def explain(self) -> Explanation:
        return self._home.run(self.aexplain(), "explain()", "aexplain()")


def known_by_id(home: "Home", job_id: int, returns: Any = Any) -> PushedJob[Any]:
    """A job that was pushed at another time or by somebody else. Nobody is asked whether there is one
    before something is asked of it."""
    check_job_id(job_id)
    return PushedJob(home, job_id, None, returns)


class PushedJobs(Sequence[PushedJob[T]]):
    """Jobs that were pushed together, in order; a handle is made where somebody looks at one."""

    def __init__(self, home: "Home", runs: Sequence[PushedRun], returns: Any = Any) -> None:
        self._home = home
        self._runs = runs
        self._returns = returns
        self._ends = list(accumulate(map(_length, runs)))

    def __repr__(self) -> str:
        return f"<{len(self)} jobs>"

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def ids(self) -> list[int]:
        return [job_id for run in self._runs for job_id, _ in run]

    @overload
    def __getitem__(self, index: int) -> PushedJob[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[PushedJob[T]]: ...
    def __getitem__(self, index: int | slice) -> PushedJob[T] | list[PushedJob[T]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"{index} of {len(self)} jobs")
        which = bisect_right(self._ends, place)
        run = self._runs[which]
        place -= self._ends[which - 1] if which else 0
        if run.ids is None or run.outcomes is None:
            return PushedJob(self._home, run.first + place, "created", self._returns)
        return PushedJob(self._home, run.ids[place], OUTCOMES[run.outcomes[place]], self._returns)


def _length(run: PushedRun) -> int:
    return run.count if run.ids is None else len(run.ids)
