"""Why a job is not running, in words: what `Store.explain` says by codes."""

from typing import Any

from rich.text import Text

from penstock.cli.show import STYLES, clock, many, plain, when
from penstock.model.answers import EXPLANATIONS, Explanation
from penstock.model.job import Job
from penstock.model.lifecycle import State

_IDS = 10  # dependencies that are named; the rest are counted


def explained(said: Explanation, job: Job, now: int) -> list[Text]:
    """One line of what it is, one per thing that holds it, and what can be said of its start."""
    head = Text(f"job {said.id} of {job.queue} is ")
    head.append(said.state.value, style=STYLES[said.state])
    lines = [head, *(Text(f"  {_reason(code, said, job, now)}") for code in said.reasons)]
    if said.ahead:
        verb = "is" if said.ahead == 1 else "are"
        lines.append(
            Text(f"  {many(said.ahead, 'ready job')} of the queue {verb} served before it")
        )
    if said.start_at is not None and "next" not in said.reasons:
        start = f"  it can start {when(said.start_at, now)}, at {clock(said.start_at)}"
        due = said.detail.get(said.reasons[0])
        if said.state is State.SCHEDULED and due != said.start_at:
            start += " at the earliest: before that the rate of its queue has no token for it"
        else:
            start += ", if a worker is free" if not said.ahead else " at the earliest"
        lines.append(Text(start))
    elif said.state is State.READY and "next" not in said.reasons:
        lines.append(Text("  nobody can tell when it starts"))
    return lines


def _reason(code: str, said: Explanation, job: Job, now: int) -> str:
    detail = said.detail.get(code)
    text = EXPLANATIONS[code]
    more = _more(code, detail, job, now)
    return plain(f"{text}{more}")


def _more(code: str, detail: Any, job: Job, now: int) -> str:
    match code:
        case "blocked" if detail:
            named = ", ".join(map(str, detail[:_IDS]))
            rest = f" and {len(detail) - _IDS:,} more" if len(detail) > _IDS else ""
            return f": {many(len(detail), 'job')} still to end: {named}{rest}"
        case "delayed" if job.started_at is not None:
            error = job.errors[-1] if job.errors else None
            if error is not None and job.started_at <= error.at:  # else it would be in backoff
                return f"; it failed with {error.kind} and was redriven"
            return f"; it was claimed and came back: penstock jobs logs {job.id} may say why"
        case "backoff":
            error = job.errors[-1] if job.errors else None
            return f": attempt {error.attempt} ended in {error.kind}" if error else ""
        case "paused":
            return f": penstock queues resume {job.queue}"
        case "rate" | "group_rate" if isinstance(detail, int):
            return f": the next one comes {when(detail, now)}"
        case "concurrency":
            return f": {many(detail, 'job')} at most"
        case "group" | "group_rate":
            return f": group {detail}"
        case "active":
            since = when(job.started_at, now)
            beat = when(job.last_heartbeat, now)
            return f" since {since} at worker {job.worker or '(unnamed)'}, last heard of {beat}"
        case "ended":
            reason = f" ({job.dead_reason})" if job.dead_reason else ""
            return f" {when(job.finished_at, now)}{reason}"
        case "next":
            return ": it waits for a worker that claims from this queue"
    return ""
