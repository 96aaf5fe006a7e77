"""The remote store where a network comes between: lost connections, threads, forks, callers gone."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from penstock.model.errors import (
    BatchTooLarge,
    Forbidden,
    Invalid,
    PayloadTooLarge,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.model.event import Event
from penstock.model.job import MAX_PAYLOAD, JobError, JobOptions, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Caps, QueueConfig
from penstock.model.schedule import parse_key
from penstock.model.store import Store
from penstock.open import open_store
from penstock.protocol.access import Principal
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.native import NATIVE
from penstock.protocol.table import name_of
from penstock.stores import link as links
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener, ServingLimits
from penstock.stores.target import target_of
from tests.server.hostile.served import until
from tests.unit.served import Tokens, turns
from tests.unit.test_connection import looped

ONE = [Run.pack("q", [b"1"])]
FAR = 4_102_444_800_000  # the year 2100


class Proxy:
    """Stands between a client and its server, and cuts the connection when it is told."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mute = False  # what the server says is lost, and the connection with it
        self.made = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, back]
        for way in (self._pass(reader, back, False), self._pass(there, writer, True)):
            task = asyncio.ensure_future(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if answers and self.mute:
                    self.mute = False
                    self.cut()
                    return
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)


class World:
    """A server, a proxy before it, and a client behind that."""

    def __init__(self, commands: tuple[type[Request], ...] = NATIVE) -> None:
        self.inner = EmbeddedStore.in_memory()
        self.listener = Listener(self.inner, commands, Open())

    async def __aenter__(self) -> "World":
        host, self.port = await self.listener.listen_tcp("127.0.0.1", 0)
        self.proxy = Proxy(self.port)
        self.url = f"penstock://{host}:{await self.proxy.open()}"
        store = await open_store(self.url)
        assert isinstance(store, RemoteStore)
        self.store = store
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.store.close()
        await self.proxy.close()
        await self.listener.close()
        await self.inner.close()

    async def counts(self) -> dict[State, int]:
        (info,) = await self.inner.queues("default", ["q"])
        return {state: count for state, count in info.counts.items() if count}


class Open:
    open_to_all = True

    def authenticate(self, token: str) -> Principal:
        return Principal("anybody", None)


# -- lost connections ------------------------------------------------------------------------------


@looped
async def test_a_push_whose_answer_was_lost_is_repeated_and_adds_nothing() -> None:
    async with World() as world:
        for n in range(1, 6):
            world.proxy.mute = True
            pushed = await world.store.push("default", ONE)
            assert pushed.ids == [n]
            assert world.proxy.made == n + 1
        assert await world.counts() == {State.READY: 5}


@looped
async def test_one_job_whose_answer_was_lost_is_repeated_and_added_once() -> None:
    options = (JobOptions(),)
    async with World() as world:
        for n in range(1, 6):
            world.proxy.mute = True
            assert await world.store.push_one("default", "q", b"1", options) == n
            assert world.proxy.made == n + 1
        world.proxy.cut()
        assert await world.store.push_one("default", "q", b"1", options) == 6
        assert await world.counts() == {State.READY: 6}


@looped
async def test_instants_whose_answer_was_lost_are_put_again_and_are_there_once() -> None:
    run = Run(queue="q", data=b"12", ends=[1, 2], run_at=[FAR, FAR + 1])
    async with World() as world:
        for config, refresh in (("0" * 16, False), ("1" * 16, False), ("1" * 16, True)):
            world.proxy.mute = True
            await world.store.put_instants("default", "c", config, run, refresh=refresh)
            jobs = (await world.inner.find("default", "q")).jobs
            assert [parse_key(job.key or "")[1] for job in jobs] == [config] * 2


@looped
async def test_a_server_that_does_not_know_instants_says_so_and_nothing_is_changed() -> None:
    """Not in two steps instead: whoever relies on one would not learn of it."""
    run = Run(queue="q", data=b"1", ends=[1], run_at=[FAR])
    older = tuple(command for command in NATIVE if "INSTANTS" not in name_of(command))
    async with World(older) as world:
        for refresh in (False, True):
            with pytest.raises(Unavailable, match="older than this client"):
                await world.store.put_instants("default", "c", "0" * 16, run, refresh=refresh)
        with pytest.raises(Unavailable, match="older than this client"):
            await world.store.drop_instants("default", "q", "c")
        assert await world.counts() == {}


