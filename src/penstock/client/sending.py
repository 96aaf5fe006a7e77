"""Many jobs on their way to a store: cut into chunks, and all at one instant if that is asked for.

Packing them is the caller's business and happens in its thread, be it that the jobs come from a
generator which is bound to it; what is said to the store is asynchronous.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.client.options import Plan
from penstock.client.said import in_words
from penstock.model.answers import PushedRun
from penstock.model.checks_values import check_bool, show
from penstock.model.errors import Invalid, PenstockError
from penstock.model.job import MAX_BATCH, Run

if TYPE_CHECKING:
    from penstock.client.home import Home

MOST_BYTES: Final = 32 << 20  # of one push: half of what a server takes as one message


class Sending:
    """One `push_many`."""

    def __init__(self, home: "Home", plan: Plan, arguments: Any, chunk: int, atomic: bool) -> None:
        if type(chunk) is not int or chunk < 1:
            raise Invalid(f"{show(chunk)} is not a number from 1 to {MAX_BATCH}", "chunk")
        check_bool(atomic, "atomic")
        self.chunk = min(chunk, MAX_BATCH)
        self.runs: list[PushedRun] = []  # what the store answered
        self._home = home
        self._plan = plan
        self._arguments = arguments
        self._atomic = atomic
        self._bulk: str | None = None
        self._packed = 0  # jobs, so that one that is wrong can be named

    def packed(self, said: Iterable[Any]) -> Iterator[Run]:
        """The jobs of one chunk with their payloads end to end; several runs if they are large."""
        data = bytearray()
        ends = self._arguments.encode_many(self._plan.job.codec, said, data, self._packed)
        self._packed += len(ends)
        if len(data) <= MOST_BYTES:
            if ends:
                yield self._plan.run(bytes(data), ends)
            return
        begin = first = 0
        while first < len(ends):
            last = max(bisect_right(ends, begin + MOST_BYTES), first + 1)
            end = ends[last - 1]
            yield self._plan.run(bytes(data[begin:end]), [at - begin for at in ends[first:last]])
            begin, first = end, last

    async def send(self, run: Run) -> None:
        home = self._home
        store = await home.store()
        if self._atomic and self._bulk is None:
            self._bulk = (await store.open_bulk(home.tenant)).bulk
        # The commit of a bulk is as durable as the store; its pushes need not wait.
        durability = None if self._atomic else self._plan.durability
        try:
            pushed = await store.push(home.tenant, (run,), bulk=self._bulk, durability=durability)
        except Invalid as error:
            raise in_words(error) from None
        self.runs += pushed.runs

    async def commit(self) -> None:
        if self._bulk is not None:
            store = await self._home.store()
            await store.commit_bulk(self._home.tenant, self._bulk)

    async def abort(self) -> None:
        """Take back what is taken back easily; what cannot be reached aborts by its deadline."""
        if self._bulk is not None:
            with suppress(PenstockError):
                store = await self._home.store()
                await store.abort_bulk(self._home.tenant, self._bulk)
