"""What happens around every push and every run of an app's tasks.

Subclass `Middleware` and say what is to be done. Hooks are plain functions and run where the push
or the handler runs; they must not block. Those before run in the order in which the middleware was
given, those after in the reverse order. An error before a push refuses the push; one before a run
fails the attempt like an error of the handler, and those that were not asked yet do not hear of
its end either. Errors in hooks that come after are logged: the job is pushed, or has run.
"""

from typing import TYPE_CHECKING, Any

from penstock.client.context import Context

if TYPE_CHECKING:
    from penstock.client.execute import BatchOutcome, Outcome
    from penstock.client.options import Plan
    from penstock.client.task import Task


class Middleware:
    """Every hook does nothing until a subclass says otherwise."""

    def before_push(self, task: "Task[..., Any, Any]", plan: "Plan") -> "Plan":
        """How the jobs are pushed; answers the plan, changed or as it is."""
        return plan

    def after_push(self, task: "Task[..., Any, Any]", ids: list[int]) -> None:
        """The jobs are safe, in the sense of the store's durability."""

    def before_run(self, context: Context) -> None:
        """The handler is about to be called."""

    def after_run(self, context: Context, outcome: "Outcome | BatchOutcome") -> None:
        """The handler has ended, this way or that."""
