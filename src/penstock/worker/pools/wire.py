"""What goes between a worker and the processes of its pool: MessagePack in frames, never pickle."""

from typing import Any, Final

import msgspec

from penstock.client.context import Report
from penstock.client.execute import (
    INTERRUPTED,
    BatchOutcome,
    Completed,
    Failed,
    Interrupted,
    Outcome,
)
from penstock.model.job import Job
from penstock.protocol.framing import HEADER
from penstock.settings import LogFormat, LogLevel


class Begin(msgspec.Struct, frozen=True):
    """The first message to a process. Not said on its command line, which every user of the machine
    can read: a url may have a token in it."""

    where: str  # MODULE:APP
    url: str
    worker: str
    log_format: LogFormat
    log_level: LogLevel


class Do(msgspec.Struct, frozen=True):
    """Run these jobs: one, or a batch."""

    jobs: list[Job]
    results: dict[int, Any] | None = None  # of the jobs that it depends on


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is loaded."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    job_id: int
    report: Report


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome in a form that tells which it is. Neither: it was interrupted."""

    completed: Completed | None = None
    failed: Failed | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> "End":
        if isinstance(outcome, Interrupted):
            return cls()
        return cls(outcome) if isinstance(outcome, Completed) else cls(failed=outcome)

    def outcome(self) -> Outcome:
        return self.completed or self.failed or INTERRUPTED


class Ended(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True):
    all: End | None = None
    each: dict[int, End] | None = None  # of a batch that did not end all alike
    rss_mb: float = 0.0  # how large the process is by now

    @classmethod
    def of(cls, outcome: Outcome | BatchOutcome, rss_mb: float) -> "Ended":
        if not isinstance(outcome, BatchOutcome):
            return cls(End.of(outcome), rss_mb=rss_mb)
        if outcome.all is not None:
            return cls(End.of(outcome.all), rss_mb=rss_mb)
        each = {place: End.of(one) for place, one in outcome.each.items()}
        return cls(each=each, rss_mb=rss_mb)

    def outcome(self) -> Outcome:
        assert self.all is not None
        return self.all.outcome()

    def batch_outcome(self) -> BatchOutcome:
        if self.all is not None:
            return BatchOutcome(all=self.all.outcome())
        return BatchOutcome(each={at: end.outcome() for at, end in (self.each or {}).items()})


_encode: Final = msgspec.msgpack.Encoder().encode
from_child: Final = msgspec.msgpack.Decoder(Ready | Said | Ended)
to_child: Final = msgspec.msgpack.Decoder(Do)
beginning: Final = msgspec.msgpack.Decoder(Begin)


def framed(message: Begin | Do | Ready | Said | Ended) -> bytes:
    payload = _encode(message)
    return len(payload).to_bytes(HEADER, "big") + payload
