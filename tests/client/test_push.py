"""Pushing one job and many: from synchronous and asynchronous code, all or nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.client import sending
from penstock.client.errors import BadDeclaration
from penstock.model.errors import Conflict, Invalid
from penstock.model.lifecycle import State


@pytest.fixture
def send(app: Penstock) -> Any:
    @app.task(queue="mail")
    def send(to: int, text: str = "hello") -> str:
        return f"{text} {to}"

    return send


async def known(app: Penstock, queue: str = "mail") -> list[bytes]:
    """The payloads of a queue, in order."""
    store, found, cursor = await app.store(), [], 0
    while True:
        page = await store.find(app.tenant, queue, cursor=cursor, limit=1_000)
        found += [job.payload for job in page.jobs if job.state is not State.HELD]
        if page.cursor is None:
            return found
        cursor = page.cursor


def count(app: Penstock, queue: str = "mail") -> int:
    return len(app.home.wait(known(app, queue)))


def test_one_job(app: Penstock, send: Any) -> None:
    job = send.push(1, text="hi")
    assert (job.id, job.outcome, int(job), repr(job)) == (1, "created", 1, "<job 1 created>")
    told = job.get()
    assert (told.queue, told.payload, told.options.task) == (
        "mail",
        b'{"to":1,"text":"hi"}',
        "send",
    )

    async def asynchronously() -> None:
        assert (await send.apush(2)).id == 2
        assert (await (await send.apush(3)).aget()).payload == b'{"to":3}'

    asyncio.run(asynchronously())


def test_a_wrong_call_pushes_nothing(app: Penstock, send: Any) -> None:
    with pytest.raises(TypeError, match="Missing required argument 'to'"):
        send.push()
    with pytest.raises(TypeError, match="Extra positional"):
        asyncio.run(send.apush(1, 2, 3))
    assert count(app) == 0


def test_a_key_that_is_taken(app: Penstock, send: Any) -> None:
    keyed = send.options(key="k")
    assert [(job.id, job.outcome) for job in (keyed.push(1), keyed.push(2))] == [
        (1, "created"),
        (1, "ignored"),
    ]
    job = keyed.options(on_conflict="replace").push(3)
    assert (job.id, job.outcome, job.get().payload) == (1, "updated", b'{"to":3}')
    with pytest.raises(Conflict):
        keyed.options(on_conflict="reject").push(4)
    many = keyed.push_many([(5,)])
    assert [(job.id, job.outcome) for job in many] == [(1, "ignored")]
    with pytest.raises(Invalid, match="key: one key cannot be carried by several jobs"):
        keyed.push_many([(1,), (2,)])


def test_many_jobs(app: Penstock, send: Any) -> None:
    made = send.push_many([(1,), {"to": 2}, [3, "x"]])
    assert (len(made), made.ids, repr(made)) == (3, [1, 2, 3], "<3 jobs>")
    assert (made[0].id, made[-1].id, [job.id for job in made[1:]]) == (1, 3, [2, 3])
    assert made[1].get().payload == b'{"to":2}'
    with pytest.raises(IndexError, match="3 of 3 jobs"):
        made[3]
    assert len(send.push_many([])) == 0
    assert send.push_many([]).ids == []


def test_more_than_one_push_can_take_go_in_chunks(app: Penstock, send: Any) -> None:
    made = send.push_many((i,) for i in range(25_000))
    assert len(made) == count(app) == 25_000
    assert made.ids == sorted(made.ids)
    for place in (0, 9_999, 10_000, 24_999):
        assert made[place].get().payload == b'{"to":%d}' % place
    assert len(send.push_many(((i,) for i in range(10)), chunk=3)) == 10
    assert len(send.push_many(((i,) for i in range(10)), chunk=10**6)) == 10
    for chunk in (0, -1):
        with pytest.raises(Invalid, match="chunk"):
            send.push_many([(1,)], chunk=chunk)


def test_many_from_an_asynchronous_source(app: Penstock, send: Any) -> None:
    async def source() -> AsyncIterator[tuple[int]]:
        for i in range(10):
            await asyncio.sleep(0)
            yield (i,)

    async def push() -> None:
        assert len(await send.apush_many(source(), chunk=4)) == 10
        assert len(await send.apush_many((i,) for i in range(3))) == 3

    asyncio.run(push())
    assert app.home.wait(known(app))[:3] == [b'{"to":0}', b'{"to":1}', b'{"to":2}']


def test_large_payloads_go_in_smaller_chunks(
    app: Penstock, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_BYTES", 100)
    texts = ["x" * 60, "y" * 10, "z" * 200, "", "x" * 60]
    made = send.push_many((place, text) for place, text in enumerate(texts))
    assert [job.get().payload for job in made] == [
        b'{"to":%d,"text":"%s"}' % (place, text.encode()) for place, text in enumerate(texts)
    ]


@pytest.mark.parametrize("atomic", [False, True])
def test_what_fails_midway(app: Penstock, send: Any, atomic: bool) -> None:
    """Chunks that went out stay; of an atomic push nothing does."""

    def source() -> Iterator[tuple[int]]:
        for i in range(5):
            yield (i,)
        raise LookupError("the source is dry")

    with pytest.raises(LookupError, match="dry"):
        send.push_many(source(), chunk=2, atomic=atomic)
    assert count(app) == (0 if atomic else 4)

    async def asynchronously() -> None:
        with pytest.raises(LookupError, match="dry"):
            await send.apush_many(source(), chunk=2, atomic=atomic)

    asyncio.run(asynchronously())
    assert count(app) == (0 if atomic else 8)


def test_an_atomic_push_appears_at_one_instant(app: Penstock, send: Any) -> None:
    seen: list[int] = []

    def source() -> Iterator[tuple[int]]:
        for i in range(9):
            seen.append(count(app))
            yield (i,)

    made = send.push_many(source(), chunk=2, atomic=True)
    assert seen == [0] * 9
    assert len(made) == count(app) == 9
    assert {job.get().run_at for job in made} == {made[0].get().run_at}


def test_a_source_runs_in_the_thread_of_whoever_pushes(app: Penstock, send: Any) -> None:
    """It may be bound to it, and may push by itself."""
    made = send.push_many((int(send.push(0)),) for _ in range(5))
    assert len(made) == 5
    assert count(app) == 10


def test_synchronous_calls_are_refused_inside_a_loop(app: Penstock, send: Any) -> None:
    """Before anything is done, and with the name of what to call instead."""
    asked: list[int] = []
    job = send.push(1)

    def source() -> Iterator[tuple[int]]:
        asked.append(1)
        yield (1,)

    async def inside() -> list[str]:
        said = []
        for call in (
            send.push,  # not even the arguments are looked at
            lambda: send.push_many(source()),
            job.result,
            job.get,
            job.cancel,
            job.explain,
            app.close,
        ):
            with pytest.raises(RuntimeError) as raised:
                call()
            assert type(raised.value).__name__ == "BlocksTheLoop"
            said.append(str(raised.value).split("`")[1])
        return said

    assert asyncio.run(inside()) == [
        "await apush()",
        "await apush_many()",
        "await aresult()",
        "await aget()",
        "await acancel()",
        "await aexplain()",
        "await aclose()",
    ]
    assert asked == []
    assert count(app) == 1


def test_a_tuple_of_arguments_is_no_item_and_is_refused_by_its_place(app: Penstock) -> None:
    """Also behind the first chunk, asynchronously, and at one instant: then none is there."""

    @app.task(queue="mail", batch=10)
    def index(items: list[int]) -> None: ...

    said = [0, 1, 2, (3,)]
    wanted = r"^jobs: batch task 'index' is pushed by items, each int, and job 3 is a tuple$"
    with pytest.raises(BadDeclaration, match=wanted):
        index.push_many(said, chunk=2, atomic=True)
    with pytest.raises(BadDeclaration, match=wanted):
        asyncio.run(index.apush_many(said, chunk=2, atomic=True))
    with pytest.raises(BadDeclaration, match=r"^item: "):
        index.push((3,))  # type: ignore[arg-type]
    with pytest.raises(BadDeclaration, match=r"^jobs: is 5, not items of its batch$"):
        index.push_many(5)  # type: ignore[arg-type]
    assert count(app) == 0


def test_a_batch_task_pushes_items(app: Penstock) -> None:
    @app.task(queue="mail", batch=10)
    def index(items: list[dict[str, int]]) -> None: ...

    assert index.push({"a": 1}).get().payload == b'{"a":1}'
    made = index.push_many({"n": n} for n in range(3))
    assert [job.get().payload for job in made] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
