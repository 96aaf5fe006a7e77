"""Durations as people say them: `250ms`, `30s`, `1h30m`, `2d`; inside they are milliseconds.

One reading for the SDK, the command line and the settings. A text needs a unit, since `90` says
seconds to one reader and milliseconds to another; numbers are seconds, as everywhere in Python.
"""

import re
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeAlias

from penstock.model.checks_values import show
from penstock.model.errors import Invalid
from penstock.model.policy import DAY_MS, HOUR_MS, MAX_DURATION_MS, MINUTE_MS, SECOND_MS

Duration: TypeAlias = str | int | float | timedelta

_UNITS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
# The largest unit first, each at most once; at most 15 digits, so that nothing here is slow.
_SAID: Final = re.compile(
    "".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _UNITS)
)
_MICROSECOND: Final = timedelta(microseconds=1)


def duration_ms(
    said: Duration,
    field: str = "duration",
    *,
    low_ms: int = 0,
    high_ms: int = MAX_DURATION_MS,
) -> int:
    """Milliseconds, to the nearest one; what is longer than nothing is at least one.

    Raises Invalid for what is no duration, or not from `low_ms` to `high_ms`.
    """
    value: object = said  # callers without types say anything
    if isinstance(value, str):
        exact: Decimal | float = _read(value, field)
    elif isinstance(value, timedelta):
        exact = (value // _MICROSECOND) / 1_000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        exact = value * SECOND_MS
    else:
        raise Invalid(f"is {show(value)}, {_WANTED}", field)
    # Also false for what is not a number; compared before it is rounded, which has no infinity.
    if not 0 <= exact <= MAX_DURATION_MS:
        raise Invalid(f"{_shown(said)} is not from 0 to {MAX_DURATION_MS // DAY_MS}d", field)
    found = max(round(exact), 1) if exact else 0
    if not found and low_ms == 1:
        raise Invalid(f"{_shown(said)} is not longer than nothing", field)
    if not low_ms <= found <= high_ms:
        raise Invalid(f"{_shown(said)} is not from {say_ms(low_ms)} to {say_ms(high_ms)}", field)
    return found


def say_ms(ms: int) -> str:
    """The other way: the shortest text that `duration_ms` reads as these milliseconds."""
    parts: list[str] = []
    for unit, size in _UNITS.items():
        many, ms = divmod(ms, size)
        if many:
            parts.append(f"{many}{unit}")
    return "".join(parts) or "0s"


def about_ms(ms: float) -> str:
    """The same for what was measured: in its largest unit, to a tenth."""
    unit, size = next((each for each in _UNITS.items() if ms >= each[1]), ("ms", 1))
    return f"{round(ms / size, 1):,g}{unit}"


_WANTED: Final = 'not a duration like "250ms", "30s", "1h30m" or "2d"'


@lru_cache(maxsize=256)
def _read(said: str, field: str) -> Decimal:
    found = _SAID.fullmatch(said)
    if found is None or not said:
        if said == "0":
            return Decimal(0)
        hint = f'; with its unit it is "{said}s" or "{said}ms"' if said.isdecimal() else ""
        raise Invalid(f"{show(said)} is {_WANTED}{hint if len(said) <= 15 else ''}", field)
    many = zip(found.groups(), _UNITS.values(), strict=True)
    return sum((Decimal(number) * size for number, size in many if number), Decimal(0))


def _shown(said: object) -> str:
    return str(said) if isinstance(said, timedelta) else show(said)
