"""A disk without room: jobs are refused before anything is done, all other work goes on.

On a small tmpfs of our own. Two ways to fill it: by what is pushed, which stops in time, and by
somebody else, down to the last byte, so that a write itself fails.
"""

import asyncio
import errno
import random
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.cli import backup as commands
from penstock.model.errors import StorageFull, Unavailable
from penstock.model.job import JobSpec, Lease, Run
from penstock.model.lifecycle import State
from penstock.open import JOURNALS, open_store
from penstock.stores import keeper
from penstock.stores.backup import kept as kept_in
from penstock.stores.backup import verify
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.shared import SharedStore
from tests.faults.stores import each_store, in_both_runs, opened, url_of

pytestmark = in_both_runs
MB: Final = 1 << 20
DISK: Final = 128 * MB
RESERVE: Final = 24 * MB  # three times the ballast
FOREIGN: Final = 40 * MB  # what somebody else has there
T = "default"
HOUR_MS: Final = 3_600_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(where)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.fail(f"a full disk needs a file system to fill (as root): {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def payload(number: int, size: int) -> bytes:
    return b'"%0*d"' % (size - 2, number)


async def push(store: EmbeddedStore, number: int, size: int) -> int:
    spec = JobSpec(payload=payload(number, size), retain_ms=HOUR_MS)
    (job_id,) = (await store.push(T, [Run.of("q", [spec])])).ids
    return job_id


async def fill(store: EmbeddedStore, size: int) -> dict[int, bytes]:
    """Push until no more jobs are taken in; answers those that were."""
    kept: dict[int, bytes] = {}
    for number in range(DISK // size):
        try:
            kept[await push(store, number, size)] = payload(number, size)
        except StorageFull:
            return kept
    raise AssertionError("more was taken in than the disk can hold")


def take_all(path: Path) -> None:
    """Somebody else fills the disk to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (MB, 4_096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


async def look(store: EmbeddedStore, kept: dict[int, bytes]) -> None:
    """Every job that was acknowledged is there, and no other one."""
    found = await store.get(T, list(kept))
    assert {job.id: job.payload for job in found if job is not None} == kept
    (info,) = await store.queues(T)
    assert sum(info.counts.values()) == len(kept)


async def claimed(store: EmbeddedStore, n: int) -> Lease:
    lease = await store.claim(T, ["q"], n, lease_ms=HOUR_MS)
    assert lease is not None
    return lease


Case = Callable[[EmbeddedStore], Awaitable[None]]


def on(url: str, case: Case) -> None:
    async def run() -> None:
        store = await opened(url)
        try:
            await case(store)
        finally:
            await store.close()

    asyncio.run(run())


@each_store
@pytest.mark.parametrize("size", [20_000, 3 * MB])
def test_jobs_are_refused_while_the_disk_is_nearly_full(scheme: str, size: int, disk: Path) -> None:
    url = url_of(scheme, disk, reserve_bytes=RESERVE)
    foreign = disk / "foreign"
    foreign.write_bytes(bytes(FOREIGN))
    kept: dict[int, bytes] = {}
    acked: set[int] = set()

    async def case(store: EmbeddedStore) -> None:
        kept.update(await fill(store, size))
        position = store.kernel.position
        for number in range(3):
            with pytest.raises(StorageFull):
                await push(store, number, size)
        assert store.kernel.position == position, "a refused push was applied"
        lease = await claimed(store, 3)
        assert [job.payload for job in lease.jobs] == [kept[job_id] for job_id in lease.ids]
        acked.update((await store.ack(T, lease.token)).acked)
        await look(store, kept)

        foreign.unlink()
        kept[await push(store, 77, size)] = payload(77, size)

    on(url, case)

    async def after(store: EmbeddedStore) -> None:
        await look(store, kept)
        done = await store.find(T, "q", state=State.COMPLETED)
        assert {job.id for job in done.jobs} == acked

    on(url, after)


@each_store
def test_many_pushes_at_once_do_not_overrun_the_reserve(scheme: str, disk: Path) -> None:
    async def case(store: EmbeddedStore) -> None:
        pushes = [push(store, number, MB) for number in range(120)]
        answers = await asyncio.gather(*pushes, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert 0 < len(refused) < 120
        assert all(isinstance(error, StorageFull) for error in refused), refused[0]
        kept = {
            answer: payload(number, MB)
            for number, answer in enumerate(answers)
            if isinstance(answer, int)
        }
        await look(store, kept)

    on(url_of(scheme, disk, reserve_bytes=RESERVE), case)


@each_store
def test_a_disk_that_others_fill_costs_the_ballast_and_no_ack(
    scheme: str, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "ROOM_CHECK_S", 0)  # what is known of the disk is never old
    url = url_of(scheme, disk, reserve_bytes=RESERVE)
    ballast, foreign = disk / "store.ballast", disk / "foreign"
    kept: dict[int, bytes] = {}
    acked: dict[int, bytes] = {}

    async def case(store: EmbeddedStore) -> None:
        for number in range(400):
            kept[await push(store, number, 100)] = payload(number, 100)
        lease = await claimed(store, 400)
        take_all(foreign)
        assert ballast.exists()
        left = iter(lease.ids)
        while ballast.exists():
            take_all(foreign)
            job_id = next(left)
            result = payload(job_id, 60_000)
            await store.ack(T, lease.token, [job_id], results={job_id: result})
            acked[job_id] = result
        with pytest.raises(StorageFull):
            await push(store, 1, 100)
        for _ in range(10):  # what the ballast made room for
            job_id = next(left)
            await store.ack(T, lease.token, [job_id], results={job_id: b"1"})
            acked[job_id] = b"1"
        await look(store, kept)

    on(url, case)
    foreign.unlink()

    async def after(store: EmbeddedStore) -> None:
        await look(store, kept)
        for job_id, value in acked.items():
            assert (await store.result(T, job_id)).value == value
        assert await push(store, 2, 100) not in kept

    on(url, after)


@each_store
def test_when_even_the_ballast_is_gone_the_store_ends(scheme: str, disk: Path) -> None:
    """It cannot keep its word any more, and says so; what it has kept is there."""
    url = url_of(scheme, disk, reserve_bytes=RESERVE)
    foreign = disk / "foreign"
    kept: dict[int, bytes] = {}
    acked: dict[int, bytes] = {}

    async def case(store: EmbeddedStore) -> None:
        for number in range(800):
            kept[await push(store, number, 100)] = payload(number, 100)
        lease = await claimed(store, 800)
        with pytest.raises(Unavailable):
            for job_id in lease.ids:
                take_all(foreign)
                result = payload(job_id, 60_000)
                await store.ack(T, lease.token, [job_id], results={job_id: result})
                acked[job_id] = result
        with pytest.raises(Unavailable):
            await store.get(T, [1])

    on(url, case)
    foreign.unlink()

    async def after(store: EmbeddedStore) -> None:
        await look(store, kept)
        for job_id, value in acked.items():
            assert (await store.result(T, job_id)).value == value

    on(url, after)


@each_store
@pytest.mark.parametrize("left", [0, MB // 2, 4 * MB, 10 * MB])
def test_a_backup_that_there_is_no_room_for_says_so_and_leaves_nothing(
    scheme: str, left: int, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any step: the first file, the copy, or the archive that is made of the copy."""
    url = url_of(scheme, tmp_path)

    async def some(store: EmbeddedStore) -> None:
        for number in range(8):
            spec = JobSpec(
                payload=b'"%s"' % random.Random(number).randbytes(MB // 2).hex().encode()
            )
            await store.push(T, [Run.of("q", [spec])])

    on(url, some)
    (disk / "foreign").write_bytes(bytes(DISK - left - 8_192))
    before = sorted(disk.iterdir())
    assert commands.backup(url, disk, 0) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"there is no room for the backup in {disk}: ")
    assert told.count("\n") == 1
    assert sorted(disk.iterdir()) == before
    (disk / "foreign").unlink()
    assert commands.backup(url, disk, 0) == 0
    (taken,) = kept_in(disk)
    assert verify(taken, JOURNALS).problems == []


@each_store
def test_a_client_is_told_in_a_sentence_where_the_owner_has_no_room_for_a_backup_or_may_not_write(
    scheme: str, disk: Path, tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path)

    async def run() -> None:
        owner, client = await open_store(url), await open_store(url)
        assert isinstance(client, SharedStore)
        assert not client.owned
        await client.push(T, [Run.of("q", [JobSpec(payload=payload(1, MB))])])
        take_all(disk / "foreign")
        with pytest.raises(StorageFull) as refused:
            await client.backup(disk)
        assert str(refused.value).startswith(f"there is no room for the backup in {disk}: ")
        (disk / "foreign").unlink()
        await asyncio.to_thread(remount, disk, "ro")
        with pytest.raises(Unavailable) as failed:
            await client.backup(disk)
        assert str(failed.value) == f"the backup failed: {disk}: Read-only file system"
        await asyncio.to_thread(remount, disk, "rw")
        await client.backup(disk)
        await client.close()
        await owner.close()

    asyncio.run(run())
    (taken,) = disk.iterdir()
    assert verify(taken, JOURNALS).problems == []


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
