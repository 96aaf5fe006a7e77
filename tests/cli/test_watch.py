"""`penstock stats`, `tail`, `workers` and `bench`."""

import asyncio
import json
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import watch
from penstock.cli.session import Session
from penstock.model.errors import Unavailable
from penstock.model.job import JobOptions, Run
from penstock.open import open_store
from penstock.protocol.access import OpenToAll
from penstock.protocol.native import NATIVE
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener
from penstock.stores.target import Target
from tests.cli.cli import Cli, environment, process

URL = "sqlite:///jobs.db"
LOOKS = 500  # until a process that was started has begun to wait
LOST = "the connection was lost: some may not have been shown; going on from here"


def test_stats_count_jobs_by_state(cli: Cli) -> None:
    cli("push", "a", "--lines", "-", given="1\n2\n3\n")
    cli("push", "b", "--delay", "1h")
    cli("claim", "a")
    cli("queues", "pause", "b")
    stats = cli.json("stats")
    assert (stats["store"], stats["ok"], stats["durability"]) == ("sqlite", True, "os")
    assert (stats["queues"], stats["paused"]) == (2, 1)
    counts = {state: count for state, count in stats["counts"].items() if count}
    assert counts == {"scheduled": 1, "ready": 2, "active": 1}
    said = cli("stats")
    assert "2, 1 of them paused" in said
    assert re.search(r"^ready +2 *$", said, re.MULTILINE)
    assert cli.json("stats", "--tenant", "other")["queues"] == 0


@contextmanager
def one_waits(cli: Cli, place: Path, worker: str, *words: object) -> Iterator[None]:
    """Meanwhile a claim waits, in another process that owns the path; somebody else holds a job."""
    cli("push", "held")
    cli("claim", "held", "--worker", "busy")
    said = ("claim", *words, "--worker", worker, "--wait", "1h", "--url", URL)
    with process(said, cwd=place, stdout=subprocess.DEVNULL) as waiting:
        try:
            for _ in range(LOOKS):
                known = cli.json("workers", "ls")["workers"]
                if any(each["waiting"] for each in known if each["worker"] == worker):
                    break
            else:
                raise AssertionError(f"{worker} does not wait")
            yield
        finally:
            waiting.send_signal(signal.SIGINT)


def test_workers_with_nothing_to_do_are_those_whose_claims_wait(cli: Cli, place: Path) -> None:
    with one_waits(cli, place, "idle", "b", "a", "-n", 5):
        listed = cli.json("workers", "ls")
        assert listed["complete"] is True
        busy, idle = listed["workers"]
        assert (busy["worker"], busy["active"]) == ("busy", 1)
        assert (busy["waiting"], busy["room"], busy["waiting_since"]) == (0, 0, None)
        assert (idle["worker"], idle["active"], idle["queues"]) == ("idle", 0, ["a", "b"])
        assert (idle["waiting"], idle["room"]) == (1, 5)
        assert busy["oldest_start"] <= idle["waiting_since"] <= time.time() * 1_000
        assert idle["oldest_start"] is idle["last_heartbeat"] is idle["lease_expires_at"] is None
        said = cli("workers", "ls")
        assert re.search(r"^busy +1 +0 +- .* held *$", said, re.MULTILINE)
        assert re.search(r"^idle +0 +5 +(now|\d+s ago) +- +- +- +a, b *$", said, re.MULTILINE)
        assert cli.json("workers", "ls", "--tenant", "other", code=1)["workers"] == []
        cli("queues", "purge", "held", "--yes")
        (alone,) = cli.json("workers", "ls")["workers"]
        assert alone["worker"] == "idle"


def test_a_worker_that_could_do_more_than_it_does_holds_jobs_and_waits(
    cli: Cli, place: Path
) -> None:
    with one_waits(cli, place, "busy", "a", "-n", 3):
        (busy,) = cli.json("workers", "ls")["workers"]
        assert (busy["active"], busy["waiting"], busy["room"]) == (1, 1, 3)
        assert busy["queues"] == ["a", "held"]
        assert re.search(r"^busy +1 +3 +\S.* a, held *$", cli("workers", "ls"), re.MULTILINE)


