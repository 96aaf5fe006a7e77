"""An executor that goes on when the process begins to end.

Those of the standard library refuse work as soon as the main thread is over. A loop in a thread that
nobody waits for, as a store's, still serves others then, for as long as other threads of the process
live: what it has given out it must be able to read.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any


class OneThread(Executor):
    def __init__(self, name: str) -> None:
        self._closed = False
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # At once: a process that has begun to end starts no more, from Python 3.12 on.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        if self._closed:
            raise RuntimeError("it is shut down")
        future: Future[Any] = Future()
        self._work.put((future, partial(fn, *args, **named)))
        return future

    def _run(self) -> None:
        for future, call in iter(self._work.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever waits is told
                    future.set_exception(error)
            del future, call  # or what was read stays until there is more to read

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What was submitted is done."""
        if not self._closed:
            self._closed = True
            self._work.put(None)
        if wait:
            self._thread.join()
