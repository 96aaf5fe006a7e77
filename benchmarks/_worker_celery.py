"""Celery on Redis: the solo pool, no results, nothing that watches."""

from typing import Any, Final

from celery import Celery

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("celery", "kombu", "redis", "hiredis")


def _app(url: str) -> Any:
    app = Celery("benchmark", broker=url)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


async def connect(url: str) -> Producer:
    def noop(text: str) -> None: ...

    task = _app(url).task(name="noop")(noop)

    async def push() -> None:
        task.delay(PAYLOAD)

    return Producer(push)


def work(url: str, started: Started) -> None:
    app = _app(url)

    def noop(text: str) -> None:
        started()

    app.task(name="noop")(noop)
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
    app.worker_main(["worker", "--pool=solo", "--concurrency=1", *quiet])
