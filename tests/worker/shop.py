"""An app for workers in processes of their own. What handlers print tells the test how far they are.

Executions are written down in the file that RAN names, a line each: the task, its argument, the pid.
"""

import asyncio
import functools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Context, Penstock, SoftTimeout, at_once

app = Penstock(max_attempts=2, backoff=at_once())


def note(what: str) -> None:
    path = os.environ.get("RAN")
    if path is not None:
        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, f"{what} {os.getpid()}\n".encode())
        os.close(out)


def tell(what: str) -> None:
    os.write(1, f"{what}\n".encode())


@app.task
async def quick(n: int) -> int:
    note(f"quick {n}")
    return n


WHOSE: ContextVar[str] = ContextVar("WHOSE", default="nobody's")


@app.task
def owned(owner: str) -> str:
    found = WHOSE.get()
    WHOSE.set(owner)
    return found


@app.task
async def owned_awaited(owner: str) -> str:
    found = WHOSE.get()
    WHOSE.set(owner)
    await asyncio.sleep(0)
    assert WHOSE.get() == owner
    return found


@app.task(max_attempts=0)
async def step(n: int) -> None:
    note(f"step {n}")
    await asyncio.sleep(0.01)


@app.task
async def naps(seconds: float) -> str:
    tell("naps")
    await asyncio.sleep(seconds)
    tell("woke")
    return "slept"


@app.task
async def stops(how: str) -> str:
    loop = asyncio.get_running_loop()
    if how == "later":
        loop.call_soon(loop.stop)
    else:
        loop.stop()
    await asyncio.sleep(0.01)
    return "went on"


async def leaves(error: type[BaseException]) -> None:
    await asyncio.sleep(0.01)
    raise error(4)


@app.task
async def cancels() -> str:
    """As a program does that ends, with every task but its own."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.01)
    return "went on"


@app.task(max_attempts=1)
async def cancels_itself(how: str) -> str:
    """And waits for nothing that could be cancelled."""
    tasks = {asyncio.current_task()} if how == "itself" else asyncio.all_tasks()
    for task in tasks:
        assert task is not None
        task.cancel()
    return "went on"


@app.task(max_attempts=1)
async def exits(how: str) -> str:
    async def here() -> None:
        await leaves(SystemExit)

    async with asyncio.timeout(5):
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(here())
                await asyncio.sleep(60)
        elif how == "interrupt":
            await asyncio.create_task(leaves(KeyboardInterrupt))
        elif how == "wait_for":
            await asyncio.wait_for(leaves(SystemExit), 60)
        elif how == "callback":
            asyncio.get_running_loop().call_soon(sys.exit, 4)
        else:
            left = asyncio.create_task(here())  # which nobody waits for
            await asyncio.wait([left])
    await asyncio.sleep(0.01)
    return "went on"


kept: list[bytes] = []


@app.task
def grows(mb: int) -> int:
    kept.append(b"x" * (mb << 20))
    return os.getpid()


@app.task
async def fails(why: str) -> None:
    raise ValueError(why)


class NoLeaves(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise LookupError


class NoClass(Exception):
    """Nor what it is, nor what that was."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise NoClass


def shy(which: str) -> Exception:
    """An exception that does not let itself be asked what it is."""
    if which == "leaves":
        return NoLeaves("", [ValueError()])
    if which == "class":
        return NoClass()
    error: Exception = ValueError("at the bottom")
    for _ in range(2_000):
        error = ExceptionGroup("one more", [error])
    return error


@dataclass
class Exiting:
    code: int

    def __post_init__(self) -> None:
        raise SystemExit(self.code)


@app.task
def takes(what: Exiting) -> None: ...


@app.task
async def takes_awaited(what: Exiting) -> None: ...


@app.task(queue="rows", batch=10)
def takes_many(items: list[Exiting]) -> None: ...


