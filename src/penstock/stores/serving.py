"""Serving a store on sockets: listeners on TCP and Unix sockets, over any Store, for any commands.

The server proper and the owner of a path that several processes use (`path.sock`) both stand on
this. What a connection is lives in `connection.py`, what a command is in `protocol/`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.model.store import Store
from penstock.protocol.access import Authenticator, Principal
from penstock.protocol.command import Answer, Figures, Refusal, Request, Session
from penstock.protocol.framing import KNOWN_LIMIT, STRANGERS_LIMIT
from penstock.protocol.table import Table, name_of
from penstock.stores.connection import Connection
from penstock.stores.forking import not_for_children
from penstock.stores.gate import Gate
from penstock.stores.unix import bind, unlink

FOR_STRANGERS: Final = frozenset({"HELLO", "AUTH", "PING"})  # before one has said who one is
GRACE_S: Final = 30.0  # what workers are given to finish when the server stops
LOOK_S: Final = 0.001  # how often we look whether the disk has answered
TURNS: Final = 100  # of the loop, for what is cancelled to come to its end
FLUSH_S: Final = 5.0  # …and peers to read their answers

Audit = Callable[[Principal, str, str, Mapping[str, object]], None]

log = logging.getLogger("penstock.serving")


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may take. All of them together are bounded, and each by itself."""

    strangers_frame_bytes: int = STRANGERS_LIMIT
    frame_bytes: int = KNOWN_LIMIT  # once it is known who speaks; of answers, always
    requests: int = 10_000  # in hand on one connection; beyond that it is not read
    connections: int = 10_000
    connections_per_address: int = 1_000  # of one host; a Unix socket has none
    handshake_s: float = 10.0  # until somebody who may speak has said something whole
    message_s: float = 30.0  # from the first byte of a message to its last
    idle_s: float = 300.0  # without a word, while nothing is in hand or watched


