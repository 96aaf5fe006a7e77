"""Damaged stores: a log that ends early is cut and says so; anything else that is wrong is refused.

Never is what is read silently different from what was written. All damage is done to a store that
was closed, behind its back.
"""

import asyncio
import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest

from penstock.kernel.kernel import Kernel
from penstock.model.errors import Unavailable
from penstock.model.job import Job, JobSpec, Run
from penstock.model.policy import DEFAULT_CAPS, QueueConfig
from penstock.model.schedule import CronSpec, Every
from penstock.stores.clock import ManualClock
from penstock.stores.journal import frames
from penstock.stores.journal.base import Batch, Group, JournalError
from penstock.stores.journal.recovery import Recovered, recover
from penstock.stores.journal.rocksdb import RocksJournal
from penstock.stores.journal.sqlite import SqliteJournal
from tests.faults.stores import LONG, each_store, in_both_runs, opened, url_of

pytestmark = in_both_runs
FLIPS = 1_500 if LONG else 40
T = "default"
HOUR_MS: Final = 3_600_000
NEVER_DUE: Final = 1_000_000  # records: no checkpoint, the log stays whole


@pytest.fixture
def path(scheme: str, tmp_path: Path) -> Path:
    """The directory of a store with a log of several groups, the last of which has six records."""
    directory = tmp_path / "damaged"
    directory.mkdir()
    asyncio.run(fill(url(scheme, directory)))
    return directory


def url(scheme: str, directory: Path, **settings: object) -> str:
    return url_of(scheme, directory, **({"checkpoint_records": NEVER_DUE} | settings))


async def fill(url: str, *, checkpoint: bool = False, killed: Path | None = None) -> None:
    """`killed`: where to put a copy of the files as they are before the store is closed."""
    store = await opened(url, ManualClock())
    for number in range(4):
        await store.push(T, [Run.of("q", [spec(number), spec(100 + number)])])
    lease = await store.claim(T, ["q"], 3, lease_ms=HOUR_MS)
    assert lease is not None
    await store.ack(T, lease.token, lease.ids[:2], results={lease.ids[0]: b'"done"'})
    if checkpoint:
        assert store.engine.keeper is not None
        await store.engine.keeper.checkpoint()
    # Said in one turn of the loop, so they are one group.
    await asyncio.gather(*(store.push(T, [Run.of("q", [spec(n)])]) for n in range(10, 16)))
    if killed is not None:
        shutil.copytree(Path(url.partition("?")[0].partition(":///")[2]).parent, killed)
    await store.close()


def spec(number: int) -> JobSpec:
    return JobSpec(payload=b'"%0200d"' % number, key=f"key-{number}", retain_ms=HOUR_MS)


# -- behind the store's back -----------------------------------------------------------------------


class Surgeon:
    """A journal's log, to be changed."""

    def __init__(self, scheme: str, directory: Path) -> None:
        self.journal: SqliteJournal | RocksJournal
        kind = SqliteJournal if scheme == "sqlite" else RocksJournal
        self.journal = kind(directory / "store")
        self.facts = self.journal.open()

    def groups(self) -> list[Group]:
        return list(self.journal.groups(0))

    def put(self, group: Group) -> None:
        self.journal.write(Batch(group=group, sync=True))

    def drop(self, first: int) -> None:
        if isinstance(self.journal, SqliteJournal):
            self.journal._db.execute("DELETE FROM log WHERE first=?", (first,))
        else:
            del self.journal._tables["log"][first.to_bytes(8)]

    def drop_fact(self, name: str) -> None:
        if isinstance(self.journal, SqliteJournal):
            self.journal._db.execute("DELETE FROM facts WHERE name=?", (name,))
        else:
            del self.journal._tables["facts"][name.encode()]


@contextlib.contextmanager
def surgery(scheme: str, directory: Path) -> Iterator[Surgeon]:
    surgeon = Surgeon(scheme, directory)
    try:
        yield surgeon
    finally:
        surgeon.journal.close()


def copied(directory: Path) -> Path:
    copy = directory.with_name("copy")
    if copy.exists():
        shutil.rmtree(copy)
    return shutil.copytree(directory, copy)


async def read(url: str) -> tuple[int, str, dict[int, Job]]:
    """The position, the digest, and every job with its payload and result."""
    store = await opened(f"{url}&mode=ro", ManualClock())
    try:
        page = await store.find(T, "q", limit=1_000)
        jobs = await store.get(T, [job.id for job in page.jobs])
        return store.kernel.position, store.kernel.digest(), {job.id: job for job in jobs if job}
    finally:
        await store.close()


