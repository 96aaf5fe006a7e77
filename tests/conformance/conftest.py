"""Runs the cases: `async def` tests, each on every store, each in a loop of its own.

A case takes `h` (a `Harness` on a clock that only the case moves) or `live` (one on the machine's
clock, for what a store has to do unasked). Stores are opened and closed inside the case's loop; a
case fails if a counter disagrees with a scan at its end, or if a task is left behind.

Over a Unix socket everything but the first two calls is the same code as over TCP: one case in eight
runs there each time, all of them in `make test-long`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final
from zlib import crc32

import pytest

from tests.conformance.harness import REAL_STORES, STORES, Harness


def _scheme(url: str) -> str:
    return url.partition(":")[0]


SAMPLE: Final = 8


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    sampled = crc32(metafunc.function.__name__.encode()) % SAMPLE == 0

    def each(stores: list[str]) -> list[Any]:
        long = [] if sampled else [pytest.mark.long]
        return [
            pytest.param(url, id=_scheme(url), marks=long if _scheme(url) == "unix" else [])
            for url in stores
        ]

    if "h" in metafunc.fixturenames:
        stores = REAL_STORES if hasattr(metafunc.function, "many_jobs") else STORES
        metafunc.parametrize("h", each(stores), indirect=True)
    if "live" in metafunc.fixturenames:
        metafunc.parametrize("live", each(REAL_STORES), indirect=True)


@pytest.fixture
def h(request: pytest.FixtureRequest) -> Harness:
    """A new, empty store; its clock stands still until the case moves it."""
    return Harness.on(request.param)


@pytest.fixture
def live(request: pytest.FixtureRequest) -> Harness:
    """A new, empty store on the machine's clock."""
    return Harness.on(request.param, live=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


async def _run(case: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    harnesses = [value for value in arguments.values() if isinstance(value, Harness)]
    for harness in harnesses:
        await harness.open()
    try:
        await case(**arguments)
        for harness in harnesses:
            await harness.check_counters()
    finally:
        for harness in harnesses:
            await harness.close()
    for _ in range(10):  # a cancelled task needs a few turns to end
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
