"""Validation at the door: everything about a call that can be judged without state or clock.

Callers may ignore every type, so nothing here trusts one: numbers are plain `int` (a bool or a
float is not), texts plain `str`, bytes plain `bytes`. What passes can be stored, compared, hashed
and encoded without a surprise. Each function raises `Invalid`, `PayloadTooLarge` or
`BatchTooLarge` with the field, and changes nothing.

What needs to know jobs, queues or the time (a taken key, a dependency that is not there yet, a ttl
that is over before `run_at`) is decided in the kernel. `checks_push.py` holds the rules of a push,
`checks_values.py` those of single values.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Final, get_args

from penstock.model import payload as payloads
from penstock.model import schedule as schedules
from penstock.model.checks_push import Door, check_options, check_push
from penstock.model.checks_values import (
    MAX_INT32,
    MIN_INT32,
    check_bool,
    check_bytes,
    check_codec,
    check_int,
    check_lease_ms,
    check_listed,
    check_name,
    check_one_of,
    check_optional_int,
    check_queue,
    check_struct,
    check_tag,
    check_tenant,
    check_text,
    show,
)
from penstock.model.errors import BatchTooLarge, Invalid
from penstock.model.event import EventKind
from penstock.model.job import MAX_BATCH, MAX_ID, Codec, JobError, JobSpec, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import (
    DAY_MS,
    MAX_DURATION_MS,
    SECOND_MS,
    Bounds,
    Limits,
    QueueConfig,
    Rate,
)
from penstock.model.schedule import MAX_INSTANT_MS, Cron, CronSpec, Daily, Every, Schedule

__all__ = [
    "Door",
    "check_bool",
    "check_bounds",
    "check_bulk",
    "check_claim",
    "check_clean",
    "check_config",
    "check_cron",
    "check_edit",
    "check_error",
    "check_fail",
    "check_find",
    "check_id_list",
    "check_ids",
    "check_instants",
    "check_instants_of",
    "check_job_id",
    "check_lease",
    "check_lease_ms",
    "check_name",
    "check_options",
    "check_parts",
    "check_push",
    "check_queue",
    "check_rate",
    "check_redrive",
    "check_report",
    "check_results",
    "check_specs",
    "check_tenant",
    "check_wait_ms",
    "check_watch",
]

MAX_QUEUES: Final = 1_000  # of one claim
MAX_WAIT_MS: Final = DAY_MS
MAX_PAGE: Final = 1_000
MAX_WAITING: Final = 10_000  # claims in line that one call tells of
MAX_TRACE_BYTES: Final = 16 * 1024
MAX_MESSAGE_BYTES: Final = 4 * 1024
MAX_LOG_LINES: Final = 1_000  # of one report; the last 100 of a job are kept
MAX_WORD_BYTES: Final = 64  # a log level, an hour
MAX_DAILY_HOURS: Final = 1_440
MIN_BULK_DEADLINE_MS: Final = SECOND_MS
MAX_BULK_DEADLINE_MS: Final = 7 * DAY_MS

_FINGERPRINT: Final = re.compile("[0-9a-f]{16}")


# -- producing -----------------------------------------------------------------------------------


def check_specs(jobs: Iterable[JobSpec]) -> list[JobSpec]:
    """The jobs as a list that `Run.of` can pack; the rest of them is checked with the run."""
    try:
        each = iter(jobs)
    except TypeError as error:
        raise Invalid(f"is {show(jobs)}, not a list of jobs", "jobs") from error
    specs = list(islice(each, MAX_BATCH + 1))
    if len(specs) > MAX_BATCH:
        raise BatchTooLarge(f"more than {MAX_BATCH} jobs in one call", "jobs")
    for spec in specs:
        check_struct(spec, "jobs", JobSpec)
        check_bytes(spec.payload, "payload")
        options = spec.options()
        try:
            hash(options)
        except TypeError:
            check_options(options)
            raise
    return specs


# -- working -------------------------------------------------------------------------------------


def check_claim(
    queues: Sequence[str], n: object, lease_ms: object, worker: object, wait_ms: object
) -> None:
    check_listed(queues, "queues")
    if not 1 <= len(queues) <= MAX_QUEUES:
        raise Invalid(f"names {len(queues)} queues, not 1 to {MAX_QUEUES}", "queues")
    for queue in queues:
        check_queue(queue, "queues")
    if type(n) is int and n > MAX_BATCH:
        raise BatchTooLarge(f"{show(n)} jobs; at most {MAX_BATCH} may be claimed at once", "n")
    check_int(n, "n", 1, MAX_BATCH)
    check_lease_ms(lease_ms)
    if worker != "" or type(worker) is not str:
        check_name(worker, "worker", empty_ok=True)
    check_wait_ms(wait_ms)


def check_wait_ms(wait_ms: object) -> None:
    check_int(wait_ms, "wait_ms", 0, MAX_WAIT_MS)


def check_lease(token: object) -> None:
    """A lease's token. One that no lease ever had is no mistake of form: that is `lease_lost`."""
    check_name(token, "lease")


