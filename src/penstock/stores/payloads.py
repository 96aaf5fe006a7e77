"""Payload bytes in packed chunks. The kernel holds places (chunk, begin, end); the bytes are here.

Small pushes share a chunk that is sealed when full; a large push is a chunk by itself. A chunk goes
when the kernel says that nothing in it is needed any more. Here everything stays in memory;
`stored_payloads.py` is for stores with a disk.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.kernel.blocks import Place

SHARED: Final = 64 * 1024  # a shared chunk is sealed at this size
SMALL: Final = 8 * 1024  # pushes up to this size share

Chunks = Mapping[int, bytes | bytearray]


class Payloads:
    def __init__(self, first: int = 1) -> None:
        self._chunks: dict[int, bytes | bytearray] = {}
        self._open: dict[str, int] = {}  # sharer → its growing chunk
        self._sharers: dict[int, str] = {}
        self._next = first

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

    @property
    def everything(self) -> Chunks:
        """Every chunk that is in memory."""
        return self._chunks

    def at_hand(self, chunks: Iterable[int]) -> Chunks | None:
        """The bytes of these chunks, if nobody has to wait for them."""
        return self._chunks

    def hold(self, chunks: Iterable[int]) -> None:
        """These stay until they are released, whoever drops them."""

    def release(self, chunks: Iterable[int]) -> None:
        """The other end of `hold`."""

    async def fetch(self, chunks: Iterable[int]) -> Chunks:
        """The bytes of these chunks."""
        return self._chunks

    def ahead(self, chunks: Iterable[int]) -> None:
        """These are about to be wanted."""

    def drop(self, chunk: int) -> None:
        self._chunks.pop(chunk, None)
        sharer = self._sharers.pop(chunk, None)
        if sharer is not None and self._open.get(sharer) == chunk:
            del self._open[sharer]

    def close(self) -> None:
        """Nobody reads any more."""

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self._chunks.values()))


def piece(chunks: Chunks, place: Place) -> bytes:
    chunk, begin, end = place
    return bytes(chunks[chunk][begin:end])