@looped
async def test_many_pushes_in_flight_survive_every_cut() -> None:
    async with World() as world:
        pushed = asyncio.Semaphore(0)

        async def produce(name: int) -> list[int]:
            ids: list[int] = []
            for n in range(20):
                ids += (await world.store.push("default", [Run.pack("q", [b"%d" % n])])).ids
                pushed.release()
            return ids

        async def disturb() -> None:
            for _ in range(6):
                for _ in range(60):
                    await pushed.acquire()
                world.proxy.cut()

        *ids, _ = await asyncio.gather(*(produce(n) for n in range(30)), disturb())
        assert sorted(i for each in ids for i in each or ()) == list(range(1, 601))
        assert await world.counts() == {State.READY: 600}


@looped
async def test_what_is_safe_to_repeat_is_repeated() -> None:
    async with World() as world:
        store, tenant = world.store, "default"
        (job,) = (await store.push(tenant, ONE)).ids
        lease = await store.claim(tenant, ["q"])
        assert lease is not None
        calls: list[Callable[[], Any]] = [
            lambda: store.claim(tenant, ["empty"]),
            lambda: store.get(tenant, [job]),
            lambda: store.standing(tenant, [job]),
            lambda: store.reach(tenant, lease=lease.token),
            lambda: store.find(tenant, "q"),
            lambda: store.by_key(tenant, "q", "k"),
            lambda: store.logs(tenant, job),
            lambda: store.explain(tenant, job),
            lambda: store.waiting(tenant),
            lambda: store.extend(tenant, lease.token),
            lambda: store.queues(tenant),
            lambda: store.configure(tenant, "q", QueueConfig(retain_ms=5)),
            lambda: store.crons(tenant),
            lambda: store.open_bulk(tenant),
            lambda: store.open_bulk(tenant, "b"),
            lambda: store.commit_bulk(tenant, "b"),
            store.health,
            store.tick,
        ]
        for call in calls:
            world.proxy.mute = True
            await call()
            assert not world.proxy.mute, "its answer was lost once"


@looped
async def test_of_what_is_not_safe_to_repeat_nobody_knows_the_outcome() -> None:
    async with World() as world:
        store, tenant = world.store, "default"
        await store.push(tenant, [Run.pack("q", [b"1"] * 4)])
        lease = await store.claim(tenant, ["q"], 3)
        assert lease is not None
        first, second, third = lease.ids
        calls: list[Callable[[], Any]] = [
            lambda: store.ack(tenant, lease.token, [first]),
            lambda: store.fail(tenant, lease.token, [second], error=JobError()),
            lambda: store.release(tenant, lease.token, [third]),
            lambda: store.cancel(tenant, [first]),
            lambda: store.edit(tenant, second, priority=1),
            lambda: store.redrive(tenant, "q"),
            lambda: store.purge_dead(tenant, "q"),
            lambda: store.clean(tenant, "q", State.DEAD),
            lambda: store.drain(tenant, "q"),
            lambda: store.purge(tenant, "q"),
            lambda: store.drop_cron(tenant, "x"),
        ]
        for call in calls:
            await store.ping()
            world.proxy.mute = True
            with pytest.raises(Unavailable, match="not known"):
                await call()
            assert not world.proxy.mute
        assert (await store.health()).ok


@looped
async def test_what_was_never_sent_is_sent_later_whatever_it_is() -> None:
    async with World() as world:
        await world.store.push("default", ONE)
        world.proxy.cut()
        await turns()  # the client knows by now
        lease = await world.store.claim("default", ["q"])
        assert lease is not None
        assert (await world.store.ack("default", lease.token)).acked


@looped
async def test_a_watcher_is_told_that_it_may_have_missed_something() -> None:
    async with World() as world:
        events = world.store.watch("default")
        await world.store.push("default", ONE)
        assert (await anext(events)).kind == "pushed"
        world.proxy.cut()
        with pytest.raises(Unavailable, match="missed"):
            await anext(events)
        again = world.store.watch("default")
        await world.store.push("default", ONE)
        assert (await anext(again)).kind == "pushed"
        await again.aclose()  # type: ignore[attr-defined]
        await world.store.ping()
        assert not world.inner.engine.telling.watchers


