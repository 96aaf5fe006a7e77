"""What happens to jobs, in the log of the server: a line per event.

An event speaks of a range of jobs, and so does its line (`"ids":"1-1000,1003"`). Where nobody
wants such lines there is no listener, and they cost nothing.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock.model.event import Event, EventSink
from penstock.model.job import IdRun, Ids
from penstock.settings import LogFormat, LogLevel
from penstock.telemetry.logs import time_of

JOBS: Final = "penstock.jobs"  # the logger of what happens to jobs
MOST_STRETCHES: Final = 100  # of ids in a line

# What a line has of an event, beside its kind, tenant, queue and ids: whatever is set.
_FACTS: Final = ("attempt", "worker", "task", "priority", "bytes", "run_at", "reason", "cause")
_encode: Final = msgspec.json.Encoder().encode
_ERRORS: Final = ("error_kind", "error_message")


def job_log(form: LogFormat, level: LogLevel) -> "JobLog | None":
    """The listener of what happens to jobs, if that is to be logged.

    A machine that collects lines wants them; somebody who watches a terminal asks for them.
    """
    if level == "debug" or (level == "info" and form == "json"):
        return JobLog(form, "info" if form == "json" else "debug", _write_out)
    return None


def _write_out(lines: str) -> None:
    # What happened has happened: a log that nobody takes must not fail the call that it is about.
    with suppress(OSError, ValueError):
        sys.stderr.write(lines)
        sys.stderr.flush()


class JobLog:
    """An `EventSink` that writes a line per event, the lines of one command at once.

    It does not go through `logging`, which would add as much again as making the line takes.
    """

    def __init__(self, form: LogFormat, level: LogLevel, write: Callable[[str], None]) -> None:
        self._line = _json_line if form == "json" else _text_line
        self._level = level
        self._write = write

    def write(self, events: list[Event]) -> None:
        self._write("".join([self._line(event, self._level) for event in events]))


def _facts(event: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name in _FACTS:
        value = getattr(event, name)
        if value:
            facts[name] = value
    if event.error_kind:
        facts |= {name: getattr(event, name) for name in _ERRORS}
    if event.kind == "claimed":
        facts["wait_ms"] = max(event.at - event.ready_at, 0)
    elif event.kind == "completed":
        facts["run_ms"] = max(event.at - event.claimed_at, 0)
    return facts


def _json_line(event: Event, level: LogLevel) -> str:
    line = {
        "time": time_of(event.at),
        "level": level,
        "logger": JOBS,
        "event": event.kind,
        "tenant": event.tenant,
        "queue": event.queue,
        "jobs": len(event.ids),
        "ids": ranges(event.ids),
        **_facts(event),
    }
    return _encode(line).decode() + "\n"


def _text_line(event: Event, level: LogLevel) -> str:
    facts = "".join(f" {name}={value!r}" for name, value in _facts(event).items())
    ids = f" {ranges(event.ids)}" if event.ids else ""
    place = f"{event.tenant}/{event.queue}"
    return f"{time_of(event.at)} {level:<7} {event.kind} {place}{ids}{facts}\n"


def ranges(ids: Ids) -> str:
    """`1-1000,1003`: the ids in their order, neighbours joined."""
    parts: list[str] = []
    for run in ids.runs:
        for first, last in _stretches(run):
            if len(parts) == MOST_STRETCHES:
                return ",".join([*parts, "…"])
            parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def _stretches(run: IdRun) -> "list[tuple[int, int]]":
    if run.mask is None:
        return [(run.first, run.first + run.span - 1)]
    found: list[tuple[int, int]] = []
    begin = run.mask.find(1)
    while begin >= 0 and len(found) <= MOST_STRETCHES:
        end = run.mask.find(0, begin)
        end = len(run.mask) if end < 0 else end
        found.append((run.first + begin, run.first + end - 1))
        begin = run.mask.find(1, end)
    return found


class Observers:
    """Several listeners as one."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def write(self, events: list[Event]) -> None:
        for sink in self._sinks:
            sink.write(events)
