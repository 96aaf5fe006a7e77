"""The event log's thread: what it writes, when, and what it does on a disk that fails."""

import errno
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from penstock.events.log import EventLog
from penstock.events.reader import read
from penstock.events.segment import Place
from penstock.events.segments import Rules
from penstock.model.errors import Unavailable
from penstock.model.event import EventKeeper, Mark
from tests.events.told import STORE, event, lines_of, names, positions

RULES = Rules(reserve_bytes=0, seal_s=3_600)
PATIENCE_S = 30


def synced(log: EventLog) -> bool:
    """Wait until all that was told is on the disk, or given up."""
    over, answers = threading.Event(), list[bool]()

    def done(whole: bool) -> None:
        answers.append(whole)
        over.set()

    log.sync(done)
    assert over.wait(PATIENCE_S)
    return answers[0]


class Disk:
    """Writes and syncs that fail while they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write, self._fsync = os.write, os.fsync
        self.full = self.broken = False
        self.refused = threading.Event()
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def write(self, handle: int, data: bytes) -> int:
        if self.full:
            self.refused.set()
            raise OSError(errno.ENOSPC, "no room")
        return self._write(handle, data)

    def fsync(self, handle: int) -> None:
        if self.broken:
            self.refused.set()
            raise OSError(errno.EIO, "broken")
        self._fsync(handle)

    def wait(self) -> None:
        assert self.refused.wait(PATIENCE_S)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_it_is_what_a_store_takes_for_one_that_keeps_events(tmp_path: Path) -> None:
    assert isinstance(EventLog(tmp_path), EventKeeper)


def test_closed_it_has_everything_sealed(tmp_path: Path) -> None:
    log = EventLog(tmp_path, RULES)
    assert log.begin(STORE) == Mark(0, 0)
    for position in range(1, 200):
        log.write([event(position), event(position, 1)])
    log.close()
    found = [(line.position, line.index) for line in read(tmp_path)]
    assert found == [(position, index) for position in range(1, 200) for index in (0, 1)]


def test_it_can_begin_again_and_goes_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path, RULES)
    for position in (1, 2, 3):
        assert log.begin(STORE) == Mark(position - 1, 0)
        log.write([event(position)])
        log.close()
    assert positions(list(read(tmp_path))) == [1, 2, 3]
    log.close()  # twice is as good as once


def test_synced_it_is_on_the_disk_though_not_sealed(tmp_path: Path) -> None:
    log = EventLog(tmp_path, RULES)
    log.begin(STORE)
    log.write([event(1)])
    assert synced(log)
    assert (tmp_path / Place(STORE, 1).open).read_bytes() == lines_of(1)
    assert log.health() == {
        "events_position": 1,
        "events_buffered": 0,
        "events_dropped": 0,
        "events_failed": None,
    }
    log.close()


def test_what_is_old_enough_is_sealed_while_nothing_happens(tmp_path: Path) -> None:
    log = EventLog(tmp_path, Rules(reserve_bytes=0, seal_s=0.001))
    log.begin(STORE)
    log.write([event(1)])
    while names(tmp_path) != [Place(STORE, 1).sealed]:
        synced(log)  # a turn of the thread
    log.close()
    assert positions(list(read(tmp_path))) == [1]


def test_a_log_is_of_one_store_at_a_time(tmp_path: Path) -> None:
    log = EventLog(tmp_path, RULES)
    log.begin(STORE)
    with pytest.raises(Unavailable, match="another store"):
        log.begin(STORE)
    log.close()


def test_a_directory_that_cannot_be_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be kept in"):
        EventLog(tmp_path / "file" / "events").begin(STORE)


def test_what_a_full_disk_refuses_is_written_when_there_is_room(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path, RULES, retry_s=0.01)
    log.begin(STORE)
    disk.full = True
    log.write([event(1)])
    disk.wait()
    log.write([event(2)])
    log.make_room()  # does not wait for what may never be
    disk.full = False
    assert synced(log)
    assert log.health()["events_failed"] is None
    log.close()
    assert positions(list(read(tmp_path))) == [1, 2]
    said = [(record.levelno, record.message) for record in caplog.records]
    assert [level for level, _ in said] == [logging.ERROR, logging.WARNING]
    assert "no room" in said[0][1]
    assert "written again" in said[1][1]


def test_what_does_not_fit_is_dropped_counted_and_told(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    size = len(lines_of(1))
    log = EventLog(tmp_path, RULES, buffer_bytes=size * 100, retry_s=0.01)
    log.begin(STORE)
    disk.full = True
    for position in range(1, 301):
        log.write([event(position)])
    disk.wait()
    assert not synced(log)  # given up: nobody is to wait for ever
    health = log.health()
    assert "no room" in health["events_failed"]
    dropped = health["events_dropped"]
    assert 100 < dropped < 300
    disk.full = False
    assert synced(log)
    log.write([event(301)])
    log.close()
    lines = list(read(tmp_path))
    before, (gap, last) = lines[:-2], lines[-2:]
    assert positions(before) == list(range(1, 301 - dropped))
    assert (gap.kind, gap.position, gap.reason) == ("gap", 301 - dropped, "dropped")
    assert json.loads(gap.data) == {"through": 300, "events": dropped}
    assert last.position == 301
    assert f"{dropped} events were dropped" in caplog.text


@pytest.mark.parametrize("when", ["synced", "sealed"])
def test_what_a_failed_sync_puts_in_doubt_is_told(when: str, tmp_path: Path, disk: Disk) -> None:
    log = EventLog(tmp_path, RULES, retry_s=0.01)
    log.begin(STORE)
    log.write([event(1)])
    assert synced(log)
    log.write([event(2), event(2, 1)])
    log.write([event(3)])
    disk.broken = True
    if when == "synced":
        log.sync(lambda whole: None)
        disk.wait()
        disk.broken = False
        assert synced(log)
        log.close()
    else:
        log.close()
        disk.broken = False
        log.begin(STORE)
        log.close()
    lines = list(read(tmp_path))
    found = [(line.kind, line.position, line.index) for line in lines]
    events = [("pushed", 1, 0), ("pushed", 2, 0), ("pushed", 2, 1), ("pushed", 3, 0)]
    assert [each for each in found if each[0] == "pushed"] == events


def test_a_line_behind_a_failed_sync_says_so(tmp_path: Path, disk: Disk) -> None:
    log = EventLog(tmp_path, RULES, retry_s=0.01)
    log.begin(STORE)
    log.write([event(1)])
    assert synced(log)
    log.write([event(2)])
    disk.broken = True
    log.sync(lambda whole: None)
    disk.wait()
    disk.broken = False
    assert synced(log)
    log.close()
    text = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    (gap,) = [json.loads(line) for line in text.splitlines() if b'"gap"' in line]
    assert (gap["position"], gap["index"], gap["reason"]) == (2, -1, "failed")
    assert json.loads(gap["data"])["through"] == 2


def test_closing_on_a_broken_disk_ends_and_says_what_is_lost(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path, RULES)
    log.begin(STORE)
    disk.full = True
    log.write([event(1)])
    log.close()
    assert "bytes of events are not written: [Errno 28] no room" in caplog.text


def test_who_can_wait_for_room_loses_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path, RULES, buffer_bytes=2_000)
    log.begin(STORE)
    for position in range(1, 1_001):
        log.make_room()
        log.write([event(position)])
    log.close()
    assert positions(list(read(tmp_path))) == list(range(1, 1_001))
    assert log.health()["events_dropped"] == 0


def test_several_stores_share_a_directory(tmp_path: Path) -> None:
    logs = {store * 32: EventLog(tmp_path, RULES) for store in "abc"}
    for store, log in logs.items():
        log.begin(store)
    for log in logs.values():
        log.write([event(1)])
        assert synced(log)
    for log in logs.values():
        log.close()
    assert [line.store for line in read(tmp_path)] == list(logs)