def test_workers_are_those_who_hold_jobs(cli: Cli) -> None:
    cli("push", "a", "--lines", "-", given="1\n2\n3\n")
    cli("push", "b", "--lines", "-", given="4\n5\n")
    assert cli("workers", "ls", code=1) == "nobody holds a job or waits for one\n"
    cli("claim", "a", "-n", 2, "--worker", "w1", "--lease", "5m")
    cli("claim", "b", "--worker", "w1", "--lease", "2h")
    cli("claim", "b")
    listed = cli.json("workers", "ls")
    assert listed["complete"] is True
    unnamed, named = listed["workers"]
    assert (unnamed["worker"], unnamed["active"]) == ("", 1)
    assert (named["worker"], named["active"], named["queues"]) == ("w1", 3, ["a", "b"])
    assert named["oldest_start"] <= named["last_heartbeat"]
    assert named["lease_expires_at"] - named["oldest_start"] == pytest.approx(300_000, abs=1_000)
    said = cli("workers", "ls")
    assert re.search(r"^w1 +3 +0 +- .* in [45]m +a, b", said, re.MULTILINE)
    assert "(unnamed)" in said


def test_workers_of_a_part_say_so(cli: Cli) -> None:
    cli("push", "a", "--lines", "-", given="1\n2\n3\n")
    cli("claim", "a", "-n", 3)
    listed = cli.json("workers", "ls", "--limit", 2)
    assert (listed["workers"][0]["active"], listed["complete"]) == (2, False)
    assert cli.told == "only the first 2 active jobs were looked at; see --limit\n"
    assert cli.json("workers", "ls", "--limit", 3)["complete"] is True


def test_those_who_wait_of_a_part_say_so(cli: Cli, place: Path) -> None:
    with one_waits(cli, place, "one", "a"), one_waits(cli, place, "two", "a"):
        listed = cli.json("workers", "ls", "--limit", 2)
        assert [each["worker"] for each in listed["workers"]] == ["busy", "one", "two"]
        assert listed["complete"] is True
        cli("queues", "purge", "held", "--yes")
        listed = cli.json("workers", "ls", "--limit", 1)
        assert [each["worker"] for each in listed["workers"]] == ["one"]
        assert listed["complete"] is False
        assert cli.told == "only the first 1 waiting claims were looked at; see --limit\n"


def test_the_bench_measures_and_leaves_nothing(cli: Cli) -> None:
    measured = cli.json("bench", "--time", "1ms", "--batch", 1, "--batch", 50)
    assert [row["batch"] for row in measured["rows"]] == [1, 50]
    assert all(row["push_per_s"] > 0 < row["work_per_s"] for row in measured["rows"])
    assert cli("queues", "ls", code=1) == "no queues\n"
    said = cli("bench", "--time", "1ms", "--batch", 1, "--url", "memory://")
    assert "One client, one call at a time" in said
    cli("push", "q")
    cli("bench", "--queue", "q", code=2)
    assert cli.told.startswith("--queue: q has jobs")


# -- tail ------------------------------------------------------------------------------------------


