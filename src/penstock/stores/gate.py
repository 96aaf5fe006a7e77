"""The gate before a store that is served: it can be shut to claims while everything else goes on.

A server that stops hands out nothing new, lets workers finish what they hold, and only then ends.
All its transports share one gate, so that one word shuts them all.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Final

from penstock.model.job import Lease
from penstock.model.lifecycle import State
from penstock.model.resuming import resumed
from penstock.model.store import Store
from penstock.model.wrapper import FREQUENT, PUSH_ONE, PUSHER, Wrapper

LOOK_S: Final = 0.05  # how often we look whether anything is still active


class Gate(Wrapper):
    def __init__(self, store: Store) -> None:
        self._inner = store
        self._shut = False
        self._waiting: dict[asyncio.Future[Any] | None, None] = {}  # what claims wait for
        self._claimed: set[tuple[str, str]] = set()  # (tenant, queue) that claims were served from
        for name in (*FREQUENT, PUSH_ONE, PUSHER):  # without a stop here
            setattr(self, name, getattr(store, name))

    @property
    def inner(self) -> Store:
        return self._inner

    def shut(self) -> None:
        """From now on claims find nothing, and those that wait are told so."""
        self._shut = True
        for awaited in list(self._waiting):
            if awaited is not None:
                awaited.cancel()

    async def idle(self, within_s: float) -> bool:
        """Wait until nothing is active in the queues that were claimed from here.

        That may include what others claimed from a store that they share with us. False if
        something still is when the time is up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while await self._active():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(LOOK_S, left))
        return True

    async def _active(self) -> bool:
        queues: dict[str, list[str]] = {}
        for tenant, queue in self._claimed:
            queues.setdefault(tenant, []).append(queue)
        for tenant, names in queues.items():
            for info in await self.inner.queues(tenant, names):
                if info.counts[State.ACTIVE]:
                    return True
                self._claimed.discard((tenant, info.queue))
        return False

    async def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | None:
        if self._shut:
            return None
        call = self.inner.claim(
            tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        lease = await (self._unless_shut(call) if wait_ms else call)
        if lease is not None:
            self._claimed.add((tenant, lease.queue))
        return lease

    @types.coroutine
    def _unless_shut(
        self, call: Coroutine[Any, Any, Lease | None]
    ) -> Generator[Any, Any, Lease | None]:
        """The claim, in the caller's own task: another one would cost each job that is waited for
        a turn of the loop. What it waits for first is a job, and it is that which it stops to wait
        for when the gate is shut."""
        try:
            awaited = call.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        self._waiting[awaited] = None
        try:
            yield awaited
        except GeneratorExit:
            call.close()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it waited for ended with
            return (yield from self._without(call, error))
        finally:
            self._waiting.pop(awaited, None)
        return (yield from call.__await__())

    def _without(
        self, call: Coroutine[Any, Any, Lease | None], error: BaseException
    ) -> Generator[Any, Any, Lease | None]:
        """The rest of a claim whose wait has failed, or was given up."""
        try:
            awaited = call.throw(error)
            return (yield from resumed(call, awaited, lambda step: step()))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._shut and (caller is None or not caller.cancelling()):
                return None
            raise
