"""A store on a disk: who owns it, what its url may say, what its answers wait for, how it ends."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.kernel import Kernel
from penstock.model.errors import Conflict, Invalid, NotFound, PenstockError, Unavailable
from penstock.model.job import JobOptions, JobSpec, Run
from penstock.model.lifecycle import State
from penstock.open import JOURNALS, open_store
from penstock.protocol.access import OpenToAll
from penstock.server.tcp import tcp_listener
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import points
from penstock.stores.journal.base import Batch, JournalError
from penstock.stores.journal.ownership import Ownership
from penstock.stores.keeper import AHEAD, WORTH, Keeper
from penstock.stores.stored_payloads import StoredPayloads
from tests.durable import crash, replayed_digest
from tests.unit.history import History

T = "acme"
SCHEMES = sorted(JOURNALS)

Scenario = Callable[[EmbeddedStore], Awaitable[None]]


async def opened(url: str, **options: Any) -> EmbeddedStore:
    store = await open_store(url, **options, share=False)
    assert isinstance(store, EmbeddedStore)
    return store


def on(url: str, scenario: Scenario, **options: Any) -> None:
    async def whole() -> None:
        store = await opened(url, **options)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(whole())


def keeper_of(store: EmbeddedStore) -> Keeper:
    assert store.engine.keeper is not None
    return store.engine.keeper


@pytest.fixture(params=SCHEMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path}/store"


# -- who owns it -----------------------------------------------------------------------------------


def test_a_path_has_one_owner_and_says_who(url: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        with pytest.raises(Unavailable, match=f"store is owned by process {os.getpid()}"):
            await opened(url)
        await store.close()
        await (await opened(url)).close()

    on(url, scenario)


def test_a_path_is_free_when_its_owner_has_left_whoever_shares_the_lock(tmp_path: Path) -> None:
    """As a child does between the fork and its first step, or its exec."""
    owner, next_owner = Ownership(tmp_path / "store"), Ownership(tmp_path / "store")
    owner.take()
    assert owner.handle is not None
    shared = os.dup(owner.handle)
    try:
        with pytest.raises(Unavailable, match="is owned by process"):
            next_owner.take()
        owner.leave()
        next_owner.take()
        next_owner.leave()
    finally:
        os.close(shared)


def test_a_forked_child_does_not_keep_the_path_of_an_owner_that_died(tmp_path: Path) -> None:
    """Nor does it set the path free while the owner lives."""
    owner, next_owner = Ownership(tmp_path / "store"), Ownership(tmp_path / "store")
    owner.take()
    told, tell = os.pipe()
    wait, end = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b".")
        os.close(end)
        os.read(wait, 1)  # until the parent is done
        os._exit(0)
    try:
        assert os.read(told, 1) == b"."
        with pytest.raises(Unavailable, match="is owned by process"):
            next_owner.take()
        owner.let_go()  # as its death does
        next_owner.take()
        next_owner.leave()
    finally:
        for handle in (told, tell, wait, end):
            os.close(handle)
        os.waitpid(child, 0)


def test_a_forked_child_does_not_keep_the_path(url: str, tmp_path: Path) -> None:
    """The lock goes with its owner, whatever children that has."""
    told, tell = os.pipe()
    child = 0

    async def scenario(store: EmbeddedStore) -> None:
        nonlocal child
        child = os.fork()
        if not child:
            os.close(tell)
            os.read(told, 1)  # until the parent is done
            os._exit(0)

    try:
        on(url, scenario)
        on(url, _nothing)
    finally:
        os.close(tell)
        os.close(told)
        os.waitpid(child, 0)


_PUSHES_AND_DIES = """
import asyncio, os, signal, sys
from penstock.model.job import JobSpec
from penstock.open import open_store

