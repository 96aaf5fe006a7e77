"""Answers as plain values that can be compared: ids renamed, what may differ left out.

Left out are lease tokens, the wording of errors that the store itself words, and the order of ids
where the contract gives none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.model.answers import (
    Acked,
    BulkInfo,
    CronInfo,
    Explanation,
    Extended,
    Failed,
    Pushed,
    PushedInstead,
    QueueInfo,
    Redriven,
    Released,
    Result,
    WaitingClaims,
)
from penstock.model.errors import PenstockError
from penstock.model.job import Job, JobError, Lease, LogLine, Run


@dataclass(frozen=True)
class View:
    """From where answers are looked at."""

    rename: Callable[[int], int]  # ids to the names that both sides share
    now: int
    went_back: bool  # the wall clock, ever


WORDED_BY_THE_STORE = frozenset({"lease_expired", "timeout", "dependency_failed"})


def plain(answer: Any, view: View) -> Any:
    match answer:
        case PenstockError():
            field = answer.field.rpartition(".")[2] if answer.code == "invalid" else ""
            return {"error": answer.code, "field": field}
        case PushedInstead():
            pushed = [(view.rename(job_id), outcome) for job_id, outcome in answer.jobs]
            return {"pushed": pushed, "removed": answer.removed}
        case Pushed():
            return [(view.rename(job_id), outcome) for job_id, outcome in answer.jobs]
        case Lease():
            return {
                "queue": answer.queue,
                "expires_at": answer.expires_at,
                "jobs": [claimed(job, view) for job in answer.jobs],
            }
        case Acked():
            return {"acked": renamed(answer.acked, view), "lost": renamed(answer.lost, view)}
        case Released():
            return {
                "released": renamed(answer.released, view),
                "lost": renamed(answer.lost, view),
            }
        case Failed():
            jobs = [(view.rename(job.id), job.state.value, job.run_at) for job in answer.jobs]
            return {"jobs": sorted(jobs), "lost": renamed(answer.lost, view)}
        case Extended():
            return {"expires_at": answer.expires_at, "lost": renamed(answer.lost, view)}
        case Redriven():
            return {
                "ids": [view.rename(job_id) for job_id in answer.ids],
                "conflicts": [view.rename(job_id) for job_id in answer.conflicts],
            }
        case Result():
            return {
                "state": answer.state.value,
                "value": (answer.value, answer.codec),
                "error": None if answer.error is None else error_of(answer.error),
                "dead_reason": answer.dead_reason,
            }
        case Explanation():
            return {"state": answer.state.value, "reasons": answer.reasons}
        case QueueInfo():
            return {
                "queue": answer.queue,
                "config": answer.config,
                "counts": {state.value: n for state, n in answer.counts.items() if n},
                # After the wall clock went back, a queue may or may not remember what it showed.
                "oldest_ready_ms": None if view.went_back else answer.oldest_ready_ms,
                "groups": answer.groups,
            }
        case Job():
            return known(answer, view)
        case BulkInfo() | CronInfo() | LogLine() | WaitingClaims() | str() | int() | None:
            return answer
        case list():
            return [plain(each, view) for each in answer]
        case _:
            raise TypeError(f"no plain form of {answer!r}")


def renamed(ids: Any, view: View) -> list[int]:
    return sorted(view.rename(job_id) for job_id in ids)


def claimed(job: Job, view: View) -> dict[str, Any]:
    """What a claim tells of a job."""
    return {
        "id": view.rename(job.id),
        "payload": job.payload,
        "options": job.options,
        "attempt": job.attempt,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "key": job.key,
        "more_keys": job.more_keys,
        "group": job.group,
        "headers": job.headers,
        "depends_on": [view.rename(dep) for dep in job.depends_on],
        "priority": job.priority,
    }


def known(job: Job, view: View) -> dict[str, Any]:
    """Everything that is known of a job."""
    return claimed(job, view) | {
        "queue": job.queue,
        "state": job.state.value,
        "dead_reason": job.dead_reason,
        "lease_expires_at": job.lease_expires_at,
        "last_heartbeat": job.last_heartbeat,
        "worker": job.worker,
        "progress": (job.progress, job.progress_message),
        "result": (job.result, job.result_codec),
        "errors": [error_of(error) for error in job.errors],
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "dependants": renamed(job.dependants, view),
    }


def error_of(error: JobError) -> tuple[Any, ...]:
    message = "" if error.kind in WORDED_BY_THE_STORE else error.message
    return (error.kind, message, error.trace, error.at, error.worker, error.attempt)


def difference(left: Any, right: Any, path: str = "") -> list[str]:
    """The places at which two plain values differ."""
    if left == right:
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in [*left, *(key for key in right if key not in left)]:
            found += difference(left.get(key), right.get(key), f"{path}.{key}")
        return found
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        found = []
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            found += difference(one, other, f"{path}[{index}]")
        return found
    if isinstance(left, list) and isinstance(right, list):
        only_left = [brief(each) for each in left if each not in right]
        only_right = [brief(each) for each in right if each not in left]
        return [f"{path or 'answer'}: only oracle {only_left}, only store {only_right}"]
    return [f"{path or 'answer'}: oracle {left!r}, store {right!r}"]


def brief(value: Any) -> Any:
    """Of a job only what tells it from others."""
    if isinstance(value, dict) and "state" in value and "id" in value:
        return {name: value[name] for name in ("id", "state", "key", "run_at")}
    return value


# -- showing -------------------------------------------------------------------------------------


def shown(name: str, tenant: str, args: Any, options: dict[str, Any]) -> str:
    """A call as one would write it, without what is said by default."""
    said = [repr(tenant), *map(short, args)]
    said += [f"{key}={short(value)}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join(said)})"


def short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], Run):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, Run):
        return f"Run({value.queue!r}, {jobs_of(value)})"
    if isinstance(value, msgspec.Struct):
        changed = {
            name: getattr(value, name)
            for name, default in defaults_of(type(value)).items()
            if getattr(value, name) != default
        }
        said = ", ".join(f"{name}={short(each)}" for name, each in changed.items())
        return f"{type(value).__name__}({said})"
    return repr(value)


def jobs_of(run: Run) -> list[dict[str, Any]]:
    """Each job of a run by what it says beyond the defaults."""
    columns = ("keys", "more_keys", "groups", "headers", "depends_on", "delay_ms", "run_at")
    jobs = []
    for index, payload in enumerate(run.payloads()):
        options = run.options[0 if run.option_of is None else run.option_of[index]]
        job: dict[str, Any] = {"payload": payload}
        for name, default in defaults_of(type(options)).items():
            if getattr(options, name) != default:
                job[name] = getattr(options, name)
        for name in columns:
            column = getattr(run, name)
            value = column if column is None or isinstance(column, int) else column[index]
            if value not in (None, ()):
                job[name] = value
        jobs.append(job)
    return jobs


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    return {
        each.name: each.default
        if each.default_factory is msgspec.NODEFAULT
        else each.default_factory()
        for each in fields
    }