@looped
async def test_a_watcher_is_told_so_also_if_a_push_of_its_turn_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as world:
        claim = asyncio.ensure_future(world.store.claim("default", ["other"], wait_ms=60_000))
        await world.store.ping()
        go_on, push = asyncio.Event(), world.listener.gate.push

        async def late(*said: Any, **more: Any) -> Any:
            await go_on.wait()
            return await push(*said, **more)

        monkeypatch.setattr(world.listener.gate, "push", late)
        pushed = asyncio.ensure_future(world.store.push("default", ONE))
        await asyncio.sleep(0)  # it waits for company
        events = world.store.watch("default")
        await world.store.ping()
        assert world.inner.engine.telling.watchers
        world.proxy.cut()
        with pytest.raises(Unavailable, match="missed"):
            async with asyncio.timeout(10):
                await anext(events)
        go_on.set()
        assert (await pushed).ids == [1]
        claim.cancel()


@looped
async def test_a_watch_that_waits_for_a_connection_comes_before_the_calls_that_do() -> None:
    async with World() as world:
        world.proxy.cut()
        await turns()
        pushed = [asyncio.ensure_future(world.store.push("default", ONE)) for _ in range(3)]
        await asyncio.sleep(0)
        events = world.store.watch("default")
        ids = {one.ids[0] for one in await asyncio.gather(*pushed)}
        told: set[int] = set()
        async with asyncio.timeout(10):
            while told != ids:
                told.update((await anext(events)).ids)


@looped
async def test_a_watch_that_is_given_up_before_there_is_a_connection_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as world:
        world.proxy.cut()
        await turns()
        watch, watched = world.inner.watch, 0

        def counted(*said: Any, **named: Any) -> AsyncIterator[Event]:
            nonlocal watched
            watched += 1
            return watch(*said, **named)

        monkeypatch.setattr(world.inner, "watch", counted)
        events = world.store.watch("default")
        await events.aclose()  # type: ignore[attr-defined]
        await world.store.push("default", ONE)
        assert not watched


@looped
async def test_a_server_that_is_not_there_is_waited_for_only_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    target = target_of(f"penstock://127.0.0.1:{port}")
    store = RemoteStore(target, patience_s=0.1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await store.connect()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await store.push("default", ONE)
    patient = RemoteStore(target, patience_s=30)
    waiting = asyncio.ensure_future(patient.push("default", ONE))
    await turns()
    inner = EmbeddedStore.in_memory()
    listener = Listener(inner, NATIVE, Open())
    await listener.listen_tcp("127.0.0.1", port)
    assert (await waiting).ids == [1]
    await patient.close()
    await store.close()
    await listener.close()
    await inner.close()


class Fatal(Request, kw_only=True, tag="FATAL"):
    """Ends the connection whenever it is said."""

    async def call(self, session: Session) -> Answer:
        session._connection.abort()  # type: ignore[attr-defined]
        return Answer()


@looped
async def test_what_ends_every_connection_is_not_repeated_for_ever() -> None:
    async with World((*NATIVE, Fatal)) as world:
        with pytest.raises(Unavailable, match="not known"):
            await world.store._link().ask(Fatal(), repeat=True)
        assert world.proxy.made == 1 + links.REPEATS


@looped
async def test_a_peer_that_is_silent_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENCE_S", 0.3)
    monkeypatch.setattr(links, "REPEATS", 0)  # it is told, and not asked again
    async with World() as world:
        waiting = asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000))
        link = world.store._link()
        asked = link._number
        await until(lambda: link._number > asked and len(link._pending) == 1)  # it answers
        assert not waiting.done()
        assert world.proxy.made == 1
        for writer in list(world.proxy._writers):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(Unavailable, match="not known"):
            await waiting


@looped
async def test_a_loop_that_was_held_up_takes_nobody_for_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "SILENCE_S", 0.2)
    async with World() as world:
        waiting = asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000))
        link = world.store._link()
        await until(lambda: bool(link._pending))
        asked = link._number
        time.sleep(3 * links.SILENCE_S)  # noqa: ASYNC251 # a caller that blocks its loop
        await until(lambda: link._number > asked)  # it has been asked whether it is there
        assert world.proxy.made == 1
        await world.store.push("default", ONE)
        assert await waiting is not None


