"""A backup of a shared path: whoever asks for one, its owner takes it, and goes on serving."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli import backup as commands
from penstock.model.errors import Conflict, Invalid, Unavailable
from penstock.open import JOURNALS, open_store
from penstock.server.server import Server
from penstock.settings import Settings
from penstock.stores import backup
from penstock.stores import shared as module
from penstock.stores.serving import Listener
from tests.durable import scratch
from tests.unit.test_shared import play, push, shared


@pytest.fixture(params=sorted(JOURNALS))
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with scratch() as directory:
        yield f"{request.param}:///{directory}/jobs"


class Packing:
    """Backups that wait, in their thread, before the copy is packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        pack = backup._pack

        def waiting(*said: Any) -> None:
            self.begun.set()
            assert self.go_on.wait(30)
            pack(*said)

        monkeypatch.setattr(backup, "_pack", waiting)

    async def under_way(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 30)


def sound(taken: Path, jobs: int) -> None:
    report = backup.verify(taken, JOURNALS)
    assert (report.problems, report.jobs) == ([], jobs)


def test_a_client_is_given_the_backup_that_the_owner_took(url: str, tmp_path: Path) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        await push(second, 3)
        for store in first, second, first, second:
            taken = await store.backup(tmp_path / "far" / "copies", keep=2)
            assert taken == backup.kept(tmp_path / "far" / "copies")[-1]
            sound(taken, 3)
            assert (await first.health()).detail["backup"] == taken.name
        assert len(backup.kept(tmp_path / "far" / "copies")) == 2
        await second.close()
        await first.close()

    play(case)


