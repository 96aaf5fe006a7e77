"""Schedules: which instants a cron has, what each instant's key is, and which to install now.

A cron becomes ordinary keyed jobs, one per instant. Everything here is a pure function of its
arguments (and of the time zone database), so any number of schedulers, however late or wrong
their clocks, arrive at the same instants under the same keys, and the key makes each fire once.

Daylight saving. `cronsim` only says which *local* times match; which instants those are is
decided here, by one rule for `Cron` and `Daily`:
- a local time that does not exist fires at the first instant after the gap; several such times
  fire there once, together with a match that lies there anyway;
- a local time that exists twice fires once, at the first of the two.
An expression whose hour field names all 24 hours (`*`, `*/1`, `0-23`) means real time instead:
- it fires in both passes of a repeated hour and adds nothing for an hour that is skipped whole,
  so where the clock moves by whole hours, hourly firings stay one real hour apart;
- where only part of an hour is skipped (Lord Howe), the first rule holds inside that hour.
This is Debian cron's intent, without its split by spelling: `*/2` in the hour field, `*` in the
minute field and expressions with seconds keep the two rules like any other.

No clock, no store, no pushing: `cron/` and the stores do. `CronSpec.limit` and `overlap` are
carried, not enforced.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from hashlib import blake2b
from itertools import count as count_from
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from penstock.model.errors import Invalid
from penstock.model.job import DEFAULT_OPTIONS, Codec, JobOptions
from penstock.model.policy import DAY_MS, HOUR_MS, MAX_DURATION_MS, SECOND_MS

AHEAD: Final = 4  # instants that are installed ahead of now
KEEP_AFTER_MS: Final = DAY_MS  # how long an instant's key outlives the instant
MAX_CATCH_UP: Final = 1_000  # missed instants that one plan makes up for, the latest ones
MIN_REFRESH_MS: Final = SECOND_MS
MAX_REFRESH_MS: Final = HOUR_MS
MAX_NAME_BYTES: Final = 200  # escaped at most twice as long, so that a key stays within 512
MAX_EXPRESSION: Final = 1_000
MAX_INSTANT_MS: Final = 221_845_392_000_000  # the year 9000; `datetime` ends a thousand later

Overlap = Literal["allow", "skip"]
Missed = Literal["last", "all", "none"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What some cron daemons have words for. An expression has one form here, on every wire and in every
# store; who says a word is told how it is said.
_SAID_IN_FIELDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAY: Final = timedelta(days=1)
_HOUR_OF_DAY: Final = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?")
_HASH: Final = re.compile(r"[0-9a-f]{16}")
_INSTANT: Final = re.compile(r"0|[1-9][0-9]{0,15}")

# Each of these is written as a tilde and its place in this line. Beside the separator they are
# what SQL LIKE, GLOB and Redis patterns read specially, and NUL, which PostgreSQL cannot store.
# Only append: a moved character renames installed keys.
_ESCAPED: Final = "~/%_\\*?[\0"
_ESCAPES: Final = str.maketrans({char: f"~{place}" for place, char in enumerate(_ESCAPED)})


class Cron(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cron"):
    """Five fields (minute first) or six (second first), matched against local time in `tz`."""

    expression: str
    tz: str = "UTC"


class Every(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="every"):
    """The multiples of `every_ms` since the epoch."""

    every_ms: int


class Daily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="daily"):
    """Each day at these hours, `"02:00"` or `"02:00:30"`, local time in `tz`."""

    at: tuple[str, ...]
    tz: str = "UTC"


Schedule: TypeAlias = Cron | Every | Daily


class CronSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named schedule and the job that each of its instants becomes."""

    name: str
    queue: str
    schedule: Schedule
    payload: bytes = b"null"
    codec: Codec = "json"
    options: JobOptions = DEFAULT_OPTIONS
    overlap: Overlap = "allow"  # skip: an instant does nothing while an earlier one is live
    missed: Missed = "last"  # which instants that no scheduler installed in time still fire
    limit: int | None = None  # executions in total; None = without end


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    instants: tuple[int, ...]  # to install, ascending: missed ones first, then those ahead
    refresh_ms: int  # plan again after this long


