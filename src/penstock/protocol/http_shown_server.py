"""What answers of the HTTP interface show of the server: figures, health, and what happens."""

from typing import Any

import msgspec

from penstock.model.answers import QueueInfo
from penstock.model.event import Event, EventKind
from penstock.model.job import Ids
from penstock.model.lifecycle import State
from penstock.protocol.command import Figures
from penstock.protocol.http_shown import Shown
from penstock.protocol.http_shown_queues import Counts

# -- the server ----------------------------------------------------------------------------------


class Stats(Shown, frozen=True, kw_only=True):
    """The tenant's jobs by state, and what this server has counted since it started."""

    queues: int
    counts: Counts
    pushed: int
    completed: int
    failed: int
    timed_out: int
    jobs_per_second: float
    latency_ms: float

    @classmethod
    def of(cls, queues: list[QueueInfo], figures: Figures) -> "Stats":
        totals = {state: sum(info.counts[state] for info in queues) for state in State}
        return cls(queues=len(queues), counts=Counts.of(totals), **msgspec.structs.asdict(figures))


class History(Shown, frozen=True, kw_only=True):
    """What was measured every `interval_ms`, oldest first; each point has its instant, `at`."""

    interval_ms: int
    points: tuple[dict[str, Any], ...]


class Alive(Shown, frozen=True, kw_only=True):
    """The server answers."""

    ok: bool = True


class Ready(Shown, frozen=True, kw_only=True):
    """The store answers, too."""

    ok: bool
    store: str
    durability: str


# -- events --------------------------------------------------------------------------------------


class EventShown(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to jobs of one queue; what does not apply is left out."""

    kind: EventKind
    queue: str
    at: int
    ids: tuple[tuple[int, int], ...]  # stretches: the first and the last id of each
    attempt: int = 0
    pushed_at: int = 0
    ready_at: int = 0
    claimed_at: int = 0
    run_at: int = 0
    worker: str = ""
    task: str = ""
    priority: int = 0
    bytes: int = 0
    reason: str = ""
    error_class: str = ""
    error_message: str = ""
    held: bool = False
    data: str = ""

    @classmethod
    def of(cls, event: Event) -> "EventShown":
        return cls(
            kind=event.kind,
            queue=event.queue,
            at=event.at,
            ids=stretches(event.ids),
            attempt=event.attempt,
            pushed_at=event.pushed_at,
            ready_at=event.ready_at,
            claimed_at=event.claimed_at,
            run_at=event.run_at,
            worker=event.worker,
            task=event.task,
            priority=event.priority,
            bytes=event.bytes,
            reason=event.reason,
            error_class=event.error_kind,
            error_message=event.error_message,
            held=event.held,
            data=event.data,
        )


def stretches(ids: Ids) -> tuple[tuple[int, int], ...]:
    """(first, last) of every stretch of neighbours."""
    found: list[tuple[int, int]] = []
    for run in ids.runs:
        if run.mask is None:
            found.append((run.first, run.first + run.span - 1))
        else:
            found += [(one.first, one.first + one.span - 1) for one in Ids.of(run).runs]
    return tuple(found)
