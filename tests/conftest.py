"""What holds for every test: how far Hypothesis searches, that nothing is left running, and that a
Ctrl-C is heard.

Coroutines are run with `asyncio.run` in the test itself; there is no asyncio plugin.
"""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

LAST_S: Final = 5.0  # for a thread that nobody can wait for, and that has nothing more to do

# Helpers assert too; without this their failures would show no values.
pytest.register_assert_rewrite(
    "tests.cli", "tests.conformance", "tests.faults", "tests.history", "tests.oracle", "tests.spark"
)

# No deadline: these machines are noisy, and a slow example is not a wrong one.
settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile("long" if os.environ.get("PENSTOCK_LONG") == "1" else "default")


def pytest_configure() -> None:
    """What a shell starts in the background ignores a Ctrl-C, and so does whatever it starts itself:
    the commands that tests interrupt among them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: one that begins last keeps everybody waiting for it alone."""
    items.sort(key=lambda item: "tests/spark/" not in item.nodeid)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A thread has an owner that waits for it, also in tests."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(
            "waitpid-"
        ):  # asyncio's: it has told how a process ended, and ends
            thread.join(LAST_S)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"the test left threads running: {left}"