def test_a_directory_is_the_one_that_the_client_means(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        monkeypatch.chdir(tmp_path)
        taken = await second.backup("copies")
        assert taken.parent == tmp_path / "copies"
        await second.close()
        await first.close()

    play(case)


def test_what_hinders_a_backup_is_told_in_a_sentence(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def case() -> None:
        first, second = await shared(url), await shared(url)
        for store in first, second:
            with pytest.raises(Unavailable) as refused:
                await store.backup(tmp_path / "file" / "copies")
            assert str(refused.value) == f"the backup failed: {tmp_path}/file is no directory"
            with pytest.raises(Unavailable) as refused:
                await store.backup("/proc/none/copies")
            assert str(refused.value) == "the backup failed: /proc/none: No such file or directory"
            with pytest.raises(Invalid, match="keep"):
                await store.backup(tmp_path, keep=-1)
        with pytest.raises(Invalid, match="UTF-8"):
            await second.backup(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
        assert await push(second)
        await second.close()
        await first.close()

    play(case)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_too_old_and_cannot_be_deleted_does_not_make_the_backup_a_failure(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / f"20200101T000000.000Z{backup.SUFFIX}").mkdir()  # named like one

    async def case() -> None:
        first, second = await shared(url), await shared(url)
        with pytest.raises(Unavailable, match="is whole, but an older one cannot be deleted: "):
            await second.backup(tmp_path, keep=1)
        sound(backup.kept(tmp_path)[-1], 0)
        await second.close()
        await first.close()

    play(case)


def test_one_backup_at_a_time_and_everything_else_goes_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Packing(monkeypatch)

    async def case() -> None:
        first, second, third = await shared(url), await shared(url), await shared(url)
        await push(second, 3)
        asked = asyncio.create_task(second.backup(tmp_path))
        await slow.under_way()
        for store in first, second, third:
            with pytest.raises(Conflict) as refused:
                await store.backup(tmp_path)
            assert str(refused.value) == "a backup is under way already: ask again when it is whole"
            assert await push(store)
        assert backup.kept(tmp_path) == []
        assert not asked.done()
        slow.go_on.set()
        sound(await asked, 3)
        sound(await third.backup(tmp_path), 6)
        for store in third, second, first:
            await store.close()

    play(case)


def test_a_backup_on_the_interval_waits_for_one_that_was_asked_for(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Packing(monkeypatch)
    often = f"{url}?backup_dir={tmp_path}/often&backup_every_s=0.01"

    async def case() -> None:
        first = await shared(often)
        await slow.under_way()
        with pytest.raises(Conflict):
            await first.backup(tmp_path / "asked")
        slow.go_on.set()
        while True:
            try:
                await first.backup(tmp_path / "asked")
                break
            except Conflict:
                await asyncio.sleep(0.001)
        assert (await first.health()).detail["backup_failed"] is None
        await first.close()

    play(case)


def test_whoever_asked_may_go_away(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Packing(monkeypatch)

    async def case() -> None:
        first, second = await shared(url), await shared(url)
        asked = asyncio.create_task(second.backup(tmp_path))
        await slow.under_way()
        asked.cancel()
        await second.close()
        slow.go_on.set()
        while not backup.kept(tmp_path):
            await push(first)
        sound(backup.kept(tmp_path)[0], 0)
        await first.close()

    play(case)


@pytest.mark.parametrize("client", [False, True])
def test_the_journal_is_not_closed_under_the_hands_of_a_backup(
    client: bool, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Packing(monkeypatch)
    monkeypatch.setattr(Listener.hand_over, "__defaults__", (0.05,))
    monkeypatch.setattr(Listener.close, "__defaults__", (0.05,))

    async def case() -> None:
        first = await shared(url)
        await push(first, 3)
        asking = await shared(url) if client else first
        asked = asyncio.create_task(asking.backup(tmp_path))
        await slow.under_way()
        if not client:
            asked.cancel()
        closing = asyncio.create_task(first.close())
        if client:
            with pytest.raises(Unavailable) as lost:
                await asked
            assert str(lost.value) == (
                f"the owner ended before it said that the backup in {tmp_path} is whole: ask again"
            )
        done, _ = await asyncio.wait([closing], timeout=0.3)
        assert not done
        slow.go_on.set()
        await closing
        sound(backup.kept(tmp_path)[0], 3)
        if client:
            await asking.close()

    play(case)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "?mode=ro", "?durability=os&mode=ro"])
def test_the_command_backs_up_a_store_whoever_owns_it(
    mode: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def case() -> None:
        store = await shared(url)
        await push(store, 3)
        assert await asyncio.to_thread(commands.backup, url + mode, tmp_path, 1) == 0
        sound(Path(capsys.readouterr().out.strip()), 3)
        await push(store)
        await store.close()

    play(case)
    assert commands.backup(url + mode, tmp_path, 1) == 0
    (taken,) = backup.kept(tmp_path)
    assert capsys.readouterr().out == f"{taken}\n"
    sound(taken, 4)


def test_an_owner_who_shares_with_nobody_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    path = tmp_path / "jobs"

    async def case() -> None:
        store = await open_store(f"rocksdb:///{path}", share=False)
        at = tmp_path / "copies"
        assert await asyncio.to_thread(commands.backup, f"rocksdb:///{path}", at, 0) == 1
        await store.close()

    play(case)
    said = capsys.readouterr().err
    assert said.startswith(f"{path} is owned by process {os.getpid()}; penstock+unix://")
    assert said.count("\n") == 1
    assert not (tmp_path / "copies").exists()


def test_a_server_takes_backups_for_its_path_and_not_for_its_clients(
    url: str, tmp_path: Path
) -> None:
    sock = tmp_path / "server.sock"

    async def case() -> None:
        server = await Server.open(Settings(url=url, port=0, http_port=0, unix=str(sock)))
        await server.start()
        answers = []
        for where in sock, Path(f"{url.partition('///')[2]}.sock"):
            reader, writer = await asyncio.open_unix_connection(where)
            said = {"cmd": "BACKUP", "directory": str(tmp_path / "copies")}
            writer.write(msgspec.json.encode(said) + b"\n")
            answers.append(msgspec.json.decode(await reader.readline()))
            writer.close()
        await server.stop(0)
        assert [answer["ok"] for answer in answers] == [False, True], answers
        assert [Path(answers[1]["path"])] == backup.kept(tmp_path / "copies")

    play(case)
