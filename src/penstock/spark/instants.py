"""Instants as the event log has them, milliseconds since the epoch, cut to days, hours and minutes."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000


def long(value: int) -> Column:
    """A literal as wide as instants and counts are."""
    return f.lit(value).cast("long")


def floored(instant: str, period_ms: int) -> Column:
    """Where the period begins that the instant is in; in ms."""
    return (f.floor(f.col(instant) / period_ms) * period_ms).cast("long")


def day_of(instant: str) -> Column:
    """Its day, UTC."""
    return f.to_date(f.timestamp_millis(instant))
