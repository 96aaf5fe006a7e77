"""What people say to the SDK, read where they say it: a value, or one error in their own words.

The model checks again what reaches a store, in the store's words: `timeout_ms`, integers,
milliseconds. Whoever said `timeout="soon"` should not have to know those, nor wait for the first
push to be told. Each function answers the value as the inside wants it.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.client.backoff import fixed
from penstock.client.errors import BadDeclaration
from penstock.model.checks_push import MAX_HEADER_BYTES, MAX_TAGS
from penstock.model.checks_values import (
    check_int,
    check_name,
    check_struct,
    check_tag,
    check_text,
    show,
)
from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Invalid
from penstock.model.job import MAX_DEPENDENCIES, MAX_ID
from penstock.model.policy import MAX_LEASE_MS, MIN_LEASE_MS, Backoff
from penstock.model.schedule import MAX_INSTANT_MS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_BACKOFFS: Final = '"5s", exponential("1s", cap="10m"), linear, fixed, waits or at_once()'


def in_words(error: Invalid) -> Invalid:
    """What a store refused, by the name of the option: `ttl` and not `ttl_ms`."""
    return Invalid(error.message, error.field.removesuffix("_ms"))


# -- time ------------------------------------------------------------------------------------------


def some_time(said: Duration, field: str) -> int:
    """A duration that is longer than nothing."""
    return duration_ms(said, field, low_ms=1)


def lease_time(said: Duration, field: str) -> int:
    return duration_ms(said, field, low_ms=MIN_LEASE_MS, high_ms=MAX_LEASE_MS)


def instant_ms(said: datetime | int | None, field: str = "run_at") -> int | None:
    """Milliseconds since the epoch."""
    if said is None:
        return None
    if isinstance(said, datetime):
        if said.tzinfo is None:
            raise Invalid("a datetime needs a time zone: datetime.now(UTC)", field)
        # Exact, and up: never before the instant that was said.
        found = -((_EPOCH - said) // _MILLISECOND)
        if not 0 <= found <= MAX_INSTANT_MS:
            where = "before 1970" if found < 0 else "behind the year 9000"
            raise Invalid(f"{said} lies {where}, where no job can be due", field)
    else:
        found = said
    if type(found) is not int or not 0 <= found <= MAX_INSTANT_MS:
        raise Invalid(
            f"is {show(said)}, not a datetime with a time zone, nor milliseconds since 1970", field
        )
    return found


# -- names and lists -------------------------------------------------------------------------------


def optional_name(said: str | None, field: str) -> str | None:
    if said is not None:
        check_name(said, field)
    return said


def tag_list(said: Iterable[str], field: str) -> tuple[str, ...]:
    if isinstance(said, str):
        raise Invalid(f"{said!r} is one text and not several: [{said!r}]", field)
    tags = _listed(said, field, "a list of texts")
    if len(tags) > MAX_TAGS:
        raise Invalid(f"are {len(tags)}; at most {MAX_TAGS} are allowed", field)
    for tag in tags:
        check_tag(tag, field)
    return tags


def header_map(said: Mapping[str, str] | None, field: str) -> dict[str, str] | None:
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise BadDeclaration(f"is {show(said)}, not a mapping of texts to texts", field)
    words = [word for pair in said.items() for word in pair]
    for word in words:
        check_text(word, field, MAX_HEADER_BYTES)
    check_text("".join(words), field, MAX_HEADER_BYTES)
    return dict(said)


def job_ids(said: Iterable[Any], field: str) -> tuple[int, ...]:
    """Of jobs, or of their ids."""
    if isinstance(said, int | str) or hasattr(said, "id"):
        raise Invalid("takes several jobs, or their ids: [job]", field)
    ids = tuple(getattr(job, "id", job) for job in _listed(said, field, "a list of jobs"))
    if len(ids) > MAX_DEPENDENCIES:
        raise Invalid(f"are {len(ids)}; at most {MAX_DEPENDENCIES} are allowed", field)
    for each in ids:
        if type(each) is not int or not 1 <= each <= MAX_ID:
            raise Invalid(f"{show(each)} is neither a job nor the id of one", field)
    return ids


def _listed(said: Iterable[Any], field: str, what: str) -> tuple[Any, ...]:
    return tuple(iterable(said, field, what))


def iterable(said: Any, field: str, what: str) -> Iterable[Any]:
    """What can be gone through; what cannot is named before anything is done with it."""
    try:
        iter(said)
    except TypeError:
        raise BadDeclaration(f"is {show(said)}, not {what}", field) from None
    return said  # type: ignore[no-any-return]


# -- the rest --------------------------------------------------------------------------------------


def backoff(said: Backoff | str | timedelta, field: str) -> Backoff:
    """Its parts were read when it was made; a duration is always the same wait. A bare number is
    none: elsewhere that is a factor, or how often."""
    try:
        if isinstance(said, str | timedelta):
            return fixed(said)
        check_struct(said, field, Backoff)
    except Invalid:
        raise BadDeclaration(f"is {show(said)}, not a backoff: say {_BACKOFFS}", field) from None
    return said


def number(said: Any, field: str, low: int, high: int) -> int:
    check_int(said, field, low, high)
    return said  # type: ignore[no-any-return]


def function(said: Any, field: str, what: str) -> None:
    if not callable(said):
        raise BadDeclaration(f"is {show(said)}, not a function {what}", field)
