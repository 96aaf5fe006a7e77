"""A site as people build one: tasks that workers run, and a web process that pushes them.

    penstock worker tests.faults.site:app
    python -m tests.faults.site NAME

The store is the one that PENSTOCK_URL names. What they do goes into the file that RAN names, a line
each: "ran" with what was pushed, the job, the attempt and the worker; "asked" before a push, with
what is pushed; "pushed" once it is answered, with the job. Both print a word per step. None of the
calls may fail, whoever owns the path meanwhile: what is raised ends the process, with a traceback.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from penstock import Context, Penstock, PushedJob, fixed
from penstock.client.task import Task
from tests.worker.shop import note, tell

MAIL: Final = "mail"
PACE_S: Final = 0.02  # between two pushes that wait for no result
LONGEST: Final = "60s"  # for a result, which may be that of a worker that was killed

app = Penstock(max_attempts=0, backoff=fixed("10ms"), queue=MAIL, retain="1h")


def ran(ctx: Context, what: str) -> str:
    note(f"ran {what} {ctx.job.id} {ctx.job.attempt} {ctx.worker}")
    tell("ran")
    return ctx.worker


@app.task
async def send(ctx: Context, what: str) -> str:
    worker = ran(ctx, what)
    await asyncio.sleep(0.005)
    return worker


@app.task
async def ponder(ctx: Context, what: str) -> str:
    """So that somebody has something in hand whenever somebody is killed."""
    worker = ran(ctx, what)
    await asyncio.sleep(0.2)
    return worker


@app.task(queue="reports")
def report(ctx: Context, what: str) -> str:
    """In a thread of its worker."""
    worker = ran(ctx, what)
    time.sleep(0.02)
    return worker


TASKS: Final[tuple[Task[[str], str, Any], ...]] = (send, report, send, ponder)


class Web:
    def __init__(self, name: str) -> None:
        self.name = name
        self.told = threading.Event()

    def pushes(self, voice: str) -> Iterator[tuple[Task[[str], str, Any], str]]:
        """What to push next, until told to end."""
        for n in count():
            if self.told.is_set():
                return
            what = f"{self.name}-{voice}-{n}"
            note(f"asked {what}")
            yield TASKS[n % len(TASKS)], what

    def answered(self, what: str, job: PushedJob[str]) -> None:
        note(f"pushed {what} {job.id}")

    def in_a_thread(self) -> None:
        for task, what in self.pushes("push"):
            self.answered(what, task.push(what))
            tell("pushed")
            self.told.wait(PACE_S)

    def for_results_in_a_thread(self) -> None:
        for task, what in self.pushes("result"):
            job = task.push(what)
            self.answered(what, job)
            job.result(LONGEST)
            tell("heard")

    async def in_the_loop(self) -> None:
        for task, what in self.pushes("apush"):
            self.answered(what, await task.apush(what))
            tell("pushed in the loop")
            await asyncio.sleep(PACE_S)

    async def for_results_in_the_loop(self) -> None:
        for task, what in self.pushes("aresult"):
            job = await task.apush(what)
            self.answered(what, job)
            await job.aresult(LONGEST)
            tell("heard in the loop")

    async def live(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.told.set)
        plain: tuple[Callable[[], None], ...] = (self.in_a_thread, self.for_results_in_a_thread)
        try:
            async with asyncio.TaskGroup() as group:
                for voice in plain:
                    group.create_task(asyncio.to_thread(voice))
                group.create_task(self.in_the_loop())
                group.create_task(self.for_results_in_the_loop())
        finally:
            self.told.set()  # also if one of them has failed: threads cannot be cancelled
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(Web(sys.argv[1]).live())
    tell("closed")
