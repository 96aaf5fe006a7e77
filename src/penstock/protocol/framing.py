"""Bytes to frames: what a connection says, cut into single messages, and what cuts them apart.

Two ways, told apart by the first byte of a connection. `{` begins JSON, one object per line.
Anything else is the length of a frame, four bytes with the highest first, and a frame is
MessagePack, unless it begins with `{`: then it is JSON, and is answered by JSON in a frame.

`Frames` is fed what arrived and gives one message at a time, so that whoever is too busy leaves the
rest where it is. It is linear in the bytes, however small the pieces in which they come: a message
that came in one piece is cut out of it, one that came in several is gathered in one growing buffer,
and neither is copied again. A length is judged before a byte is set aside for it.
"""

from collections import deque
from struct import Struct
from typing import Final

from penstock.protocol.command import Encoding

BRACE: Final = 0x7B
HEADER: Final = 4  # bytes of a frame's length
LARGEST: Final = 2**32 - 1  # what a header can say

STRANGERS_LIMIT: Final = 16 * 1024 * 1024  # bytes of a message, from whoever has not said who it is
KNOWN_LIMIT: Final = 64 * 1024 * 1024  # …from everybody else

Message = bytes | bytearray

_length: Final = Struct(">I").unpack_from  # of a frame, from its header


class BadFrame(Exception):
    """What comes is no message. Nothing after it can be understood: the connection has to end."""

    def __init__(self, why: str, code: str = "invalid") -> None:
        super().__init__(why)
        self.why = why
        self.code = code  # for the refusal that goes before the end


class Frames:
    """The messages of one connection, as far as they have arrived."""

    def __init__(self, limit: int = STRANGERS_LIMIT) -> None:
        self.limit = limit  # bytes of one message; may be raised between messages
        self.lines: bool | None = None  # None until the first byte has told
        self._chunks: deque[bytes] = deque()  # arrived and not looked at, but for the first …
        self._at = 0  # … of which so much is done
        self._partial = bytearray()  # the beginning of a message, or of its header
        self._need = -1  # length of the message in `_partial`; -1 while its header is not whole
        self._bare = False  # frames come, and nothing lies here

    @property
    def begun(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._partial) or self._need >= 0

    @property
    def rest(self) -> bool:
        """Whether bytes lie here that nobody has looked at."""
        return bool(self._chunks)

    def feed(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self._bare = False

    def feed_alone(self, data: bytes) -> bool:
        """The same for what mostly comes: one whole frame with nothing before it and nothing
        behind. That is to be read where it lies, behind its header; anything else is kept for
        `take`."""
        size = len(data) - HEADER
        if self._bare and 0 < size <= self.limit and _length(data)[0] == size:
            return True
        self.feed(data)
        return False

    def take(self) -> Message | None:
        """The next whole message, or None if more has to come first. Raises BadFrame."""
        if not self._chunks:
            return None
        if self.lines is None:
            self.lines = self._chunks[0][self._at] == BRACE
        if self.lines:
            return self._line()
        message = self._frame()
        self._bare = not self._chunks and not self._partial and self._need < 0
        return message

    # -- frames ----------------------------------------------------------------------------------

    def _frame(self) -> Message | None:
        chunks = self._chunks
        while chunks:
            chunk, at = chunks[0], self._at
            if self._need < 0:
                if not self._partial and len(chunk) - at >= HEADER:
                    # Most messages come in one piece with their header.
                    begin = at + HEADER
                    length = int.from_bytes(chunk[at:begin], "big")
                    if not 0 < length <= self.limit:
                        raise self._bad(length)
                    end = begin + length
                    if end == len(chunk):
                        chunks.popleft()
                        self._at = 0
                        return chunk[begin:]
                    if end < len(chunk):
                        self._at = end
                        return chunk[begin:end]
                    self._need = end - begin
                    self._partial += memoryview(chunk)[begin:]
                    self._go_on(chunk, len(chunk))
                    continue
                end = min(at + HEADER - len(self._partial), len(chunk))
                self._partial += chunk[at:end]
                self._go_on(chunk, end)
                if len(self._partial) == HEADER:
                    length = int.from_bytes(self._partial, "big")
                    if not 0 < length <= self.limit:
                        raise self._bad(length)
                    self._need = length
                    self._partial = bytearray()
                continue
            end = min(at + self._need - len(self._partial), len(chunk))
            self._partial += memoryview(chunk)[at:end]
            self._go_on(chunk, end)
            if len(self._partial) == self._need:
                whole, self._partial, self._need = self._partial, bytearray(), -1
                return whole
        return None

    def _bad(self, length: int) -> BadFrame:
        if not length:
            return BadFrame("a frame has no content")
        return BadFrame(
            f"a frame of {length} bytes; at most {self.limit} are allowed", "payload_too_large"
        )

    # -- lines -----------------------------------------------------------------------------------

    def _line(self) -> Message | None:
        while self._chunks:
            chunk, at = self._chunks[0], self._at
            end = chunk.find(b"\n", at)
            found = end >= 0
            if not found:
                end = len(chunk)
            if len(self._partial) + end - at > self.limit:
                raise BadFrame(f"a line of more than {self.limit} bytes", "payload_too_large")
            if found and not self._partial:
                self._go_on(chunk, end + 1)
                line: Message = chunk[at:end]
            else:
                self._partial += memoryview(chunk)[at:end]
                self._go_on(chunk, end + found)
                if not found:
                    continue
                line, self._partial = self._partial, bytearray()
            if line and not line.isspace():
                return line
        return None

    def _go_on(self, chunk: bytes, at: int) -> None:
        if at >= len(chunk):
            self._chunks.popleft()
            self._at = 0
        else:
            self._at = at


def encoding_of(message: Message) -> Encoding:
    return "json" if message[0] == BRACE else "msgpack"
