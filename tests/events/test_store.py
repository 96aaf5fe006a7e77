"""Stores with an event log: nothing is missing, whatever ends them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.events.log import EventLog
from penstock.events.reader import read
from penstock.events.segment import Line, decode, encode
from penstock.events.segments import Rules
from penstock.model.errors import Invalid, Unavailable
from penstock.model.event import Event
from penstock.model.job import JobSpec, Run
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.backup import restore
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import points, replaying
from penstock.stores.shared import SharedStore
from tests.durable import crash
from tests.faults.stores import each_store, url_of
from tests.history.record import FileLog
from tests.history.recorder import Recorder
from tests.history.workload import work

T = "default"
RULES = Rules(reserve_bytes=0, seal_s=3_600)


def log_in(directory: Path) -> EventLog:
    return EventLog(directory / "events", RULES)


async def opened(url: str, **options: Any) -> EmbeddedStore:
    store = await open_store(url, share=False, **options)
    assert isinstance(store, EmbeddedStore)
    return store


async def push(store: Store, n: int = 1) -> list[int]:
    return list((await store.push(T, [Run.pack("q", [b"1"] * n)])).ids)


def told(directory: Path, kind: str = "pushed") -> list[int]:
    """The ids of the jobs that the event log tells this of."""
    return [
        job
        for line in read(directory / "events")
        if line.kind == kind
        for first, n in line.ids
        for job in range(first, first + n)
    ]


class Sink:
    """Keeps what it is told in memory, over any number of openings."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: list[Event]) -> None:
        self.events += events


