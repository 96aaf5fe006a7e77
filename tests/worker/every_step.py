"""A plain handler in a process of the pool, and the signal of its soft timeout at every step that
Python takes around it: in a process of its own, since the signal, and whoever profiles, are one.

Prints a JSON list: for each step where it is, whether the handler runs there, and how the job ends.
"""

import json
import signal
import socket
import sys
from types import FrameType
from typing import Any

from penstock import Context, Middleware, Penstock, SoftTimeout
from penstock.client.execute import Completed, Failed
from penstock.model.job import Job, JobOptions
from penstock.worker.pools.child import Child
from penstock.worker.pools.wire import Do


class Looks(Middleware):
    """Takes a few steps before and behind the handler."""

    def before_run(self, context: Context) -> None:
        if context.job.options.task == "begins_late":
            while signal.getitimer(signal.ITIMER_REAL)[0] > 0.01:  # until its time is over
                pass

    def after_run(self, context: Context, outcome: Any) -> None:
        str(outcome)


app = Penstock("memory://", middleware=[Looks()])


@app.task(soft_timeout="60s")
def answers(a: int) -> list[str]:
    try:
        return sorted(map(str, [a]))
    except SoftTimeout:
        return ["tidied up"]


@app.task(soft_timeout="60s")
def raises() -> None:
    raise LookupError("at once")


@app.task(soft_timeout="100ms")
def begins_late() -> list[str]:
    try:
        while True:
            pass
    except SoftTimeout:
        return ["tidied up"]


def run(task: str, payload: bytes, step: int) -> tuple[str, bool, str] | None:
    """Raise the signal at that step. Answers where that was, whether the handler was running, and
    the end; None if there are not so many steps."""
    ours, theirs = socket.socketpair()
    child = Child(app, "w", theirs, iter(()))
    options = JobOptions(task=task)
    job = Job(id=1, queue="q", payload=payload, options=options, attempt=1, created_at=0, run_at=0)
    code = app.tasks[task].handler.__code__
    steps, where, inside = 0, "", False

    def at(frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps, where, inside
        steps += 1
        if steps == step:
            sys.setprofile(None)
            where = f"{event} {frame.f_code.co_qualname}"
            on_stack: FrameType | None = frame
            while on_stack is not None and on_stack.f_code is not code:
                on_stack = on_stack.f_back
            inside = on_stack is not None
            signal.raise_signal(signal.SIGALRM)

    with ours, theirs:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # until the timer of the job has begun
        sys.setprofile(at)
        try:
            outcome = child._run(Do([job]))
        finally:
            sys.setprofile(None)
    if not where and step:
        return None
    if isinstance(outcome, Completed):
        return where, inside, (outcome.result or b"").decode()
    assert isinstance(outcome, Failed)
    return where, inside, outcome.error.kind


def main() -> None:
    ends = []
    for task, payload in (("answers", b'{"a":5}'), ("raises", b"{}")):
        step = 1
        while (end := run(task, payload, step)) is not None:
            ends.append((task, *end))
            step += 1
    late = run("begins_late", b"{}", 0)
    assert late is not None
    print(json.dumps([*ends, ("begins_late", *late)]))


if __name__ == "__main__":
    main()
