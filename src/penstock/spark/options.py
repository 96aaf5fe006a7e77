"""Every option of the data source, and what is said to somebody who gets one wrong.

Spark hands over a map of strings whose keys have lost their case. A key that nobody knows is an
error that names the nearest one that is known, as with the server's settings. The descriptions
below are what the documentation shows.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from penstock.model import checks
from penstock.model.errors import Invalid
from penstock.model.job import Codec
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff
from penstock.spark.where import Where

View: TypeAlias = Literal["jobs", "dead", "queues", "events"]
Starting: TypeAlias = Literal["earliest", "latest"]
Count: TypeAlias = Annotated[int, Meta(ge=1)]

SPARKS: Final = frozenset({"checkpointlocation"})  # said to Spark, and passed on to us
VIEWS: Final[tuple[View, ...]] = get_args(View)

T = TypeVar("T", bound="Reaching | EventsOptions")


def _says(description: str) -> Meta:
    return Meta(description=description)


class Reaching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which store, and whose jobs."""

    url: Annotated[str, _says("The store: `penstock://host:6789`. Required.")] = ""
    token: Annotated[str, _says("What lets us in, where the server asks for it.")] = ""
    tenant: Annotated[
        str, _says("Whose jobs; left out: the token's tenant, or `default` without one.")
    ] = ""

    @property
    def where(self) -> Where:
        return Where.of(self.url, self.token, self.tenant)


class WriteOptions(Reaching, frozen=True, kw_only=True):
    """Of `df.write` and `df.writeStream`."""

    queue: Annotated[str, _says("Where the jobs go. Required.")] = ""
    codec: Annotated[
        Codec | None,
        _says(
            "What the payloads are: `json`, `msgpack` or `bytes`; left out: `bytes` where the"
            " column `payload` is binary, else `json`."
        ),
    ] = None
    bulk: Annotated[
        str,
        _says(
            "A name for this write: one that was committed under it within the last week is not"
            " done again. Left out: every write is a new one. Not for streams, whose"
            " micro-batches have names."
        ),
    ] = ""
    deadline_ms: Annotated[
        int,
        _says("How long a write may push nothing before it counts as given up and is dropped."),
    ] = 3_600_000
    in_flight: Annotated[Count, _says("Pushes of one task that may be unanswered.")] = 4
    task: Annotated[str | None, _says("The handler's name; a column may say it too.")] = None
    priority: Annotated[int | None, _says("Higher first; a column may say it too.")] = None
    max_attempts: Annotated[
        int | None, _says("Attempts in all, 0: without end; a column may say it too.")
    ] = None
    backoff: Annotated[
        str, _says('How retries wait, as JSON: `{"kind": "fixed", "base_ms": 5000}`.')
    ] = ""
    durability: Annotated[
        Literal["fsync", "os"] | None,
        _says("Of each push; left out: the store's. The commit covers all of them."),
    ] = None


class JobsOptions(Reaching, frozen=True, kw_only=True):
    """Of `spark.read` with `view` = `jobs`, `dead` or `queues`."""

    view: Annotated[View, _says("`jobs` (the default), `dead`, `queues` or `events`.")] = "jobs"
    queue: Annotated[
        str, _says("Whose jobs; required for `jobs` and `dead`. Of `queues`: this one only.")
    ] = ""
    state: Annotated[State | None, _says("Only jobs in this state; of `jobs`.")] = None
    task: Annotated[str | None, _says("Only jobs of this task; of `jobs` and `dead`.")] = None
    tag: Annotated[str | None, _says("Only jobs with this tag; of `jobs` and `dead`.")] = None
    partitions: Annotated[Count, _says("At most so many tasks share the jobs, by id.")] = 8


class EventsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `spark.read` and `spark.readStream` with `view` = `events`."""

    view: Annotated[View, _says("`events`.")] = "events"
    path: Annotated[
        str,
        _says(
            "The directory of the event log, which every executor must be able to read; `load(path)`"
            " says the same. Required."
        ),
    ] = ""
    starting: Annotated[
        Starting, _says("Where a new stream begins: `earliest` or `latest`. Not for `spark.read`.")
    ] = "earliest"
    max_bytes_per_batch: Annotated[
        Count, _says("About how much of the log one micro-batch of a stream reads.")
    ] = 256 << 20
    split_bytes: Annotated[Count, _says("About how much of the log one task reads.")] = 16 << 20


def read_options(kind: type[T], said: Mapping[str, str]) -> T:
    """The options as `kind` has them."""
    known = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in said.items():
        name = key.lower()
        if name in SPARKS:
            continue
        if name not in known:
            raise unknown("option", name, list(known))
        try:
            values[name] = msgspec.convert(value, known[name], strict=False)
        except msgspec.ValidationError:
            raise Invalid(f"{value!r} is not {_wanted(known[name])}", name) from None
    return kind(**values)


def unknown(what: str, name: str, known: list[str]) -> Invalid:
    near = get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    return Invalid(f"there is no such {what}; {hint}", name)


def _wanted(hint: Any) -> str:
    words = _words(hint)
    return f"one of {', '.join(words)}" if words else "a whole number, or too small a one"


def _words(hint: Any) -> list[str]:
    """What may be said where only some words may be."""
    if isinstance(hint, str):
        return [str(hint)]
    if hint is State:
        return list(State)
    return [word for each in get_args(hint) for word in _words(each)]


def required(value: str, name: str, example: str) -> None:
    if not value:
        raise Invalid(f"is required: .option({name!r}, {example!r})", name)


def check_write(options: WriteOptions) -> None:
    """What the whole write says; what its rows say is seen by their columns."""
    required(options.url, "url", "penstock://host:6789")
    required(options.queue, "queue", "emails")
    checks.check_queue(options.queue)
    checks.check_bulk(options.bulk or None, options.deadline_ms)


def backoff_of(options: WriteOptions) -> Backoff:
    if not options.backoff:
        return Backoff()
    try:
        return msgspec.json.decode(options.backoff, type=Backoff)
    except msgspec.DecodeError as error:
        raise Invalid(f"{options.backoff!r} is no backoff: {error}", "backoff") from None
