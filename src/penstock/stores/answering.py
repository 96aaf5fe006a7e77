"""How a connection that is served says its answers: written down behind each other, or in their line.

Answers to requests with a number go out as they come, those to requests without one in the order of
the requests. What cannot be said, as it has no form or too large a one, is refused in its place. When
what was written goes out is the connection's business.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from penstock.model.errors import BatchTooLarge, PenstockError
from penstock.protocol.command import Answer, Encoding, Refusal, ReqId, Request
from penstock.protocol.framing import HEADER, Frames
from penstock.protocol.table import name_of
from penstock.stores.face import ENCODERS, Face
from penstock.stores.in_hand import Reply, Sent

if TYPE_CHECKING:
    from penstock.stores.serving import Listener

_NO_LENGTH: Final = bytes(HEADER)

log = logging.getLogger("penstock.serving")


class _TooLarge(Exception):
    """An answer of so many bytes."""


class Answering(asyncio.Protocol):
    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self._frames = Frames(listener.limits.strangers_frame_bytes)
        self._out = bytearray()
        self._unsent: list[Sent] = []  # in `_out`, and may be taken back
        self._line: deque[Reply] = deque()
        self._lined = 0  # bytes of answers that wait in line
        self._closing = False

    def _reply(
        self, request: Request | None, face: Face, answer: Answer | Refusal, number: ReqId
    ) -> None:
        """Have it sent, in line if it has no number."""
        if self._line and (number is UNSET or number is None):
            reply = Reply()
            self._line.append(reply)
            self._fill(reply, request, face, answer)
            return
        if self._closing:
            if request is not None and isinstance(answer, Answer):
                self.listener.take_back(request, face, answer)
            return
        sent = self._write(request, face, answer, self._out)
        if sent is not None:
            self._unsent.append(sent)

    def _fill(
        self, reply: Reply, request: Request | None, face: Face, answer: Answer | Refusal
    ) -> None:
        reply.data = bytearray()
        reply.kept = self._write(request, face, answer, reply.data)
        self._lined += len(reply.data)

    def _move_up(self) -> None:
        while self._line and self._line[0].data is not None:
            reply = self._line.popleft()
            assert reply.data is not None
            self._lined -= len(reply.data)
            self._out += reply.data
            if reply.kept is not None:
                self._unsent.append(reply.kept)

    def _write(
        self, request: Request | None, face: Face, answer: Answer | Refusal, out: bytearray
    ) -> Sent | None:
        """Write the answer down behind what is there. Answers what may have to be taken back."""
        if request is not None:
            answer.req_id = request.req_id
        at = len(out)
        try:
            if self._frames.lines:
                face.encode_into(answer, out, -1)
                out += b"\n"
                size = len(out) - at
            else:
                begin = at + HEADER
                face.encode_into(answer, out, begin)
                size = len(out) - begin
                out[at:begin] = size.to_bytes(HEADER, "big")
            if size > face.frame_limit:
                raise _TooLarge(size)
        except (_TooLarge, ValueError, OverflowError, TypeError) as error:
            del out[at:]
            return self._write(None, face, self._instead(request, face, answer, error), out)
        if request is None or not isinstance(answer, Answer):
            return None
        return (request, face, answer) if type(request) in self.listener.taken_back else None

    def _instead(
        self, request: Request | None, face: Face, answer: Answer | Refusal, error: Exception
    ) -> Refusal:
        """What is said for an answer that has no form, or too large a one."""
        assert request is not None, "a refusal has a form"
        if isinstance(answer, Answer):
            self.listener.take_back(request, face, answer)
        log.warning("%s cannot be answered: %r", name_of(type(request)), error)
        if isinstance(error, _TooLarge):
            why = f"the answer has {error} bytes, more than {face.frame_limit}: ask for less"
            return Refusal(error=why, code=BatchTooLarge.code, req_id=request.req_id)
        why = f"the answer has no form: {error}"
        return Refusal(error=why, code=PenstockError.code, req_id=request.req_id)

    def _put(self, message: msgspec.Struct, encoding: Encoding) -> None:
        """Encode it behind what is to be sent; nothing is copied until it is sent."""
        out = self._out
        if self._frames.lines:
            ENCODERS["json"].encode_into(message, out, -1)
            out += b"\n"
            return
        at = len(out)
        out += _NO_LENGTH
        ENCODERS[encoding].encode_into(message, out, -1)
        out[at : at + HEADER] = (len(out) - at - HEADER).to_bytes(HEADER, "big")
