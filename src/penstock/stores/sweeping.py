"""Sweeping: chunks of which little is still needed are written anew without the rest.

One job that waits for a year would keep the payloads of all that were pushed with it. A swept chunk
keeps its number and its places, so that the kernel need not know: what nobody needs is zeroed, and
zeros take no room once they are deflated. What is needed of a chunk only ever grows less, so the
kernel may be looked at in slices while it goes on.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Final

from penstock.kernel.blocks import Block, Place
from penstock.kernel.codes import BYTE, GONE
from penstock.kernel.kernel import Kernel
from penstock.stores.payloads import Payloads

LEAST: Final = 64 << 10  # chunks below this size are left alone
SHARE: Final = 4  # less than one in so many bytes is needed

_KNOWN: Final = re.compile(b"[^" + re.escape(BYTE[GONE]) + b"]+", re.DOTALL)  # stretches of jobs


class Needs:
    """What is needed of one chunk."""

    __slots__ = ("bytes", "extent", "places")

    def __init__(self) -> None:
        self.bytes = 0
        self.extent = 0  # where the last byte lies that was ever put there, as far as one can tell
        self.places: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> None:
        self.places.append((begin, end))
        self.bytes += end - begin
        self.extent = max(self.extent, end)


class Sweeper:
    def __init__(self, kernel: Kernel, payloads: Payloads) -> None:
        self._kernel = kernel
        self._payloads = payloads
        self._left: dict[int, int] = {}  # chunk → bytes that its last sweep left

    async def sweep(self) -> AsyncIterator[tuple[int, bytes]]:
        """The chunks to be written anew, one by one, with what they then hold."""
        needs = await self._needs()
        self._left = {chunk: left for chunk, left in self._left.items() if chunk in needs}
        for chunk, need in needs.items():
            least = self._left.get(chunk, need.extent) // SHARE
            known = self._kernel.chunks
            if need.extent < LEAST or need.bytes >= least or chunk not in known:
                continue
            data = (await self._payloads.fetch([chunk]))[chunk]
            hollow = bytearray(len(data))
            for begin, end in need.places:
                hollow[begin:end] = data[begin:end]
            self._left[chunk] = need.bytes
            yield chunk, bytes(hollow)

    async def _needs(self) -> dict[int, Needs]:
        needs: dict[int, Needs] = {}
        for block in list(self._kernel.blocks.values()):
            _look_at(block, needs)
            await asyncio.sleep(0)
        return needs


def _look_at(block: Block, needs: dict[int, Needs]) -> None:
    bounds = [*block.pay_pos, len(block.codes)]
    for record, chunk in enumerate(block.pay_chunk):
        lo, hi = bounds[record], bounds[record + 1]
        if lo == hi:
            continue
        need = needs.setdefault(chunk, Needs())
        for _, begin, end in _stretches(block, record, lo, hi):
            need.add(begin, end)
        need.extent = max(need.extent, block.pay_origin[record] + block.ends[hi - 1])
    for side in list(block.sides.values()):
        version = side.next
        for place in (side.payload, side.result, version.payload if version else None):
            if place is not None:
                needs.setdefault(place[0], Needs()).add(place[1], place[2])


def _stretches(block: Block, record: int, lo: int, hi: int) -> Iterator[Place]:
    """Where the payloads of one record's known jobs lie, neighbours joined."""
    gone = block.codes.count(GONE, lo, hi)
    if gone == hi - lo:
        return
    chunk, origin = block.pay_chunk[record], block.pay_origin[record]
    if not gone:
        begin = block.pay_begin[record]
        yield chunk, origin + begin, origin + block.ends[hi - 1]
        return
    for known in _KNOWN.finditer(block.codes, lo, hi):
        _, begin, _ = block.pushed_place(known.start())
        _, _, end = block.pushed_place(known.end() - 1)
        yield chunk, begin, end
