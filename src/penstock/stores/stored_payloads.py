"""Payloads of a store that has a disk: fresh ones until they are written, and a bounded cache.

All small payloads of one commit share one chunk, whichever queue they are for: a commit writes one
row for them. Whoever reads holds the chunks until done; a chunk that is let go meanwhile goes
afterwards.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress

from penstock.model.errors import Unavailable
from penstock.stores.journal.settings import CACHE_BYTES
from penstock.stores.one_thread import OneThread
from penstock.stores.payloads import SHARED, SMALL, Chunks, Payloads


class StoredPayloads(Payloads):
    def __init__(
        self, read: Callable[[int], bytes], first: int, cache_bytes: int = CACHE_BYTES
    ) -> None:
        super().__init__(first)
        self._read = read
        self._reader = OneThread("penstock-reader")
        self._closed = False
        self._limit = cache_bytes
        self._shared = 0  # the chunk that small payloads go into
        self._unsealed: dict[int, None] = {}  # not yet given to the writer
        self._cache: OrderedDict[int, bytes] = OrderedDict()  # on the disk, oldest use first
        self._cached = 0
        self.loading: dict[int, asyncio.Future[bytes]] = {}
        self._held: Counter[int] = Counter()
        self._let_go: set[int] = set()  # dropped while held
        self._dropped: list[int] = []  # rows to delete with the next batch

    # -- writing ---------------------------------------------------------------------------------

    def add(self, sharer: str, data: bytes) -> tuple[int, int]:
        if len(data) > SMALL:
            chunk = self._new(data)
            self._unsealed[chunk] = None
            return chunk, 0
        chunk = self._shared
        if chunk:
            growing = self._chunks[chunk]
            start = len(growing)
            if start + len(data) <= SHARED:
                growing += data
                return chunk, start
        chunk = self._shared = self._new(bytearray(data))
        self._unsealed[chunk] = None
        return chunk, 0

    def take_back(self, chunk: int, start: int, needed: bool) -> None:
        if chunk == self._shared:
            growing = self._chunks[chunk]
            assert isinstance(growing, bytearray)
            del growing[start:]
        if not needed:
            self.drop(chunk)

    def seal(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """A batch is cut: the chunks that it writes, and those that it deletes."""
        chunks = []
        for chunk in self._unsealed:
            data = self._chunks[chunk]
            if isinstance(data, bytearray):
                data = self._chunks[chunk] = bytes(data)
            chunks.append((chunk, data))
        self._unsealed = {}
        self._shared = 0
        dropped, self._dropped = self._dropped, []
        return chunks, dropped

    def whole(self, chunk: int) -> bytes | None:
        """The bytes of a chunk that no batch has taken yet, if nothing will be added to them."""
        data = self._chunks.get(chunk) if chunk in self._unsealed else None
        return data if isinstance(data, bytes) else None

    def written(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        """The disk has them: from now on they may leave the memory."""
        for chunk, data in chunks:
            if self._chunks.pop(chunk, None) is not None:
                self._keep(chunk, data)

    def drop(self, chunk: int) -> None:
        if chunk == self._shared:
            self._shared = 0  # also if somebody holds it: what came in now would go with it
        if self._held[chunk]:
            self._let_go.add(chunk)
            return
        self._chunks.pop(chunk, None)
        cached = self._cache.pop(chunk, None)
        if cached is not None:
            self._cached -= len(cached)
        if chunk in self._unsealed:
            del self._unsealed[chunk]
        else:
            self._dropped.append(chunk)

    @property
    def idle(self) -> bool:
        """Whether the next batch has nothing of ours to write."""
        return not (self._unsealed or self._dropped)

    # -- reading ---------------------------------------------------------------------------------

    def at_hand(self, chunks: Iterable[int]) -> Chunks | None:
        found: dict[int, bytes | bytearray] = {}
        for chunk in chunks:
            data = self._here(chunk)
            if data is None:
                return None
            found[chunk] = data
        return found

    def _here(self, chunk: int) -> bytes | bytearray | None:
        data = self._chunks.get(chunk)
        if data is None:
            data = self._cache.get(chunk)
            if data is not None:
                self._cache.move_to_end(chunk)
        return data

    def hold(self, chunks: Iterable[int]) -> None:
        """Whoever calls this will fetch, or release."""
        self._held.update(set(chunks))

    def release(self, chunks: Iterable[int]) -> None:
        for chunk in set(chunks):
            self._held[chunk] -= 1
            if not self._held[chunk]:
                del self._held[chunk]
                if chunk in self._let_go:
                    self._let_go.discard(chunk)
                    self.drop(chunk)

    async def fetch(self, chunks: Iterable[int]) -> Chunks:
        wanted = set(chunks)
        self.hold(wanted)
        try:
            found: dict[int, bytes | bytearray] = {}
            for chunk in wanted:
                data = self._here(chunk)
                found[chunk] = await asyncio.shield(self._load(chunk)) if data is None else data
            return found
        finally:
            self.release(wanted)

    def ahead(self, chunks: Iterable[int]) -> None:
        """Somebody may want them soon; whoever does hears what is wrong with them, if anything is."""
        with suppress(Unavailable, RuntimeError):
            for chunk in chunks:
                if self._here(chunk) is None and chunk not in self.loading:
                    self._load(chunk)

    def _load(self, chunk: int) -> "asyncio.Future[bytes]":
        loading = self.loading.get(chunk)
        if loading is None:
            self._check_open()
            loop = asyncio.get_running_loop()
            loading = self.loading[chunk] = loop.run_in_executor(self._reader, self._row, chunk)
            loading.add_done_callback(lambda done: self._loaded(chunk, done))
        return loading

    def _row(self, chunk: int) -> bytes:
        self._check_open()
        return self._read(chunk)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")

    def _loaded(self, chunk: int, done: "asyncio.Future[bytes]") -> None:
        self.loading.pop(chunk, None)
        if not done.cancelled() and done.exception() is None:
            self._keep(chunk, done.result())

    def _keep(self, chunk: int, data: bytes) -> None:
        if chunk in self._cache:
            return
        self._cache[chunk] = data
        self._cached += len(data)
        while self._cached > self._limit and len(self._cache) > 1:
            self._cached -= len(self._cache.popitem(last=False)[1])

    def close(self) -> None:
        """Whoever waits for something that is not being read yet is told so, and not cancelled."""
        self._closed = True
        self._reader.shutdown(wait=True)

    @property
    def unwritten(self) -> int:
        """Bytes that are still to reach the disk."""
        return super().size

    @property
    def size(self) -> int:
        return super().size + self._cached