# -- callers that are gone -------------------------------------------------------------------------


@looped
async def test_a_cancelled_claim_leaves_no_job_behind() -> None:
    async with World() as world:
        for ticks in range(25):
            waiter = asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000))
            await turns(ticks)
            waiter.cancel()
            pushed = asyncio.ensure_future(world.store.push("default", ONE))
            (lease,) = await asyncio.gather(waiter, return_exceptions=True)
            await pushed
            assert isinstance(lease, asyncio.CancelledError)
            for _ in range(3):
                await world.store.ping()
            assert await world.counts() == {State.READY: 1}
            assert (await world.inner.health()).detail["waiting_claims"] == 0
            await world.store.purge("default", "q")
        assert not world.store._link()._pending


@looped
async def test_a_lease_that_comes_for_nobody_is_given_back() -> None:
    """The server hands over in the instant in which the caller goes."""
    async with World() as world:
        released = 0
        for ticks in range(60):
            await world.inner.push("default", ONE)
            claim = asyncio.ensure_future(world.store.claim("default", ["q"]))
            await turns(ticks)
            claim.cancel()
            (lease,) = await asyncio.gather(claim, return_exceptions=True)
            for _ in range(3):
                await world.store.ping()
            if isinstance(lease, asyncio.CancelledError):
                assert await world.counts() == {State.READY: 1}
                released += 1
            await world.inner.purge("default", "q")
        assert released > 3


@looped
async def test_a_call_given_up_before_it_was_sent_is_never_sent() -> None:
    async with World() as world:
        claim = asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000))
        await asyncio.sleep(0)
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)
        await world.store.ping()
        assert (await world.inner.health()).detail["waiting_claims"] == 0
        assert not world.store._link()._pending


@looped
async def test_whoever_gives_up_makes_room_for_those_behind() -> None:
    async with World() as world:
        world.store._link()._most = 2
        claims = [
            asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000))
            for _ in range(2)
        ]
        waiting = asyncio.ensure_future(world.store.health())
        await turns()
        assert not waiting.done()
        for claim in claims:
            claim.cancel()
        async with asyncio.timeout(links.SILENCE_S / 3):  # and not when something else is heard
            assert (await waiting).ok
        await asyncio.gather(*claims, return_exceptions=True)


# -- bounds ----------------------------------------------------------------------------------------


@looped
async def test_only_so_many_pushes_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PUSHES", 4)
    async with World() as world:
        link = world.store._link()
        runs = [[Run.pack("q", [b"1"], keys=[f"k{number}"])] for number in range(50)]  # go apart
        tasks = [asyncio.ensure_future(world.store.push("default", run)) for run in runs]
        await asyncio.sleep(0)
        assert (link._pushes, len(link._backlog)) == (4, 46)
        waiting = asyncio.ensure_future(world.store.health())
        ids = [(await task).ids[0] for task in tasks]
        assert ids == list(range(1, 51)), "in the order in which they were made"
        assert (await waiting).ok
        assert link._pushes == 0


@looped
async def test_a_push_larger_than_a_message_may_be_is_refused_here() -> None:
    inner = EmbeddedStore.in_memory()
    limits = ServingLimits(frame_bytes=10_000)
    listener = Listener(inner, NATIVE, Open(), limits=limits)
    host, port = await listener.listen_tcp("127.0.0.1", 0)
    store = await open_store(f"penstock://{host}:{port}")
    with pytest.raises(BatchTooLarge) as caught:
        await store.push("default", [Run.pack("q", [b"1" * 6_000] * 2)])
    assert caught.value.field == "runs"
    assert (await store.push("default", [Run.pack("q", [b"1" * 6_000])])).ids == [1]
    options = (JobOptions(codec="bytes"),)
    with pytest.raises(BatchTooLarge) as caught:
        await store.push_one("default", "q", b"1" * 12_000, options)
    assert caught.value.field == "runs"
    assert await store.push_one("default", "q", b"1" * 6_000, options) == 2
    await store.close()
    await listener.close()
    await inner.close()