class Forgetful(EventLog):
    """An event log whose process dies: what it had not written is gone."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "events", RULES)
        self.hears = True

    def write(self, events: list[Event]) -> None:
        if self.hears:
            super().write(events)


def test_a_store_in_memory_keeps_its_events(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        store = await open_store("memory://", events=tmp_path / "events")
        ids = await push(store, 3)
        lease = await store.claim(T, ["q"], 2)
        assert lease is not None
        await store.ack(T, lease.token)
        assert (await store.health()).detail["events_dropped"] == 0
        await store.close()
        return ids

    ids = asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert told(tmp_path, "completed") == ids[:2]
    again = asyncio.run(scenario())
    assert sorted(told(tmp_path)) == sorted(ids + again)
    assert len({line.store for line in read(tmp_path / "events")}) == 2


@each_store
def test_the_url_of_a_store_names_its_event_log(scheme: str, tmp_path: Path) -> None:
    url = url_of(scheme, tmp_path, events=tmp_path / "events", events_seal_s=60)

    async def scenario() -> list[int]:
        store = await open_store(url)
        ids = await push(store, 3)
        await store.close()
        return ids

    ids = asyncio.run(scenario()) + asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert len({line.store for line in read(tmp_path / "events")}) == 1


def test_where_events_cannot_be_kept_is_said_at_the_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def opening(said: str, **options: Any) -> None:
        await open_store(said, **options)

    with pytest.raises(Unavailable, match="cannot be kept in"):
        asyncio.run(opening(f"{url}?events={tmp_path}/file"))
    with pytest.raises(Unavailable, match="cannot be kept in"):
        asyncio.run(opening("memory://", events=tmp_path / "file"))
    with pytest.raises(Invalid, match="a server keeps its own events"):
        asyncio.run(opening("penstock://127.0.0.1:1", events=tmp_path / "events"))
    with pytest.raises(Invalid, match="already"):
        asyncio.run(opening(f"{url}?events={tmp_path}/a", events=tmp_path / "b"))


@each_store
def test_what_a_crash_kept_from_the_event_log_is_told_at_the_next_opening(
    scheme: str, tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path, checkpoint_records=1_000)

    async def scenario() -> list[int]:
        log = Forgetful(tmp_path)
        store = await opened(url, events=log)
        ids = await push(store, 3)
        log.hears = False
        ids += await push(store, 3)
        lease = await store.claim(T, ["q"], 4)
        assert lease is not None
        await store.ack(T, lease.token)
        await crash(store)
        assert told(tmp_path) == ids[:3]
        store = await opened(url, events=log_in(tmp_path))
        await store.close()
        return ids

    ids = asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert told(tmp_path, "completed") == ids[:4]
    assert not told_gaps(tmp_path)


def told_gaps(directory: Path) -> list[tuple[int, int, str]]:
    return [
        (line.position, json.loads(line.data)["through"], line.reason)
        for line in read(directory / "events")
        if line.kind == "gap"
    ]


@each_store
def test_events_told_again_are_those_that_were_told(scheme: str, tmp_path: Path) -> None:
    """Random histories with crashes: whatever is told twice is the same, to the last field."""
    url, sink = url_of(scheme, tmp_path, checkpoint_records=120), Sink()

    async def live(seed: int) -> int:
        store = await opened(url, events=sink)
        keeper = store.engine.keeper
        assert keeper is not None
        with FileLog(tmp_path / "history") as lines:
            await work(Recorder(store, lines), seed=seed, operations=150)
        await keeper.safe(keeper.level)
        await crash(store)
        return keeper.checkpointer.last.position

    async def again(number: int) -> list[Line]:
        store = await opened(url, events=EventLog(tmp_path / str(number), RULES))
        await crash(store)
        return list(read(tmp_path / str(number)))

    compared = 0
    for seed in range(4):
        checkpoint = asyncio.run(live(seed))
        ours = [event for event in sink.events if event.position > checkpoint]
        retold = [line for line in asyncio.run(again(seed)) if line.kind != "gap"]
        assert all(line.position > checkpoint for line in retold)
        name = retold[0].store if retold else ""
        expected = [decode(text) for text in encode(name, ours).splitlines()]
        assert retold[: len(expected)] == expected
        assert all(line.position > live_end(ours) for line in retold[len(expected) :])
        compared += len(expected)
        sink.events = []
    assert compared > 100


def live_end(events: list[Event]) -> int:
    """What follows is what opening the store let happen."""
    return events[-1].position if events else 0


@each_store
def test_a_checkpoint_waits_for_the_event_log(scheme: str, tmp_path: Path) -> None:
    """As long as events are not on the disk, the log that could tell them again stays."""
    url = url_of(scheme, tmp_path, checkpoint_records=1_000_000)
    asked: list[Callable[[bool], None]] = []

    class Slow(EventLog):
        def sync(self, done: Callable[[bool], None]) -> None:
            asked.append(done)

    async def scenario() -> None:
        log = Slow(tmp_path / "events", RULES)
        store = await opened(url, events=log)
        keeper = store.engine.keeper
        assert keeper is not None
        await push(store)
        checkpoint = asyncio.create_task(keeper.checkpoint())
        for _ in range(20):  # whatever else is to be written is
            await push(store)
        assert len(asked) == 1
        assert keeper.checkpointer.last.number == 0
        assert not checkpoint.done()
        EventLog.sync(log, asked[0])
        await checkpoint
        assert keeper.checkpointer.last.number == 1
        await store.close()

    asyncio.run(scenario())


@each_store
def test_an_event_log_that_gives_up_holds_no_checkpoint_and_leaves_a_gap(
    scheme: str, tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path, checkpoint_records=1_000_000)

    class Broken(Forgetful):
        def sync(self, done: Callable[[bool], None]) -> None:
            done(False)

    async def scenario() -> tuple[int, int]:
        log = Broken(tmp_path)
        store = await opened(url, events=log)
        keeper = store.engine.keeper
        assert keeper is not None
        await push(store)
        kept = keeper.last
        log.hears = False
        await push(store)
        await keeper.checkpoint()
        await crash(store)
        store = await opened(url, events=log_in(tmp_path))
        await store.close()
        return kept, keeper.checkpointer.last.position

    kept, checkpoint = asyncio.run(scenario())
    assert told_gaps(tmp_path) == [(kept + 1, checkpoint, "off")]


@each_store
def test_what_happened_while_there_was_no_event_log_is_a_gap(scheme: str, tmp_path: Path) -> None:
    url = url_of(scheme, tmp_path, checkpoint_records=1_000_000)

    async def scenario() -> tuple[list[int], int, int]:
        store = await opened(url, events=log_in(tmp_path))
        ids = await push(store)
        assert store.engine.keeper is not None
        kept = store.engine.keeper.last
        await store.close()
        store = await opened(url)
        await push(store)
        assert store.engine.keeper is not None
        await store.engine.keeper.checkpoint()
        checkpoint = store.engine.keeper.checkpointer.last.position
        ids += await push(store)  # the log still tells this one
        await store.close()
        store = await opened(url, events=log_in(tmp_path))
        ids += await push(store)
        await store.close()
        return ids, kept, checkpoint

    ids, kept, checkpoint = asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert told_gaps(tmp_path) == [(kept + 1, checkpoint, "off")]


class Killed(Exception):
    pass


async def killed_in_its_replay(
    url: str, monkeypatch: pytest.MonkeyPatch, checkpoints: int, **options: Any
) -> None:
    """An opening that makes a checkpoint behind every group of records, and dies of the n-th."""
    left = checkpoints

    def hook(point: str) -> None:
        nonlocal left
        left -= point == "checkpoint done"
        if not left:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replaying, "KEEP_S", 0.0)
        patched.setattr(replaying, "SHARE", 1.0)
        patched.setattr(points, "hook", hook)
        with pytest.raises(Unavailable, match="Killed"):
            await opened(url, **options)


@each_store
def test_what_a_killed_replay_has_told_is_told_once(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(scheme, tmp_path, checkpoint_records=1_000_000)

    async def scenario() -> list[int]:
        log = Forgetful(tmp_path)
        store = await opened(url, events=log)
        ids = await push(store)
        log.hears = False
        for _ in range(20):
            ids += await push(store)
        await crash(store)
        await killed_in_its_replay(url, monkeypatch, 7, events=log_in(tmp_path))
        store = await opened(url, events=log_in(tmp_path))
        assert store.engine.keeper is not None
        assert store.engine.keeper.recovered.replayed <= 20 - 5
        ids += await push(store)
        await store.close()
        return ids

    ids = asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert told_gaps(tmp_path) == []


@each_store
def test_what_a_killed_replay_without_an_event_log_cut_off_is_a_gap(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(scheme, tmp_path, checkpoint_records=1_000_000)

    async def scenario() -> tuple[list[int], int, int]:
        log = Forgetful(tmp_path)
        store = await opened(url, events=log)
        ids = await push(store)
        assert store.engine.keeper is not None
        kept = store.engine.keeper.last
        log.hears = False
        for _ in range(20):
            ids += await push(store)
        await crash(store)
        await killed_in_its_replay(url, monkeypatch, 7)
        store = await opened(url, events=log_in(tmp_path))
        assert store.engine.keeper is not None
        checkpoint = store.engine.keeper.recovered.checkpoint.position
        await store.close()
        return ids, kept, checkpoint

    ids, kept, checkpoint = asyncio.run(scenario())
    assert kept < checkpoint
    assert told_gaps(tmp_path) == [(kept + 1, checkpoint, "off")]
    assert told(tmp_path) == [ids[0], *ids[checkpoint - kept + 1 :]]


@each_store
def test_an_older_copy_of_a_store_goes_on_under_another_name(scheme: str, tmp_path: Path) -> None:
    """Positions would come twice with other events."""
    url = url_of(scheme, tmp_path)
    other = f"{scheme}:///{tmp_path}/restored?reserve_bytes=0"

    async def scenario() -> tuple[list[int], list[int]]:
        store = await opened(url, events=log_in(tmp_path))
        ids = await push(store)
        backup = await store.backup(tmp_path / "backups")
        ids += await push(store, 5)
        await store.close()
        restore(backup, scheme, tmp_path / "restored")
        store = await opened(other, events=log_in(tmp_path))
        newer = await push(store, 2)
        await store.close()
        store = await opened(other, events=log_in(tmp_path))
        newer += await push(store, 2)
        await store.close()
        return ids, newer

    ids, newer = asyncio.run(scenario())
    by_store: dict[str, list[int]] = {}
    for line in read(tmp_path / "events"):
        if line.kind == "pushed":
            by_store.setdefault(line.store, []).extend(range(line.ids[0][0], sum(line.ids[0])))
    assert sorted(by_store.values(), key=len) == sorted([newer, ids], key=len)
    assert not told_gaps(tmp_path)


def test_claims_do_not_wait_for_the_sync_that_their_events_wait_for(tmp_path: Path) -> None:
    """Their events come with the next sync, and without one within a moment."""

    async def scenario() -> None:
        store = await opened(f"sqlite:///{tmp_path}/jobs.db", events=log_in(tmp_path))
        keeper = store.engine.keeper
        assert keeper is not None
        await push(store, 3)
        syncs, batches = keeper.writer.syncs, keeper.writer.batches
        assert await store.claim(T, ["q"]) is not None
        assert (keeper.writer.syncs, keeper.writer.batches) == (syncs, batches + 1)
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keeper.after(lambda: told.set_result(None))
        await told
        assert keeper.writer.syncs == syncs + 1
        await store.close()

    asyncio.run(scenario())


def test_events_of_claims_in_line_are_numbered_by_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened("memory://", events=log_in(tmp_path))
        claims = [asyncio.create_task(store.claim(T, ["q"], wait_ms=60_000)) for _ in range(3)]
        await asyncio.sleep(0)
        await push(store, 3)
        await asyncio.gather(*claims)
        await store.close()

    asyncio.run(scenario())
    lines = list(read(tmp_path / "events"))
    assert [line.kind for line in lines] == ["pushed", "claimed", "claimed", "claimed"]
    assert [line.index for line in lines] == [0, 0, 0, 0]
    assert len({line.position for line in lines}) == 4


def test_the_next_owner_of_a_path_goes_on_with_its_events(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?events={tmp_path}/events"

    async def scenario() -> list[int]:
        first, second = await open_store(url), await open_store(url)
        assert isinstance(second, SharedStore)
        ids = await push(first) + await push(second)
        await first.close()
        ids += await push(second)
        assert second.owned
        await second.close()
        return ids

    ids = asyncio.run(scenario())
    assert told(tmp_path) == ids


def test_an_event_log_on_a_full_disk_does_not_stop_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        full = EventLog(tmp_path / "events", Rules(reserve_bytes=1 << 60), buffer_bytes=1_000)
        store = await opened(f"sqlite:///{tmp_path}/jobs.db?reserve_bytes=0", events=full)
        for _ in range(200):
            await push(store)
        detail = (await store.health()).detail
        assert detail["events_dropped"] > 0
        await store.close()

    asyncio.run(scenario())


def on_way(reached: Callable[[str], None]) -> Callable[[], Awaitable[None]]:
    """Have the points on the way to the disk told, until it is awaited."""
    points.hook = reached

    async def undo() -> None:
        points.hook = None

    return undo


def test_a_finished_checkpoint_means_that_its_events_were_synced(tmp_path: Path) -> None:
    """In the order in which a crash could fall between them."""
    order: list[str] = []

    class Noted(EventLog):
        def sync(self, done: Callable[[bool], None]) -> None:
            def noted(whole: bool) -> None:
                order.append("events synced")
                done(whole)

            super().sync(noted)

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/jobs.db?checkpoint_records=10&reserve_bytes=0"
        store = await opened(url, events=Noted(tmp_path / "events", RULES))
        undo = on_way(order.append)
        for _ in range(100):
            await push(store)
        await undo()
        await store.close()

    asyncio.run(scenario())
    steps = [step for step in order if step in ("events synced", "checkpoint final")]
    assert steps.count("checkpoint final") > 3
    finals = [at for at, step in enumerate(steps) if step == "checkpoint final"]
    assert all(at and steps[at - 1] == "events synced" for at in finals)


@each_store
def test_checkpoints_go_on_beside_the_event_log(scheme: str, tmp_path: Path) -> None:
    """Also where nobody asks for a sync but they themselves."""
    url = url_of(scheme, tmp_path, durability="os", checkpoint_records=10)

    async def scenario() -> list[int]:
        store = await opened(url, events=log_in(tmp_path))
        keeper = store.engine.keeper
        assert keeper is not None
        ids: list[int] = []
        while keeper.checkpointer.last.number < 5:
            ids += await push(store)
        await crash(store)
        store = await opened(url, events=log_in(tmp_path))
        await store.close()
        return ids

    ids = asyncio.run(scenario())
    assert told(tmp_path) == ids
    assert not told_gaps(tmp_path)


def test_specs_of_every_kind_are_told(tmp_path: Path) -> None:
    """What a line says of a job that has everything."""

    async def scenario() -> None:
        store = await opened("memory://", events=log_in(tmp_path))
        spec = JobSpec(payload=b"12345", task="welcome", priority=-3, delay_ms=60_000)
        await store.push_jobs("acme", "emails", [spec])
        await store.close()

    asyncio.run(scenario())
    (line,) = read(tmp_path / "events")
    assert (line.kind, line.tenant, line.queue, line.task) == (
        "pushed",
        "acme",
        "emails",
        "welcome",
    )
    assert (line.priority, line.bytes, line.count) == (-3, 5, 1)
    assert line.run_at == line.ready_at == line.at + 60_000