def refusal(url: str) -> str:
    with pytest.raises(Unavailable, match="the store cannot be opened") as refused:
        asyncio.run(opened(url, ManualClock()))
    return str(refused.value)


# -- a log that ends early -------------------------------------------------------------------------


def digests(facts: dict[str, Any], groups: list[Group]) -> dict[int, str]:
    """What the kernel is after each record, by applying them here."""
    clock = ManualClock()
    kernel = Kernel(facts["seed"], msgspec.convert(facts["caps"], type(Kernel(0).caps)))
    found = {0: kernel.digest()}
    for group in groups:
        for record in frames.decode(group.data):
            kernel.position = record.position
            kernel.apply(record.command, record.now, record.elapsed)
            kernel.now = clock.now_ms()
            found[record.position] = kernel.digest()
    return found


def ends_of(data: bytes) -> list[int]:
    """Where each record of a group ends."""
    return [at for at in range(1, len(data) + 1) if frames.whole_length(data[:at]) == at]


@each_store
def test_a_log_that_ends_early_opens_with_exactly_the_whole_records(
    scheme: str, path: Path
) -> None:
    with surgery(scheme, path) as surgeon:
        groups = surgeon.groups()
        expected = digests(surgeon.facts, groups)
    last = groups[-1]
    ends = ends_of(last.data)
    assert len(ends) == 6
    given = set(asyncio.run(read(url(scheme, path)))[2])
    places = {0, *ends[:-1]}
    for end in ends:
        places |= {end - 1, end - 20} | ({end + 1, end + frames.HEADER_SIZE} - {ends[-1] + 1})
    for place in sorted(place for place in places if place < len(last.data)):
        copy = copied(path)
        with surgery(scheme, copy) as surgeon:
            surgeon.put(Group(last.first, last.last, last.data[:place]))
        whole = sum(end <= place for end in ends)
        position, digest, _ = asyncio.run(read(url(scheme, copy)))
        assert position == last.first - 1 + whole
        assert digest == expected[position], f"cut at byte {place}"
        if place in ends or place % 3 == 0:
            asyncio.run(goes_on(url(scheme, copy), given))


# -- a log without its tail ------------------------------------------------------------------------

GROUPS: Final = 5
RECORDS: Final = 4  # of each


async def fill_groups(url: str) -> None:
    """What is said in one turn is one group; each is of several kinds of records."""
    store = await opened(url, ManualClock())
    for number in range(GROUPS):
        queue = f"q{number}"
        await asyncio.gather(
            store.push(T, [Run.of("q", [spec(number), spec(100 + number)])]),
            store.configure(T, queue, QueueConfig(paused=True)),
            store.push(T, [Run.of(queue, [spec(200 + number)])]),
            store.put_cron(T, CronSpec(name=queue, queue="q", schedule=Every(every_ms=HOUR_MS))),
        )
    await store.close()


@pytest.fixture
def grouped(scheme: str, tmp_path: Path) -> Path:
    directory = tmp_path / "grouped"
    directory.mkdir()
    asyncio.run(fill_groups(url(scheme, directory)))
    return directory


def recovered(surgeon: Surgeon, head: int) -> Recovered:
    """What an opening would find there now, by the log and a fact that says how far it goes."""
    facts = surgeon.facts | {"head": head}
    return recover(surgeon.journal, facts, 0, DEFAULT_CAPS, read_only=True)


def refused(surgeon: Surgeon, head: int) -> str:
    with pytest.raises(JournalError) as error:
        recovered(surgeon, head)
    return str(error.value)


@each_store
def test_a_log_that_lost_its_tail_is_cut_within_its_last_group_and_refused_anywhere_else(
    scheme: str, grouped: Path
) -> None:
    """Behind each record of each group, with the later groups and without them.

    A log that ends within the group that is its last by the fact `head` is torn: what is whole
    stays, and the cut is reported. Where the fact says that there were more groups, they are
    missing. Where they are there, the torn one is a hole.
    """
    with surgery(scheme, grouped) as surgeon:
        groups = surgeon.groups()
        expected = digests(surgeon.facts, groups)
        head = groups[-1].last
        assert surgeon.facts["head"] == head
        assert sum(len(ends_of(group.data)) == RECORDS for group in groups) == GROUPS
        for number, group in reversed(list(enumerate(groups))):  # those behind it are gone by then
            ends = ends_of(group.data)
            for whole, end in enumerate([0, *ends[:-1]]):
                position = group.first - 1 + whole
                surgeon.put(Group(group.first, group.last, group.data[:end]))
                found = recovered(surgeon, group.last)
                assert found.kernel.position == position
                assert found.kernel.digest() == expected[position]
                assert found.cut > 0
                assert not found.clean  # ids were given that the log does not have any more
                if group.last < head:
                    missing = f"records {group.last + 1} to {head} of the log are missing"
                    assert missing in refused(surgeon, head)
                if number + 1 < len(groups):
                    after = groups[number + 1]
                    surgeon.put(after)
                    hole = f"records {group.first} to {group.last} ends early and is not the last"
                    assert hole in refused(surgeon, after.last)
                    surgeon.drop(after.first)
            surgeon.put(group)
            found = recovered(surgeon, group.last)
            assert (found.kernel.digest(), found.cut) == (expected[group.last], 0)
            if group.last < head:
                missing = f"records {group.last + 1} to {head} of the log are missing"
                assert missing in refused(surgeon, head)
            surgeon.drop(group.first)