@contextmanager
def tailing(place: Path, *words: object) -> Iterator["subprocess.Popen[str]"]:
    """A tail that has begun: it says so by the first event that it prints."""
    tail = process(
        ("tail", "--json", *words, "--url", URL),
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield tail
    finally:
        tail.kill()
        tail.communicate()


def test_tail_prints_what_happens_until_ctrl_c(place: Path) -> None:
    cli = Cli("--url", URL)
    cli("push", "q")
    with tailing(place, "--queue", "q", "--kind", "pushed", "--kind", "claimed") as tail:
        assert tail.stdout is not None
        pushed = _pushes_until_seen(cli, tail)
        cli("push", "p")
        cli("jobs", "cancel", 1)
        cli("claim", "q", "--worker", "w")
        claimed = json.loads(tail.stdout.readline())
        while claimed["kind"] == "pushed":
            claimed = json.loads(tail.stdout.readline())
        assert (claimed["kind"], claimed["queue"], claimed["worker"]) == ("claimed", "q", "w")
        assert (pushed["kind"], pushed["queue"], len(pushed["ids"])) == ("pushed", "q", 1)
        tail.send_signal(signal.SIGINT)
        rest, told = tail.communicate(timeout=30)
        # Whoever pushes may have owned the path for an instant, and have left it while tail began.
        assert (rest, set(told.splitlines()) - {LOST}, tail.returncode) == ("", set(), 0)


def _pushes_until_seen(cli: Cli, tail: "subprocess.Popen[str]") -> dict[str, Any]:
    """Events are told from now on: push until one is."""
    assert tail.stdout is not None
    while not select.select([tail.stdout], [], [], 0.05)[0]:
        assert tail.poll() is None
        cli("push", "q")
    found: dict[str, Any] = json.loads(tail.stdout.readline())
    return found


def test_tail_for_people_names_ids_in_stretches(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        store = await open_store("memory://")
        at = Session(store, "memory://", "default", as_json=False)
        tail = asyncio.create_task(watch.tail(at, count=2))
        await asyncio.sleep(0)
        await _push(at, 1_000)
        await store.cancel("default", [1, 2, 5])
        await tail
        await store.close()

    asyncio.run(scenario())
    pushed, cancelled = capsys.readouterr().out.splitlines()
    assert pushed.endswith(" pushed     q 1-1000 (1,000 jobs) task=t")
    assert " cancelled  q 1 " in cancelled


async def _push(at: Session, count: int) -> None:
    run = Run.pack("q", [b"1"] * count, JobOptions(task="t"))
    await at.store.push(at.tenant, [run])


def test_tail_that_falls_behind_says_so_and_goes_on(
    cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await open_store("memory://")
        at = Session(store, "memory://", "default", as_json=True)
        tail = asyncio.create_task(watch.tail(at, count=1))
        await asyncio.sleep(0)  # it watches by now
        behind = asyncio.Event()

        def noted(text: str) -> None:
            told.append(text)
            behind.set()

        monkeypatch.setattr(watch, "note", noted)
        monkeypatch.setattr("penstock.stores.watching.BACKLOG", 0)
        await _push(at, 1)
        await behind.wait()
        monkeypatch.undo()
        await _push(at, 1)
        await tail
        await store.close()

    told: list[str] = []
    asyncio.run(scenario())
    assert told == [
        "the watcher fell more than 0 events behind: some were not shown; going on from here"
    ]
    assert json.loads(capsys.readouterr().out)["ids"] == [[2, 2]]


def test_tail_goes_on_when_the_owner_of_its_path_ends(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        owner, store = await open_store(URL), await open_store(URL)
        at = Session(store, URL, "default", as_json=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.tail(at, count=2))
            await asyncio.sleep(0)  # it has asked by now, ahead of the push
            await _push(at, 1)
            await owner.close()
            await again.wait()
            await _push(at, 1)
        await store.close()

    def noted(text: str) -> None:
        told.append(text)
        again.set()

    told: list[str] = []
    again = asyncio.Event()
    monkeypatch.setattr(watch, "note", noted)
    asyncio.run(scenario())
    assert told == [LOST]
    assert [json.loads(line)["ids"] for line in capsys.readouterr().out.splitlines()] == [
        [[1, 1]],
        [[2, 2]],
    ]


def test_tail_of_a_server_that_is_gone_for_good_ends_with_an_error(place: Path) -> None:
    async def scenario() -> None:
        served = await open_store("memory://")
        listener = Listener(served, NATIVE, OpenToAll())
        await listener.listen_unix("served.sock")
        url = "penstock+unix:///served.sock"
        store = RemoteStore(Target(path="served.sock"), patience_s=0.05)
        tail = asyncio.create_task(watch.tail(Session(store, url, "default", as_json=True)))
        await asyncio.sleep(0)
        await store.health()  # asked for behind the watch
        await listener.close()
        with pytest.raises(Unavailable, match=r"served\.sock"):
            await tail
        await store.close()
        await served.close()

    asyncio.run(scenario())


def test_a_kind_that_is_none_is_refused(cli: Cli) -> None:
    cli("push", "q")
    cli("tail", "--kind", "vanished", code=2)
    assert "is not one of pushed, committed" in " ".join(cli.told.replace("│", " ").split())