def check_reach(lease: object, bulk: object) -> None:
    """Exactly one of them is asked about."""
    if (lease is None) == (bulk is None):
        raise Invalid("name either a lease or a bulk", "lease")
    if lease is not None:
        check_lease(lease)
    else:
        check_name(bulk, "bulk")


def check_job_id(job_id: object) -> None:
    check_int(job_id, "job_id", 1, MAX_ID)


def check_ids(ids: Iterable[int]) -> list[int]:
    """The ids, each once, in the order in which they were first named."""
    return list(dict.fromkeys(check_id_list(ids)))


def check_id_list(ids: Iterable[int], *, empty_ok: bool = False) -> list[int]:
    """The ids as they were named, repeats included; at most 10,000."""
    try:
        each = iter(ids)
    except TypeError as error:
        raise Invalid(f"is {show(ids)}, not a list of job ids", "ids") from error
    if isinstance(ids, (bytes, bytearray, memoryview)):  # which also are integers in a row
        raise Invalid(f"is {show(ids)}, not a list of job ids", "ids")
    named = list(islice(each, MAX_BATCH + 1))
    if not named:
        if empty_ok:
            return named
        raise Invalid("is empty; name a job, or leave it out", "ids")
    if len(named) > MAX_BATCH:
        raise BatchTooLarge(f"more than {MAX_BATCH} ids in one call", "ids")
    if set(map(type, named)) != {int} or min(named) < 1 or max(named) > MAX_ID:
        for job_id in named:
            check_int(job_id, "ids", 1, MAX_ID)
    return named


def check_results(results: Mapping[int, bytes] | None, codec: Codec) -> dict[int, bytes]:
    check_codec(codec)
    if results is None:
        return {}
    if not isinstance(results, Mapping):
        raise Invalid(f"is {show(results)}, not a mapping of job ids to bytes", "results")
    if len(results) > MAX_BATCH:
        raise BatchTooLarge(f"{len(results)} results; at most {MAX_BATCH} in one call", "results")
    checked = dict(results)
    for job_id, value in checked.items():
        check_int(job_id, "results", 1, MAX_ID)
        check_bytes(value, "results")
    if codec == "json" and checked:
        values = checked.values()
        try:
            payloads.check_many("json", b"".join(values), list(accumulate(map(len, values))))
        except Invalid as error:
            raise Invalid(error.message, "results") from error
    return checked


def check_error(error: JobError) -> JobError:
    """The error as it will be kept: long texts cut, lone surrogates spelled out.

    Cut and not refused, because a worker that cannot report a failure would have to let its lease
    run out. What the store fills in is left empty.
    """
    check_struct(error, "error", JobError)
    check_name(error.kind, "error.kind")
    for value, field in ((error.message, "error.message"), (error.trace, "error.trace")):
        if type(value) is not str:
            raise Invalid(f"is {show(value)}, not a plain str", field)
    return JobError(
        kind=error.kind,
        message=kept_text(error.message, MAX_MESSAGE_BYTES),
        trace=kept_text(error.trace, MAX_TRACE_BYTES),
    )


def kept_text(text: str, max_bytes: int) -> str:
    """The text with a UTF-8 form of at most so many bytes: cut, lone surrogates spelled out."""
    if len(text) <= max_bytes and text.isascii():
        return text
    encoded = text[:max_bytes].encode("utf-8", "backslashreplace")
    return encoded[:max_bytes].decode("utf-8", "ignore")


def check_fail(retry_in_ms: object, dead: object) -> None:
    check_optional_int(retry_in_ms, "retry_in_ms", 0, MAX_DURATION_MS)
    check_bool(dead, "dead")