@each_store
def test_a_store_that_lost_groups_which_were_on_stable_storage_is_refused(
    scheme: str, grouped: Path
) -> None:
    """As people open it: also where nothing within the store says that there was more."""
    with surgery(scheme, grouped) as surgeon:
        groups = surgeon.groups()
        expected = digests(surgeon.facts, groups)
    head = groups[-1].last
    given = set(asyncio.run(read(url(scheme, grouped)))[2])
    for number, group in list(enumerate(groups))[1:-1:2]:
        ends = ends_of(group.data)
        end = ends[len(ends) // 2 - 1] if len(ends) > 1 else 0
        for torn in (False, True):
            copy = copied(grouped)
            with surgery(scheme, copy) as surgeon:
                for later in groups[number + 1 :]:
                    surgeon.drop(later.first)
                if torn:
                    surgeon.put(Group(group.first, group.last, group.data[:end]))
            missing = f"records {group.last + 1} to {head} of the log are missing"
            assert missing in refusal(url(scheme, copy))
            with surgery(scheme, copy) as surgeon:
                surgeon.journal.write(Batch(facts={"head": group.last}, sync=True))
            witnessed = f"position {head} was on stable storage, and what is there ends at"
            assert witnessed in refusal(url(scheme, copy))
            if not torn:
                continue
            # Nobody knows better any more: it is an older copy with a torn end.
            (copy / "store.lock").unlink()
            position, digest, _ = asyncio.run(read(url(scheme, copy)))
            whole = sum(each <= end for each in ends)
            assert (position, digest) == (group.first - 1 + whole, expected[position])
            asyncio.run(goes_on(url(scheme, copy), given))


async def goes_on(url: str, given: set[int]) -> None:
    """The cut is reported once, and no id is given a second time."""
    store = await opened(url, ManualClock())
    assert (await store.health()).detail["cut_bytes"] > 0
    pushed = await store.push(T, [Run.of("q", [spec(1_000)])])
    assert given.isdisjoint(pushed.ids)
    await store.close()
    again = await opened(url, ManualClock())
    assert (await again.health()).detail["cut_bytes"] == 0
    assert await again.get(T, list(pushed.ids)) != [None]
    await again.close()


# -- a log that is wrong ---------------------------------------------------------------------------


@each_store
def test_a_group_in_the_middle_that_ends_early_is_refused(scheme: str, path: Path) -> None:
    with surgery(scheme, path) as surgeon:
        group = surgeon.groups()[2]
        surgeon.put(Group(group.first, group.last, group.data[:-1]))
    said = refusal(url(scheme, path))
    assert f"records {group.first} to {group.last} ends early and is not the last" in said


@each_store
def test_a_group_that_is_missing_is_refused(scheme: str, path: Path) -> None:
    with surgery(scheme, path) as surgeon:
        groups = surgeon.groups()
    for group in groups:
        copy = copied(path)
        with surgery(scheme, copy) as surgeon:
            surgeon.drop(group.first)
        said = refusal(url(scheme, copy))
        if group is groups[-1]:
            assert f"records {group.first} to {group.last} of the log are missing" in said
        else:
            assert f"position {group.last + 1} follows {group.first - 1}" in said


@each_store
def test_a_record_with_a_flipped_bit_is_refused(scheme: str, path: Path) -> None:
    with surgery(scheme, path) as surgeon:
        groups = surgeon.groups()
    draw = Random(scheme)
    for group in groups[1], groups[-1]:
        ends = ends_of(group.data)
        for at in sorted(draw.sample(range(len(group.data)), 12)):
            position = group.first + sum(end <= at for end in ends)
            begin = max((end for end in ends if end <= at), default=0)
            with surgery(scheme, path) as surgeon:
                surgeon.put(Group(group.first, group.last, flipped(group.data, at, draw)))
            said = refusal(url(scheme, path))
            if at - begin >= frames.HEADER_SIZE - 4:  # the body, or its checksum
                assert f"the record of position {position}" in said, at
            else:
                assert f"the header of the record at byte {begin}" in said, at
        with surgery(scheme, path) as surgeon:
            surgeon.put(group)
    asyncio.run(read(url(scheme, path)))


def flipped(data: bytes, at: int, draw: Random) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


@each_store
def test_a_decision_that_the_replay_does_not_come_to_is_refused(scheme: str, path: Path) -> None:
    with surgery(scheme, path) as surgeon:
        groups = surgeon.groups()
    for group in groups[1:]:
        copy = copied(path)
        (record, *rest) = frames.decode(group.data)
        other = msgspec.msgpack.encode(["something else"])
        data = b"".join(
            frames.encode(one.position, one.now, one.elapsed, one.command, decision)
            for one, decision in [(record, other), *((one, one.decision) for one in rest)]
        )
        with surgery(scheme, copy) as surgeon:
            surgeon.put(Group(group.first, group.last, data))
        said = refusal(url(scheme, copy))
        assert f"the {type(record.command).__name__} of position {record.position} decided" in said
        assert "something else" in said


@each_store
def test_a_store_without_a_fact_is_refused_or_the_same(scheme: str, path: Path) -> None:
    whole = asyncio.run(read(url(scheme, path)))
    with surgery(scheme, path) as surgeon:
        names = list(surgeon.facts)
    for name in names:
        copy = copied(path)
        with surgery(scheme, copy) as surgeon:
            surgeon.drop_fact(name)
        with contextlib.suppress(Unavailable):
            assert asyncio.run(read(url(scheme, copy))) == whole, name
    copy = copied(path)
    with surgery(scheme, copy) as surgeon:
        for name in names:
            surgeon.drop_fact(name)
    refusal(url(scheme, copy))


# -- RocksDB's own log of its files ----------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["rocksdb"])
def test_a_manifest_that_lacks_a_sector_at_its_end_is_cut(scheme: str, path: Path) -> None:
    """As a power cut leaves it between RocksDB's write and its sync."""
    whole = asyncio.run(read(url(scheme, path)))
    (manifest,) = (path / "store").glob("MANIFEST-*")
    before = manifest.read_bytes()
    record = struct.pack("<IHB", 1, 2_000, 1) + b"x" * 2_000  # and a checksum that is not its own
    torn = bytearray(before + record)
    sector = (len(before) // 512 + 2) * 512
    torn[sector : sector + 512] = bytes(512)
    for data in before + record, torn + b"more":
        manifest.write_bytes(data)
        assert "MANIFEST" in refusal(url(scheme, path))
        assert manifest.read_bytes() == data
    manifest.write_bytes(torn)
    asyncio.run(reopened(url(scheme, path)))
    assert asyncio.run(read(url(scheme, path)))[2] == whole[2]


async def reopened(url: str) -> None:
    await (await opened(url, ManualClock())).close()


# -- a flipped bit anywhere ------------------------------------------------------------------------


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.parametrize("kind", ["log", "checkpoint", "killed"])
@each_store
def test_a_flipped_bit_anywhere_is_refused_or_harmless(
    scheme: str, kind: str, tmp_path: Path
) -> None:
    """Also where most of a store lies in the engine's own write-ahead file."""
    directory = tmp_path / "damaged"
    directory.mkdir()
    killed = tmp_path / "killed" if kind == "killed" else None
    asyncio.run(fill(url(scheme, directory), checkpoint=kind == "checkpoint", killed=killed))
    directory = killed or directory
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    files = [file for file in files if not file.name.startswith(("store.lock", "LOG"))]
    files = [file for file in files if file.stat().st_size]
    whole = asyncio.run(read(url(scheme, copied(directory))))
    contents = [file.read_bytes() for file in files]
    # Most flips hit what is written: pages are large and mostly empty.
    places = [[at for at, byte in enumerate(data) if byte] for data in contents]
    draw = Random(f"{scheme} {kind}")
    refused = 0
    for number in range(FLIPS):
        # Every file as often, be it small: what is in few bytes matters most.
        weights = [len(data) for data in contents] if number % 2 else None
        (chosen,) = draw.choices(range(len(files)), weights)
        file, data = files[chosen], contents[chosen]
        at = draw.choice(places[chosen] if number % 4 else range(len(data)))
        copy = copied(directory)
        (copy / file.relative_to(directory)).write_bytes(flipped(data, at, draw))
        try:
            found = asyncio.run(read(url(scheme, copy)))
        except Unavailable:
            refused += 1
            continue
        assert found == whole, f"byte {at} of {file.name}"
    assert 0 < refused < FLIPS
