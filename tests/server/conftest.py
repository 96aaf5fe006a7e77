"""Runs `async def` tests, each in a loop of its own; none may leave a task behind.

A module that has a fixture `loop` says with it which kind of loop: `asyncio` or `uvloop`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    factory = uvloop.new_event_loop if pyfuncitem.funcargs.get("loop") == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        runner.run(_run(pyfuncitem.obj, arguments))
    return True


async def _run(case: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    await case(**arguments)
    for _ in range(10):  # a cancelled task needs a few turns to end
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
