"""The client's end of a connection: many requests at once, one connection, another when it is lost.

One link belongs to one loop of one process. Requests are numbered and sent in the order in which
they were made, joined per turn of the loop; answers come in any order. What cannot be sent yet,
because there is no connection, because the peer does not read, or because too much is in hand,
waits in line. When a connection is lost, what is safe to repeat goes back into the line, and what
is not and had been sent is answered with Unavailable: nobody knows what became of it.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.model.errors import (
    BatchTooLarge,
    PenstockError,
    Unavailable,
)
from penstock.protocol.command import Answer, Request
from penstock.protocol.framing import HEADER, KNOWN_LIMIT, LARGEST, BadFrame, Message
from penstock.protocol.hearing import HEAD, TOLD, decoder_of, error_of, refused
from penstock.protocol.native import Abandon, Ping, Welcome
from penstock.protocol.native_look import Unwatch, Watch
from penstock.protocol.native_push import PushRun, RunPushed
from penstock.protocol.runs import Single
from penstock.protocol.short import JOB, push_frame, read_job, read_pushed
from penstock.stores.connecting import Connecting
from penstock.stores.joining import Joined, Parcel
from penstock.stores.kinds import Kinds
from penstock.stores.prompt import settle, tell
from penstock.stores.target import Target
from penstock.stores.watching import Watcher
from penstock.stores.wire import Entry, Kind, framed

PUSHES: Final = 512  # in flight: fewer than the answers that a producer is remembered by
SPARE: Final = 100  # requests that we never use for calls, so that one can always be given up
SILENCE_S: Final = 15.0  # without a word while something is awaited: we ask; twice that: it is lost
GIVEN_UP_S: Final = 1.0  # how long a store that is closed waits to hear of what was given up
LARGE: Final = 64 << 10  # bytes of a frame that is worth a call of the system by itself
REPEATS: Final = 5  # of one request: after that many lost answers it may be what ends the server

_decode_pushed: Final = decoder_of(RunPushed).decode

log: Final = logging.getLogger("penstock.remote")


class Lost(Unavailable):
    """The connection ended before an answer came that cannot be asked for again."""


class Link(Connecting):
    def __init__(
        self,
        target: Target,
        loop: asyncio.AbstractEventLoop,
        patience_s: float,
        before: Callable[[], Awaitable[str]] | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__(target, loop, before, keep)
        self.producer = f"remote/{os.urandom(12).hex()}"  # of pushes that name none
        self._patience_s = patience_s
        self.joined = Joined(loop, self._submit_joined, self.number)
        self._sequence = 0
        self._content = os.urandom(16)  # with a number of ours it stands for one push
        self._number = 0
        self._stuck = False
        self._backlog: deque[Entry] = deque()  # not sent
        self._out: list[Entry] = []  # sent at the end of this turn
        self._pending: dict[int, Entry] = {}  # sent, or about to be
        self._pushes = 0  # among those
        self._most = PUSHES  # in flight; the server says how many …
        self._limit = KNOWN_LIMIT  # … and how many bytes one of them may have
        self._flushing = False
        self.kinds = Kinds(self.producer, self._content)
        self._given_up: dict[asyncio.Future[Any], None] = {}  # of what we ask to be given up
        self._watchers: dict[int, Watcher] = {}
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._listen_at = 0.0  # when it is due

    # -- requests --------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether a push may wait for company until this turn ends: one that nothing is ahead of
        goes out at once, as nobody gains if it waits."""
        if self._pending or self.joined.groups:
            return True
        return not self._ready

    def number(self, push: PushRun) -> None:
        """Give a push that names no producer a number of ours: repeated, it is no duplicate."""
        self._sequence = push.sequence = self._sequence + 1
        push.producer = self.producer
        # What we repeat are the very same bytes, so that nobody has to read them to know it: no
        # number is given twice.
        push.content = self._content

    def push_at_once(self, kind: Kind, payload: bytes) -> "asyncio.Future[int] | None":
        """Have one plain job pushed, if nothing is ahead of it; None: something is, or there is no
        connection, and nothing was done.

        All that `number`, `submit` and what follows would do to such a push, in one step: a caller
        at rest waits for each function that is touched. What the answer needs is made when the
        frame is out.
        """
        if (
            self._pending
            or self._backlog
            or self._stuck
            or not self._ready
            or self.joined.groups
            or (transport := self._wire.transport).is_closing()  # type: ignore[union-attr]
        ):
            return None
        sequence, number = self._sequence + 1, self._number + 1
        frame: bytes | bytearray
        if kind.known:
            frame = push_frame(kind.number, number, sequence, payload)
        else:
            frame = self.kinds.at_length(kind, number, sequence, payload)
        if len(frame) - HEADER > self._limit:
            raise self._too_large(len(frame) - HEADER)
        self._sequence, self._number = sequence, number
        transport.write(frame)
        future: asyncio.Future[int] = asyncio.Future(loop=self.loop)
        self._pending[number] = Entry(
            number,
            frame,
            _decode_pushed,
            future,
            True,
            True,
            True,
            kind=kind,
            said=(sequence, payload),
        )
        self._pushes = 1
        return future

    def _too_large(self, size: int) -> BatchTooLarge:
        return BatchTooLarge(f"{size} bytes in one call; at most {self._limit}", "runs")

    async def ask(self, request: Request, *, repeat: bool = False, push: bool = False) -> Any:
        """The answer. Raises what the server raised."""
        entry = self.submit(request, repeat=repeat, push=push)
        return await entry.future

    async def ask_waiting(self, request: Request, *, repeat: bool = False) -> Any:
        """The same for a request that may wait long. Cancelled, it is given up on the other side."""
        entry = self.submit(request, repeat=repeat)
        try:
            return await entry.future
        except asyncio.CancelledError:
            self.give_up(entry)
            raise

    def submit(self, request: Request, *, repeat: bool = False, push: bool = False) -> Entry:
        """Have it sent as soon as it can be, in order."""
        if self.joined.groups:
            self.joined.flush()  # what came before goes before
        return self._submit(request, asyncio.Future(loop=self.loop), repeat, push)

    def _submit(self, request: Request, future: Any, repeat: bool, push: bool) -> Entry:
        if self._closed:
            raise Unavailable("the store is closed")
        entry = self._entry(request, future, repeat, push)
        # Mostly nothing is ahead of it, and nothing has to be counted.
        free = self._ready and not self._stuck and not self._pending
        if self._backlog or not (free or self._may_send(entry)):
            self._backlog.append(entry)
            if not self._ready:
                entry.until = self.loop.time() + self._patience_s
                self._connect_if_wanted()
        else:
            self._send(entry)
        return entry

    def _submit_joined(self, push: PushRun, parcel: Parcel) -> None:
        self._submit(push, parcel, parcel.numbered, True)
        if self._out:
            self._write_out()  # this is the end of the turn already

    def _entry(self, request: Request, future: Any, repeat: bool, push: bool) -> Entry:
        self._number = number = request.req_id = self._number + 1
        decode = decoder_of(request.answer).decode
        return Entry(number, framed(request), decode, future, repeat, push)

    def _may_send(self, entry: Entry) -> bool:
        return (
            self._ready
            and not self._stuck
            and len(self._pending) < self._most
            and not (entry.push and self._pushes >= PUSHES)
        )

    def _send(self, entry: Entry) -> None:
        frame = entry.frame
        assert frame is not None and self._wire is not None
        transport = self._wire.transport
        size = len(frame) - HEADER
        if size > self._limit:
            _fail(entry, self._too_large(size))
            return
        if not self._pending and not transport.is_closing():
            # There is nothing to join it with, and a lone caller pays for no turn but its own.
            transport.write(frame)
            self._pending[entry.number] = entry
            self._pushes += entry.push
            entry.sent = True
            if not entry.repeat:
                entry.frame = None
            return
        self._pending[entry.number] = entry
        self._pushes += entry.push
        self._out.append(entry)
        if size >= LARGE:
            self._write_out()  # to join it would cost more than to send it
        elif not self._flushing:
            # What is asked in one turn goes out together at its end.
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out:
            self._write_out()

    def _write_out(self) -> None:
        if self._wire is None or self._wire.transport.is_closing():
            return  # not sent, and known not to be: what was to go out goes to the next connection
        out, self._out = self._out, []
        if len(out) == 1:
            self._wire.transport.write(out[0].frame or b"")
        else:
            self._wire.transport.write(b"".join(entry.frame or b"" for entry in out))
        for entry in out:
            entry.sent = True
            if not entry.repeat:
                entry.frame = None

    def _pump(self) -> None:
        """Send what waits, as far as it may be sent now."""
        backlog = self._backlog
        while backlog:
            if backlog[0].future.done():  # given up
                backlog.popleft()
            elif self._may_send(backlog[0]):
                self._send(backlog.popleft())
            else:
                return

    def give_up(self, entry: Entry) -> None:
        """Nobody waits for this any more: it is given up on the other side, and `late` is told if it
        had been answered by then."""
        future = entry.future
        if not future.cancelled():
            # Answered in the instant in which it was cancelled.
            if entry.late is not None and future.exception() is None:
                entry.late(future.result())
            return
        if entry.number not in self._pending:
            return  # answered, or never sent: then it is skipped when its turn comes
        if not entry.sent:
            self._out.remove(entry)
            self._make_room(entry)
            return
        if self._ready:
            future = asyncio.Future(loop=self.loop)
            asked = self._entry(Abandon(request=entry.number), future, False, False)
            self._given_up[future] = None
            future.add_done_callback(_ignore)
            future.add_done_callback(lambda _: self._make_room(entry))
            future.add_done_callback(self._given_up.pop)
            self._send(asked)

    def _make_room(self, entry: Entry) -> None:
        """It is in hand no more: whoever waits behind it need not wait for another answer."""
        if self._pending.pop(entry.number, None) is not None:
            self._pushes -= entry.push
            self._pump()

    def post(self, request: Request) -> None:
        """Send it if there is a connection; nobody wants to know what becomes of it."""
        if self._ready and not self._closed:
            entry = self._entry(request, asyncio.Future(loop=self.loop), False, False)
            entry.future.add_done_callback(_ignore)
            self._send(entry)

    # -- watching --------------------------------------------------------------------------------

    def watch(self, watcher: Watcher, request: Watch) -> None:
        if self.joined.groups:
            self.joined.flush()  # its request has the number behind its name: see _end_watchers
        self._number += 1
        name = request.watch = self._number
        entry = self.submit(request)
        if self._backlog and self._backlog[-1] is entry:
            # What waits has not happened yet, and is to be seen: of a new server it asks first.
            self._backlog.rotate(1)
        self._watchers[name] = watcher

        def answered(future: "asyncio.Future[Answer]") -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, PenstockError) and self._watchers.pop(name, None) is not None:
                watcher.end(error)

        entry.future.add_done_callback(answered)

    def unwatch(self, watcher: Watcher) -> None:
        for name, each in list(self._watchers.items()):
            if each is watcher:
                del self._watchers[name]
                unsent = next((each for each in self._backlog if each.number == name + 1), None)
                if unsent is None:
                    self.post(Unwatch(watch=name))
                else:
                    unsent.future.cancel()  # or it would be asked for, and nobody would listen

    def _end_watchers(self, error: PenstockError | None) -> None:
        """Those that the server knows of; those that it has not heard of yet go on."""
        waiting = {entry.number - 1 for entry in self._backlog}
        for name, watcher in list(self._watchers.items()):
            if error is None or name not in waiting:
                del self._watchers[name]
                watcher.end(error)

    # -- what comes ------------------------------------------------------------------------------

    def hear(self, message: Message) -> None:
        """One message. While one request is in flight it is taken for the answer to that, without
        looking first whose it is, and looked at again if it is anything else."""
        pending = self._pending
        if len(pending) == 1:
            (entry,) = pending.values()
            future = entry.future
            try:
                answer = entry.decode(message)
            except msgspec.ValidationError:
                pass
            else:
                if answer.req_id == entry.number and answer.ok and not future.done():
                    answer = self.kinds.note(entry, answer)
                    pending.clear()
                    self._pushes = 0
                    if type(future) is Parcel:
                        future.set_result(answer)
                    elif not settle(future, answer, True) and entry.late is not None:
                        entry.late(answer)
                    return
        self._hear(message)

    def hear_short(self, message: Message, begin: int = 0) -> None:
        """The answer to a push, or to a claim, of one job. Told as `hear` does it: with others in
        flight, whoever waits goes on in the next turn."""
        answer: int | Single
        if len(message) > begin + 1 and message[begin + 1] == JOB:
            number, answer = read_job(message, self.kinds.given, begin)
        else:
            number, answer = read_pushed(message, begin)
        pending = self._pending
        entry = pending.get(number)
        if entry is None:
            return
        if (entry.kind if type(answer) is int else entry.late) is None:
            raise BadFrame("a short frame answers what it is no answer to")
        del pending[number]
        self._pushes -= entry.push
        future = entry.future
        told = not future.done()
        if told:
            told = tell(future, answer) if pending else settle(future, answer, True)
        if not told and entry.late is not None:
            entry.late(answer)

    def heard_all(self) -> None:
        """All that came has been dealt with."""
        self._heard = self.loop.time()  # now: whoever waited has waited long enough
        if self._backlog:
            self._pump()

    def _hear(self, message: Message) -> None:
        head = HEAD.decode(message)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(message)
            return
        if head.ok is None:
            self._told(message)
            return
        number = head.req_id or 0
        entry = self._pending.get(number)
        if entry is None:
            return
        # In hand until it is understood: whoever waits for it would hear nothing, if it is not.
        answer = error = None
        if head.ok:
            answer = self.kinds.note(entry, entry.decode(message))
        else:
            error = refused(message)
        del self._pending[number]
        self._pushes -= entry.push
        future = entry.future
        if error is not None:
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(answer)
        elif entry.late is not None:
            entry.late(answer)

    def _told(self, message: Message) -> None:
        told = TOLD.decode(message)
        watcher = self._watchers.get(told.watch)
        if watcher is None:
            return
        if told.event is not UNSET:
            watcher.offer([told.event])
        else:
            del self._watchers[told.watch]
            watcher.end(error_of(told.code, told.error) if told.code else None)

    # -- connections that come and go ------------------------------------------------------------

    def _begin(self, welcome: Welcome) -> None:
        self._most = max(welcome.requests - SPARE, 1)
        self._limit = min(welcome.frame, LARGEST)
        self.kinds.begin(welcome.short)
        self._ready = True
        self._heard = self.loop.time()
        if self._timer is None:
            self._listen()
        self._pump()

    def _refuse_late(self, error: PenstockError) -> float | None:
        """Tell those who have waited long enough; answers how long until the next have."""
        now = self.loop.time()
        waiting: deque[Entry] = deque()
        for entry in self._backlog:
            if entry.until <= now:
                _fail(entry, error)
            elif not entry.future.done():
                waiting.append(entry)
        self._backlog = waiting
        return min(entry.until for entry in waiting) - now if waiting else None

    def _refuse_all(self, error: PenstockError) -> None:
        backlog, self._backlog = self._backlog, deque()
        for entry in backlog:
            _fail(entry, error)

    def pause(self, stuck: bool) -> None:
        """The peer does not read, or reads again."""
        self._stuck = stuck
        if not stuck:
            self._pump()

    def lost(self) -> None:
        """The connection has ended."""
        self._wire = None
        was_ready = self._ready
        self._ready = self._stuck = False
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(
                Unavailable(f"{self.target} ended the connection before it was heard")
            )
        again = []
        for entry in self._pending.values():
            if entry.future.done():
                continue
            if not entry.sent or (entry.repeat and entry.lost < REPEATS):
                entry.lost += entry.sent
                entry.sent = False
                if entry.kind is not None:
                    self.kinds.make_long(entry)
                again.append(entry)
            else:
                why = "the connection was lost: what became of this call is not known"
                entry.future.set_exception(Lost(why))
        self._pending.clear()
        self._out.clear()
        self._pushes = 0
        self._backlog.extendleft(reversed(again))
        until = self.loop.time() + self._patience_s
        for entry in self._backlog:
            entry.until = until
        if was_ready and not self._closed and not self._keep:  # else one owner follows another
            self._was_lost = True
            log.warning("the connection to %s was lost", self.target)
        self._end_watchers(Unavailable("the connection was lost: events may have been missed"))
        if self._backlog or (self._keep and was_ready):
            self._connect_if_wanted()

    def _listen_for_silence(self) -> None:
        """A peer that vanished without a word is found out while somebody waits for it."""
        self._timer = None
        if self._closed or not self._ready:
            return
        now = self.loop.time()
        # While the loop was held up we could not hear: what was said then lies there unread.
        self._heard += max(now - self._listen_at, 0.0)
        silent = now - self._heard
        if self._pending and silent >= 2 * SILENCE_S:
            self._drop()
            return
        if silent >= SILENCE_S and (self._pending or self._watchers or self._keep):
            self.post(Ping())
        self._listen()

    def _listen(self) -> None:
        self._listen_at = self.loop.time() + SILENCE_S
        self._timer = self.loop.call_at(self._listen_at, self._listen_for_silence)

    # -- the end ---------------------------------------------------------------------------------

    def shut(self) -> None:
        """Whoever waits is told that it is over; what has been said is sent."""
        if self._closed:
            return
        self.joined.flush()
        self._flush()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        over = Unavailable("the store is closed")
        for entry in (*self._pending.values(), *self._backlog):
            _fail(entry, over)
        self._pending.clear()
        self._backlog.clear()
        self._end_watchers(None)
        if self._wire is not None:
            self._wire.transport.close()

    async def close(self) -> None:
        await self._given_back()
        self.shut()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._wire is not None:
            await asyncio.shield(self._wire.gone)

    async def _given_back(self) -> None:
        """Hear what becomes of claims that were given up: a job that one of them was answered with,
        in that very instant, goes back unspent, and not when its lease is over."""
        if any(entry.late and entry.future.cancelled() for entry in self._pending.values()):
            await asyncio.sleep(0)  # whoever has waited for it gives it up in this turn
        if self._given_up:
            await asyncio.wait(tuple(self._given_up), timeout=GIVEN_UP_S)


def _fail(entry: Entry, error: PenstockError) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)


def _ignore(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