async def main():
    store = await open_store(sys.argv[1], share=False)
    for _ in range(20):
        await store.push_jobs("acme", "q", [JobSpec()])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_forked_child_closes_nothing_of_what_it_has_inherited(url: str) -> None:
    """SQLite would take itself for the last one, and remove the WAL of whoever came since."""
    told, tell = os.pipe()
    child = 0

    async def scenario(store: EmbeddedStore) -> None:
        nonlocal child
        await store.push_jobs(T, "q", [JobSpec()])
        child = os.fork()
        if child:
            return
        code = 1
        try:
            os.close(tell)
            os.read(told, 1)  # until there is something to lose
            store.engine.abandon()
            with pytest.raises(StopIteration):
                store.close().send(None)
            with pytest.raises(Unavailable, match=f"is process {os.getppid()}'s"):
                store.engine.look()
            code = 0
        finally:
            os._exit(code)

    async def look(store: EmbeddedStore) -> None:
        (found,) = await store.queues(T)
        assert found.counts[State.READY] == 21

    try:
        on(url, scenario)
        died = subprocess.run([sys.executable, "-c", _PUSHES_AND_DIES, url], check=False)
        assert died.returncode == -signal.SIGKILL
    finally:
        os.close(tell)
        _, status = os.waitpid(child, 0)
        os.close(told)
    assert status == 0
    on(url, look)


async def _nothing(store: EmbeddedStore) -> None:
    assert store.kernel.queue_count == 0


def test_reading_only_changes_nothing_and_needs_no_owner(url: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        ids = (await store.push_jobs(T, "q", [JobSpec(payload=b"1", delay_ms=1)] * 2)).ids
        looking = await opened(f"{url}?mode=ro")
        try:
            assert [job and job.payload for job in await looking.get(T, ids)] == [b"1", b"1"]
            for change in (
                looking.push_jobs(T, "q", [JobSpec()]),
                looking.claim(T, ["q"]),
                looking.cancel(T, ids),
            ):
                with pytest.raises(Conflict, match="reading only"):
                    await change
        finally:
            await looking.close()

    on(url, scenario)


def test_there_must_be_something_to_read(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store"):
        asyncio.run(opened(f"{url}?mode=ro"))
    assert list(tmp_path.iterdir()) == []


def take_away(directory: Path) -> None:
    """Delete the store, and leave its lock file."""
    for each in directory.glob("store*"):
        if each.is_dir():
            shutil.rmtree(each)
        elif each.suffix != ".lock":
            each.unlink()


async def _push_one(store: EmbeddedStore) -> None:
    await store.push_jobs(T, "q", [JobSpec()])


def test_what_was_synced_is_missed_if_it_is_gone(url: str, tmp_path: Path) -> None:
    """An engine that quietly goes back to an earlier entry of its own log does not fool us."""
    on(url, _push_one)
    older = tmp_path / "older"
    copy = shutil.copytree if (tmp_path / "store").is_dir() else shutil.copy
    copy(tmp_path / "store", older)
    on(url, _push_one)
    take_away(tmp_path)
    older.rename(tmp_path / "store")
    with pytest.raises(Unavailable, match=r"delete store\.lock"):
        on(url, _one_job)
    (tmp_path / "store.lock").unlink()
    on(url, _one_job)


def test_a_new_store_in_the_place_of_an_old_one_is_new(url: str, tmp_path: Path) -> None:
    on(url, _push_one)
    take_away(tmp_path)
    on(url, _nothing)


# -- what the url may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("?durability=memory", "at least"),
        ("?durability=often", "durability"),
        ("?mode=w", "mode"),
        ("?colour=red", "colour"),
        ("?cache_bytes=-1", "cache_bytes"),
        ("?commit_interval_ms=soon", "commit_interval_ms"),
        ("/", "names no path"),
        ("#there", "names no path"),
    ],
)
def test_a_url_that_says_something_wrong_is_refused(said: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=why):
        asyncio.run(opened(f"sqlite:///{tmp_path}/store{said}"))
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_is_no_store_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///", "rocksdb://host/path", "mysql:///x", "penstock.db"):
        with pytest.raises(Invalid):
            asyncio.run(opened(url))


