"""Handlers that share an asyncio task until one of them waits: nothing of it may show."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from penstock import Context, Penstock
from tests.worker.harness import closing, ending, run, working

VISITS: ContextVar[tuple[int, ...]] = ContextVar("VISITS", default=())


def outcomes(app: Penstock, calls: Sequence[tuple[str, int]]) -> list[str]:
    """Jobs that are claimed together, in this order, and how each ended."""

    async def case() -> list[str]:
        async with closing(app):
            # Pushed before the worker looks, so that one claim takes them all.
            pushed = [await app.tasks[name].apush(n) for name, n in calls]
            async with working(app):
                return [await ending(job) for job in pushed]

    return run(case)


@pytest.fixture
def app() -> Penstock:
    app = Penstock("memory://")

    @app.task(queue="q", name="quick")
    async def quick(n: int) -> list[int]:
        VISITS.set((*VISITS.get(), n))
        return list(VISITS.get())

    @app.task(queue="q", name="slow")
    async def slow(n: int) -> list[int]:
        VISITS.set((*VISITS.get(), n))
        await asyncio.sleep(0)
        VISITS.set((*VISITS.get(), -n))
        await asyncio.sleep(0)
        return list(VISITS.get())

    @app.task(queue="q", name="same_task")
    async def same_task(n: int) -> bool:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        return before is not None and asyncio.current_task() is before

    @app.task(queue="q", name="late", max_attempts=1)
    async def late(n: int) -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "in time"

    @app.task(queue="q", name="self_cancelled", max_attempts=1)
    async def self_cancelled(n: int) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if n:
            await asyncio.sleep(0)
        return "went on"

    @app.task(queue="q", name="catching", max_attempts=1)
    async def catching(n: int) -> str:
        waiter = asyncio.get_running_loop().create_future()
        waiter.set_exception(KeyError(n))
        try:
            await waiter
        except KeyError as error:
            await asyncio.sleep(0)
            return f"caught {error}"
        return "nothing came"

    return app


def test_context_variables_are_a_handlers_own_from_its_first_step_to_its_last(
    app: Penstock,
) -> None:
    calls = [("quick", 1), ("slow", 2), ("quick", 3), ("slow", 4), ("quick", 5)]

    assert outcomes(app, calls) == ["[1]", "[2, -2]", "[3]", "[4, -4]", "[5]"]


def test_the_task_that_a_handler_begins_in_is_the_one_that_it_ends_in(app: Penstock) -> None:
    calls = [(name, n) for n, name in enumerate(["quick", "same_task", "same_task"])]

    assert outcomes(app, calls)[1:] == ["True", "True"]


def test_a_timeout_that_was_begun_in_the_first_step_interrupts_its_handler_alone(
    app: Penstock,
) -> None:
    calls = [(name, n) for n, name in enumerate(["quick", "late", "quick", "late"])]

    assert outcomes(app, calls) == ["[0]", "'late'", "[2]", "'late'"]


@pytest.mark.parametrize("waits", [0, 1])
def test_a_handler_that_cancels_its_task_cancels_no_other(app: Penstock, waits: int) -> None:
    calls = [("quick", 1), ("self_cancelled", waits), ("quick", 3), ("slow", 4)]
    first, cancelled, *rest = outcomes(app, calls)

    assert (first, rest) == ("[1]", ["[3]", "[4, -4]"])
    assert cancelled == ("dead CancelledError" if waits else "'went on'")


def test_what_a_handler_waits_for_may_end_in_an_exception(app: Penstock) -> None:
    calls = [(name, n) for n, name in enumerate(["catching", "quick", "catching"])]

    assert outcomes(app, calls) == ["'caught 0'", "[1]", "'caught 2'"]


def test_a_middleware_may_keep_what_it_likes_with_the_context() -> None:
    context = Context.alone("q", "t")
    context.began = 17  # type: ignore[attr-defined]

    assert context.__dict__ == {"began": 17}
