"""When a schedule fires next, for people: each instant with the local time that it stands for."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from penstock.model.schedule import Every, Schedule, check_schedule, instants

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Upcoming(msgspec.Struct, frozen=True):
    at: int  # ms since the epoch
    local: datetime  # in the schedule's own zone
    shifted: bool  # whether the clock of that zone is set between the instant before and this one


def upcoming(schedule: Schedule, after_ms: int, n: int) -> list[Upcoming]:
    """The next `n` instants after `after_ms`. Raises Invalid for what is no schedule."""
    check_schedule(schedule)
    zone: tzinfo = UTC if isinstance(schedule, Every) else ZoneInfo(schedule.tz)
    before = _local(after_ms, zone)
    found = []
    for at in instants(schedule, after_ms, n):
        local = _local(at, zone)
        found.append(Upcoming(at, local, local.utcoffset() != before.utcoffset()))
        before = local
    return found


def _local(at_ms: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone)