# -- checking ------------------------------------------------------------------------------------


def check_cron(spec: CronSpec) -> None:
    """Raise Invalid for what is wrong with a cron itself; its job is checked like any other."""
    check_name(spec.name)
    check_schedule(spec.schedule)
    if spec.overlap not in ("allow", "skip"):
        raise Invalid(f"{spec.overlap!r} is not one of allow, skip", "overlap")
    if spec.missed not in ("last", "all", "none"):
        raise Invalid(f"{spec.missed!r} is not one of last, all, none", "missed")
    if spec.limit is not None and (type(spec.limit) is not int or spec.limit < 1):
        raise Invalid(f"{spec.limit!r} is not a number of executions, at least 1", "limit")


def check_name(name: str) -> None:
    if type(name) is not str:
        raise Invalid(f"must be a text, is {name!r}", "name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{name!r} has no UTF-8 form (a lone surrogate)", "name") from error
    if not 1 <= size <= MAX_NAME_BYTES:
        raise Invalid(f"must have 1 to {MAX_NAME_BYTES} bytes, has {size}", "name")


def check_schedule(schedule: Schedule) -> None:
    """Raise Invalid, naming the field, unless the schedule has instants without end."""
    if isinstance(schedule, Every):
        every_ms = schedule.every_ms
        if type(every_ms) is not int or not 1 <= every_ms <= MAX_DURATION_MS:
            raise Invalid(f"{every_ms!r} is not in 1 to {MAX_DURATION_MS}", "every_ms")
        return
    _zone(schedule.tz)
    if isinstance(schedule, Daily):
        if not schedule.at:
            raise Invalid('needs at least one hour, like "02:00"', "at")
        for hour in schedule.at:
            if type(hour) is not str or not _HOUR_OF_DAY.fullmatch(hour):
                raise Invalid(f'{hour!r} is not an hour like "02:00" or "02:00:30"', "at")
    # Any start will do: the calendar repeats itself within the 50 years that cronsim looks ahead.
    elif next(_matches(schedule.expression, _EPOCH, 1), None) is None:
        raise Invalid(f"{schedule.expression!r} never fires", "expression")


def _zone(name: str) -> ZoneInfo:
    message = f'{name!r} is not a time zone like "UTC" or "Europe/Berlin"'
    # These mean another thing on each machine, or count leap seconds.
    if name in ("localtime", "posixrules") or str(name).startswith("right/"):
        raise Invalid(message, "tz")
    try:
        return ZoneInfo(name)
    # All the ways in which zoneinfo reports a name that it does not know or trust.
    except (KeyError, ValueError, OSError, TypeError, AttributeError) as error:
        raise Invalid(message, "tz") from error


def _matches(expression: str, start: datetime, step: int) -> CronSim:
    """The matching local times after `start` (step 1) or before it (step -1)."""
    if type(expression) is not str or len(expression) > MAX_EXPRESSION:
        raise Invalid(f"must be a text of at most {MAX_EXPRESSION} characters", "expression")
    try:
        return CronSim(expression, start, reverse=step < 0)
    except CronSimError as error:
        instead = _SAID_IN_FIELDS.get(expression.strip().lower())
        why = f"say {instead!r}" if instead else error
        raise Invalid(
            f"{expression!r} is not a cron expression like '30 2 * * MON': {why}", "expression"
        ) from error


# -- instants ------------------------------------------------------------------------------------


def instants(schedule: Schedule, after_ms: int, count: int) -> list[int]:
    """The next `count` instants (epoch ms) strictly after `after_ms`, ascending."""
    return list(islice(_walk(schedule, after_ms, 1), count))


def latest_instants(schedule: Schedule, after_ms: int, until_ms: int, count: int) -> list[int]:
    """The last `count` instants in (after_ms, until_ms], ascending, found from the end."""
    backwards = takewhile(lambda ms: ms > after_ms, _walk(schedule, until_ms + 1, -1))
    return list(islice(backwards, count))[::-1]


