"""What may be said to a worker. One value, so that it travels to the processes of a supervisor."""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from penstock.client.said import lease_time
from penstock.model.checks_values import check_queue
from penstock.model.errors import Invalid
from penstock.settings import LogFormat, LogLevel

PoolKind = Literal["async", "thread", "process"]

_CHOICES: Final = {
    "pool": get_args(PoolKind),
    "log_format": get_args(LogFormat),
    "log_level": get_args(LogLevel),
}
CONCURRENCY: Final = 100
MAX_WEIGHT: Final = 1_000


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    where: str = ""  # MODULE:APP; processes that are started need it
    url: str | None = None  # instead of the app's
    queues: dict[str, int] = {}  # with their weights; none: those of the app's tasks, all alike
    concurrency: int | None = None  # handlers at once; None: by the pool
    pool: PoolKind = "async"
    lease_ms: int | None = None  # None: what the jobs ask for, else 30 s
    shutdown_s: float = 30.0  # within which it ends once it is told to
    max_jobs: int | None = None  # after which the process ends; a supervisor starts another
    max_rss_mb: int | None = None  # likewise
    cron: bool = True  # whether the app's schedules are kept installed
    name: str = ""  # what the store is told; default: host:pid
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    @property
    def slots(self) -> int:
        if self.concurrency is not None:
            return self.concurrency
        return os.cpu_count() or 1 if self.pool == "process" else CONCURRENCY

    def called(self) -> str:
        return self.name or f"{socket.gethostname()}:{os.getpid()}"


def said(flags: Mapping[str, Any]) -> WorkerSettings:
    """The settings as the command line says them."""
    values = {name: value for name, value in flags.items() if value is not None}
    if "queues" in values:
        values["queues"] = weighted(values["queues"])
    lease = values.pop("lease", None)
    if lease is not None:
        values["lease_ms"] = lease_time(lease, "lease")
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            raise Invalid(f"{values[name]!r} is not one of {', '.join(choices)}", name)
    return WorkerSettings(**values)


def weighted(said: Sequence[str]) -> dict[str, int]:
    """Queues as the command line says them: `emails:3,reports`; unsaid, a weight is 1."""
    queues: dict[str, int] = {}
    for part in ",".join(said).split(","):
        name, colon, weight = part.strip().partition(":")
        check_queue(name, "queues")
        if colon and not (weight.isdecimal() and 1 <= int(weight) <= MAX_WEIGHT):
            raise Invalid(f"{weight!r} is no weight from 1 to {MAX_WEIGHT}: emails:3", "queues")
        if name in queues:
            raise Invalid(f"{name!r} is named twice", "queues")
        queues[name] = int(weight) if colon else 1
    return queues
