"""Calls begun one after the other and awaited together."""

import asyncio
from typing import Any

import pytest

from penstock.model.errors import Conflict
from penstock.protocol.together import Together, others_first


async def value(of: Any) -> Any:
    return of


async def when(event: asyncio.Event, of: Any, log: list[Any]) -> Any:
    log.append(f"begun {of}")
    try:
        await event.wait()
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        log.append(f"cancelled {of}")
        await asyncio.sleep(0)
        log.append(f"cleaned up {of}")
        raise
    log.append(f"done {of}")
    return of


async def refusal() -> None:
    await asyncio.sleep(0)
    raise Conflict("no")


async def test_calls_that_need_not_wait_are_over_when_they_have_begun() -> None:
    calls = Together()
    assert calls.begin(value(1))
    assert calls.answers == [1]
    assert await calls == [1]
    assert await Together() == []


async def test_all_wait_at_once_and_answer_in_their_order() -> None:
    calls, log = Together(), list[Any]()
    events = [asyncio.Event() for _ in range(3)]
    for number, event in enumerate(events):
        assert not calls.begin(when(event, number, log))
    assert log == ["begun 0", "begun 1", "begun 2"]
    for event in reversed(events):
        event.set()
    assert await calls == [0, 1, 2]


async def test_a_refusal_is_an_answer() -> None:
    calls = Together()
    calls.begin(refusal())
    calls.begin(value(2))
    refused, given = await calls
    assert isinstance(refused, Conflict)
    assert given == 2


async def test_whoever_is_cancelled_cancels_all_of_them_and_lets_them_clean_up() -> None:
    calls, log, never = Together(), list[Any](), asyncio.Event()

    async def wait() -> None:
        calls.begin(value("early"))
        calls.begin(when(never, "a", log))
        calls.begin(when(never, "b", log))
        await calls

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.answers == ["early", None, None]
    assert sorted(log[2:]) == ["cancelled a", "cancelled b", "cleaned up a", "cleaned up b"]


async def test_one_that_breaks_ends_the_others() -> None:
    calls, log, never = Together(), list[Any](), asyncio.Event()

    async def broken() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    calls.begin(broken())
    calls.begin(when(never, "a", log))
    with pytest.raises(ZeroDivisionError):
        await calls
    assert log == ["begun a"]


async def test_whoever_is_cancelled_while_calls_are_still_begun_cancels_all_of_them() -> None:
    calls, log, never = Together(), list[Any](), asyncio.Event()

    async def wait() -> None:
        calls.begin(when(never, "a", log))
        await calls.others_first()
        raise AssertionError("it goes on")

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["begun a", "cancelled a", "cleaned up a"]


async def test_others_have_a_turn() -> None:
    log: list[str] = []

    async def other() -> None:
        log.append("other")

    task = asyncio.ensure_future(other())
    await others_first()
    log.append("we")
    await task
    assert log == ["other", "we"]