def counted(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of `async def`."""

    @functools.wraps(handler)
    def wrapper(*args: Any) -> Any:
        return handler(*args)

    return wrapper


@app.task(result=False)
@counted
async def charges(cents: int) -> None:
    note(f"charges {cents}")


@app.task(queue="rows", batch=10, result=False)
@counted
async def charges_many(items: list[int]) -> None:
    note(f"charges {items}")


@app.task
def fails_shyly(which: str) -> None:
    raise shy(which)


@app.task
async def fails_shyly_awaited(which: str) -> None:
    raise shy(which)


@app.task(timeout="150ms")
async def overruns() -> None:
    await asyncio.sleep(60)


@app.task
async def spins() -> None:
    tell("spins")
    while True:
        pass


@app.task
async def blocks(seconds: float) -> None:
    tell("blocks")
    time.sleep(seconds)  # noqa: ASYNC251 - what a handler must not do


@app.task
async def lingers(seconds: float) -> None:
    tell("lingers")
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


@app.task
async def computes(n: int, seconds: float) -> None:
    note(f"computes {n}")
    tell("computes")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@app.task
def turns(ctx: Context, seconds: float) -> str:
    ctx.progress(1)
    tell("turns")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)
    return "turned"


@app.task(soft_timeout="50ms")
def softly() -> str:
    try:
        time.sleep(60)
    except SoftTimeout:
        return "tidied up"
    return "slept"


class Ponders(type):
    """Of an error that takes its time to say whether another is one."""

    def __instancecheck__(cls, error: object) -> bool:
        time.sleep(0.1)
        return False


class Pondered(Exception, metaclass=Ponders):
    pass


@app.task(max_attempts=1, soft_timeout="20ms", retry_on=Pondered)
def ends_early() -> None:
    """Its soft timeout comes when the handler is gone, and its end is being made up."""
    raise ValueError("at once")


@app.task
def poison(how: str) -> None:
    note(f"poison {how}")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def forks() -> None:
    """Ends its process, and leaves a child behind."""
    if os.fork() == 0:
        note("child")
        tell("left behind")
        time.sleep(60)
        os._exit(0)
    os._exit(3)


@app.task
async def talks(ctx: Context, n: int) -> dict[str, Any]:
    ctx.progress(40, "so far")
    ctx.log("said")
    return {"n": n, "attempt": ctx.attempt, "results": list(ctx.results.values())}


@app.task(max_attempts=1)
async def mumbles(ctx: Context, how: str) -> str:
    percents = {"percent": 33.3, "beyond": 100.4, "nan": math.nan}
    odd: Any = {"number": 5, "text": "\ud800" + "x" * 20_000}.get(how)
    if how in percents:
        ctx.progress(percents[how])
    elif how == "huge":
        ctx.partial("x" * (10 << 20))
    elif how == "fails":
        raise ValueError("no file \ud800")
    elif how == "nameless":
        raise type("", (Exception,), {})("nobody knows")
    else:
        ctx.progress(50, odd)
        ctx.log(odd)
    return how


@app.task
def reads() -> str:
    """What comes in on standard input, as programs do that a handler starts."""
    return os.read(0, 1).decode()


@app.task
def ends_children() -> list[int | None]:
    """How a child of each kind ends that is told to."""
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    for child in (forked, started):
        child.terminate()
    forked.join()
    return [forked.exitcode, started.wait()]


@app.task
def leaves_behind() -> None:
    """A thread that Python waits for before the process ends."""
    ThreadPoolExecutor(1).submit(time.sleep, 60)
    tell("left behind")


@app.task
def command_line() -> str:
    return Path("/proc/self/cmdline").read_text()


@app.task
def speaks_late(ctx: Context) -> int:
    """Goes on speaking for a while when it has ended."""

    def speak() -> None:
        for _ in range(50):
            ctx.log("too late")
            time.sleep(0.001)
        note("spoke")

    threading.Thread(target=speak).start()
    return os.getpid()


@app.task(queue="rows", batch=10)
def rows(items: list[int]) -> list[Any]:
    return [ValueError("odd") if n % 2 else n for n in items]
