"""Getting a connection, and another when it is lost: attempts, the pauses between them, the greeting.

Knows nothing of requests: what waits for a connection, and what becomes of it, is the link's.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.version import __version__
from penstock.protocol.framing import Message
from penstock.protocol.hearing import HEAD, decoder_of, refused
from penstock.protocol.native import Hello, Welcome
from penstock.stores.again import Again
from penstock.stores.target import Target
from penstock.stores.wire import Wire, framed

CONNECT_S: Final = 5.0  # for one attempt

log: Final = logging.getLogger("penstock.remote")


class Connecting(ABC):
    """The part of a link that sees to it that there is a connection."""

    def __init__(
        self,
        target: Target,
        loop: asyncio.AbstractEventLoop,
        before: Callable[[], Awaitable[str]] | None,
        keep: bool,
    ) -> None:
        self.target = target
        self.loop = loop
        self.welcome: Welcome | None = None  # unset until first connected
        self._before = before  # done before each attempt to connect; says whom we look for
        self._keep = keep  # connected, also while nobody waits
        self._wire: Wire | None = None
        self._ready = False
        self._was_lost = False
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._attempting = asyncio.Lock()
        self._greeting: asyncio.Future[Message] | None = None

    @abstractmethod
    def _begin(self, welcome: Welcome) -> None:
        """There is a connection."""

    @abstractmethod
    def _refuse_late(self, error: PenstockError) -> float | None:
        """Tell those who have waited long enough; answers how long until the next have."""

    @abstractmethod
    def _refuse_all(self, error: PenstockError) -> None:
        """Tell everybody who waits."""

    # -- told by the wire ------------------------------------------------------------------------

    @abstractmethod
    def hear(self, message: Message) -> None:
        """One message."""

    @abstractmethod
    def hear_short(self, message: Message, begin: int = 0) -> None:
        """One short message, which begins there."""

    @abstractmethod
    def heard_all(self) -> None:
        """All that came has been dealt with."""

    def misunderstood(self, error: Exception) -> None:
        """What came is no message of ours."""
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(Unavailable(f"{self.target} answers otherwise: {error}"))
        self._drop()

    @abstractmethod
    def pause(self, stuck: bool) -> None:
        """The peer does not read, or reads again."""

    @abstractmethod
    def lost(self) -> None:
        """The connection has ended."""

    # -- attempts --------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect at once, or raise: for whoever wants to know now."""
        await self._attempt()

    def _connect_if_wanted(self) -> None:
        if self._connecting is None and not self._closed and not self._ready:
            self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Try until it works. Whoever has waited for as long as our patience goes is told why, and
        when nobody is left who waits, or has to be connected, we stop."""
        again = Again(self.loop.time)
        try:
            while not self._ready:
                again.begin()
                try:
                    await self._attempt()
                except Unavailable as error:
                    left = self._refuse_late(error)
                    if left is None and not self._keep:
                        return
                    pause_s = again.pause_s()
                    await asyncio.sleep(pause_s if left is None else min(pause_s, left))
        except PenstockError as error:  # it does not let us in: asking again is no use
            self._refuse_all(error)
        except Exception as error:
            self._refuse_all(Unavailable(f"{self.target} cannot be reached: {error!r}"))
            raise
        finally:
            self._connecting = None

    async def _attempt(self) -> None:
        """Connect, or raise. One attempt at a time: who comes second may find it done."""
        async with self._attempting:
            if self._ready:
                return
            said = "" if self._before is None else await self._before()
            try:
                self.welcome = await self._greeted()
            except OSError as error:
                self._drop()
                why = f"{self.target} cannot be reached: {_why(error)}"
                raise Unavailable(f"{said}; {why}" if said else why) from error
            except BaseException:
                self._drop()
                raise
            finally:
                self._greeting = None
            self._begin(self.welcome)
            if self._was_lost:
                self._was_lost = False
                log.info("%s answers again", self.target)

    async def _greeted(self) -> Welcome:
        """Make a connection, and say who we are."""
        target, loop = self.target, self.loop
        greeting: asyncio.Future[Message] = loop.create_future()
        async with asyncio.timeout(CONNECT_S):
            wire: Wire
            if target.path:
                _, wire = await loop.create_unix_connection(lambda: Wire(self), target.path)
            else:
                _, wire = await loop.create_connection(lambda: Wire(self), target.host, target.port)
            if wire.gone.done():
                raise Unavailable(f"{target} ended the connection as soon as it was made")
            self._wire = wire
            self._greeting = greeting
            said = f"penstock/{__version__}"
            hello = Hello(token=target.token, client=said, short=True, req_id=0)
            wire.transport.write(framed(hello))
            message = await greeting
        if not HEAD.decode(message).ok:
            raise refused(message)
        if self._wire is None:
            raise Unavailable(f"{target} ended the connection as soon as it was heard")
        if self._closed:
            raise Unavailable("the store is closed")
        return decoder_of(Welcome).decode(message)  # type: ignore[no-any-return]

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.transport.abort()


def _why(error: OSError) -> str:
    """Why there is no connection, without the numbers and the names of calls."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if error.errno and error.errno > 0:  # names that nobody knows have numbers of their own
        return os.strerror(error.errno)
    return error.strerror or str(error)
