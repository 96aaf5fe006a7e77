"""One connection that is served: requests in, answers out, with nothing on it growing without end.

What arrives in one read is answered in one write; what is answered later goes out once per turn of
the loop. Requests with a number are answered when they are done, those without in the order in
which they came. A connection whose peer does not read, or which has too much in hand, is not read
from until that is over. When it ends, whatever waits is cancelled, and whatever is under way is done
to its end: nobody learns of it, and nothing is left half done.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import UNSET

from penstock.model.errors import (
    Forbidden,
    Invalid,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.protocol.access import ANYBODY, NOBODY, Principal, not_accepted
from penstock.protocol.audited import INTERRUPTED, REFUSED, audited
from penstock.protocol.command import Answer, Encoding, Refusal, ReqId, Request
from penstock.protocol.framing import BRACE, HEADER, BadFrame, Message
from penstock.protocol.short import PAYLOAD_PUSHED, SHORT, pushed_frame, read_push
from penstock.protocol.table import name_of
from penstock.stores.answering import Answering
from penstock.stores.eager import begin, tell
from penstock.stores.face import Face
from penstock.stores.forking import not_for_children
from penstock.stores.in_hand import Going, Held, Reply

if TYPE_CHECKING:
    from penstock.stores.serving import Listener

TURN: Final = 128  # requests that one connection is given in one turn of the loop
TURN_S: Final = 0.002  # … or the time, if that is less: a request may take a while
UNDER_WAY: Final = 128  # requests in hand that end with the next commit or so, all at once
LARGE: Final = 8  # requests in hand that may have large answers: they come together from a disk
HIGH_WATER: Final = 512 * 1024  # unsent bytes at which we stop reading …
LOW_WATER: Final = 128 * 1024  # … until there are no more than these
CHATTY: Final = 16 * HIGH_WATER  # unsent bytes that are no answers: whoever reads none goes
JOINED: Final = 64 * 1024  # bytes after which answers do not wait for more of them

NOT_SAID: Final = "say who you are first"

log = logging.getLogger("penstock.serving")


class Connection(Answering):
    transport: asyncio.Transport

    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener)
        self.address = ""
        self._loop = listener.loop
        self._flushing = False
        self._working = False  # whether a turn is set that goes on with what has arrived
        self._stuck = False  # the peer does not read
        self._reading = True
        self._finishing = False  # nothing more is taken
        self._lost = False
        self._room: asyncio.Event | None = None  # for those who wait until it does
        self._held: dict[Held, None] = {}
        self._under_way = 0  # of those, how many end with the next commit or so
        self._large = 0  # … and how many may have large answers
        self._numbered: dict[ReqId, Held] = {}
        self._most = listener.limits.requests
        self._going = Going()
        self.principal = ANYBODY if listener.authenticator.open_to_all else NOBODY
        self._faces: dict[Encoding, Face] = {}
        now = listener.now()
        self._opened = now
        self._heard = now  # when something last came, or went
        self._begun = 0.0  # when the message began that is not whole; 0 if none is
        self._greeted = False  # whether a whole message has come
        self._stuck_since = 0.0
        self._ending_since = 0.0  # when the peer said that nothing more comes

    # -- life ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        self.transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        sock = transport.get_extra_info("socket")
        if self.address and sock is not None:
            # A peer that vanished without a word is noticed, though nothing is said.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        not_for_children(self)
        refusal = self.listener.admit(self)
        if refusal is not None:
            self._put(refusal, "msgpack")
            self.close()
        elif self.listener.ending:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._closing = True
        self.listener.forget(self)
        for held in self._held:
            assert held.task is not None
            if not held.told and (self._finishing or type(held.request).waits):
                held.task.cancel()
            else:
                self.listener.look_after(held.task)
        self._going.cancel()
        for sent in (*self._unsent, *(reply.kept for reply in self._line if reply.kept)):
            self.listener.take_back(*sent)
        self._unsent.clear()
        self._line.clear()
        self._out = bytearray()
        if self._room is not None:
            self._room.set()

    def sockets(self) -> list[int]:
        sock = None if self._lost else self.transport.get_extra_info("socket")
        return [] if sock is None else [sock.fileno()]

    def eof_received(self) -> bool:
        """The peer says no more. What it may still read, it gets; jobs, it gets no more."""
        self._ending_since = self.listener.now()
        for held in self._held:
            if type(held.request) in self.listener.taken_back:
                held.cancel()
        for reply in self._line:
            self._take_back(reply)
        self._end_when_done()
        return True

    def _take_back(self, reply: Reply) -> None:
        """What waits there for its turn comes too late."""
        if reply.kept is not None and reply.data is not None:
            request, face, _ = reply.kept
            self.listener.take_back(*reply.kept)
            self._lined -= len(reply.data)
            self._fill(reply, request, face, self._refusal(request, asyncio.CancelledError()))

    def _end_when_done(self) -> None:
        if self._ending_since and not self._held and not self._frames.rest:
            self.close()

    def close(self) -> None:
        """Send what has been said, and end."""
        if not self._closing:
            self._flush()
            self._closing = True
            self.transport.close()

    def abort(self) -> None:
        self._closing = True
        self.transport.abort()

    def finish(self) -> None:
        """The server ends: whoever waits is told so, what is under way is answered, and nothing
        more is taken."""
        self._finishing = True
        for held in self._held:
            if type(held.request).waits:
                held.cancel()
        self._going.cancel()
        self._read_or_not()

    def hand_over(self) -> None:
        """Somebody else will serve: whoever waits asks there again; what is under way is answered,
        and nothing more is read."""
        self.transport.pause_reading()
        for held in self._held:
            if getattr(held.request, "wait_ms", False):
                held.abandoned = True
                held.cancel()
        self._going.cancel()

    @property
    def in_hand(self) -> bool:
        return bool(self._held) or bool(self._going)

    # -- requests --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._reading or self._working:
            self._heard = self.listener.now()
            self._frames.feed(data)
            if not self._working:
                self._take()
            return
        if self._closing or not self._frames.feed_alone(data):
            self._heard = self.listener.now()
            self._take()
            return
        if data[HEADER] == SHORT:  # frames come, or it would not be alone
            self._answer_short(data, HEADER)
        else:
            self._answer(data[HEADER:])
        self._heard = self.listener.now()
        if self._out:
            self._flush()
        if self._held or self._line:
            self._read_or_not()

    def _take(self) -> None:
        """Answer what has arrived, as far as this turn allows."""
        self._working = False
        frames = self._frames
        came = 0
        until = self.listener.now() + TURN_S
        try:
            while frames.rest and not self._full() and not self._closing:
                if came == TURN or (came & 15 == 15 and self.listener.now() > until):
                    self._working = True
                    self._loop.call_soon(self._take)
                    break
                message = frames.take()
                if message is None:
                    break
                came += 1
                self._answer(message)
                if len(self._out) >= JOINED:
                    self._flush()
        except BadFrame as error:
            self._end_of(error)
            return
        if self._out:
            self._flush()
        if not frames.begun:
            self._begun = 0.0
        elif came or not self._begun:
            self._begun = self._heard
        self._read_or_not()
        if self._ending_since:
            self._end_when_done()

    def _end_of(self, bad: BadFrame) -> None:
        self._put(Refusal(error=bad.why, code=bad.code), self._encoding())
        self.close()

    def _full(self) -> bool:
        """Whether nothing more is taken for now."""
        if self._stuck or self._finishing:
            return True
        if not self._held and not self._line:  # mostly, and asked twice for every read
            return False
        return (
            len(self._held) >= self._most
            or self._under_way >= UNDER_WAY
            or self._large >= LARGE
            or self._lined > HIGH_WATER
            or len(self._line) >= self._most
        )

    def _read_or_not(self) -> None:
        """Read on exactly while there is nothing here that waits to be looked at."""
        if self._closing:
            return
        wanted = not self._frames.rest and not self._full()
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
                if self._begun:
                    self._begun = self.listener.now()
            else:
                self.transport.pause_reading()

    def _encoding(self) -> Encoding:
        return "json" if self._frames.lines else "msgpack"

    def _face(self, encoding: Encoding) -> Face:
        face = self._faces.get(encoding)
        if face is None:
            face = self._faces[encoding] = Face(self, encoding)
        return face

    def _answer(self, message: Message) -> None:
        first, lines = message[0], self._frames.lines
        if first == SHORT and not lines:
            self._answer_short(message)
            return
        self._greeted = True
        encoding: Encoding = "json" if first == BRACE or lines else "msgpack"
        face = self._faces.get(encoding) or self._face(encoding)
        request = self.listener.table.decode(message, encoding)
        if isinstance(request, Refusal):
            stranger = self.principal is NOBODY
            if stranger:  # a token that cannot be read is as good as any other that is wrong
                request = Refusal.of(not_accepted(), request.req_id)
            self._reply(None, face, request, request.req_id)
            if stranger:
                self.close()
            return
        self._call(request, face)

    def _answer_short(self, message: Message, begin: int = 0) -> None:
        """One job of a kind that was said at length: pushed without a request being made of it,
        where the store has such a way."""
        face = self._faces.get("msgpack") or self._face("msgpack")
        try:
            kind, number, sequence = read_push(message, begin)
        except BadFrame as bad:
            self._end_of(bad)
            return
        assert face.pushes is not None, "of MessagePack"
        known = face.pushes.get(kind)
        if known is None:
            self._greeted = True
            error: PenstockError = Invalid(f"{kind} is no kind that was said", "kind")
            if self.principal is NOBODY:
                error = Unauthenticated(NOT_SAID)
            self._reply(None, face, Refusal.of(error, number), number)
            return
        payload = bytes(message[begin + PAYLOAD_PUSHED :])
        push = known.push
        if push is None or self._closing:
            self._call(known.request(number, sequence, payload), face)
            return
        try:
            job_id = push(payload, sequence)
        except Exception as why:  # noqa: BLE001 # whatever it is, it is this request's alone
            request = known.request(number, sequence, payload)
            self._reply(request, face, self._refusal(request, why), number)
            return
        self._out += pushed_frame(number, job_id)

    def _call(self, request: Request, face: Face) -> None:
        listener = self.listener
        if self.principal is NOBODY and type(request) not in listener.for_strangers:
            refusal = Refusal(error=NOT_SAID, code=Unauthenticated.code)
            self._reply(request, face, refusal, request.req_id)
            return
        try:
            answer = begin(request.call(face))
        except Exception as error:  # noqa: BLE001 # whatever it is, it is this request's alone
            self._reply(request, face, self._refusal(request, error), request.req_id)
            if type(error) is Unauthenticated and type(request) in listener.for_strangers:
                self.close()
            return
        if isinstance(answer, asyncio.Task):
            self._hold(request, face, answer)
            return
        if type(request) in listener.introductions:
            self._frames.limit = listener.limits.frame_bytes
        if request.audited:
            self._audit(request)
        if self._line or self._closing:
            self._reply(request, face, answer, request.req_id)
        elif (sent := self._write(request, face, answer, self._out)) is not None:
            self._unsent.append(sent)

    def _refusal(self, request: Request, error: BaseException) -> Refusal:
        if isinstance(error, PenstockError):
            if isinstance(error, Forbidden) and request.audited:
                self._audit(request, {REFUSED: error.message})
            return Refusal.of(error)
        if isinstance(error, asyncio.CancelledError):
            if request.audited:
                self._audit(request, {INTERRUPTED: True})
            return Refusal(error="the server is stopping", code=Unavailable.code)
        log.error("%s failed", name_of(type(request)), exc_info=error)
        return Refusal(error="the server failed to answer this", code=PenstockError.code)

    def _audit(self, request: Request, more: Mapping[str, object] | None = None) -> None:
        if self.listener.audit is not None:
            self.listener.audit(*audited(self.principal, request, more))

    # -- requests that wait ----------------------------------------------------------------------

    def _hold(self, request: Request, face: Face, task: "asyncio.Task[Answer]") -> None:
        number = request.req_id
        reply = None
        if number is UNSET or number is None:
            reply = Reply()
            self._line.append(reply)
        held = Held(request, face, reply)
        held.task = task
        self._held[held] = None
        self._under_way += not request.waits
        self._large += request.large
        ahead = None
        if reply is None:
            self._numbered[number] = held
            if type(request) in self.listener.foretold:
                ahead = partial(self._foretell, held)
        tell(task, partial(self._done, held), ahead)

    def _foretell(self, held: Held, given: object) -> bool:
        """Send the answer ahead of the coroutines that lead to it, if it is known already: they go
        on when it is on its way. Answers whether it is."""
        if self._line or self._closing or held.stopped:
            return False
        request, face = held.request, held.face
        answer = request.foretold(face, given)
        if type(answer) is bytes:
            if self._out:
                self._flush()
            transport = self.transport
            if not transport.is_closing():
                held.told = True
                transport.write(answer)
        elif answer is not None:
            assert isinstance(answer, Answer)
            held.told = True
            if (sent := self._write(request, face, answer, self._out)) is not None:
                self._unsent.append(sent)
            self._flush()
        return held.told

    def _done(self, held: Held, answer: Answer | Refusal, error: BaseException | None) -> None:
        """It has come to its end, in this very step."""
        request = held.request
        del self._held[held]
        if not request.waits:
            self._under_way -= 1
        if request.large:
            self._large -= 1
        if self._numbered.get(request.req_id) is held:
            del self._numbered[request.req_id]
        if error is not None:
            answer = self._refusal(request, error)
        elif request.audited:
            self._audit(request)
        if held.told:
            self._heard = self.listener.now()
        elif self._lost or held.abandoned:
            if isinstance(answer, Answer):
                self.listener.take_back(request, held.face, answer)
        else:
            self._heard = self.listener.now()
            if held.reply is None and not self._line and not self._held and not self._closing:
                # Nothing is ahead of it, and nothing else can end in this turn: it leaves now.
                if (sent := self._write(request, held.face, answer, self._out)) is not None:
                    self._unsent.append(sent)
                self._flush()
            else:
                if held.reply is not None:
                    self._fill(held.reply, request, held.face, answer)
                    self._move_up()
                else:
                    self._reply(request, held.face, answer, request.req_id)
                if self._held:
                    self._flush_soon()  # they may end in the same turn
                else:
                    self._flush()
        if not self._reading and not self._working:
            self._working = True
            self._loop.call_soon(self._take)
        elif self._ending_since:
            self._end_when_done()

    def abandon(self, number: ReqId) -> bool:
        held = self._numbered.get(number)
        if held is None or held.abandoned or held.told:
            return False
        held.abandoned = True
        held.cancel()
        return True

    # -- what goes out ---------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flushing and self._out:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out and not self._closing and not self.transport.is_closing():
            out, self._out = self._out, bytearray()
            self._unsent.clear()
            self.transport.write(out)

    def pause_writing(self) -> None:
        self._stuck = True
        self._stuck_since = self.listener.now()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._stuck = False
        if self._room is not None:
            self._room.set()
            self._room = None
        if not self._working:
            self._working = True
            self._loop.call_soon(self._take)

    # -- what is no answer -----------------------------------------------------------------------

    def authenticate(self, token: str) -> Principal:
        principal = self.listener.authenticator.authenticate(token)
        if self.principal is not NOBODY:
            return self.principal.confirmed(principal)
        self.principal = principal
        for face in self._faces.values():
            face.principal = principal
        return principal

    def send(self, message: msgspec.Struct, encoding: Encoding) -> None:
        if self._closing:
            return
        self._put(message, encoding)
        self._flush_soon()
        if len(self._out) + self.transport.get_write_buffer_size() > CHATTY:
            log.warning("%s does not read what it is told", self.address or "a peer")
            self.abort()

    async def drained(self) -> None:
        if len(self._out) >= JOINED:
            self._flush()
            await asyncio.sleep(0)
        while self._stuck and not self._lost:
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def start(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        self._going.start(name, work, self._closing)

    def stop(self, name: object) -> bool:
        return self._going.stop(name)

    # -- deadlines -------------------------------------------------------------------------------

    def overdue(self, now: float) -> str | None:
        """Why it has to end by now, if it has to."""
        limits = self.listener.limits
        if self._stuck:
            return "does not read" if now - self._stuck_since > limits.idle_s else None
        if self._ending_since and now - self._ending_since > limits.handshake_s:
            return "said no more"
        if (self.principal is NOBODY or not self._greeted) and not self._held:
            if now - self._opened > limits.handshake_s:
                return "did not say who it is in time"
        elif self._begun and self._reading and now - self._begun > limits.message_s:
            return "did not finish a message in time"
        if not self.in_hand and now - self._heard > limits.idle_s:
            return "said nothing for long"
        return None