def _walk(schedule: Schedule, origin_ms: int, step: int) -> Iterator[int]:
    """The instants after `origin_ms` ascending (step 1), or before it descending (step -1)."""
    if not 0 <= origin_ms <= MAX_INSTANT_MS:
        raise Invalid(f"{origin_ms} is not an instant in 0 to {MAX_INSTANT_MS}", "after_ms")
    if isinstance(schedule, Every):
        every_ms = schedule.every_ms
        multiple = origin_ms // every_ms + 1 if step > 0 else (origin_ms - 1) // every_ms
        return count_from(multiple * every_ms, step * every_ms)
    return _walk_local(schedule, origin_ms, step)


def _walk_local(schedule: Cron | Daily, origin_ms: int, step: int) -> Iterator[int]:
    zone = _zone(schedule.tz)
    start = _start(origin_ms, zone, step)
    if isinstance(schedule, Daily):
        local_times, every_hour = _daily(schedule, start, step), False
    else:
        matches = _matches(schedule.expression, start, step)
        local_times, every_hour = iter(matches), len(matches.hours) == 24
    previous = origin_ms
    for instant in _in_order(local_times, zone, every_hour, step):
        if step * instant > step * previous:
            yield instant
            previous = instant


def _start(origin_ms: int, zone: ZoneInfo, step: int) -> datetime:
    """A local time before which (step -1: after which) no match can lie beyond the origin.

    Not simply the local time at the origin: if the clock is set back a little later, local times
    from before the origin come again after it.
    """
    near = _local(origin_ms, zone).replace(tzinfo=None)
    far = _local(origin_ms + step * DAY_MS, zone).replace(tzinfo=None) - step * _DAY
    edge = min(near, far) if step > 0 else max(near, far)
    return edge.replace(microsecond=0) - timedelta(seconds=step)


def _daily(schedule: Daily, start: datetime, step: int) -> Iterator[datetime]:
    hours = sorted({time.fromisoformat(hour) for hour in schedule.at}, reverse=step < 0)
    day = start.date()
    while True:
        for hour in hours:
            yield datetime.combine(day, hour)
        day += step * _DAY


def _in_order(
    local_times: Iterable[datetime], zone: ZoneInfo, every_hour: bool, step: int
) -> Iterator[int]:
    """The instants of endless ordered local times, in the same order, repeats not removed."""
    again: deque[int] = deque()  # the other pass of a repeated hour, yet to be merged in
    for local in local_times:
        found = _instants_of(local, zone, every_hour)[::step]
        if not found:
            continue
        while again and step * again[0] < step * found[0]:
            yield again.popleft()
        yield found[0]
        again.extend(found[1:])


def _instants_of(local: datetime, zone: ZoneInfo, every_hour: bool) -> tuple[int, ...]:
    """When the wall clock shows `local`, by the rules in the module's docstring."""
    first = _epoch_ms(local.replace(tzinfo=zone, fold=0))
    second = _epoch_ms(local.replace(tzinfo=zone, fold=1))
    if first == second:
        return (first,)
    if first < second:
        return (first, second) if every_hour else (first,)
    # A gap: zoneinfo extends either side of it over `local`, which crosses the two over.
    end_ms = _gap_end(second, first, zone)
    end = _local(end_ms, zone)
    if every_hour and (end.date(), end.hour) != (local.date(), local.hour):
        return ()
    return (end_ms,)


def _gap_end(before_ms: int, after_ms: int, zone: ZoneInfo) -> int:
    """The first instant with the offset that holds at `after_ms`."""
    offset = _local(after_ms, zone).utcoffset()
    seconds = range(before_ms, after_ms, SECOND_MS)
    passed = bisect_left(seconds, True, key=lambda ms: _local(ms, zone).utcoffset() == offset)
    return before_ms + passed * SECOND_MS


def _local(instant_ms: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=instant_ms)).astimezone(zone)


def _epoch_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


# -- keys ----------------------------------------------------------------------------------------


def config_hash(spec: CronSpec) -> str:
    """16 hex digits over everything that decides the instants and their jobs; not the name.

    Options are encoded without their defaults, so a new option leaves known hashes alone. Any
    other change of what is encoded replaces the installed instants of every cron.
    """
    decisive = (
        spec.schedule,
        spec.queue,
        spec.payload,
        spec.codec,
        spec.options,
        spec.overlap,
        spec.missed,
        spec.limit,
    )
    encoded = msgspec.msgpack.encode(decisive, order="deterministic")
    return blake2b(encoded, digest_size=8).hexdigest()


