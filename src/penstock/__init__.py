"""Penstock, a job queue.

    from penstock import Penstock

    app = Penstock("sqlite:///jobs.db")

Names of the SDK are loaded when they are first asked for: `penstock --version` and processes that
need a store alone pay for nothing else.
"""

from typing import TYPE_CHECKING, Any

from penstock.model.version import __version__

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.backoff import at_once, exponential, fixed, linear, waits
    from penstock.client.context import Context
    from penstock.client.crons import CronMessage, CronService
    from penstock.client.delayed import DelayedQueue, Offer
    from penstock.client.errors import (
        BadDeclaration,
        BadResult,
        BlocksTheLoop,
        Dead,
        JobFailed,
        Retry,
        SoftTimeout,
        UnknownTask,
    )
    from penstock.client.flow import Flow, chain, group
    from penstock.client.job import PushedJob, PushedJobs
    from penstock.client.middleware import Middleware
    from penstock.client.pushed_flow import PushedFlow
    from penstock.client.task import Task
    from penstock.model.errors import (
        Conflict,
        Deadline,
        Invalid,
        NotFound,
        Overloaded,
        PenstockError,
        RateLimited,
        StorageFull,
        Unavailable,
    )

_WHERE = {
    "Conflict": "model.errors",
    "Deadline": "model.errors",
    "Invalid": "model.errors",
    "NotFound": "model.errors",
    "Overloaded": "model.errors",
    "PenstockError": "model.errors",
    "RateLimited": "model.errors",
    "StorageFull": "model.errors",
    "Unavailable": "model.errors",
    "Penstock": "client.app",
    "at_once": "client.backoff",
    "exponential": "client.backoff",
    "fixed": "client.backoff",
    "linear": "client.backoff",
    "waits": "client.backoff",
    "Context": "client.context",
    "CronMessage": "client.crons",
    "CronService": "client.crons",
    "DelayedQueue": "client.delayed",
    "Offer": "client.delayed",
    "BadDeclaration": "client.errors",
    "BadResult": "client.errors",
    "BlocksTheLoop": "client.errors",
    "Dead": "client.errors",
    "JobFailed": "client.errors",
    "Retry": "client.errors",
    "SoftTimeout": "client.errors",
    "UnknownTask": "client.errors",
    "Flow": "client.flow",
    "chain": "client.flow",
    "group": "client.flow",
    "PushedJob": "client.job",
    "PushedJobs": "client.job",
    "Middleware": "client.middleware",
    "PushedFlow": "client.pushed_flow",
    "Task": "client.task",
}

__all__ = [
    "BadDeclaration",
    "BadResult",
    "BlocksTheLoop",
    "Conflict",
    "Context",
    "CronMessage",
    "CronService",
    "Dead",
    "Deadline",
    "DelayedQueue",
    "Flow",
    "Invalid",
    "JobFailed",
    "Middleware",
    "NotFound",
    "Offer",
    "Overloaded",
    "Penstock",
    "PenstockError",
    "PushedFlow",
    "PushedJob",
    "PushedJobs",
    "RateLimited",
    "Retry",
    "SoftTimeout",
    "StorageFull",
    "Task",
    "Unavailable",
    "UnknownTask",
    "__version__",
    "at_once",
    "chain",
    "exponential",
    "fixed",
    "group",
    "linear",
    "waits",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"penstock.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
