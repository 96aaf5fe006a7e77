"""A day of a busy system as event segments: what the log of its store would hold.

Jobs are pushed, claimed and acked by the thousand; few of them fail, wait, and are tried once more.
Made of the project's own events and written by its own segment writer, in the order of time. The
same day can be told in two forms: as it is, a line about all jobs that went through the same thing
together, or with a line for each job, as an event log has it that knows no ranges.
"""

import random
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.events.segment import encode
from penstock.events.segments import Rules, Segments
from penstock.model.event import Event
from penstock.model.job import IdRun, Ids

STORE: Final = "5eed" * 8
START_MS: Final = 1_794_787_200_000  # midnight, UTC
SPAN_MS: Final = (
    86_000_000  # pushes end some minutes before the next one, so that all ends the same day
)
BATCH: Final = 1_000
SIZE: Final = 44  # bytes of a payload
TENANTS: Final = ("default", "acme")
QUEUES: Final = 10  # of each tenant
WORKERS: Final = 16
TASKS: Final = ("welcome", "invoice", "resize")
TROUBLE_IN: Final = 25  # batches, of which one has jobs that fail
FAILING: Final = 20  # at most, of such a batch
ERRORS: Final = (
    ("ConnectionError", "connection to 10.0.0.{} refused"),
    ("TimeoutError", "no answer after {} ms"),
    ("KeyError", "user {} not found"),
)
ENCODED: Final = 1_000  # events that are encoded together

Fields = dict[str, Any]


def history(jobs: int) -> Iterator[Event]:
    """What happened to so many jobs within a day, in the order of time."""
    draw = random.Random(jobs)
    pushes = jobs // BATCH
    coming: list[tuple[int, int, Fields]] = []
    told = made = 0
    for number in range(pushes):
        at = START_MS + SPAN_MS * number // pushes
        for fields in _batch(draw, number, at):
            made += 1
            heappush(coming, (fields["at"], made, fields))
        while coming and coming[0][0] <= at:
            told += 1
            yield Event(**heappop(coming)[2], position=told)
    while coming:
        told += 1
        yield Event(**heappop(coming)[2], position=told)


def _batch(draw: random.Random, number: int, pushed: int) -> Iterator[Fields]:
    """A push of a thousand, and what becomes of them."""
    first = 1 + number * BATCH
    jobs = {
        "tenant": TENANTS[number % len(TENANTS)],
        "queue": f"queue-{number // len(TENANTS) % QUEUES}",
        "task": TASKS[number % len(TASKS)],
    }
    worker = f"worker-{draw.randrange(WORKERS)}"
    claimed = pushed + draw.randrange(2_000)
    ended = claimed + draw.randrange(1, 5_000)
    whole = _ids((first, BATCH))
    yield {"kind": "pushed", "at": pushed, "ids": whole, "bytes": SIZE * BATCH, **jobs}
    times = {"pushed_at": pushed, "ready_at": pushed, "attempt": 1, "worker": worker}
    yield {"kind": "claimed", "at": claimed, "ids": whole, **times, **jobs}
    times |= {"claimed_at": claimed}
    if draw.randrange(TROUBLE_IN):
        yield {"kind": "completed", "at": ended, "ids": whole, **times, **jobs}
        return
    failing = draw.randrange(1, FAILING)
    before = draw.randrange(1, BATCH - failing)
    behind = before + failing
    rest = _ids((first, before), (first + behind, BATCH - behind))
    failed = _ids((first + before, failing))
    yield {"kind": "completed", "at": ended, "ids": rest, **times, **jobs}
    due = ended + draw.randrange(10_000, 60_000)
    error = _error(draw)
    yield {
        "kind": "retried",
        "at": ended,
        "ids": failed,
        "run_at": due,
        **error,
        **times,
        **jobs,
    }
    again = due + draw.randrange(1_000)
    times |= {"ready_at": due, "attempt": 2}
    del times["claimed_at"]
    yield {"kind": "claimed", "at": again, "ids": failed, **times, **jobs}
    times |= {"claimed_at": again}
    ended = again + draw.randrange(1, 5_000)
    if draw.randrange(4):
        yield {"kind": "completed", "at": ended, "ids": failed, **times, **jobs}
    else:
        end = {"kind": "dead", "reason": "max_attempts", **error}
        yield {"at": ended, "ids": failed, **end, **times, **jobs}


def _ids(*runs: tuple[int, int]) -> Ids:
    return Ids(tuple(IdRun(*run) for run in runs))


def _error(draw: random.Random) -> Fields:
    kind, message = draw.choice(ERRORS)
    return {"error_kind": kind, "error_message": message.format(draw.randrange(1_000))}


def one_by_one(events: Iterable[Event]) -> Iterator[Event]:
    """The same, with an event for each job."""
    told = 0
    for event in events:
        size = event.bytes // len(event.ids)
        for job in event.ids:
            told += 1
            yield msgspec.structs.replace(
                event, ids=Ids((IdRun(job, 1),)), bytes=size, position=told
            )


def write(directory: Path, events: Iterator[Event]) -> int:
    """Sealed segments of these events, by size; answers how many lines they have."""
    segments = Segments(directory, STORE, Rules(seal_s=86_400, keep_s=0))
    lines = 0
    while some := list(islice(events, ENCODED)):
        segments.append(encode(STORE, some), some[0].position)
        lines += len(some)
        if segments.due_s == 0:
            segments.seal()
    segments.seal()
    return lines