def check_report(
    progress: object, message: object, logs: Sequence[LogLine], partial: object
) -> None:
    check_optional_int(progress, "progress", 0, 100)
    if message is not None:
        check_text(message, "message", MAX_MESSAGE_BYTES)
    if partial is not None:
        check_bytes(partial, "partial")
    check_listed(logs, "logs")
    if len(logs) > MAX_LOG_LINES:
        raise BatchTooLarge(f"{len(logs)} lines; at most {MAX_LOG_LINES} in one call", "logs")
    for line in logs:
        check_struct(line, "logs", LogLine)
        check_int(line.at, "logs.at", 0, MAX_INSTANT_MS)
        check_text(line.message, "logs.message", MAX_TRACE_BYTES)
        check_text(line.level, "logs.level", MAX_WORD_BYTES, empty_ok=False)


# -- looking and changing ------------------------------------------------------------------------


def check_find(
    state: object, task: object, tag: object, cursor: object, limit: object, newest: object = False
) -> None:
    if state is not None and type(state) is not State:
        raise Invalid(f"{show(state)} is no State; they are {', '.join(State)}", "state")
    if task is not None:
        check_name(task, "task", empty_ok=True)
    if tag is not None:
        check_tag(tag, "tag")
    check_int(cursor, "cursor", 0, MAX_ID)
    check_int(limit, "limit", 1, MAX_PAGE)
    check_bool(newest, "newest")


def check_waiting(limit: object) -> None:
    check_int(limit, "limit", 1, MAX_WAITING)


def check_watch(queues: Sequence[str] | None, kinds: Sequence[str] | None) -> None:
    if queues is not None:
        check_listed(queues, "queues")
        for queue in queues:
            check_queue(queue, "queues")
    if kinds is not None:
        check_listed(kinds, "kinds")
        for kind in kinds:
            if kind not in get_args(EventKind):
                raise Invalid(f"{show(kind)} is no kind of event", "kinds")


def check_edit(
    priority: object, run_at: object, delay_ms: object, payload: object, codec: object
) -> None:
    """A payload without a codec keeps the job's: whoever knows the job looks into it."""
    if all(value is None for value in (priority, run_at, delay_ms, payload, codec)):
        raise Invalid("nothing to change; give a priority, run_at, delay_ms or payload", "priority")
    check_optional_int(priority, "priority", MIN_INT32, MAX_INT32)
    check_optional_int(run_at, "run_at", 0, MAX_INSTANT_MS)
    check_optional_int(delay_ms, "delay_ms", 0, MAX_DURATION_MS)
    if run_at is not None and delay_ms is not None:
        raise Invalid("cannot go with delay_ms; give one of them", "run_at")
    if codec is not None:
        check_codec(codec)
        if payload is None:
            raise Invalid("is said of a payload; give the payload too", "codec")
    if payload is not None:
        check_bytes(payload, "payload")
        if codec == "json":
            payloads.check_json(payload)  # type: ignore[arg-type]


def check_redrive(limit: object, fingerprint: object) -> None:
    check_optional_int(limit, "limit", 1, MAX_ID)
    if fingerprint is not None and (
        type(fingerprint) is not str or not _FINGERPRINT.fullmatch(fingerprint)
    ):
        raise Invalid(f"{show(fingerprint)} is not 16 hexadecimal digits", "fingerprint")


# -- queues and tenants --------------------------------------------------------------------------


def check_clean(state: object, older_ms: object, limit: object) -> None:
    if type(state) is not State or state in (State.ACTIVE, State.HELD):
        raise Invalid(f"{show(state)} is no State that can be cleaned away", "state")
    check_int(older_ms, "older_ms", 0, MAX_DURATION_MS)
    check_optional_int(limit, "limit", 1, MAX_ID)


def check_config(config: QueueConfig) -> None:
    check_struct(config, "config", QueueConfig)
    check_bool(config.paused, "paused")
    limits = config.limits
    check_struct(limits, "limits", Limits)
    if limits.rate is not None:
        check_rate(limits.rate, "limits.rate")
    if limits.group_rate is not None:
        check_rate(limits.group_rate, "limits.group_rate")
    check_optional_int(limits.concurrency, "limits.concurrency", 1, MAX_INT32)
    check_int(limits.group_concurrency, "limits.group_concurrency", 1, MAX_INT32)
    check_bounds(config.bounds)
    check_int(config.retain_ms, "retain_ms", 0, MAX_DURATION_MS)
    check_int(config.retain_count, "retain_count", 0, MAX_INT32)
    check_int(config.retain_dead_ms, "retain_dead_ms", 0, MAX_DURATION_MS)