@looped
async def test_a_sequence_of_no_producer_is_refused_though_the_last_push_was_right() -> None:
    async with World() as world:
        await world.store.push("default", ONE)
        for one in (
            world.store.push("default", ONE, sequence=1),
            world.store.push_one("default", "q", b"1", ONE[0].options, (None, 1, None)),
        ):
            with pytest.raises(Invalid) as caught:
                await one
            assert caught.value.field == "producer"


@looped
async def test_a_link_that_is_one_producer_too_many_pushes_without_a_number() -> None:
    inner = EmbeddedStore.in_memory(caps=Caps(producers=1))
    listener = Listener(inner, NATIVE, Open())
    host, port = await listener.listen_tcp("127.0.0.1", 0)
    first, second = [await open_store(f"penstock://{host}:{port}") for _ in range(2)]
    options = (JobOptions(),)
    assert (await first.push("default", ONE)).ids == [1]
    assert (await second.push("default", ONE)).ids == [2]
    assert await second.push_one("default", "q", b"1", options) == 3
    together = (second.push_one("default", "q", b"1", options) for _ in range(3))
    assert await asyncio.gather(*together) == [4, 5, 6]
    await first.close()
    await second.close()
    await listener.close()
    await inner.close()


class Overheard:
    """A transport, and what was written to it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))
        self.inner.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@looped
async def test_one_job_is_said_as_a_run_of_one_is() -> None:
    async with World() as world:
        link = world.store._link()
        assert link._wire is not None
        heard = link._wire.transport = Overheard(link._wire.transport)  # type: ignore[assignment]
        run = Run.pack("q", [b"[1]"], JobOptions(task="mail", priority=3))
        assert (await world.store.push("default", [run])).ids == [1]
        assert await world.store.push_one("default", "q", b"[1]", run.options) == 2
        by_run, by_itself = (msgspec.msgpack.decode(frame[4:]) for frame in heard.written)
        for said in (by_run, by_itself):
            said["number"] = (said.pop("reqId"), said.pop("sequence"))
        assert by_run.pop("number") == (1, 1)
        assert by_itself.pop("number") == (2, 2)
        (packed,) = by_run.pop("runs")
        (payload,) = by_itself.pop("payloads")
        assert (by_itself.pop("queue"), [by_itself.pop("options")]) == (
            packed.pop("queue"),
            packed.pop("options"),
        )
        assert packed == {"data": payload, "ends": len(payload).to_bytes(4, "little")}
        assert by_itself.pop("kind") == 1  # the next of it are short
        assert by_run == by_itself
        assert [int.from_bytes(frame[:4]) for frame in heard.written] == [
            len(frame) - 4 for frame in heard.written
        ]


@looped
async def test_one_job_goes_behind_what_was_asked_before_it() -> None:
    async with World() as world:
        store, options = world.store, (JobOptions(),)
        store._link()._most = 1
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(store.health()),
            asyncio.ensure_future(store.push("default", [Run.pack("q", [b"1"], keys=["k"])])),
            asyncio.ensure_future(store.push_one("default", "q", b"2", options)),
        ]

        async def behind() -> int:
            await calls[0]
            # Resumed by the answer, before what waits behind it has been sent.
            return await store.push_one("default", "q", b"3", options)

        last = asyncio.ensure_future(behind())
        await asyncio.gather(*calls)
        assert (calls[1].result().ids, calls[2].result(), await last) == ([1], 2, 3)


@looped
async def test_one_job_that_meets_the_end_of_a_connection_goes_to_the_next() -> None:
    async with World() as world:
        options = (JobOptions(),)
        assert await world.store.push_one("default", "q", b"1", options) == 1
        world.store._link()._drop()  # not known to be lost before the next turn
        assert await world.store.push_one("default", "q", b"1", options) == 2
        await world.store.close()
        with pytest.raises(Unavailable, match="closed"):
            await world.store.push_one("default", "q", b"1", options)
        assert await world.counts() == {State.READY: 2}


# -- who we are ------------------------------------------------------------------------------------


@looped
async def test_a_url_may_say_who_we_are() -> None:
    inner = EmbeddedStore.in_memory()
    tokens = {"s3cret/": Principal("me", "acme"), "other": Principal("you", "other")}
    listener = Listener(inner, NATIVE, Tokens(**tokens))
    host, port = await listener.listen_tcp("127.0.0.1", 0)
    store = await open_store(f"penstock://:s3cret%2F@{host}:{port}")
    assert isinstance(store, RemoteStore)
    assert store.tenant == "acme"
    await store.push("acme", ONE)
    with pytest.raises(Forbidden):
        await store.push("other", ONE)
    messages = set()
    for wrong in ("", ":wrong@", ":@", "s3cret@"):
        with pytest.raises(Unauthenticated) as caught:
            await open_store(f"penstock://{wrong}{host}:{port}")
        messages.add(str(caught.value))
    assert len(messages) == 1
    await turns()
    await store.close()
    await listener.close()
    await inner.close()


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "token"),
    [
        ("penstock://localhost", "localhost", 6789, "", None),
        ("penstock://localhost:99/", "localhost", 99, "", None),
        ("penstock://:t%40k@[::1]:5", "::1", 5, "", "t@k"),
        ("penstock://token@h", "h", 6789, "", "token"),
        ("penstock+unix:///run/pen%20stock", "", 0, "/run/pen stock", None),
        ("penstock+unix://:token@/run/s", "", 0, "/run/s", "token"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, token: str | None) -> None:
    target = target_of(url)
    assert (target.host, target.port, target.path, target.token) == (host, port, path, token)
    assert token is None or token not in str(target)


@pytest.mark.parametrize(
    "url",
    [
        "penstock://",
        "penstock://h:port",
        "penstock://h:70000",
        "penstock://h/db",
        "penstock://h?x=1",
        "penstock+unix://",
        "penstock+unix://host/path",
        "penstock+unix:///p?x=1",
    ],
)
def test_urls_that_name_no_server(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        asyncio.run(open_store(url))
    assert caught.value.field == "url"


# -- the end ---------------------------------------------------------------------------------------


@looped
async def test_a_closed_store_answers_nobody() -> None:
    async with World() as world:
        waiting = [
            asyncio.ensure_future(world.store.claim("default", ["q"], wait_ms=60_000)),
            asyncio.ensure_future(world.store.health()),
        ]
        events = world.store.watch("default")
        await asyncio.sleep(0)
        await world.store.close()
        for task in waiting:
            with pytest.raises(Unavailable, match="closed"):
                await task
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        with pytest.raises(Unavailable, match="closed"):
            await world.store.health()
        await world.store.close()


@looped
async def test_errors_are_the_same_on_both_sides() -> None:
    async with World() as world:

        async def told(call: Any) -> tuple[type, str, str]:
            with pytest.raises(PenstockError) as caught:
                await call
            return type(caught.value), caught.value.message, caught.value.field

        calls: list[Callable[[Store], Any]] = [
            lambda s: s.push("default", [Run.pack("q", [b"{"])]),
            lambda s: s.push("default", [Run.pack("q q", [b"1"])]),
            lambda s: s.push("default", [Run(queue="q", data=b"1", ends=[2])]),
            lambda s: s.push("default", ONE, durability="fsync"),
            lambda s: s.push_one("", "", b"1", ()),
            lambda s: s.push_one("default", "q", b"{", (JobOptions(),)),
            lambda s: s.push_one("default", "q q", b"1", (JobOptions(),)),
            lambda s: s.push_one("default", "q", "1", (JobOptions(),)),  # type: ignore[arg-type]
            lambda s: s.push_one("", "q", b"1", (JobOptions(),)),
            lambda s: s.push("default", ONE, bulk="none"),
            lambda s: s.ack("default", "no-lease"),
            lambda s: s.result("default", 99),
            lambda s: s.claim("default", []),
            lambda s: s.edit("default", 99, priority=1),
            lambda s: s.get("default", [0]),
        ]
        for call in calls:
            assert await told(call(world.store)) == await told(call(world.inner))


# -- threads and processes -------------------------------------------------------------------------


def serve_in_a_thread(ready: "threading.Event", where: dict[str, Any]) -> None:
    async def main() -> None:
        where["loop"], where["over"] = asyncio.get_running_loop(), asyncio.Event()
        inner = EmbeddedStore.in_memory()
        listener = Listener(inner, NATIVE, Open())
        _, where["port"] = await listener.listen_tcp("127.0.0.1", 0)
        ready.set()
        await where["over"].wait()
        (info,) = await inner.queues("default", ["q"])
        where["counts"] = info.counts
        await listener.close()
        await inner.close()

    asyncio.run(main())


@pytest.fixture
def server() -> Any:
    """A server in a thread of its own."""
    ready, where = threading.Event(), dict[str, Any]()
    thread = threading.Thread(target=serve_in_a_thread, args=(ready, where))
    thread.start()
    assert ready.wait(10)
    yield where
    if "counts" not in where:
        where["loop"].call_soon_threadsafe(where["over"].set)
    thread.join(10)


def test_one_store_in_many_threads(server: dict[str, Any]) -> None:
    store = RemoteStore(target_of(f"penstock://127.0.0.1:{server['port']}"))
    ids: list[int] = []

    async def work() -> None:
        for _ in range(20):
            ids.extend((await store.push("default", ONE)).ids)
        await asyncio.gather(*(store.health() for _ in range(20)))
        await store._link().close()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ids) == list(range(1, 121))

    async def again() -> None:
        """One loop after another in one thread; a close of all of them at once."""
        ids.extend((await store.push("default", ONE)).ids)
        await store.close()

    asyncio.run(again())
    assert ids[-1] == 121


def test_one_store_after_a_fork(server: dict[str, Any]) -> None:
    options = (JobOptions(),)
    store = RemoteStore(target_of(f"penstock://127.0.0.1:{server['port']}"))

    async def parent() -> None:
        assert await store.push_one("default", "q", b"1", options) == 1
        reader, writer = os.pipe()
        child = os.fork()
        if not child:  # pragma: no cover
            code = 1
            try:
                os.close(reader)
                os.write(writer, asyncio.run(in_the_child()))
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as said:
            assert await asyncio.to_thread(said.read) == b"2,3"
        assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        assert await store.push_one("default", "q", b"1", options) == 4, "the parent's goes on"
        await store.close()

    async def in_the_child() -> bytes:
        ids = [await store.push_one("default", "q", b"1", options) for _ in range(2)]
        await store.close()
        return b"%d,%d" % (ids[0], ids[1])

    asyncio.run(parent())


# -- claims that are given up ----------------------------------------------------------------------


async def waiting_claim(world: World) -> "tuple[RemoteStore, asyncio.Task[Lease | None]]":
    """A client, and its claim that waits at the server."""
    store = await open_store(world.url)
    assert isinstance(store, RemoteStore)
    claim = asyncio.ensure_future(store.claim("default", ["q"], wait_ms=60_000))
    await asyncio.sleep(0)  # it has been said
    await store.ping()
    assert world.inner.engine.waiting == 1
    return store, claim


@pytest.mark.parametrize("at_once", [True, False])
def test_a_job_for_a_claim_that_is_given_up_goes_back_though_the_store_is_closed(
    at_once: bool,
) -> None:
    """The answer is on its way when the claim is cancelled, and nobody stays to hear it."""

    @looped
    async def case() -> None:
        async with World() as world:
            other, claim = await waiting_claim(world)
            released = world.inner.watch("default", kinds=["released"])
            options = (JobOptions(max_attempts=1),)
            await world.inner.push_one("default", "q", b"1", options)
            assert await world.counts() == {State.ACTIVE: 1}
            claim.cancel()
            if not at_once:
                await asyncio.gather(claim, return_exceptions=True)
            await other.close()
            await asyncio.gather(claim, return_exceptions=True)
            assert claim.cancelled()
            await anext(released)
            assert await world.counts() == {State.READY: 1}

    case()


@looped
async def test_a_server_that_answers_nothing_holds_no_store_open_for_a_claim() -> None:
    async with World() as world:
        other, claim = await waiting_claim(world)
        world.proxy.mute = True  # the next answer is lost, and the connection with it
        claim.cancel()
        await other.close()
        await asyncio.gather(claim, return_exceptions=True)
        assert claim.cancelled()
        assert not other._links[asyncio.get_running_loop()]._given_up


@looped
async def test_one_job_that_is_too_large_is_told_as_that() -> None:
    async with World() as world:
        options = (JobOptions(codec="bytes"),)
        assert await world.store.push_one("default", "q", b"1", options) == 1
        with pytest.raises(PayloadTooLarge):
            await world.store.push_one("default", "q", bytes(MAX_PAYLOAD + 1), options)
        assert await world.store.push_one("default", "q", b"1", options) == 2
