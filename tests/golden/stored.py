"""What a golden store is compared by, and how it is packed."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import msgspec
from msgspec.structs import fields

from penstock.kernel.commands import Instead, Load
from penstock.model.job import Job
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import frames

HERE: Final = Path(__file__).parent
PARTS: Final = (*get_args(frames.AnyCommand), Load, Instead)  # of what is in a log
TENANTS: Final = ("acme", "other")


class Golden(msgspec.Struct):
    """What the store said of itself when it was made."""

    position: int
    said: list[str]  # fields of commands that are said somewhere in its log, by command
    now: int
    elapsed: int
    digest: str
    jobs: dict[str, list[Job]]  # by tenant


async def look(url: str, now: int, elapsed: int) -> Golden:
    """The store as it is found, changed by nothing."""
    store = await open_store(f"{url}?mode=ro", clock=ManualClock(now, elapsed))
    assert isinstance(store, EmbeddedStore)
    position, digest = store.kernel.position, store.kernel.digest()
    jobs = {}
    for tenant in TENANTS:
        names = [info.queue for info in await store.queues(tenant)]
        found = [(await store.find(tenant, name, limit=1_000)).jobs for name in names]
        ids = sorted(job.id for page in found for job in page)
        jobs[tenant] = [job for job in await store.get(tenant, ids) if job is not None]
    journal = store.engine.read_only
    assert journal is not None
    records = [record for group in journal.groups(0) for record in frames.decode(group.data)]
    said = sorted({name for record in records for name in said_by(record.command)})
    await store.close()
    return Golden(position, said, now, elapsed, digest, jobs)


def said_by(part: object) -> Iterator[str]:
    """The fields of a command, and of what is in it, that are no defaults."""
    if isinstance(part, PARTS):
        for field in fields(part):
            value = getattr(part, field.name)
            if value != field.default:
                yield f"{type(part).__name__}.{field.name}"
                yield from said_by(value)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from said_by(each)


def ever_said() -> Iterator[str]:
    for kind in PARTS:
        for field in fields(kind):
            yield f"{kind.__name__}.{field.name}"


def pack(store: Path, target: Path) -> None:
    """The files of a closed store; what RocksDB only notes for people is left out."""
    with tarfile.open(target, "w:xz") as archive:
        archive.add(store, "store", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(member.name).name.startswith(("LOG", "OPTIONS")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as packed:
        # Early releases of Python 3.11 have no such filter, and heed none.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(directory)
    return directory / "store"
