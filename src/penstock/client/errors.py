"""What handlers raise to say how an attempt ends, and what callers are told.

    Retry            raised by a handler: try again, after as long as it says
    Dead             raised by a handler: do not try again
    SoftTimeout      raised in a handler: its soft timeout is over, it should come to an end
    BadDeclaration   what was said of an app, a task, a queue or a flow is nothing that they take
    JobFailed        raised by `result()`: the job ended otherwise than by completing
    BlocksTheLoop    raised by a synchronous call inside a running loop, before anything is done
    BadResult        raised by `result()`: the result is not what the handler's annotation says
    UnknownTask      nothing of that name is registered

Errors of stores (`penstock.model.errors`) pass through the SDK as they are. All of them can be
pickled: tasks and tests run in pools of processes, too.
"""

from typing import Any

from penstock.model.answers import Result
from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Invalid
from penstock.model.job import JobError
from penstock.model.lifecycle import DeadReason, State


class BadDeclaration(Invalid, TypeError):
    """Something else was said than is taken there: no function, no such option, another class.

    An `Invalid` like any wrong value, so that one name catches all; and a TypeError, since that is
    what Python calls it.
    """


class Retry(Exception):
    """Try again: after `after`, or by the task's backoff where nothing is said."""

    def __init__(self, after: Duration | None = None, reason: str = "asked to be tried again"):
        super().__init__(reason)
        self.after_ms = None if after is None else duration_ms(after, "after")

    def __reduce__(self) -> tuple[Any, ...]:
        return Retry, (None, *self.args), {"after_ms": self.after_ms}


class Dead(Exception):
    """Nothing will make this job succeed: it goes to the dead letters, whatever attempts are left."""


class SoftTimeout(BaseException):
    """The soft timeout of the attempt is over.

    Like a cancellation it is no `Exception`, so that `except Exception` around a single step of a
    handler does not swallow it.
    """

    def __init__(self, message: str = "the soft timeout of the attempt is over") -> None:
        super().__init__(message)  # in a thread it is raised by its class alone


class BlocksTheLoop(RuntimeError):
    """A synchronous call was made inside a running event loop; nothing has been done."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(
            f"{call} would block the running event loop; use `await {instead}` in asynchronous code"
        )
        self._of = (call, instead)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlocksTheLoop, self._of


class UnknownTask(LookupError):
    """No task of that name is registered with the app."""

    def __init__(self, name: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(f"no task is called {name!r}; known here: {names}")
        self.name = name
        self._known = known

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownTask, (self.name, self._known)


class JobFailed(Exception):
    """The job whose result was asked for is dead, cancelled or expired."""

    def __init__(self, job_id: int, result: Result) -> None:
        self.job_id = job_id
        self.state: State = result.state
        self.dead_reason: DeadReason | None = result.dead_reason
        self.error: JobError | None = result.error  # of the last attempt; None if there was none
        why = "" if result.error is None else f": {result.error.kind}: {result.error.message}"
        super().__init__(f"job {job_id} is {result.state.value}{why}")
        self._result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return JobFailed, (self.job_id, self._result)


class BadResult(ValueError):
    """The job completed, and its result cannot be read as what the handler's annotation says."""
