"""Compatible commands that push: PUSH, PUSHB, FLOW.

A batch becomes one run, column by column; nothing is made per job beyond what decoding makes. Jobs
that say nothing but their data, the common batch, are decoded by a struct that knows nothing else:
10,000 of them take 2.5 ms from the frame to the run.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw

from penstock.model.answers import Pushed
from penstock.model.errors import Invalid
from penstock.model.job import Codec, JobOptions, KeyClaim, Run
from penstock.model.policy import LEASE_MS, MAX_DURATION_MS, SECOND_MS, Backoff
from penstock.protocol.command import Answer, Encoding, Request, Session
from penstock.protocol.compatible_jobs import CUSTOM, DEBOUNCE, UNIQUE
from penstock.protocol.compatible_reach import Caller, Done, in_their_words
from penstock.protocol.reach import require_dependencies
from penstock.protocol.transcode import NOTHING, NULL

DEBOUNCE_MS: Final = 5_000
MAX_ATTEMPTS: Final = 3
BACKOFF_MS: Final = SECOND_MS
BACKOFF_GROWTH: Final = 2**10  # a wait is at most this many times the base


class Saying(Request, kw_only=True, tag=False):
    """What may be said of one job. Null is as good as nothing said; times are milliseconds."""

    data: Raw = NOTHING
    priority: int | None = None  # 0; higher first
    delay: int | None = None
    ttl: int | None = None  # expires unless it is pulled within this time; 0: never
    timeout: int | None = None  # longest that one attempt may run; 0: without end
    max_attempts: int | None = None  # 3; 0: without end
    # 1000; wait before the first retry. Doubles with each, up to 1024 times this; no jitter.
    backoff: int | None = None
    unique_key: str | None = None  # refused (conflict) while another job with it has not ended
    depends_on: tuple[int, ...] | None = None  # runs when all of these have completed
    tags: tuple[str, ...] | None = None
    lifo: bool | None = None
    remove_on_complete: bool | None = None  # forgotten as soon as it completes
    remove_on_fail: bool | None = None  # forgotten instead of going to the dead letters
    stall_timeout: int | None = None  # 30000; fails unless HEARTBEAT comes within this time
    debounce_id: str | None = None  # answers the job pushed with it within `debounce_ttl`
    debounce_ttl: int | None = None  # 5000; counted from that push
    job_id: str | None = None  # a name of the client's; answers the job that has it while known
    job_id_camel: str | None = msgspec.field(name="jobId", default=None)
    custom_id: str | None = msgspec.field(name="customId", default=None)
    keep_completed_age: int | None = None  # how long it is kept once it has ended
    keep_completed_age_camel: int | None = msgspec.field(name="keepCompletedAge", default=None)
    # What is counted is counted over a queue's jobs, by its operator's word, which a push cannot
    # change. A job with an age of its own is not counted.
    keep_completed_count: int | None = None  # without effect: `retain_count` of its queue counts
    keep_completed_count_camel: int | None = msgspec.field(name="keepCompletedCount", default=None)
    group_id: str | None = None  # jobs of one group run one at a time, in order


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A job of which nothing is said but its data."""

    data: Raw = NOTHING


class PushedId(Done, kw_only=True):
    id: int


class PushedIds(Done, kw_only=True):
    ids: Sequence[int]  # in the order of the jobs


class Push(Saying, tag="PUSH", tag_field="cmd", kw_only=True):
    """Add a job. A key that is taken answers the id of the job that has it."""

    answer: ClassVar[type[Answer]] = PushedId
    queue: str

    async def call(self, session: Session) -> PushedId:
        who = Caller.of(session)
        who.principal.require("push", self.queue)
        pushed = await _push(who, [_run(self.queue, (self,), who.encoding)])
        return PushedId(id=_ids(pushed)[0])


class PushB(Request, tag="PUSHB", kw_only=True):
    """Add jobs, all or none of them; at most 10,000."""

    answer: ClassVar[type[Answer]] = PushedIds
    queue: str
    jobs: Raw  # a list; each job as in PUSH, without the queue

    async def call(self, session: Session) -> PushedIds:
        who = Caller.of(session)
        who.principal.require("push", self.queue)
        encoding = who.encoding
        plain, jobs = _decoded(self.jobs, encoding)
        if not jobs:
            return PushedIds(ids=())
        run = (_plain_run if plain else _run)(self.queue, jobs, encoding)
        return PushedIds(ids=_ids(await _push(who, [run])))


