"""Plain pushes of one turn of the loop travel as one: what is said once costs once.

A program that pushes many jobs at a time, each by itself, would pay a message, a check and a record
for each of them. Pushes that differ in nothing but their payloads and are made in one turn become
one run here, unless nothing is ahead of them on the connection: then the first goes at once. Each
caller is answered with the ids of its own jobs. The whole is taken in or nothing of it: then each
goes by itself, so that whoever is refused is refused alone.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.answers import Pushed, PushedRun
from penstock.model.errors import Overloaded, PenstockError, Unavailable
from penstock.model.job import MAX_BATCH, JobOptions, Run
from penstock.protocol.native_push import PushRun, RunPushed
from penstock.protocol.runs import packed_plain

SMALL: Final = 100  # jobs: a larger push gains nothing by company
MOST_BYTES: Final = 4 << 20  # of payloads that travel together

Item = tuple[Run, "asyncio.Future[Pushed]"]


def is_plain(runs: Sequence[Run]) -> bool:
    """Whether a push is of one run of jobs that differ in nothing but their payload.

    Whatever else may be wrong with such a run is told by the server in the same words, so that a
    loop of single pushes does not pay twice for being looked at.
    """
    if type(runs) not in (list, tuple) or len(runs) != 1:
        return False
    run = runs[0]
    return (
        type(run) is Run
        and type(run.queue) is str
        and type(run.data) is bytes
        and type(run.ends) is array
        and run.ends.typecode == "I"
        and type(run.options) is tuple
        and len(run.options) == 1
        and run.option_of is None
        and run.delay_ms is None
        and run.run_at is None
        and run.keys is None
        and run.more_keys is None
        and run.groups is None
        and run.headers is None
        and run.depends_on is None
    )


def joinable(run: Run) -> bool:
    """Whether a plain run may be put behind another: its ends are those of its data."""
    ends = run.ends
    return 0 < len(ends) <= SMALL and ends[-1] == len(run.data)


class Parcel:
    """Pushes that travel as one. It stands where a future would, and tells the callers at once: a
    callback of a future would cost each of them one more turn of the loop."""

    __slots__ = ("items", "joined", "numbered", "over", "tenant")

    def __init__(
        self, joined: "Joined", tenant: str, items: Sequence[Item], numbered: bool
    ) -> None:
        self.joined = joined
        self.tenant = tenant
        self.items = items
        self.numbered = numbered  # a repeat is known by its producer's number
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, answer: RunPushed) -> None:
        self.over = True
        first = answer.first
        for run, future in self.items:
            count = len(run.ends)
            if not future.done():
                future.set_result(Pushed((PushedRun(first, count),)))
            first += count

    def set_exception(self, error: PenstockError) -> None:
        """In a turn of its own: it may send again, and whoever tells us is in the midst of it."""
        self.over = True
        self.joined.loop.call_soon(self.joined.refused, self, error)


Send = Callable[[PushRun, Parcel], None]


class Joined:
    """The pushes of one connection. `send` has one sent; `named` gives it a producer's number."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Send, named: Callable[[PushRun], None]
    ) -> None:
        self.loop = loop
        self._send = send
        self._named = named
        # What waits for the end of the turn.
        self.groups: dict[tuple[str, str, JobOptions], list[Item]] = {}
        self._last: tuple[str, str, JobOptions, list[Item]] | None = None  # the newest group

    def push(self, tenant: str, run: Run) -> "asyncio.Future[Pushed]":
        """Have these jobs pushed with whatever is like them in this turn."""
        future: asyncio.Future[Pushed] = self.loop.create_future()
        options, last = run.options[0], self._last
        if last and last[2] is options and last[1] == run.queue and last[0] == tenant:
            last[3].append((run, future))
            return future
        if not self.groups:
            self.loop.call_soon(self.flush)
        group = self.groups.setdefault((tenant, run.queue, options), [])
        self._last = (tenant, run.queue, options, group)
        group.append((run, future))
        return future

    def flush(self) -> None:
        """Send what has gathered: at the end of the turn, or before something that came later."""
        groups, self.groups, self._last = self.groups, {}, None
        for (tenant, _, _), items in groups.items():
            if len(items) == 1:
                if not items[0][1].done():
                    self._begin(tenant, items)
                continue
            part: list[Item] = []
            jobs = size = 0
            for item in items:
                if item[1].done():  # nobody waits for it any more, and it was never sent
                    continue
                run = item[0]
                if part and (jobs + len(run) > MAX_BATCH or size + len(run.data) > MOST_BYTES):
                    self._begin(tenant, part)
                    part, jobs, size = [], 0, 0
                part.append(item)
                jobs += len(run)
                size += len(run.data)
            if part:
                self._begin(tenant, part)

    def _begin(self, tenant: str, items: Sequence[Item], *, numbered: bool = True) -> None:
        run = items[0][0] if len(items) == 1 else _one(items)
        request = PushRun(tenant=tenant, runs=(packed_plain(run),))
        if numbered:
            self._named(request)
        try:
            self._send(request, Parcel(self, tenant, items, numbered))
        except PenstockError as error:
            _fail(items, error)

    def refused(self, parcel: Parcel, error: PenstockError) -> None:
        items = parcel.items
        if parcel.numbered and isinstance(error, Overloaded) and error.field == "producer":
            # The server remembers as many producers as it can: ours has to do without.
            self._begin(parcel.tenant, items, numbered=False)
        elif len(items) == 1 or isinstance(error, Unavailable):
            _fail(items, error)
        else:
            for item in items:
                self._begin(parcel.tenant, [item])


def _one(items: Sequence[Item]) -> Run:
    ends, total = array("I"), 0
    for run, _ in items:
        if total:
            ends.extend([total + end for end in run.ends])
        else:
            ends.extend(run.ends)
        total += len(run.data)
    return Run(
        queue=items[0][0].queue,
        data=b"".join([run.data for run, _ in items]),
        ends=ends,
        options=items[0][0].options,
    )


def _fail(items: Sequence[Item], error: BaseException) -> None:
    for _, future in items:
        if not future.done():
            future.set_exception(error)