def check_bounds(bounds: Bounds) -> None:
    check_struct(bounds, "bounds", Bounds)
    check_optional_int(bounds.jobs, "bounds.jobs", 0, MAX_ID)
    check_optional_int(bounds.bytes, "bounds.bytes", 0, MAX_ID)
    if bounds.push_rate is not None:
        check_rate(bounds.push_rate, "bounds.push_rate")


def check_rate(rate: Rate, field: str = "rate") -> None:
    check_struct(rate, field, Rate)
    check_int(rate.tokens, f"{field}.tokens", 1, MAX_INT32)
    check_int(rate.per_ms, f"{field}.per_ms", 1, MAX_DURATION_MS)
    check_int(rate.burst, f"{field}.burst", 0, MAX_INT32)


# -- bulks and crons -----------------------------------------------------------------------------


def check_bulk(name: object, deadline_ms: object) -> None:
    if name is not None:
        check_name(name, "name")
    check_int(deadline_ms, "deadline_ms", MIN_BULK_DEADLINE_MS, MAX_BULK_DEADLINE_MS)


def check_parts(parts: Sequence[str] | None) -> None:
    if parts is None:
        return
    check_listed(parts, "parts")
    if len(parts) > MAX_BATCH:
        raise BatchTooLarge(f"{len(parts)} parts; at most {MAX_BATCH} in one call", "parts")
    for part in parts:
        check_name(part, "parts", empty_ok=True)


def check_cron(spec: CronSpec) -> None:
    """A cron and the job that its instants become; `spec.codec` is that job's codec."""
    check_struct(spec, "spec", CronSpec)
    check_name(spec.name, "name", schedules.MAX_NAME_BYTES)
    check_queue(spec.queue)
    _check_schedule(spec.schedule)
    check_one_of(spec.overlap, "overlap", ("allow", "skip"))
    check_one_of(spec.missed, "missed", ("last", "all", "none"))
    check_optional_int(spec.limit, "limit", 1, MAX_ID)
    check_codec(spec.codec)
    check_options(spec.options)
    check_bytes(spec.payload, "payload")
    if spec.codec == "json":
        payloads.check_json(spec.payload)


def check_instants(
    tenant: object, name: object, config_hash: object, run: Run, *, contents: bool = True
) -> list[int]:
    """The instants of jobs that have one each, and no key: that is made from the instant."""
    check_tenant(tenant)
    check_struct(run, "run", Run)
    check_instants_of(run.queue, name)
    schedules.check_hash(config_hash)
    for field in ("keys", "more_keys", "delay_ms", "depends_on"):
        if getattr(run, field) is not None:
            raise Invalid("is nothing that instants have: say a run_at for each", field)
    if isinstance(run.ends, array | list | tuple) and not run.ends:
        return []  # none comes, others leave
    check_push(tenant, [run], contents=contents)
    column = run.run_at if isinstance(run.run_at, array | list | tuple) else ()
    instants = [at for at in column if at is not None]
    if len(instants) != len(run.ends):
        raise Invalid("names no instant for each job", "run_at")
    return instants


def check_instants_of(queue: object, name: object, config_hash: object = None) -> None:
    check_queue(queue)
    check_name(name, "name", schedules.MAX_NAME_BYTES)
    if config_hash is not None:
        schedules.check_hash(config_hash)


def _check_schedule(schedule: Schedule) -> None:
    """The types first: `check_schedule` trusts them."""
    if type(schedule) is Every:
        check_int(schedule.every_ms, "every_ms", 1, MAX_DURATION_MS)
    elif type(schedule) is Cron:
        check_text(schedule.expression, "expression", schedules.MAX_EXPRESSION)
        check_name(schedule.tz, "tz")
    elif type(schedule) is Daily:
        check_struct(schedule.at, "at", tuple)
        if len(schedule.at) > MAX_DAILY_HOURS:
            raise Invalid(f"has {len(schedule.at)} hours; at most {MAX_DAILY_HOURS}", "at")
        for hour in schedule.at:
            check_text(hour, "at", MAX_WORD_BYTES)
        check_name(schedule.tz, "tz")
    else:
        raise Invalid(f"is {show(schedule)}, not a Cron, Every or Daily", "schedule")
    schedules.check_schedule(schedule)
