"""Payload bytes in packed chunks. The kernel holds places (chunk, begin, end); the bytes are here.

Small pushes share a chunk per queue that is sealed when full; a large push is a chunk by itself.
A chunk goes when the kernel says that nothing in it is needed any more.
"""

from typing import Final

from penstock.kernel.blocks import Place

SHARED: Final = 64 * 1024  # a shared chunk is sealed at this size
SMALL: Final = 8 * 1024  # pushes up to this size share


class Payloads:
    def __init__(self) -> None:
        self._chunks: dict[int, bytes | bytearray] = {}
        self._open: dict[str, int] = {}  # sharer → its growing chunk
        self._sharers: dict[int, str] = {}
        self._next = 1

    def add(self, sharer: str, data: bytes) -> tuple[int, int]:
        """Keep the bytes; answers the chunk and where in it they begin."""
        if len(data) > SMALL:
            chunk = self._new(data)
            return chunk, 0
        chunk = self._open.get(sharer, 0)
        if chunk:
            growing = self._chunks[chunk]
            start = len(growing)
            if start + len(data) <= SHARED:
                growing += data
                return chunk, start
            self._chunks[chunk] = bytes(growing)
            del self._sharers[chunk]
        chunk = self._open[sharer] = self._new(bytearray(data))
        self._sharers[chunk] = sharer
        return chunk, 0

    def _new(self, data: bytes | bytearray) -> int:
        chunk = self._next
        self._next += 1
        self._chunks[chunk] = data
        return chunk

    def take_back(self, chunk: int, start: int, needed: bool) -> None:
        """The command for the bytes just added failed, or wanted none of them."""
        if chunk in self._sharers:
            growing = self._chunks[chunk]
            assert isinstance(growing, bytearray)
            del growing[start:]
        if not needed:
            self.drop(chunk)

    def get(self, place: Place) -> bytes:
        chunk, begin, end = place
        return bytes(self._chunks[chunk][begin:end])

    def drop(self, chunk: int) -> None:
        self._chunks.pop(chunk, None)
        sharer = self._sharers.pop(chunk, None)
        if sharer is not None and self._open.get(sharer) == chunk:
            del self._open[sharer]

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def size(self) -> int:
        return sum(map(len, self._chunks.values()))