class Child(Saying, tag=False, kw_only=True):
    """A job of a flow that its parent waits for; all that PUSH knows may be said of it."""

    queue: str


class Flowed(Done, kw_only=True):
    parent_id: int
    children_ids: list[int]  # in the order of the children


class Flow(Saying, tag="FLOW", tag_field="cmd", kw_only=True):
    """Add children, in any queues, and a parent that runs when all of them have completed; all or
    none. All that PUSH knows may be said of the parent, too."""

    answer: ClassVar[type[Answer]] = Flowed
    queue: str
    children: tuple[Child, ...] = ()

    async def call(self, session: Session) -> Flowed:
        who = Caller.of(session)
        by_queue: dict[str, list[int]] = {}
        for index, child in enumerate(self.children):
            by_queue.setdefault(child.queue, []).append(index)
        who.principal.require("push", self.queue, *by_queue)
        runs = [
            _run(queue, [self.children[index] for index in indices], who.encoding)
            for queue, indices in by_queue.items()
        ]
        # Jobs of this very push are named by their place in it, from -1 down.
        order = [index for indices in by_queue.values() for index in indices]
        place = {index: number for number, index in enumerate(order, 1)}
        own = (-place[index] for index in range(len(order)))
        parent = _run(self.queue, (self,), who.encoding)
        dependencies = (*(self.depends_on or ()), *own)
        runs.append(msgspec.structs.replace(parent, depends_on=[dependencies]))
        ids = _ids(await _push(who, runs))
        children_ids = [ids[place[index] - 1] for index in range(len(order))]
        return Flowed(parent_id=ids[-1], children_ids=children_ids)


async def _push(who: Caller, runs: list[Run]) -> Pushed:
    if not who.principal.everywhere:
        waited_for = (ids for run in runs if run.depends_on for ids in run.depends_on)
        named = chain.from_iterable(waited_for)
        await require_dependencies(who.principal, who.store, who.tenant, named)
    with in_their_words():
        return await who.store.push(who.tenant, runs)


def _ids(pushed: Pushed) -> Sequence[int]:
    if len(pushed.runs) == 1:
        run = pushed.runs[0]
        return list(range(run.first, run.first + run.count)) if run.ids is None else run.ids
    return pushed.ids


# -- decoding --------------------------------------------------------------------------------------

_PLAIN: Final[dict[Encoding, Any]] = {
    "json": msgspec.json.Decoder(list[_Plain]),
    "msgpack": msgspec.msgpack.Decoder(list[_Plain]),
}
_SAYINGS: Final[dict[Encoding, Any]] = {
    "json": msgspec.json.Decoder(list[Saying]),
    "msgpack": msgspec.msgpack.Decoder(list[Saying]),
}


