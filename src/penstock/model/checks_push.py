"""The checks of a push: what a producer may say, for runs of up to 10,000 jobs.

Written for runs: what the jobs share is looked at once, and lists are judged by a few passes in C
(`map`, `max`, `set`, `join`). Only a run that fails such a pass is walked job by job, to say which
one is wrong. A run of 10,000 jobs with one option set and no lists costs 0.1 ms, not counting
the look into JSON payloads.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain, compress, islice, repeat
from operator import is_, is_not, sub
from types import NoneType
from typing import Any, Final

from msgspec.structs import astuple

from penstock.model import payload as payloads
from penstock.model.checks_values import (
    MAX_INT32,
    MAX_NAME_BYTES,
    MIN_INT32,
    check_bool,
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
    is_queue,
    is_tenant,
    show,
)
from penstock.model.duration import say_ms
from penstock.model.errors import BatchTooLarge, Invalid, PayloadTooLarge
from penstock.model.job import (
    DEFAULT_OPTIONS,
    MAX_BATCH,
    MAX_DEPENDENCIES,
    MAX_ID,
    MAX_PAYLOAD,
    JobOptions,
    KeyClaim,
    Run,
)
from penstock.model.payload import DIGEST_BYTES
from penstock.model.policy import MAX_DURATION_MS, Backoff
from penstock.model.schedule import MAX_INSTANT_MS

MAX_TAGS: Final = 16
MAX_HEADER_BYTES: Final = 4_096
MAX_MORE_KEYS: Final = 8
MAX_BACKOFF_STEPS: Final = 100

_BACKOFF_KINDS: Final = ("none", "fixed", "linear", "exponential", "list")
_JITTERS: Final = ("none", "full", "equal")
_ON_CONFLICT: Final = ("return", "match", "replace", "reject")
_KEEP_KEY: Final = ("live", "started", "retained")
_INTEGER_ARRAYS: Final = "bBhHiIlLqQ"
# What a plain run has behind its queue, its payloads and its options.
_NOTHING_MORE: Final = (None,) * (len(Run.__struct_fields__) - 4)


def check_push(
    tenant: object,
    runs: Sequence[Run],
    producer: object = None,
    sequence: object = None,
    bulk: object = None,
    part: object = "",
    durability: object = None,
    content: object = None,
    *,
    contents: bool = True,
    right: JobOptions = DEFAULT_OPTIONS,
) -> None:
    """Without `contents` nobody looks into JSON: whoever the push is passed on to does.
    `right`: options that have passed before, and cannot have changed since."""
    if type(tenant) is not str or not is_tenant(tenant):
        check_tenant(tenant)
    if producer is not None or sequence is not None or content is not None:
        check_producer(producer, sequence, content)
    if bulk is not None:
        check_name(bulk, "bulk")
    if part != "" or type(part) is not str:
        check_name(part, "part", empty_ok=True)
        if bulk is None:
            raise Invalid(f"{show(part)} names a part, but there is no bulk", "part")
    if durability is not None:
        check_one_of(durability, "durability", ("fsync", "os"))
    check_runs(runs, contents, right)


class Door:
    """The checks of pushes that come one after the other: a single one mostly says what the one
    before it has said, and nothing is left to look at but its payload and its number."""

    __slots__ = ("_options", "_producer", "_queue", "_tenant")

    def __init__(self) -> None:
        # Of the last push that was right, its first run.
        self._tenant = ""
        self._queue = ""
        self._options: tuple[JobOptions, ...] = (DEFAULT_OPTIONS,)
        self._producer: str | None = None

    def check_push(
        self,
        tenant: str,
        runs: Sequence[Run],
        producer: str | None,
        sequence: int | None,
        bulk: str | None,
        part: str,
        durability: str | None,
        content: bytes | None,
    ) -> None:
        right = self._options[0]
        check_push(tenant, runs, producer, sequence, bulk, part, durability, content, right=right)
        run = runs[0]
        self._tenant, self._queue, self._options = tenant, run.queue, run.options
        self._producer = producer

    def knows(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        producer: str | None,
        sequence: int | None,
        content: bytes | None,
    ) -> bool:
        """Whether one plain job is right, and pushed like the last; False says nothing against it."""
        if (
            options is not self._options
            or queue != self._queue
            or tenant != self._tenant
            or producer != self._producer
            or len(options) != 1
            or type(queue) is not str  # what is equal may be of a kind that no log can hold
            or type(tenant) is not str
            or type(payload) is not bytes
            or len(payload) > MAX_PAYLOAD
        ):
            return False
        if producer is None:
            if sequence is not None or content is not None:
                return False
        elif (
            type(producer) is not str
            or type(sequence) is not int
            or type(content) is not bytes
            or not 0 <= sequence <= MAX_ID
            or len(content) != DIGEST_BYTES
        ):
            return False
        if options[0].codec == "json":
            payloads.check_json(payload)
        return True


def check_producer(producer: object, sequence: object, content: object) -> None:
    if (
        type(producer) is str
        and type(sequence) is int
        and type(content) is bytes
        and 0 < len(producer) <= MAX_NAME_BYTES
        and producer.isascii()
        and 0 <= sequence <= MAX_ID
        and len(content) == DIGEST_BYTES
    ):
        return  # nearly always, and every push through a server comes by here
    if producer is not None or sequence is not None:
        if producer is None:
            raise Invalid("a sequence counts for a producer; name one", "producer")
        if sequence is None:
            raise Invalid("a producer numbers its pushes; give the sequence", "sequence")
        check_name(producer, "producer")
        check_int(sequence, "sequence", 0, MAX_ID)
    if content is not None:
        if type(content) is not bytes or len(content) != DIGEST_BYTES:
            raise Invalid(f"is {show(content)}, not {DIGEST_BYTES} bytes", "content")
        if producer is None:
            raise Invalid("stands for a producer's push; name the producer", "content")


def check_runs(
    runs: Sequence[Run], contents: bool = True, right: JobOptions = DEFAULT_OPTIONS
) -> None:
    if type(runs) is list and len(runs) == 1 and _is_plain(runs[0], contents, right):
        return
    check_listed(runs, "runs")
    total = 0
    for run in runs:
        check_struct(run, "runs", Run)
        if not isinstance(run.ends, (array, list, tuple)):
            raise Invalid(f"is {show(run.ends)}, not a list, tuple or array of integers", "ends")
        if not len(run.ends):
            raise Invalid("has a run without jobs; leave it out", "runs")
        total += len(run.ends)
    if not total:
        raise Invalid("is empty; push at least one job", "runs")
    if total > MAX_BATCH:
        raise BatchTooLarge(f"{total} jobs; at most {MAX_BATCH} may be pushed in one call", "runs")
    before = 0
    for run in runs:
        _check_run(run, before, total)
        if contents:
            _check_contents(run)
        before += len(run.ends)


def _is_plain(run: Run, contents: bool, right: JobOptions) -> bool:
    """Whether a run is right in the shortest way: its jobs differ in nothing but their payload.

    False says nothing against it. Single pushes are mostly this, and spend a third of the time here.
    """
    if type(run) is not Run:
        return False
    queue, data, ends, options, *more = astuple(run)
    if (
        not all(map(is_, more, _NOTHING_MORE))
        or type(ends) is not array
        or type(options) is not tuple
        or type(data) is not bytes
        or type(queue) is not str
        or len(options) != 1
        or ends.typecode != "I"
        or not is_queue(queue)
    ):
        return False
    count, size, option = len(ends), len(data), options[0]
    if not 1 <= count <= MAX_BATCH or ends[-1] != size or size > MAX_PAYLOAD:
        return False
    if count > 1 and not _ascends(ends):
        return False
    if option is not right and option is not DEFAULT_OPTIONS:
        check_options(option)
    if contents and option.codec == "json":
        if count == 1:
            payloads.check_json(data)
        else:
            payloads.check_many("json", data, ends)
    return True


def _check_run(run: Run, before: int, total: int) -> None:
    """One run, `before` jobs into a push of `total`."""
    check_queue(run.queue)
    count = len(run.ends)
    _check_cuts(run.data, run.ends)
    options = run.options
    if type(options) is not tuple or not 1 <= len(options) <= count:
        raise Invalid("is not a tuple of one option set or more, at most one per job", "options")
    for each in options:
        if each is not DEFAULT_OPTIONS:
            check_options(each)
    option_of = run.option_of
    if option_of is not None:
        _check_option_of(option_of, count, len(options))
    if run.delay_ms is not None or run.run_at is not None:
        _check_times(run, count)
    if run.keys is not None:
        _check_names(run.keys, count, "key")
    if run.more_keys is not None:
        _check_more_keys(run, run.more_keys, count)
    if run.groups is not None:
        _check_names(run.groups, count, "group")
        if any(each.lifo for each in options):
            _check_lifo(run, run.groups)
    if run.headers is not None:
        _check_headers(run.headers, count)
    if run.depends_on is not None:
        _check_dependencies(run.depends_on, count, before, total)


# -- options -------------------------------------------------------------------------------------


def check_options(options: JobOptions) -> None:
    check_struct(options, "options", JobOptions)
    # Most fields hold the very object that is the default. Leaving those out saves a third of the
    # time, which counts where jobs are pushed one by one.
    values = astuple(options)
    for check, value in compress(
        zip(_OPTION_CHECKS, values, strict=True), map(is_not, values, _OPTION_DEFAULTS)
    ):
        check(value)


def check_backoff(backoff: Backoff) -> None:
    check_struct(backoff, "backoff", Backoff)
    check_one_of(backoff.kind, "backoff.kind", _BACKOFF_KINDS)
    check_one_of(backoff.jitter, "backoff.jitter", _JITTERS)
    check_int(backoff.base_ms, "backoff.base_ms", 0, MAX_DURATION_MS)
    check_int(backoff.cap_ms, "backoff.cap_ms", 0, MAX_DURATION_MS)
    steps = backoff.list_ms
    if type(steps) is not tuple or len(steps) > MAX_BACKOFF_STEPS:
        raise Invalid(f"is not a tuple of at most {MAX_BACKOFF_STEPS} waits", "backoff.list_ms")
    if backoff.kind == "list" and not steps:
        raise Invalid('is empty; backoff "list" needs at least one wait', "backoff.list_ms")
    for step in steps:
        check_int(step, "backoff.list_ms", 0, MAX_DURATION_MS)


def check_on_conflict(on_conflict: object) -> None:
    check_one_of(on_conflict, "on_conflict", _ON_CONFLICT)


def check_keep_key(keep_key: object) -> None:
    if type(keep_key) is int:
        check_int(keep_key, "keep_key", 1, MAX_DURATION_MS)
    elif type(keep_key) is not str or keep_key not in _KEEP_KEY:
        raise Invalid(
            f"{show(keep_key)} is neither one of {', '.join(_KEEP_KEY)} nor a duration in ms",
            "keep_key",
        )


def check_tags(tags: object) -> None:
    if type(tags) is not tuple or len(tags) > MAX_TAGS:
        raise Invalid(f"is not a tuple of at most {MAX_TAGS} tags", "tags")
    for tag in tags:
        check_tag(tag, "tags")


def _option_checks() -> tuple[Callable[[Any], None], ...]:
    """A check for each field of JobOptions, in their order."""
    duration = partial(check_optional_int, high=MAX_DURATION_MS)
    checks: dict[str, Callable[[Any], None]] = {
        "codec": check_codec,
        "task": partial(check_name, field="task", empty_ok=True),
        "priority": partial(check_int, field="priority", low=MIN_INT32, high=MAX_INT32),
        "max_attempts": partial(check_int, field="max_attempts", low=0, high=MAX_INT32),
        "backoff": check_backoff,
        "lease_ms": check_lease_ms,
        "timeout_ms": partial(duration, field="timeout_ms", low=1),
        "ttl_ms": partial(duration, field="ttl_ms", low=1),
        "on_conflict": check_on_conflict,
        "keep_key": check_keep_key,
        "on_dependency_failure": partial(
            check_one_of, field="on_dependency_failure", words=("fail", "ignore")
        ),
        "lifo": partial(check_bool, field="lifo"),
        "tags": check_tags,
        "retain_ms": partial(duration, field="retain_ms", low=0),
        "retain_dead_ms": partial(duration, field="retain_dead_ms", low=0),
    }
    return tuple(checks[field] for field in JobOptions.__struct_fields__)


_OPTION_CHECKS: Final = _option_checks()
_OPTION_DEFAULTS: Final = astuple(DEFAULT_OPTIONS)


def _options_by_job(run: Run) -> Iterable[JobOptions]:
    if run.option_of is None:
        return repeat(run.options[0])
    return map(run.options.__getitem__, run.option_of)


def _check_option_of(option_of: Sequence[int], count: int, options: int) -> None:
    if type(option_of) is not bytes and not _holds_integers(option_of):
        raise Invalid("is not a list, tuple, array or bytes of integers", "option_of")
    _check_length(option_of, count, "option_of")
    used = set(option_of)
    if min(used) < 0 or max(used) >= options:
        raise Invalid(f"points outside of the {options} option sets", "option_of")


# -- payloads ------------------------------------------------------------------------------------


def _holds_integers(values: object) -> bool:
    if isinstance(values, array):
        return values.typecode in _INTEGER_ARRAYS
    return isinstance(values, (list, tuple)) and set(map(type, values)) == {int}


def _check_cuts(data: object, ends: Sequence[int]) -> None:
    """`ends` cuts `data` into payloads without a rest, none of them too large."""
    if type(data) is not bytes:
        raise Invalid(f"is {show(data)}, not plain bytes", "payload")
    if not _holds_integers(ends):
        raise Invalid("is not a list, tuple or array of integers", "ends")
    size = len(data)
    if ends[-1] != size:
        raise Invalid(f"ends at {show(ends[-1])}, but there are {size} bytes", "ends")
    if len(ends) > 1 and not _ascends(ends):
        raise Invalid("does not ascend from 0", "ends")
    if size > MAX_PAYLOAD:
        largest = max(map(sub, ends, chain((0,), ends)))
        if largest > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"has {largest} bytes; at most {MAX_PAYLOAD} (10 MiB) are allowed", "payload"
            )


def _ascends(ends: Sequence[int]) -> bool:
    """Whether no end lies before 0, nor before the end that precedes it.

    10,000 numbers of 32 bits are compared as two long integers, because that takes 60 µs and any
    look at each of them 230 µs or more. Every number gets a guard, a bit above its 31; subtracting
    the preceding number borrows that bit exactly where the preceding one is larger. Above the last
    number there is nothing to compare: its own guard pays for what is subtracted there.
    """
    if (
        isinstance(ends, array)
        and ends.itemsize == 4
        and ends[-1] <= MAX_INT32
        and sys.byteorder == "little"
    ):
        numbers = int.from_bytes(ends, "little")
        every, but_one = _guards(len(ends)), _guards(len(ends) - 1)
        if numbers & every:
            return False
        return ((numbers >> 32 | every) - numbers) & but_one == but_one
    return ends[0] >= 0 and min(map(sub, ends[1:], ends), default=0) >= 0


@lru_cache(maxsize=16)
def _guards(count: int) -> int:
    return int.from_bytes(b"\0\0\0\x80" * count, "little")


def _check_contents(run: Run) -> None:
    """JSON is looked into; the other codecs are opaque."""
    if len(run.options) == 1 and run.options[0].codec != "json":
        return
    codecs = {options.codec for options in run.options}
    if "json" not in codecs:
        return
    if len(codecs) == 1:
        payloads.check_many("json", run.data, run.ends)
        return
    for options, payload in zip(_options_by_job(run), run.payloads(), strict=False):
        if options.codec == "json":
            payloads.check_json(payload)


# -- what each job says for itself ---------------------------------------------------------------


def _check_length(values: Sequence[Any], count: int, field: str) -> None:
    if len(values) != count:
        raise Invalid(f"has {len(values)} entries for {count} jobs", field)


def _check_column(values: Sequence[Any], count: int, field: str) -> None:
    check_listed(values, field)
    _check_length(values, count, field)


def _check_times(run: Run, count: int) -> None:
    delays, instants = run.delay_ms, run.run_at
    _check_time(delays, count, "delay_ms", MAX_DURATION_MS)
    _check_time(instants, count, "run_at", MAX_INSTANT_MS)
    if delays is not None and instants is not None:
        for delay, instant in islice(zip(_by_job(delays), _by_job(instants), strict=False), count):
            if delay is not None and instant is not None:
                raise Invalid("cannot go with delay_ms in one job; give one of them", "run_at")
    if delays is not None and any(options.ttl_ms is not None for options in run.options):
        jobs = zip(_options_by_job(run), _by_job(delays), strict=False)
        for options, delay in islice(jobs, count):
            if options.ttl_ms is not None and delay is not None and options.ttl_ms <= delay:
                raise Invalid(
                    f"{say_ms(options.ttl_ms)} is over before the delay of {say_ms(delay)} is",
                    "ttl_ms",
                )


def _by_job(times: int | Sequence[int | None]) -> Iterable[int | None]:
    return repeat(times) if isinstance(times, int) else times


def _check_time(times: object, count: int, field: str, high: int) -> None:
    if not isinstance(times, (array, list, tuple)):
        check_optional_int(times, field, 0, high)
        return
    _check_length(times, count, field)
    types = set(map(type, times))
    given = times if types == {int} else [time for time in times if time is not None]
    if given and not (types <= {int, NoneType} and min(given) >= 0 and max(given) <= high):
        for time in given:
            check_optional_int(time, field, 0, high)


def _check_names(names: Sequence[str | None], count: int, field: str) -> None:
    _check_column(names, count, field)
    types = set(map(type, names))
    given = names if types == {str} else [name for name in names if name is not None]
    if given and not (types <= {str, NoneType} and _surely_names(given)):
        for name in given:
            check_name(name, field)


def _surely_names(names: Iterable[Any]) -> bool:
    sizes = set(map(len, names))
    return min(sizes) > 0 and max(sizes) <= MAX_NAME_BYTES and "".join(names).isascii()


def _check_lifo(run: Run, groups: Sequence[str | None]) -> None:
    for options, group in zip(_options_by_job(run), groups, strict=False):
        if options.lifo and group is not None:
            raise Invalid(f"cannot go with a group ({show(group)}), which keeps order", "lifo")


def _check_more_keys(run: Run, more_keys: Sequence[tuple[KeyClaim, ...]], count: int) -> None:
    _check_column(more_keys, count, "more_keys")
    keys = run.keys if run.keys is not None else repeat(None)
    for key, claims in zip(keys, more_keys, strict=False):
        if type(claims) is not tuple or len(claims) > MAX_MORE_KEYS:
            raise Invalid(f"is not a tuple of at most {MAX_MORE_KEYS} keys", "more_keys")
        carried = set() if key is None else {key}
        for claim in claims:
            check_struct(claim, "more_keys", KeyClaim)
            check_name(claim.key, "key")
            check_on_conflict(claim.on_conflict)
            check_keep_key(claim.keep_key)
            if claim.key in carried:
                raise Invalid(f"{show(claim.key)} is given twice for one job", "key")
            carried.add(claim.key)


def _check_headers(headers: Sequence[dict[str, str] | None], count: int) -> None:
    _check_column(headers, count, "headers")
    given = [each for each in headers if each is not None]
    if given and not _surely_headers(given):
        for each in given:
            check_struct(each, "headers", dict)
            words = [*each, *each.values()]
            if set(map(type, words)) - {str}:
                raise Invalid("holds something else than plain str", "headers")
            check_text("".join(words), "headers", MAX_HEADER_BYTES)


def _surely_headers(headers: Sequence[dict[str, str]]) -> bool:
    if set(map(type, headers)) != {dict}:
        return False
    words = list(chain.from_iterable(chain.from_iterable(map(dict.items, headers))))
    return set(map(type, words)) == {str} and (
        2 * max(map(len, headers)) * max(map(len, words)) <= MAX_HEADER_BYTES
        and "".join(words).isascii()
    )


def _check_dependencies(
    depends_on: Sequence[tuple[int, ...]], count: int, before: int, total: int
) -> None:
    _check_column(depends_on, count, "depends_on")
    for place, ids in enumerate(depends_on, before + 1):
        if ids == () and type(ids) is tuple:
            continue
        if type(ids) is not tuple or len(ids) > MAX_DEPENDENCIES:
            raise Invalid(f"is not a tuple of at most {MAX_DEPENDENCIES} ids", "depends_on")
        if set(map(type, ids)) != {int}:
            raise Invalid("holds something else than an integer", "depends_on")
        if min(ids) < -total or max(ids) > MAX_ID or 0 in ids:
            raise Invalid(
                f"names a job that cannot be: ids go from 1 to {MAX_ID}, "
                f"jobs of this push from -1 to -{total}",
                "depends_on",
            )
        if -place in ids:
            raise Invalid(f"-{place} is the job itself", "depends_on")