def test_a_relative_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on("sqlite:///jobs.db", _nothing)
    assert (tmp_path / "jobs.db").is_file()


# -- what answers wait for -------------------------------------------------------------------------


class Gate:
    """Stands between the loop and the disk: batches pass when it is opened.

    `at_the_disk` it stands where a batch has only that to wait for, and the one before is told.
    """

    def __init__(
        self, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, *, at_the_disk: bool = False
    ) -> None:
        import threading

        self._standing = threading.Semaphore(0)
        self._passing = threading.Semaphore(0)
        self._is_open = False
        self.batches: list[Batch] = []
        write = keeper_of(store).journal.write

        def gated(batch: Batch, ready: Callable[[], None]) -> bool:
            self.batches.append(batch)
            if not at_the_disk:
                self._stand()
                return write(batch, ready)

            def prepared() -> None:
                ready()
                self._stand()

            return write(batch, prepared)

        monkeypatch.setattr(keeper_of(store).journal, "write", gated)

    def _stand(self) -> None:
        self._standing.release()
        assert self._is_open or self._passing.acquire(timeout=30)

    async def reached(self) -> None:
        """Another batch stands before the gate, and every task has gone as far as it can."""
        assert await asyncio.to_thread(self._standing.acquire, timeout=30)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def let_one_pass(self) -> None:
        self._passing.release()

    def open(self) -> None:
        self._is_open = True
        self._passing.release()


async def calm(store: EmbeddedStore) -> None:
    while not keeper_of(store).idle:
        await keeper_of(store).turn()