def escape_name(name: str) -> str:
    """The name without the separator and without anything that a pattern would read specially."""
    return name.translate(_ESCAPES)


def unescape_name(escaped: str) -> str:
    head, *rest = escaped.split("~")
    valid = {str(place): char for place, char in enumerate(_ESCAPED)}
    if any(part[:1] not in valid for part in rest):
        raise Invalid(f"{escaped!r} has a tilde that escapes nothing", "name")
    name = head + "".join(valid[part[0]] + part[1:] for part in rest)
    if escape_name(name) != escaped:
        raise Invalid(f"{escaped!r} has a character that must be escaped", "name")
    return name


def instant_key(name: str, config_hash: str, instant_ms: int) -> str:
    return f"{escape_name(name)}/{config_hash}/{instant_ms}"


def parse_key(key: str) -> tuple[str, str, int]:
    """(name, config hash, instant) of a key that `instant_key` made."""
    parts = key.split("/")
    if len(parts) != 3 or not _HASH.fullmatch(parts[1]) or not _INSTANT.fullmatch(parts[2]):
        raise Invalid(f"{key!r} is not of the form name/hash/instant", "key")
    return unescape_name(parts[0]), parts[1], int(parts[2])


def check_hash(config_hash: object) -> None:
    if type(config_hash) is not str or not _HASH.fullmatch(config_hash):
        raise Invalid(f"{config_hash!r} is not 16 hexadecimal digits", "config_hash")


def keep_key_ms(instant_ms: int, now_ms: int) -> int:
    """How long from `now_ms` on an instant's key is kept: until a day after the instant.

    A missed instant's day counts from its installation. Otherwise the key of one missed longer
    ago would be free at once, and two schedulers making up for it would fire it twice.
    """
    return max(instant_ms - now_ms, 0) + KEEP_AFTER_MS


# -- planning ------------------------------------------------------------------------------------


def ahead_of(schedule: Schedule) -> int:
    """How many instants a plan has ahead of now: AHEAD, or as many as last for two refreshes.

    Only a period far below MIN_REFRESH_MS needs more than AHEAD, and no expression has one.
    """
    if isinstance(schedule, Every):
        return _ahead(schedule.every_ms, AHEAD)
    return AHEAD


def _ahead(period_ms: int, at_least: int) -> int:
    return max(at_least, 2 * _refresh_ms(period_ms) // period_ms)


def _refresh_ms(period_ms: int) -> int:
    return min(max(period_ms // 4, MIN_REFRESH_MS), MAX_REFRESH_MS)


def plan(
    spec: CronSpec, *, now_ms: int, installed_until_ms: int | None, ahead: int = AHEAD
) -> Plan:
    """What to install now, given the latest instant installed under this config hash (or None).

    Instants in (installed_until_ms, now_ms] were missed; a cron never installed missed nothing.
    Nothing up to `installed_until_ms` is planned again: those instants are installed or were
    given up, so a scheduler whose clock lags cannot bring one back. Two schedulers that read the
    same `installed_until_ms` may plan the same instant; its key, kept by `keep_key_ms`, admits
    one. Hence no instant fires twice, whatever the clocks, as long as a plan is pushed within
    KEEP_AFTER_MS of reading `installed_until_ms`.
    """
    if ahead < 1:
        raise Invalid(f"{ahead} instants ahead would install nothing", "ahead")
    schedule = spec.schedule
    first, second = instants(schedule, now_ms, 2)
    period_ms = second - first
    refresh_ms = _refresh_ms(period_ms)
    upcoming = instants(schedule, now_ms, _ahead(period_ms, ahead))
    if installed_until_ms is None:
        return Plan(instants=tuple(upcoming), refresh_ms=refresh_ms)
    makes_up = {"none": 0, "last": 1, "all": MAX_CATCH_UP}[spec.missed]
    missed = latest_instants(schedule, installed_until_ms, now_ms, makes_up)
    fresh = (instant for instant in upcoming if instant > installed_until_ms)
    return Plan(instants=(*missed, *fresh), refresh_ms=refresh_ms)
