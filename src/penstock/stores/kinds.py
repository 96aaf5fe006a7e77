"""What single jobs of a link share, so that short frames need not say it: see `protocol/short.py`.

Kinds are numbered for one connection, by whoever says them. What was said over one that is lost has
to be said again over the next.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from penstock.model.job import JobOptions
from penstock.protocol.framing import BadFrame
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claimed
from penstock.protocol.short import KINDS, JobKind
from penstock.stores.wire import Entry, Kind, framed


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
        a server that does not understand it hears all of it each time."""
        said = (tenant, queue, options)
        kind = self._said.pop(said, None)
        if kind is None:
            kind = Kind(self._free_number(), *said)
        else:  # by equal words, which are known again by themselves
            kind.tenant, kind.queue, kind.options = said
        if kind.number:
            self._said[said] = kind
        self.last = kind
        return kind

    def _free_number(self) -> int:
        """One that stands for nothing; of many kinds the one that was said longest ago gives up its
        own. No push is in flight that names it: single jobs are pushed while nothing else is."""
        if not self._short:
            return 0
        if len(self._said) < KINDS:
            return len(self._said) + 1
        return self._said.pop(next(iter(self._said))).number

    def note(self, entry: Entry, answer: Any) -> Any:
        """What has been said, or was told, at length need not be again. Answers what whoever waits
        is told. Raises BadFrame."""
        if entry.kind is not None:
            entry.kind.known = entry.kind.number > 0
            return answer.first
        if type(answer) is Claimed and answer.kind is not UNSET:
            if answer.queue is UNSET or len(answer.runs) != 1 or not 1 <= answer.kind <= KINDS:
                raise BadFrame("a kind is told that is none of a single job")
            self.given[answer.kind] = answer.queue, answer.runs[0].options
        return answer

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
        assert entry.kind is not None
        entry.kind = msgspec.structs.replace(entry.kind, number=0)
        entry.frame = self.at_length(entry.kind, entry.number, *entry.said)
