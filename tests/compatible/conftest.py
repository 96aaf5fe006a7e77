"""Runs the cases: `async def` tests that take `w`, a world, once over each encoding."""

import asyncio
import inspect
from typing import Any

import pytest

from tests.compatible.wire import ENCODINGS, World


@pytest.fixture(params=ENCODINGS)
def w(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


async def _run(case: Any, arguments: dict[str, Any]) -> None:
    world = arguments.get("w")
    if world is not None:
        await world.open()
    try:
        await case(**arguments)
    finally:
        if world is not None:
            await world.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"the case left tasks running: {left}"
