"""Runs `async def` cases that may take `h`, a store on a clock that only the case moves."""

import asyncio
import inspect

import pytest

from tests.conformance.conftest import _run
from tests.conformance.harness import Harness

STORES = ["memory://", "sqlite://", "tcp://"]


@pytest.fixture(params=STORES, ids=lambda url: url.partition(":")[0])
def h(request: pytest.FixtureRequest) -> Harness:
    return Harness.on(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True
