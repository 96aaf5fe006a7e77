"""Everything that a tenant can own, in every state; and all that can be seen of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from penstock.kernel.blocks import SHIFT, SIZE
from penstock.model.errors import PenstockError
from penstock.model.job import JobError, JobSpec, KeyClaim, LogLine, Run
from penstock.model.policy import Backoff, Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every
from penstock.model.store import Store
from penstock.stores.embedded import EmbeddedStore

HOUR: Final = 3_600_000
FAR: Final = 4_102_444_800_000  # the year 2100
CONFIG_HASH: Final = "c" * 16
QUEUES: Final = ("q", "other", "crons")
KEYS: Final = ("k", "kept", "c:mine", "u:mine")
BULKS: Final = ("open", "committed", "aborted")


class Estate(msgspec.Struct, frozen=True, kw_only=True):
    """The names by which somebody could reach what is owned."""

    ready: int
    active: int
    scheduled: int
    blocked: int
    retrying: int
    done: int
    dead: int
    held: int
    keyed: int
    lease: str

    @property
    def ids(self) -> list[int]:
        return [value for value in msgspec.structs.astuple(self) if isinstance(value, int)]


def long_ago(store: EmbeddedStore) -> None:
    """As if much had been pushed before: no id is like any other number."""
    store.engine.kernel.next_block = 1 << 20


async def settle_in(store: Store, tenant: str, queue: str = "q") -> Estate:
    async def push(**said: Any) -> int:
        payload = msgspec.json.encode(f"secret of {tenant}")
        spec = JobSpec(payload=payload, **said)
        return (await store.push_jobs(tenant, queue, [spec])).ids[0]

    async def take() -> str:
        lease = await store.claim(tenant, [queue], worker=f"worker of {tenant}")
        assert lease is not None
        return lease.token

    config = QueueConfig(limits=Limits(concurrency=10, rate=Rate(tokens=1_000)), retain_ms=HOUR)
    await store.configure(tenant, queue, config)
    await store.configure_tenant(tenant, Bounds(jobs=1_000_000))
    done = await push(key="kept", keep_key=HOUR, tags=("secret",), task="secret")
    await store.ack(tenant, await take(), results={done: b'"secret result"'})
    dead = await push()
    error = JobError(kind="Secret", message="secret error")
    await store.fail(tenant, await take(), error=error, dead=True)
    retrying = await push(backoff=Backoff(kind="fixed", base_ms=HOUR, jitter="none"))
    await store.fail(tenant, await take(), error=error)
    active = await push(group="g", key="k")
    lease = await take()
    logs = (LogLine(0, "secret line"),)
    await store.report(tenant, lease, active, progress=5, message="secret", logs=logs)
    ready = await push(group="g", priority=3)
    scheduled = await push(delay_ms=HOUR)
    blocked = await push(depends_on=(active,))
    keys = (KeyClaim("c:mine", "return", "retained"), KeyClaim("u:mine", "reject", "live"))
    run = Run.pack(queue, [b'"secret"'])
    pushed = await store.push(tenant, [msgspec.structs.replace(run, more_keys=[keys])])
    (keyed,) = pushed.ids
    for bulk in BULKS:
        await store.open_bulk(tenant, bulk)
    run = Run.pack(queue, [b'"secret"'])
    (held,) = (await store.push(tenant, [run], bulk="open", part="p")).ids
    await store.push(tenant, [run], bulk="committed", part="p")
    await store.commit_bulk(tenant, "committed")
    await store.abort_bulk(tenant, "aborted")
    await store.push(tenant, [Run.pack("other", [b'"secret"'])], producer="p", sequence=1)
    await store.put_cron(tenant, cron(HOUR))
    at = Run(queue=queue, data=b'"secret"', ends=[8], run_at=[FAR])
    await store.put_instants(tenant, "instants", CONFIG_HASH, at)
    return Estate(
        ready=ready,
        active=active,
        scheduled=scheduled,
        blocked=blocked,
        retrying=retrying,
        done=done,
        dead=dead,
        held=held,
        keyed=keyed,
        lease=lease,
    )


@asynccontextmanager
async def one_waits(store: Store, tenant: str) -> AsyncIterator[None]:
    """A claim of the tenant waits meanwhile, for what does not come."""
    claim = store.claim(tenant, ["idle"], worker=f"secret worker of {tenant}", wait_ms=HOUR)
    waiting = asyncio.ensure_future(claim)
    await asyncio.sleep(0)
    yield
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


def unknown(mine: Estate) -> Estate:
    """Names of nothing: ids that are reserved and were never given out, as far apart as others."""
    there = SIZE // 2 - min(mine.ids) % SIZE
    values: dict[str, Any] = {
        field: value + there if isinstance(value, int) else "0" * 32
        for field, value in msgspec.structs.asdict(mine).items()
    }
    return Estate(**values)


def cron(every_ms: int) -> CronSpec:
    return CronSpec(name="cron", queue="crons", schedule=Every(every_ms=every_ms), payload=b'"c"')


async def inventory(store: Store, tenant: str, also: Iterable[int] = ()) -> dict[str, Any]:
    """All that the owner can see, as plain values."""
    queues = await store.queues(tenant)
    names = dict.fromkeys([*QUEUES, *(info.queue for info in queues)])
    jobs = {name: (await store.find(tenant, name, limit=1_000)).jobs for name in names}
    ids = sorted({*also, *(job.id for found in jobs.values() for job in found)})
    seen = {
        "queues": queues,
        "jobs": jobs,
        "by id": await store.get(tenant, ids),
        "standing": await store.standing(tenant, ids),
        "keys": [await store.by_key(tenant, name, key) for name in names for key in KEYS],
        "crons": await store.crons(tenant),
        "logs": [await _tried(store.logs(tenant, job_id)) for job_id in ids],
        "results": [await _tried(store.result(tenant, job_id)) for job_id in ids],
        "explained": [await _tried(store.explain(tenant, job_id)) for job_id in ids],
        "waiting": (await store.waiting(tenant)).claims,
        # What is open is found as it is, what is committed is said to be.
        "bulks": [await store.open_bulk(tenant, name) for name in BULKS[:2]],
    }
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]


def ids_of(found: dict[str, Any]) -> list[int]:
    """Of the jobs of an inventory."""
    return [job["id"] for jobs in found["jobs"].values() for job in jobs]


async def _tried(look: Any) -> Any:
    try:
        return await look
    except PenstockError as error:
        return [error.code, error.message, error.field]


_TOKEN: Final = re.compile(r"\b[0-9a-f]{32}\b")
_NUMBER: Final = re.compile(r"\d+")


class Names:
    """Words for ids, so that what was said on two servers can be compared."""

    def __init__(self, theirs: Iterable[int], mine: Iterable[int]) -> None:
        self._theirs = {job_id: f"theirs-{place}" for place, job_id in enumerate(theirs)}
        blocks = sorted({(job_id - 1) >> SHIFT for job_id in mine})
        self._blocks = {block: place for place, block in enumerate(blocks)}

    def of(self, number: int) -> int | str:
        if number in self._theirs:
            return self._theirs[number]
        block = self._blocks.get((number - 1) >> SHIFT)
        return number if block is None else f"mine-{block}-{number % SIZE}"

    def renamed(self, value: Any) -> Any:
        """The value with names for ids, wherever they stand, and tokens all alike."""
        if isinstance(value, dict):
            return {self.renamed(key): self.renamed(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.renamed(each) for each in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return self.of(value)
        if isinstance(value, str):
            plain = _TOKEN.sub("a token", value)
            return _NUMBER.sub(lambda found: str(self.of(int(found[0]))), plain)
        return value
