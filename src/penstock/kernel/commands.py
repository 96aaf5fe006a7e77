"""Commands: everything that can change the kernel, as values. A journal stores exactly these.

A command carries what the kernel must not make up itself: lease tokens, digests, cron instants,
where payloads were put. Payload bytes stay outside; a load says in which chunk they lie.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.kernel.blocks import RELATIVE, Place, Version
from penstock.model.job import Codec, JobError, JobOptions, KeyClaim, LogLine
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Caps, QueueConfig
from penstock.model.schedule import CronSpec

if TYPE_CHECKING:
    Ends = array[int]
else:
    Ends = array  # takes no parameter at run time before Python 3.12


class Load(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One run of a push, with its payloads already put into a chunk from `start` on."""

    queue: str
    chunk: int
    start: int
    ends: Ends  # relative to `start`
    options: Sequence[JobOptions]
    option_of: bytes | Sequence[int] | None = None
    delay_ms: int | Sequence[int | None] | None = None
    run_at: int | Sequence[int | None] | None = None
    keys: Sequence[tuple[KeyClaim, ...]] | None = None
    digests: bytes | None = None  # 16 bytes a job, where there are keys
    groups: Sequence[str | None] | None = None
    headers: Sequence[dict[str, str] | None] | None = None
    depends_on: Sequence[tuple[int, ...]] | None = None

    def option(self, index: int) -> JobOptions:
        return self.options[0 if self.option_of is None else self.option_of[index]]

    def digest(self, index: int) -> bytes:
        return self.digests[index * 16 : index * 16 + 16] if self.digests is not None else b""

    def place(self, index: int) -> Place:
        begin = self.ends[index - 1] if index else 0
        return self.chunk, self.start + begin, self.start + self.ends[index]

    def said_run_at(self, index: int) -> int | None:
        """The instant that the producer named; RELATIVE for a delay."""
        said = at(self.run_at, index)
        return RELATIVE if said is None and at(self.delay_ms, index) is not None else said

    def version(self, index: int) -> Version:
        """What one job says, by itself; when it is due depends on the clock and is left open."""
        return Version(
            options=self.option(index),
            payload=self.place(index),
            digest=self.digest(index),
            said_run_at=self.said_run_at(index),
            run_at=None,
            group=self.groups[index] if self.groups is not None else None,
            headers=self.headers[index] if self.headers is not None else None,
            depends_on=self.depends_on[index] if self.depends_on is not None else (),
        )


def at(column: int | Sequence[int | None] | None, index: int) -> int | None:
    """One value of a column that holds one for all, one each, or none."""
    return column if column is None or isinstance(column, int) else column[index]


def due(
    run_at: int | Sequence[int | None] | None,
    delay_ms: int | Sequence[int | None] | None,
    index: int,
    now: int,
) -> int | None:
    """When a job is due that says this; None: now."""
    instant = at(run_at, index)
    if instant is None:
        delay = at(delay_ms, index)
        instant = None if delay is None else now + delay
    return instant if instant is not None and instant > now else None


class Command(msgspec.Struct, tag=True, gc=False, omit_defaults=True):
    """Base of all commands."""


class Instead(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """In whose place the instants of a push come: those of other configs of that name."""

    queue: str
    name: str
    config_hash: str  # of those that come, and of those that stay
    refresh: bool = False  # only if no other config came after this one; then nothing leaves


class Push(Command, kw_only=True, gc=False):
    tenant: str
    loads: Sequence[Load]
    producer: str | None = None
    sequence: int = 0
    content: bytes = b""  # digest of the whole push; of a producer's only
    bulk: str | None = None
    part: str = ""
    instead: Instead | None = None  # then each job has its key, and there may be none


class Claim(Command, gc=False):
    tenant: str
    queues: Sequence[str]
    n: int
    token: str
    lease_ms: int | None = None
    worker: str = ""


class Ack(Command, gc=False):
    tenant: str
    lease: str
    ids: Sequence[int] | None = None
    results: dict[int, Place] | None = None
    codec: Codec = "json"


class Fail(Command, gc=False):
    tenant: str
    lease: str
    error: JobError
    ids: Sequence[int] | None = None
    retry_in_ms: int | None = None
    dead: bool = False


class Release(Command, gc=False):
    tenant: str
    lease: str
    ids: Sequence[int] | None = None


class Extend(Command, gc=False):
    tenant: str
    lease: str
    lease_ms: int | None = None


class Report(Command, kw_only=True, gc=False):
    tenant: str
    lease: str
    job_id: int
    progress: int | None = None
    message: str | None = None
    logs: Sequence[LogLine] = ()
    partial: str | None = None


class Cancel(Command, gc=False):
    tenant: str
    ids: Sequence[int]
    discard: bool = False


class Edit(Command, kw_only=True, gc=False):
    tenant: str
    job_id: int
    priority: int | None = None
    run_at: int | None = None
    delay_ms: int | None = None
    payload: Place | None = None
    digest: bytes = b""
    codec: Codec | None = None


class Redrive(Command, kw_only=True, gc=False):
    tenant: str
    queue: str
    ids: Sequence[int] | None = None
    limit: int | None = None
    fingerprint: str | None = None


class PurgeDead(Command, gc=False):
    tenant: str
    queue: str
    ids: Sequence[int] | None = None


class Configure(Command, gc=False):
    tenant: str
    queue: str
    config: QueueConfig


class ConfigureTenant(Command, gc=False):
    tenant: str
    bounds: Bounds


class Drain(Command, gc=False):
    """What waits is thrown away; with a state: what is in that one, if it is old enough."""

    tenant: str
    queue: str
    state: State | None = None
    older_ms: int = 0
    limit: int | None = None


class Purge(Command, gc=False):
    tenant: str
    queue: str


class OpenBulk(Command, gc=False):
    tenant: str
    bulk: str
    deadline_ms: int


class CommitBulk(Command, gc=False):
    tenant: str
    bulk: str
    parts: Sequence[str] | None = None


class AbortBulk(Command, gc=False):
    tenant: str
    bulk: str


class PutCron(Command, kw_only=True, gc=False):
    """The cron and its instants to install, each a job of `load` with its key."""

    tenant: str
    spec: CronSpec
    config_hash: str
    instants: Sequence[int]
    load: Load | None  # None: nothing to install
    refresh: bool = False  # only if it is known under this hash


class DropCron(Command, gc=False):
    """A cron and its instants; with a queue: the instants of that name there that have no cron."""

    tenant: str
    name: str
    queue: str | None = None
    config_hash: str | None = None  # with a queue: only of this config


class Tick(Command, gc=False):
    """Time passes, and nothing else: at most `steps` of what is due take effect."""

    steps: int = 1_000


class Resume(Command, gc=False):
    """The store was opened: from here on these caps hold.

    If it had not been closed, ids given out before may be gone from its history: then every queue
    goes on in a new block, none of them below `block`.
    """

    caps: Caps
    block: int | None = None
