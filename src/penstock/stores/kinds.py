"""What single jobs of a link share, so that short frames need not say it: see `protocol/short.py`.

Kinds are numbered for one connection, by whoever says them. What was said over one that is lost has
to be said again over the next.
"""

from typing import Final

import msgspec
from msgspec import UNSET

from penstock.model.job import JobOptions
from penstock.protocol.command import Answer
from penstock.protocol.framing import HEADER, BadFrame
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claimed
from penstock.protocol.short import KINDS, PAYLOAD_PUSHED, SHORT, JobKind, read_push
from penstock.stores.wire import Entry, Kind, framed


class _Single(msgspec.Struct):
    """What sets a push of one job apart from others of its kind."""

    req_id: int = msgspec.field(name="reqId")
    sequence: int
    payloads: tuple[bytes]


_decode_single: Final = msgspec.msgpack.Decoder(_Single).decode


class Kinds:
    def __init__(self, producer: str, content: bytes) -> None:
        self._producer = producer  # of the link's pushes
        self._content = content
        self._short = False  # whether the server understands short frames
        self._said: dict[tuple[str, str, tuple[JobOptions, ...]], Kind] = {}
        self.last: Kind | None = None  # of the last single push
        self.given: dict[int, JobKind] = {}  # what short frames of the server name

    def begin(self, short: bool) -> None:
        """There is another connection."""
        self._short = short
        self._said.clear()
        self.last = None
        self.given.clear()

    def of(self, tenant: str, queue: str, options: tuple[JobOptions, ...]) -> Kind:
        """Of a single job that was looked at. The first of a kind says it, once for this connection;
        a server that has heard of enough of them, or does not understand it, hears all of it each
        time."""
        said = (tenant, queue, options)
        kind = self._said.get(said)
        if kind is None:
            number = len(self._said) + 1 if self._short and len(self._said) < KINDS else 0
            kind = Kind(number, *said)
            if number:
                self._said[said] = kind
        elif kind.options is not options:
            kind.options = options  # equal, and known again by itself
        self.last = kind
        return kind

    def note(self, entry: Entry, answer: Answer) -> None:
        """What has been said, or was told, at length need not be again. Raises BadFrame."""
        if entry.kind is not None:
            entry.kind.known = entry.kind.number > 0
        elif type(answer) is Claimed and answer.kind is not UNSET:
            if answer.queue is UNSET or len(answer.runs) != 1 or not 1 <= answer.kind <= KINDS:
                raise BadFrame("a kind is told that is none of a single job")
            self.given[answer.kind] = answer.queue, answer.runs[0].options

    def at_length(self, kind: Kind, number: int, sequence: int, payload: bytes) -> bytearray:
        """A push of one job of that kind."""
        return framed(
            PushRun(
                tenant=kind.tenant,
                queue=kind.queue,
                payloads=[payload],
                options=kind.options[0],
                producer=self._producer,
                sequence=sequence,
                content=self._content,
                kind=kind.number or None,
                req_id=number,
            )
        )

    def make_long(self, entry: Entry) -> None:
        """Of a push that has to be made over another connection: there, kinds are numbered anew."""
        assert entry.frame is not None and entry.kind is not None
        kind, message = msgspec.structs.replace(entry.kind, number=0), entry.frame[HEADER:]
        if message[0] == SHORT:
            _, number, sequence = read_push(message)
            payload = bytes(message[PAYLOAD_PUSHED:])
        else:
            push = _decode_single(message)
            number, sequence, (payload,) = push.req_id, push.sequence, push.payloads
        entry.frame = self.at_length(kind, number, sequence, payload)
        entry.kind = None
