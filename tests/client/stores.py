"""Runs a case over several stores, each on a clock that only the case moves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.conformance.conftest import _run
from tests.conformance.harness import Harness

KINDS = ["memory://", "sqlite://", "tcp://"]

Case = Callable[[Harness], Coroutine[Any, Any, None]]


def on_each_store(case: Case) -> Any:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.partition(":")[0])
    def run(kind: str) -> None:
        asyncio.run(_run(case, {"h": Harness.on(kind)}))

    run.__name__, run.__doc__, run.__module__ = case.__name__, case.__doc__, case.__module__
    return run