def test_nothing_is_answered_before_it_is_safe(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        first = (await store.push_jobs(T, "q", [JobSpec(payload=b"1")])).ids
        lease = await store.claim(T, ["q"])
        assert lease is not None
        await calm(store)
        gate = Gate(store, monkeypatch)
        pushed = asyncio.create_task(store.push_jobs(T, "q", [JobSpec(key="k", payload=b"2")]))
        await gate.reached()
        again = asyncio.create_task(store.push_jobs(T, "q", [JobSpec(key="k")]))
        claimed = asyncio.create_task(store.claim(T, ["q"]))
        acked = asyncio.create_task(store.ack(T, lease.token, results={first[0]: b"3"}))
        awaited = asyncio.create_task(store.result(T, first[0], wait_ms=60_000))
        stale = asyncio.create_task(store.ack(T, lease.token))
        await gate.settled()
        tasks = (pushed, again, claimed, acked, awaited, stale)
        assert not any(task.done() for task in tasks)
        gate.open()
        done: Any = await asyncio.gather(*tasks, return_exceptions=True)
        assert done[0].jobs == [(done[2].ids[0], "created")]
        assert done[1].jobs == [(done[2].ids[0], "ignored")]
        assert list(done[3].acked) == first
        assert (done[4].state, done[4].value) == (State.COMPLETED, b"3")
        assert type(done[5]).__name__ == "LeaseLost"

    on(url, scenario)


def test_a_claim_does_not_wait_for_pushes_that_it_took_nothing_of(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        await calm(store)
        keeper = keeper_of(store)
        gate = Gate(store, monkeypatch)
        pushed = asyncio.create_task(store.push_jobs(T, "q", [JobSpec()]))
        await gate.reached()
        record = store.engine.apply(_claim("token"))
        assert keeper.safety.rest_of(record) == (0, 1)
        gate.open()
        await pushed

    on(url, scenario)


def _claim(token: str) -> Any:
    from penstock.kernel import commands as c

    return c.Claim(T, ["q"], 1, token)


def test_one_commit_serves_everybody_who_came_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        gate = Gate(store, monkeypatch)
        first = asyncio.create_task(store.push_jobs(T, "q", [JobSpec()]))
        await gate.reached()
        rest = [asyncio.create_task(store.push_jobs(T, "q", [JobSpec()])) for _ in range(63)]
        await gate.settled()
        gate.open()
        await asyncio.gather(first, *rest)
        groups = [b.group for b in gate.batches if b.group is not None]
        assert [g.last - g.first + 1 for g in groups] == [1, 63]
        assert len(gate.batches[1].chunks) == 1  # small payloads share one

    on(url, scenario)


def test_one_commit_serves_every_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        listener = tcp_listener(store, OpenToAll())
        address = await listener.listen_tcp("127.0.0.1", 0)
        first, *others = [await asyncio.open_connection(*address) for _ in range(8)]
        await calm(store)
        gate = Gate(store, monkeypatch)
        told = store.kernel.position
        first[1].write(b'{"cmd":"PUSH","queue":"q","data":1}\n')
        await gate.reached()
        for _, writer in others:
            writer.write(b'{"cmd":"PUSH","queue":"q","data":1}\n')
        while store.kernel.position < told + 8:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.001)
        gate.open()
        answers = [await reader.readline() for reader, _ in (first, *others)]
        assert all(b'"ok":true' in answer for answer in answers)
        groups = [b.group for b in gate.batches if b.group is not None]
        assert [g.last - g.first + 1 for g in groups] == [1, 7]
        for _, writer in (first, *others):
            writer.close()
        await listener.close()

    on(url, scenario)


# -- large batches -----------------------------------------------------------------------------------

LARGE = [JobSpec(payload=b"1" * AHEAD)]


def sizes(batches: list[Batch]) -> list[int]:
    return [len(batch.chunks) for batch in batches if batch.group is not None]


def test_a_large_batch_does_not_wait_for_the_one_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        gate = Gate(store, monkeypatch)
        submitted: list[Batch] = []
        submit = keeper_of(store).writer.submit

        def noted(batch: Batch) -> None:
            submitted.append(batch)
            submit(batch)

        monkeypatch.setattr(keeper_of(store).writer, "submit", noted)
        pushes = [asyncio.create_task(store.push_jobs(T, "q", LARGE)) for _ in range(4)]
        await gate.reached()
        assert sizes(gate.batches) == [1], "one is being written"
        assert sizes(submitted) == [1, 1], "and one is ready; the rest gathers"
        assert not any(push.done() for push in pushes)
        gate.open()
        ids = [(await push).ids[0] for push in pushes]
        assert sizes(gate.batches) == [1, 1, 2]
        assert ids == sorted(ids)

    on(url, scenario)


def test_small_ones_wait_for_company(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [JobSpec(payload=b"1" * (AHEAD // 2 - 1))]

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        gate = Gate(store, monkeypatch)
        first = asyncio.create_task(store.push_jobs(T, "q", LARGE))
        await gate.reached()
        rest = [asyncio.create_task(store.push_jobs(T, "q", small)) for _ in range(2)]
        await gate.settled()
        assert sizes(gate.batches) == [1]
        gate.open()
        await asyncio.gather(first, *rest)
        assert sizes(gate.batches) == [1, 2]

    on(url, scenario)


def test_what_is_in_flight_is_halved(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it begins with, the writer soon has one half while the loop makes the other."""

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        gate = Gate(store, monkeypatch, at_the_disk=True)

        async def produce() -> None:
            while True:
                await store.push_jobs(T, "q", LARGE)

        producers = [asyncio.create_task(produce()) for _ in range(8)]
        for _ in range(16):
            await gate.reached()
            gate.let_one_pass()
        await gate.reached()
        for producer in producers:
            producer.cancel()
        gate.open()
        await asyncio.gather(*producers, return_exceptions=True)
        assert sizes(gate.batches)[:2] == [1, 1]
        assert sizes(gate.batches)[8:16] == [4] * 8

    on(url, scenario)


def test_a_batch_that_fails_takes_those_behind_it_along(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        journal = keeper_of(store).journal
        given: list[Batch] = []

        def failing(batch: Batch, ready: Callable[[], None]) -> bool:
            given.append(batch)
            raise JournalError("the disk is gone")

        monkeypatch.setattr(journal, "write", failing)
        pushes = [asyncio.create_task(store.push_jobs(T, "q", LARGE)) for _ in range(4)]
        done = await asyncio.gather(*pushes, return_exceptions=True)
        assert [str(each) for each in done] == ["the store has ended: the disk is gone"] * 4
        assert len(given) == 1, "nothing is written after a batch that was not"

    on(url, scenario)


def test_nobody_waits_for_ever_for_a_store_whose_closing_was_cancelled(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await opened(url)
        await calm(store)
        gate = Gate(store, monkeypatch)
        pushes = [asyncio.create_task(store.push_jobs(T, "q", LARGE)) for _ in range(6)]
        await gate.reached()
        pushes += [asyncio.create_task(store.push_jobs(T, "q", [JobSpec()])) for _ in range(3)]
        closing = asyncio.create_task(store.close())
        await gate.settled()
        gate.open()
        closing.cancel()
        done = await asyncio.gather(*pushes, return_exceptions=True)
        kept = [each for each in done if not isinstance(each, Exception)]
        assert [each.jobs for each in kept] == [each.jobs for each in done[: len(kept)]]  # type: ignore[union-attr]
        assert {str(each) for each in done[len(kept) :]} <= {
            "the store was closed before this was safe"
        }
        with suppress(asyncio.CancelledError):
            await closing
        again = await opened(url)
        found = (await again.queues(T))[0].counts[State.READY] if kept else 0
        assert found >= len(kept)
        await again.close()

    asyncio.run(scenario())


def test_what_cannot_be_staged_is_written_with_its_batch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"penstock.stores.journal.{url.partition(':')[0]}")
    sealed = module.sealed_chunk
    failed: list[bytes] = []

    def once(data: bytes) -> bytes:
        if not failed:
            failed.append(data)
            raise MemoryError
        return sealed(data)  # type: ignore[no-any-return]

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        monkeypatch.setattr(module, "sealed_chunk", once)
        (job,) = (await store.push_jobs(T, "q", LARGE)).ids
        assert failed
        (found,) = await store.get(T, [job])
        assert found is not None
        assert found.payload == LARGE[0].payload

    on(url, scenario)


def test_a_store_whose_staging_breaks_ends_and_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(chunk: int, data: bytes) -> None:
        raise MemoryError

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        monkeypatch.setattr(keeper_of(store).journal, "stage", broken)
        with pytest.raises(Unavailable, match=r"the store has ended: MemoryError\(\)"):
            await store.push_jobs(T, "q", LARGE)
        assert store.failed == "the store has ended: MemoryError()"

    on(url, scenario)


def test_a_command_that_cannot_be_written_down_ends_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been carried out by then: whatever followed would rest on what no log knows of."""

    def broken(*_: object) -> None:
        raise TypeError("of no kind that a log can hold")

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        with monkeypatch.context() as patch:
            patch.setattr(keeper_of(store), "note", broken)
            # What is raised, or that the store has ended: nobody is told that it was done.
            with pytest.raises((TypeError, Unavailable)):
                await store.push_jobs(T, "q", [JobSpec()])
        with pytest.raises(Unavailable, match="of no kind that a log can hold"):
            await store.push_jobs(T, "q", [JobSpec()])
        assert store.failed == "the store has ended: of no kind that a log can hold"

    async def afterwards(store: EmbeddedStore) -> None:
        assert (await store.find(T, "q")).jobs == ()

    on(url, scenario)
    on(url, afterwards)


def test_everybody_is_told_though_the_next_batch_fails(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is answered late, when the next one is on its way; and before that one's failure."""

    async def scenario(store: EmbeddedStore) -> None:
        await calm(store)
        gate = Gate(store, monkeypatch)
        write = keeper_of(store).journal.write

        def second_fails(batch: Batch, ready: Callable[[], None]) -> bool:
            if len(gate.batches) == 1:
                raise JournalError("the disk is gone")
            return write(batch, ready)

        monkeypatch.setattr(keeper_of(store).journal, "write", second_fails)
        pushes = [asyncio.create_task(store.push_jobs(T, "q", LARGE)) for _ in range(2)]
        await gate.reached()
        gate.open()
        first, second = await asyncio.gather(*pushes, return_exceptions=True)
        assert len(first.ids) == 1  # type: ignore[union-attr]
        assert "the disk is gone" in str(second)

    on(url, scenario)


def test_a_push_may_ask_for_another_durability(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.pack("q", [b"1"])

    async def syncs(store: EmbeddedStore, durability: Any) -> list[bool]:
        await calm(store)
        with monkeypatch.context() as patched:
            gate = Gate(store, patched)
            gate.open()
            await store.push(T, [run], durability=durability)
            return [batch.sync for batch in gate.batches if batch.group is not None]

    async def on_fsync(store: EmbeddedStore) -> None:
        await store.push(T, [run])  # a store's first ids are reserved, durably
        assert await syncs(store, "os") == [False]
        assert await syncs(store, "fsync") == [True]
        assert await syncs(store, None) == [True]
        with pytest.raises(Invalid, match="not one of fsync, os"):
            await store.push(T, [run], durability="memory")

    async def on_os(store: EmbeddedStore) -> None:
        assert (await store.health()).durability == "os"
        assert await syncs(store, None) == [False]
        assert await syncs(store, "fsync") == [True]

    on(url, on_fsync)
    on(f"{url}?durability=os", on_os)


def test_a_journal_that_fails_ends_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        await calm(store)

        def broken(batch: Batch, ready: Callable[[], None]) -> bool:
            raise OSError("the disk is gone")

        monkeypatch.setattr(keeper_of(store).journal, "write", broken)
        waiting = asyncio.create_task(store.claim(T, ["other"], wait_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="the disk is gone"):
            await store.push_jobs(T, "q", [JobSpec()])
        with pytest.raises(Unavailable, match="the disk is gone"):
            await waiting
        for call in (store.queues(T), store.claim(T, ["q"]), store.push_jobs(T, "q", [JobSpec()])):
            with pytest.raises(Unavailable, match="the disk is gone"):
                await call

    on(url, scenario)
    on(url, _one_job)


async def _one_job(store: EmbeddedStore) -> None:
    (info,) = await store.queues(T)
    assert info.counts[State.READY] == 1


# -- what comes back -------------------------------------------------------------------------------


def test_ids_go_on_above_everything_that_may_have_been_given_out(url: str) -> None:
    async def scenario() -> None:
        store = await opened(url)
        before = (await store.push_jobs(T, "q", [JobSpec()] * 3)).ids
        await crash(store)
        store = await opened(url)
        after = (await store.push_jobs(T, "q", [JobSpec()])).ids
        assert after[0] > before[-1] + 4_096
        await store.close()
        store = await opened(url)
        assert (await store.push_jobs(T, "q", [JobSpec()])).ids == [after[0] + 1]
        await store.close()

    asyncio.run(scenario())


def test_payloads_beyond_the_cache_come_from_the_disk(url: str) -> None:
    run = Run.pack("q", [b"%044d" % n for n in range(1_000)], JobOptions(codec="bytes"))

    async def scenario(store: EmbeddedStore) -> None:
        for _ in range(20):
            await store.push(T, [run])
        await calm(store)
        payloads = store.engine.payloads
        assert isinstance(payloads, StoredPayloads)
        assert payloads.size <= 2 * len(run.data)
        seen = []
        while (lease := await store.claim(T, ["q"], 700)) is not None:
            seen += [job.payload for job in lease.jobs]
            await store.ack(T, lease.token)
        assert seen == list(run.payloads()) * 20

    on(f"{url}?cache_bytes=50000", scenario)


def test_the_log_is_truncated_and_the_kernel_read_back_is_the_same(url: str) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        settings = "?checkpoint_records=20&cache_bytes=1000"
        store = await opened(url + settings, clock=clock, seed=7)
        keeper = keeper_of(store)
        for number in range(200):
            await store.push_jobs(T, f"q{number % 3}", [JobSpec(key=f"k{number}")] * 2)
            lease = await store.claim(T, [f"q{number % 3}"])
            assert lease is not None
            if number % 4:
                await store.ack(T, lease.token)
            clock.advance(7)
        await calm(store)
        assert keeper.checkpointer.last.number > 5
        groups = list(keeper.journal.groups(0))
        assert groups[0].last > keeper.checkpointer.last.position - 20
        await crash(store)
        live = store.kernel
        assert await replayed_digest(url, live, clock) == live.digest()

    asyncio.run(scenario())


def test_a_checkpoint_may_be_asked_for_while_the_one_before_is_cleaned_up_after(url: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        keeper = keeper_of(store)
        await store.push_jobs(T, "q", [JobSpec()])
        for number in (1, 2):
            await asyncio.wait_for(keeper.checkpoint(), 30)
            assert keeper.checkpointer.last.number == number
            assert keeper.checkpointer.last.position == keeper.last

    on(url, scenario)


REPLAY = """
import asyncio, sys
from penstock.open import open_store
async def main():
    store = await open_store(sys.argv[1] + "?mode=ro")
    kernel = store.kernel
    kernel.now, kernel.elapsed = int(sys.argv[2]), int(sys.argv[3])
    print(kernel.digest())
    await store.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(("records", "replayed"), [(WORTH + 10, False), (50, True)])
def test_a_store_that_was_closed_opens_without_a_replay_of_much(
    url: str, records: int, replayed: bool
) -> None:
    async def fill(store: EmbeddedStore) -> None:
        run = Run.pack("q", [b"1"], JobOptions(codec="bytes"))
        # On a loop that does nothing else, so that a commit has many of them.
        await asyncio.gather(*(store.push(T, [run]) for _ in range(records)))

    async def look(store: EmbeddedStore) -> None:
        assert (keeper_of(store).recovered.replayed >= records) == replayed
        assert (keeper_of(store).recovered.replayed < 10) == (not replayed)
        (info,) = await store.queues(T, ["q"])
        assert info.counts[State.READY] == records

    on(url, fill)
    on(url, look)


def test_a_random_history_replays_to_the_same_digest_in_another_process(url: str) -> None:
    """With other hash seeds; the commands are those of the kernel's own histories."""
    history = History(1_234)

    async def scenario() -> None:
        clock = ManualClock(history.now, history.elapsed)
        store = await opened(
            f"{url}?checkpoint_records=150", clock=clock, caps=history.caps, seed=1
        )
        for played, (step, _) in enumerate(history.steps(600)):
            clock.now, clock.elapsed = step.now, step.elapsed
            with suppress(PenstockError):
                store.engine.apply(step.command)
            if played % 40 == 0:
                await asyncio.sleep(0)
        await calm(store)
        # These commands name chunks, and bring no bytes along.
        keeper_of(store).journal.write(Batch(chunks=[(n, b"") for n in store.kernel.chunks]))
        await crash(store)
        live = store.kernel
        for seed in ("1", "2"):
            assert await asyncio.to_thread(digest_elsewhere, url, live, seed) == live.digest()

    asyncio.run(scenario())


def digest_elsewhere(url: str, live: Kernel, hash_seed: str) -> str:
    told = subprocess.run(
        [sys.executable, "-c", REPLAY, url, str(live.now), str(live.elapsed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return told.stdout.strip()


def test_named_points_are_reached_on_the_way_to_the_disk(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: set[str] = set()
    monkeypatch.setattr(points, "hook", reached.add)

    async def scenario(store: EmbeddedStore) -> None:
        for _ in range(30):
            await store.push_jobs(T, "q", [JobSpec()])
        await calm(store)

    on(f"{url}?checkpoint_records=5", scenario)
    assert reached == set(points.POINTS)


def test_a_chunk_of_which_little_is_needed_is_written_anew(url: str) -> None:
    """One that stays does not keep the payloads of all that were pushed with it."""
    payloads = [os.urandom(100) for _ in range(2_000)]
    run = Run.pack("q", payloads, JobOptions(codec="bytes", retain_ms=0))

    async def scenario(store: EmbeddedStore) -> None:
        ids = (await store.push(T, [run])).ids
        keeper = keeper_of(store)
        stay = ids[500:510]
        lease = await store.claim(T, ["q"], 2_000)
        assert lease is not None
        await store.ack(T, lease.token, [i for i in ids if i not in stay])
        await store.release(T, lease.token)
        await calm(store)
        (chunk,) = store.kernel.chunks
        before = len(keeper.journal.chunk(chunk).replace(b"\0", b""))
        await keeper.sweep()
        after = keeper.journal.chunk(chunk)
        assert len(after) == 200_000
        assert len(after.replace(b"\0", b"")) < 1_100 < before
        await store.close()
        again = await opened(url)
        jobs = await again.get(T, stay)
        assert [job and job.payload for job in jobs] == payloads[500:510]
        await again.close()

    on(url, scenario)


# -- a store that somebody takes away --------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_acknowledged_in_a_store_that_was_deleted(
    scheme: str, replaced: bool, tmp_path: Path
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        place = tmp_path / "store"
        place.rename(tmp_path / "away")
        if replaced:
            place.mkdir() if (tmp_path / "away").is_dir() else place.touch()
        with pytest.raises(Unavailable, match="was deleted or replaced while it was open"):
            await store.push_jobs(T, "q", [JobSpec()])
        with pytest.raises(Unavailable):
            await store.push_jobs(T, "q", [JobSpec()])
        assert store.failed is not None

    async def whole() -> None:
        store = await opened(f"{scheme}:///{tmp_path}/store")
        assert store.failed is None
        try:
            await scenario(store)
        finally:
            await store.close()
        assert store.failed is None, "it is closed, and that is all"

    asyncio.run(whole())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_store_that_is_gone_is_missed(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def once() -> None:
        store = await opened(f"{scheme}:///{tmp_path}/store")
        await store.push_jobs(T, "q", [JobSpec()])
        await store.close()

    asyncio.run(once())
    assert caplog.messages == []
    (tmp_path / "store").rename(tmp_path / "away")
    asyncio.run(once())
    assert [each for each in caplog.messages if "is gone: an empty one begins there" in each]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in line"])
def test_jobs_whose_payloads_cannot_be_given_go_back_unspent(
    scheme: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is, also one that nobody has thought of."""
    url = f"{scheme}:///{tmp_path}/jobs"

    async def pushed(store: EmbeddedStore) -> None:
        delay_ms = 20 if waits else None
        await store.push(T, [Run.pack("q", [b"1", b"2"], delay_ms=delay_ms)])

    async def failing(store: EmbeddedStore) -> None:
        def fails(*_: object) -> None:
            raise RuntimeError("no thread for this")

        with monkeypatch.context() as patched:
            patched.setattr(StoredPayloads, "_load", fails)
            with pytest.raises(RuntimeError, match="no thread for this"):
                await store.claim(T, ["q"], 2, wait_ms=30_000)
        jobs = (await store.find(T, "q")).jobs
        assert [(job.state, job.attempt) for job in jobs] == [(State.READY, 0)] * 2
        lease = await store.claim(T, ["q"], 2)
        assert lease is not None
        assert [job.payload for job in lease.jobs] == [b"1", b"2"]

    on(url, pushed)
    on(url, failing)
