"""Penstock, a job queue.

    from penstock import Penstock

    app = Penstock("sqlite:///jobs.db")

Names of the SDK are loaded when they are first asked for: `penstock --version` and processes that
need a store alone pay for nothing else.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.backoff import at_once, exponential, fixed, linear, waits
    from penstock.client.context import Context
    from penstock.client.errors import (
        BadResult,
        BlocksTheLoop,
        Dead,
        JobFailed,
        Retry,
        SoftTimeout,
        UnknownTask,
    )
    from penstock.client.job import PushedJob, PushedJobs
    from penstock.client.middleware import Middleware
    from penstock.client.task import Task

_WHERE = {
    "Penstock": "app",
    "at_once": "backoff",
    "exponential": "backoff",
    "fixed": "backoff",
    "linear": "backoff",
    "waits": "backoff",
    "Context": "context",
    "BadResult": "errors",
    "BlocksTheLoop": "errors",
    "Dead": "errors",
    "JobFailed": "errors",
    "Retry": "errors",
    "SoftTimeout": "errors",
    "UnknownTask": "errors",
    "PushedJob": "job",
    "PushedJobs": "job",
    "Middleware": "middleware",
    "Task": "task",
}

__all__ = [
    "BadResult",
    "BlocksTheLoop",
    "Context",
    "Dead",
    "JobFailed",
    "Middleware",
    "Penstock",
    "PushedJob",
    "PushedJobs",
    "Retry",
    "SoftTimeout",
    "Task",
    "UnknownTask",
    "__version__",
    "at_once",
    "exponential",
    "fixed",
    "linear",
    "waits",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"penstock.client.{module}"), name)
