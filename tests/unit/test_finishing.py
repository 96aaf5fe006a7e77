"""Work in threads, where there are none any more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.stores.finishing import in_a_thread, until_cancelled
from tests.unit.test_connection import looped


@pytest.mark.parametrize("given", [in_a_thread, until_cancelled])
@looped
async def test_a_process_that_ends_has_no_threads_and_says_so(
    given: Callable[..., Awaitable[Any]],
) -> None:
    """As a client of a path finds it whose owner ends in the instant in which it does."""
    await asyncio.get_running_loop().shutdown_default_executor()
    with pytest.raises(Unavailable, match="the process is ending"):
        await given(lambda *_: None)