def _decoded(jobs: Raw, encoding: Encoding) -> tuple[bool, list[Any]]:
    """Whether the jobs say nothing but their data, and the jobs."""
    try:
        return True, _PLAIN[encoding].decode(jobs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return False, _SAYINGS[encoding].decode(jobs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(str(error), "jobs") from error


# -- runs ------------------------------------------------------------------------------------------

_DATA: Final = attrgetter("data")
_SHARED: Final = attrgetter(  # the parameters of `options_of` behind the codec, in their order
    "priority",
    "ttl",
    "timeout",
    "max_attempts",
    "backoff",
    "tags",
    "lifo",
    "remove_on_complete",
    "remove_on_fail",
    "stall_timeout",
    "keep_completed_age",
    "keep_completed_age_camel",
)
_OWN: Final = attrgetter(
    "delay",
    "group_id",
    "depends_on",
    "debounce_id",
    "job_id",
    "job_id_camel",
    "custom_id",
    "unique_key",
)
_NOTHING_OWN: Final = (None,) * 8


def _plain_run(queue: str, jobs: Sequence[Any], encoding: Encoding) -> Run:
    data, ends = _packed(jobs, encoding)
    return Run(queue=queue, data=data, ends=ends, options=(options_of(encoding),))


def _run(queue: str, jobs: Sequence[Saying], encoding: Encoding) -> Run:
    data, ends = _packed(jobs, encoding)
    shared = list(map(_SHARED, jobs))
    table: dict[tuple[Any, ...], int] = {}
    option_of: list[int] | None = None
    if shared.count(shared[0]) == len(shared):
        table[shared[0]] = 0
    else:
        option_of = [table.setdefault(each, len(table)) for each in shared]
    options = tuple(options_of(encoding, *each) for each in table)
    run = Run(queue=queue, data=data, ends=ends, options=options, option_of=option_of)
    own = list(map(_OWN, jobs))
    if own.count(_NOTHING_OWN) == len(own):
        return run
    delays, groups, depends_on, *keyed = zip(*own, strict=True)
    return msgspec.structs.replace(
        run,
        delay_ms=[delay or None for delay in delays] if any(delays) else None,
        groups=[group or None for group in groups] if any(groups) else None,
        depends_on=[ids or () for ids in depends_on] if any(depends_on) else None,
        more_keys=[_keys(job) for job in jobs] if any(map(any, keyed)) else None,
    )


def _packed(jobs: Sequence[Any], encoding: Encoding) -> tuple[bytes, "array[int]"]:
    payloads: list[Any] = list(map(_DATA, jobs))
    sizes = list(map(len, payloads))
    if 0 in sizes:
        null = NULL[encoding]
        payloads = [
            payload if size else null for payload, size in zip(payloads, sizes, strict=True)
        ]
        sizes = list(map(len, payloads))
    return b"".join(payloads), array("I", accumulate(sizes))


def _keys(job: Saying) -> tuple[KeyClaim, ...]:
    """The keys that a job asks for, in the order in which they are looked at.

    The two that answer a known job come before the one that refuses, so that a push that is said
    again with the same `job_id` is answered and not refused for the `unique_key` it took itself.
    """
    keys = []
    window = DEBOUNCE_MS if job.debounce_ttl is None else job.debounce_ttl
    if job.debounce_id and window:
        keys.append(KeyClaim(DEBOUNCE + job.debounce_id, "return", window))
    custom_id = job.job_id or job.job_id_camel or job.custom_id
    if custom_id:
        keys.append(KeyClaim(CUSTOM + custom_id, "return", "retained"))
    if job.unique_key:
        keys.append(KeyClaim(UNIQUE + job.unique_key, "reject", "live"))
    return tuple(keys)


@lru_cache(maxsize=1_024)
def options_of(
    codec: Codec,
    priority: int | None = None,
    ttl: int | None = None,
    timeout: int | None = None,
    max_attempts: int | None = None,
    backoff: int | None = None,
    tags: tuple[str, ...] | None = None,
    lifo: bool | None = None,
    remove_on_complete: bool | None = None,
    remove_on_fail: bool | None = None,
    stall_timeout: int | None = None,
    keep_completed_age: int | None = None,
    keep_completed_age_camel: int | None = None,
) -> JobOptions:
    """What jobs say in common, in our words. Remembered: the same few come again and again."""
    base_ms = BACKOFF_MS if backoff is None else backoff
    age = keep_completed_age or keep_completed_age_camel
    return JobOptions(
        codec=codec,
        priority=priority or 0,
        max_attempts=MAX_ATTEMPTS if max_attempts is None else max_attempts,
        backoff=Backoff(
            base_ms=base_ms, cap_ms=min(base_ms * BACKOFF_GROWTH, MAX_DURATION_MS), jitter="none"
        ),
        # A lease of the usual length is not said, so that such jobs are claimed the quick way.
        lease_ms=None if stall_timeout in (None, 0, LEASE_MS) else stall_timeout,
        timeout_ms=timeout or None,
        ttl_ms=ttl or None,
        lifo=bool(lifo),
        tags=tags or (),
        retain_ms=0 if remove_on_complete else age or None,
        retain_dead_ms=0 if remove_on_fail else None,
    )
