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

_WHERE = {
    "Penstock": "app",
    "at_once": "backoff",
    "exponential": "backoff",
    "fixed": "backoff",
    "linear": "backoff",
    "waits": "backoff",
    "Context": "context",
    "CronMessage": "crons",
    "CronService": "crons",
    "DelayedQueue": "delayed",
    "Offer": "delayed",
    "BadResult": "errors",
    "BlocksTheLoop": "errors",
    "Dead": "errors",
    "JobFailed": "errors",
    "Retry": "errors",
    "SoftTimeout": "errors",
    "UnknownTask": "errors",
    "Flow": "flow",
    "chain": "flow",
    "group": "flow",
    "PushedJob": "job",
    "PushedJobs": "job",
    "Middleware": "middleware",
    "PushedFlow": "pushed_flow",
    "Task": "task",
}

__all__ = [
    "BadResult",
    "BlocksTheLoop",
    "Context",
    "CronMessage",
    "CronService",
    "Dead",
    "DelayedQueue",
    "Flow",
    "JobFailed",
    "Middleware",
    "Offer",
    "Penstock",
    "PushedFlow",
    "PushedJob",
    "PushedJobs",
    "Retry",
    "SoftTimeout",
    "Task",
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

    return getattr(import_module(f"penstock.client.{module}"), name)