class Listener:
    """Everything that is served in one loop over one store, however many sockets it listens on."""

    def __init__(
        self,
        store: Store,
        commands: tuple[type[Request], ...],
        authenticator: Authenticator,
        *,
        limits: ServingLimits | None = None,
        audit: Audit | None = None,
        figures: Callable[[str], Figures] | None = None,
        backup: Callable[[str, int], Awaitable[Path]] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.gate = store if isinstance(store, Gate) else Gate(store)
        self.table = Table(commands)
        self.authenticator = authenticator
        self.limits = limits or ServingLimits()
        self.audit = audit
        self.figures = figures
        self.backup = backup
        self.now = now or self.loop.time
        self.for_strangers = frozenset(c for c in commands if name_of(c) in FOR_STRANGERS)
        self.introductions = frozenset(c for c in self.for_strangers if name_of(c) != "PING")
        self.foretold = frozenset(c for c in commands if c.foretold is not Request.foretold)
        self.taken_back = frozenset(c for c in commands if c.take_back is not Request.take_back)
        self._connections: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self._paths: list[tuple[Path, int]] = []  # with the inode that is ours
        self._left_behind: set[asyncio.Task[Any]] = set()  # by connections that are gone
        self.ending = False  # who comes now was let in by the system, not by us
        self._empty: asyncio.Event | None = None  # set when the last connection has ended
        self._timer: asyncio.TimerHandle | None = None
        not_for_children(self)

    # -- listening -------------------------------------------------------------------------------

    async def listen_tcp(self, host: str, port: int, **options: Any) -> tuple[str, int]:
        """Listen there; port 0 takes a free one. Answers where."""
        server = await self.loop.create_server(
            lambda: Connection(self), host, port, backlog=1_024, **options
        )
        self._listening(server)
        bound = server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def listen_unix(self, path: str | Path, *, replace: bool = False) -> Path:
        """Listen on a socket file that only this user can reach.

        A file that nobody listens at is replaced; with `replace` any: for whoever has a lock.
        """
        sock, inode = bind(Path(path), replace=replace)
        self._paths.append((Path(path), inode))
        try:
            server = await self.loop.create_unix_server(
                lambda: Connection(self), sock=sock, backlog=1_024, start_serving=False
            )
        except BaseException:
            sock.close()
            raise
        self._listening(server)
        await server.start_serving()
        return Path(path)

    def sockets(self) -> list[int]:
        """Those that it listens on."""
        return [sock.fileno() for server in self._servers for sock in server.sockets]

    def _listening(self, server: asyncio.Server) -> None:
        self._servers.append(server)
        if self._timer is None:
            self._set_timer()

    # -- connections -----------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def admit(self, connection: Connection) -> Refusal | None:
        limits, address = self.limits, connection.address
        refusal = None
        if len(self._connections) >= limits.connections:
            refusal = Refusal(error="there are too many connections", code="overloaded")
        elif address and self._by_address[address] >= limits.connections_per_address:
            refusal = Refusal(error="there are too many connections from there", code="overloaded")
        self._connections[connection] = None
        if address:
            self._by_address[address] += 1
        return refusal

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        address = connection.address
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
        if self._empty is not None and not self._connections:
            self._empty.set()

    def take_back(self, request: Request, session: Session, answer: Answer) -> None:
        """An answer could not be handed over."""
        if type(request) in self.taken_back:
            self.look_after(self.loop.create_task(request.take_back(session, answer)))

    def look_after(self, task: "asyncio.Task[Any]") -> None:
        """Have that done to its end, whatever becomes of the connection that it belonged to."""
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)

    # -- deadlines -------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        limits = self.limits
        every = min(limits.handshake_s, limits.message_s, limits.idle_s) / 10
        self._timer = self.loop.call_later(min(max(every, 0.01), 1.0), self._on_time)

    def _on_time(self) -> None:
        self.sweep()
        self._set_timer()

    def sweep(self) -> None:
        """End the connections whose time is up."""
        now = self.now()
        for connection in list(self._connections):
            why = connection.overdue(now)
            if why is not None:
                log.info("%s %s: ended", connection.address or "a peer", why)
                connection.abort()

    # -- the end ---------------------------------------------------------------------------------

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Hand out no more jobs, let workers finish, send every answer, end.

        Nobody new is let in. Whoever is connected may say everything but claim until the last job
        claimed from here has ended, or the time is up.
        """
        await self._shut_the_door()
        self.gate.shut()
        if self._connections:
            await self.gate.idle(grace_s)
        await self.close()

    async def hand_over(self, within_s: float = FLUSH_S) -> None:
        """End as if by accident, but with every answer that there is: clients turn to whoever
        serves the store next and ask again what they were not answered."""
        await self._shut_the_door()
        for connection in list(self._connections):
            connection.hand_over()
        await self._answered(within_s)
        await self.close()

    async def _answered(self, within_s: float) -> None:
        """Wait until nothing is in hand: what was cancelled takes a few turns, the rest the disk."""
        deadline = self.loop.time() + within_s
        turns = 0
        while any(connection.in_hand for connection in self._connections):
            if self.loop.time() >= deadline:
                break
            turns += 1
            await asyncio.sleep(0 if turns < TURNS else LOOK_S)

    async def _shut_the_door(self) -> None:
        """Accept nobody more. Who has just been accepted is still given a connection, and loses it
        at once: asyncio forgets it otherwise, and its peer would wait for a greeting."""
        self.ending = True
        for number in self.sockets():
            self.loop.remove_reader(number)
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()

    async def close(self, flush_s: float = FLUSH_S) -> None:
        """End every connection once what is under way is answered, and the answers are sent, or
        the time for it is up."""
        await self._shut_the_door()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.finish()
        await self._answered(flush_s)
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(flush_s):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()
                await self._empty.wait()
        while self._left_behind:
            await asyncio.wait(self._left_behind)
        for path, inode in self._paths:
            unlink(path, inode)
        self._paths.clear()
