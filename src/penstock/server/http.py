"""HTTP/1.1: bytes to requests, responses to bytes; connections, their limits and their end.

A connection has one task, which answers its requests one after the other in the order in which
they came. The parser runs ahead of it, up to a bounded number of requests; then reading stops. A
request is judged by its head before any of its body is kept, so strangers cannot fill the memory.

The task is cancelled when the client goes away, which ends whatever it waits for. A response that
could not be handed over is undone, if it can be: a claim that reached nobody is released.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec

from penstock.model.errors import Deadline, Invalid, Overloaded, PenstockError
from penstock.server.heads import read_head, write_head
from penstock.server.messages import Response
from penstock.server.parts import Kind
from penstock.server.problems import Refused, Stopping
from penstock.server.service import Admission, Service, refusal

try:
    import httptools
except ModuleNotFoundError as missing:
    if missing.name != "httptools":
        raise
    raise ModuleNotFoundError(
        "HTTP needs httptools: pip install 'penstock[server]'", name="httptools"
    ) from None

_log: Final = logging.getLogger(__name__)

_AHEAD: Final = 16  # requests read before the first of them is answered
_IN_A_ROW: Final = 32  # requests answered before others get a turn
_CHUNKING: Final = 8  # bytes around a byte of a body that comes in chunks, at most
_LINGER_S: Final = 2.0  # how long input is thrown away so that the last answer arrives
_FLUSH_S: Final = 5.0  # in which the last answers go out
_JOINED: Final = 64 * 1024  # bodies up to this size are written together with their head


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    head_bytes: int = 64 * 1024
    body_bytes: int = 16 * 1024 * 1024
    bodies_bytes: int = 256 * 1024 * 1024  # of all connections together
    request_s: float = 30.0  # from the first byte of a request to the last
    idle_s: float = 75.0  # without any request
    stalled_s: float = 60.0  # in which the client takes none of what is there for it
    connections: int = 10_000


class _Arrival(msgspec.Struct):
    """A request that is there in full, or the answer to one that will not be."""

    admission: Admission | None = None
    body: bytes = b""
    refused: Response | None = None
    head_only: bool = False
    modern: bool = True  # HTTP/1.1
    last: bool = False  # the connection ends with it
    deaf: bool = False  # what comes behind it is thrown away


class _Incoming:
    """A request of which a part is there."""

    __slots__ = (
        "admission",
        "beside",
        "body",
        "expects",
        "headers",
        "in_head",
        "refused",
        "size",
        "target",
    )

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[str, str]] = []
        self.in_head = True
        self.beside = 0  # bytes that are no body: head, chunk sizes, trailers
        self.admission: Admission | None = None
        self.refused: Response | None = None
        self.body: list[bytes] = []
        self.size = 0
        self.expects = False  # that we say whether the body is welcome


class Connection(asyncio.Protocol):
    """One client. Parser callbacks and transport callbacks come from the loop, `_serve` is ours."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._service = server.service
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._incoming: _Incoming | None = None
        self._arrived: deque[_Arrival] = deque()
        self._in_hand: _Arrival | None = None
        self._wake: asyncio.Future[None] | None = None  # of the task, for a request
        self._writable: asyncio.Future[None] | None = None  # while the client does not take more
        self._reading = True
        self._deaf = False  # input is thrown away
        self._eof = False
        self._ends = False  # after what is in hand
        self._kept = 0  # bytes of bodies that count as ours
        self._since = self._loop.time()  # of the state that a deadline counts for
        self._timer: asyncio.TimerHandle | None = None

    # -- the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)
        # Writing "pauses" as soon as anything is left to send, so we know what has gone.
        transport.set_write_buffer_limits(high=0)
        others, most = len(self._server.open), self._limits.connections
        self._server.open.add(self)
        if others >= 2 * most:  # not even told so
            transport.abort()
        elif others >= most:
            self._refuse(Overloaded("there are too many connections"))
        elif self._server.stopping:
            self._refuse(Stopping())
        self._task = self._loop.create_task(self._serve())
        self._set_timer()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)
        self._keep(-self._kept)
        self._deaf = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        """The client says no more. It may still listen, unless it was made to wait: then it left."""
        self._eof = True
        waits = self._in_hand is not None and self._waits(self._in_hand)
        if waits or (self._in_hand is None and not self._arrived):
            return False
        self._rouse()
        return True  # what is in hand is answered; then we close

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._since = self._loop.time()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        self._since = self._loop.time()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        before = self._incoming
        size = 0 if before is None else before.size
        if before is None:
            self._since = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # we did not agree to speak anything else
        except httptools.HttpParserCallbackError:
            _log.exception("reading a request failed")
            self._transport.abort()
        except httptools.HttpParserError as error:
            if not self._deaf:
                self._refuse(Invalid(f"this is not HTTP/1.1: {error}"))
        else:
            incoming = self._incoming
            # The parser keeps an unfinished line to itself. All of the data is about this request
            # only if it had begun before.
            if incoming is not None and incoming is before:
                incoming.beside += len(data) - (incoming.size - size)
                self._check_head(incoming)

    # -- the parser ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._incoming = _Incoming()
        self._since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        assert self._incoming is not None
        self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None
        if incoming.in_head:  # and not a trailer, of which we make nothing
            incoming.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        incoming = self._incoming
        assert incoming is not None
        incoming.beside = len(incoming.target) + sum(
            len(name) + len(value) + 4 for name, value in incoming.headers
        )
        if self._deaf or not self._check_head(incoming):
            return
        incoming.in_head = False
        length = 0
        try:
            head, length, has_body = read_head(
                self._parser.get_method(),
                self._parser.get_http_version(),
                incoming.target,
                incoming.headers,
            )
            if has_body and self._parser.should_upgrade():
                raise Invalid("a request with a body cannot ask for another protocol", "Upgrade")
            expectation = head.headers.get("expect", "").lower()
            if expectation not in ("", "100-continue"):
                raise Refused("expectation_failed", "only 100-continue can be expected")
            incoming.admission = self._service.admit(head, has_body=has_body)
            if length > self._limits.body_bytes:
                raise _too_large(self._limits.body_bytes)
        except (PenstockError, Refused) as error:
            incoming.refused = refusal(error)
        else:
            modern = self._parser.get_http_version() == "1.1"
            incoming.expects = bool(expectation) and has_body and modern
            self._welcome()
            return
        # Whoever sends much, or waits to be told to, is not heard to the end.
        if length > self._limits.body_bytes or "expect" in dict(incoming.headers):
            self._arrive(_Arrival(refused=incoming.refused, last=True, deaf=True))

    def on_body(self, body: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None
        incoming.size += len(body)
        incoming.expects = False
        if self._deaf:
            return
        if incoming.refused is not None:  # thrown away, but not without end
            if incoming.size > self._limits.body_bytes:
                self._arrive(_Arrival(refused=incoming.refused, last=True, deaf=True))
            return
        if incoming.size > self._limits.body_bytes:
            error: Refused | Overloaded = _too_large(self._limits.body_bytes)
        elif self._server.kept + len(body) > self._limits.bodies_bytes:
            error = Overloaded("too much is being sent to this server at once")
        else:
            incoming.body.append(body)
            self._keep(len(body))
            return
        incoming.body.clear()
        incoming.refused = refusal(error)
        self._arrive(_Arrival(refused=incoming.refused, last=True, deaf=True))

    def on_message_complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        self._since = self._loop.time()
        if self._deaf:
            return
        assert incoming is not None
        last = not self._parser.should_keep_alive() or self._parser.should_upgrade()
        method = self._parser.get_method()
        self._arrive(
            _Arrival(
                admission=incoming.admission,
                body=b"".join(incoming.body),
                refused=incoming.refused,
                head_only=method == b"HEAD",
                modern=self._parser.get_http_version() == "1.1",
                last=last,
                deaf=last,
            )
        )

    def _check_head(self, incoming: _Incoming) -> bool:
        """Whether what is no body stays within what a head may have, and chunks need."""
        if self._deaf:
            return False
        most = self._limits.head_bytes
        allowed = most
        if not incoming.in_head:
            allowed = 2 * most + (0 if incoming.admission is None else _CHUNKING * incoming.size)
        if incoming.beside <= allowed:
            return True
        self._refuse(Refused("headers_too_large", f"the head has more than {most} bytes"))
        return False

    def _welcome(self) -> None:
        """Say that a body may come, if that is waited for and everything before is answered."""
        incoming = self._incoming
        if incoming is not None and incoming.expects and not self._busy:
            incoming.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- between parser and task -----------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._in_hand is not None or bool(self._arrived)

    def _arrive(self, arrival: _Arrival) -> None:
        self._arrived.append(arrival)
        if arrival.deaf:
            self._deaf = True
        elif len(self._arrived) >= _AHEAD or self._kept > self._limits.body_bytes:
            self._reading = False
            self._transport.pause_reading()
        self._rouse()

    def _refuse(self, error: PenstockError | Refused) -> None:
        """Answer what cannot be read, after everything before it, and end."""
        self._arrive(_Arrival(refused=refusal(error), last=True, deaf=True))

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _keep(self, size: int) -> None:
        self._kept += size
        self._server.kept += size

    # -- the task --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        in_a_row = 0
        try:
            while not self._transport.is_closing():
                if self._arrived:
                    in_a_row += 1
                    if not await self._answer(self._arrived.popleft()):
                        return
                    if in_a_row % _IN_A_ROW == 0:
                        await asyncio.sleep(0)
                elif self._eof or self._ends:
                    return
                else:
                    in_a_row = 0
                    self._welcome()
                    self._wake = self._loop.create_future()
                    await self._wake
        finally:
            self._wake = None
            self._transport.close()

    async def _answer(self, arrival: _Arrival) -> bool:
        """Answer one request; False if the connection ends with it."""
        self._in_hand = arrival
        try:
            response = arrival.refused or await self._respond(arrival)
            ends = arrival.last or self._ends or not arrival.modern
            await self._hand_over(response, arrival, ends)
            if arrival.deaf and arrival.refused is not None:
                await self._linger()
        finally:
            self._in_hand = None
            self._keep(-min(len(arrival.body), self._kept))
        self._since = self._loop.time()
        if not self._reading and not self._deaf and len(self._arrived) < _AHEAD:
            self._reading = True
            self._transport.resume_reading()
        return not ends

    async def _respond(self, arrival: _Arrival) -> Response:
        assert arrival.admission is not None
        if self._eof and self._waits(arrival):
            raise asyncio.CancelledError  # nobody is there to wait
        try:
            return await self._service.answer(arrival.admission, arrival.body)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._transport.is_closing() or not self._ends or task is None or task.uncancel():
                raise
            return refusal(Stopping())

    async def _hand_over(self, response: Response, arrival: _Arrival, ends: bool) -> None:
        try:
            if self._transport.is_closing():
                raise asyncio.CancelledError
            if response.stream is not None:
                await self._stream(response, arrival, ends)
                return
            head = write_head(response, ends)
            body = b"" if arrival.head_only else response.body
            if len(body) <= _JOINED:
                self._transport.write(head + body)
            else:
                self._transport.writelines((head, body))
            await self._drained()
        except asyncio.CancelledError:
            if response.undo is not None:
                self._server.begin(response.undo())
            raise

    async def _stream(self, response: Response, arrival: _Arrival, ends: bool) -> None:
        """Chunk by chunk, each when the one before is gone."""
        stream = response.stream
        assert stream is not None
        chunked = arrival.modern
        async with aclosing(stream):
            first = await anext(stream, b"")  # from then on nothing is missed
            self._transport.write(write_head(response, ends, chunked=chunked))
            if arrival.head_only:
                return
            if first:
                await self._send_chunk(first, chunked)
                try:
                    async for chunk in stream:
                        await self._send_chunk(chunk, chunked)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if self._transport.is_closing() or not self._ends:
                        raise
                    if task is None or task.uncancel():
                        raise
        if chunked:
            self._transport.write(b"0\r\n\r\n")
        await self._drained()

    async def _send_chunk(self, chunk: bytes, chunked: bool) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
        await self._drained()

    async def _drained(self) -> None:
        while self._writable is not None:
            await self._writable

    async def _linger(self) -> None:
        """Let the client read our last words: a close on unread input would destroy them."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
            deadline = self._loop.time() + _LINGER_S
            while not self._eof and (left := deadline - self._loop.time()) > 0:
                self._wake = self._loop.create_future()
                await asyncio.wait([self._wake], timeout=left)

    @staticmethod
    def _waits(arrival: _Arrival) -> bool:
        return arrival.admission is not None and arrival.admission.route.waits

    # -- deadlines and the end -------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Look again when time may be up, or sooner: another deadline may count by then."""
        limits = self._limits
        soonest = min(limits.request_s, limits.idle_s, limits.stalled_s)
        wait = max(min(self._left(), soonest), 0.005)
        self._timer = self._loop.call_later(wait, self._on_time)

    def _left(self) -> float:
        """Seconds until the client has taken too long for what it is at."""
        limits = self._limits
        if self._writable is not None:
            allowed = limits.stalled_s
        elif self._busy:
            return limits.request_s  # our turn: we look again then
        else:
            allowed = limits.idle_s if self._incoming is None else limits.request_s
        return self._since + allowed - self._loop.time()

    def _on_time(self) -> None:
        if self._left() <= 0:
            if self._writable is not None:
                self._transport.abort()
            elif self._incoming is not None:
                self._refuse(Deadline("the request did not come in full in time"))
            else:
                self._transport.close()
        if not self._transport.is_closing():
            self._set_timer()

    def end(self) -> None:
        """Finish what is in hand, but wait for nothing, and close."""
        self._ends = self._deaf = True
        if self._in_hand is not None and self._waits(self._in_hand) and self._task is not None:
            self._task.cancel()
        self._rouse()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._task


class HttpServer:
    """Listens, and has the connections: `start`, then `stop`.

    `idle` waits, up to so many seconds, until the jobs that were claimed have ended.
    """

    kind: Kind = "http"

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 6790,  # 0: a free one
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        idle: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self.service = service
        self.limits = limits or HttpLimits()
        self.address = (host, port)
        self.open: set[Connection] = set()
        self.kept = 0  # bytes of bodies that are being read or answered
        self.stopping = False
        self._tls = tls
        self._idle = idle
        self._listener: asyncio.Server | None = None
        self._begun: set[asyncio.Task[Any]] = set()

    async def start(self) -> str:
        """Begin to listen; answers where."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self), *self.address, ssl=self._tls, backlog=1_024
        )
        host, port = self.address = self._listener.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connections(self) -> int:
        return len(self.open)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Have something done that outlives its connection."""
        task = asyncio.get_running_loop().create_task(_tolerant(work))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def stop(self, grace_s: float = 30.0) -> None:
        """Give out no more jobs, let workers finish theirs for so long, and end.

        Everything but a claim may be said until then, on new connections, too: a worker may make
        one for each word. Cut short, it can be called again.
        """
        self.service.stop_claims()
        if self._idle is not None:
            await self._idle(grace_s)
        if self._listener is not None:
            self._listener.close()
        self.stopping = True
        tasks = [each.task for each in self.open if each.task is not None]
        for connection in list(self.open):
            connection.end()
        if tasks:
            await asyncio.wait(tasks, timeout=_FLUSH_S)
        for connection in list(self.open):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._begun:
            await asyncio.wait(self._begun)
        await self.service.close()
        if self._listener is not None:
            await self._listener.wait_closed()


async def _tolerant(work: Coroutine[Any, Any, object]) -> None:
    """What is undone may have ended by itself meanwhile."""
    try:
        await work
    except PenstockError:
        return


def _too_large(most: int) -> Refused:
    return Refused("payload_too_large", f"the body has more than {most} bytes")
