"""Write the golden stores of the present format and kernel.

    python -m tests.golden.make

Once, when `frames.FORMAT` or `kernel.VERSION` is raised; a set that is there is left alone. (Before
the first release nobody has a log to keep: until then a change of the kernel may make the set anew,
by deleting it first.)
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from penstock.kernel.kernel import VERSION
from penstock.model.fingerprint import fingerprint as fingerprint_of
from penstock.model.job import JobError, JobSpec, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff, Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import frames
from tests.golden.stored import HERE, Golden, look, pack

SCHEMES: Final = ("sqlite", "rocksdb")
KINDS: Final = ("log", "checkpoint")  # all of it as a log; or a checkpoint, and a log behind it
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
A = "acme"
BROKE: Final = JobError(kind="Broke", message="as it does", trace="line 1\nline 2")
SOON: Final = Backoff(kind="exponential", base_ms=1_000, cap_ms=60_000, jitter="full")


def spec(number: int, **said: object) -> JobSpec:
    return JobSpec(payload=b'{"number":%d}' % number, **said)  # type: ignore[arg-type]


def instants(clock: ManualClock, *minutes: int) -> Run:
    run_at = [clock.now + each * MINUTE_MS for each in minutes]
    return Run.pack("cron", [b"%d" % each for each in minutes], run_at=run_at)


async def produce(store: EmbeddedStore, clock: ManualClock) -> None:
    """Every way for jobs to come in."""
    await store.configure_tenant(A, Bounds(jobs=10_000))
    limits = Limits(concurrency=4, rate=Rate(tokens=100, burst=10), group_concurrency=2)
    await store.configure(A, "limited", QueueConfig(limits=limits))
    await store.push(A, [Run.pack("plain", [b"%d" % number for number in range(50)])])
    await store.push("other", [Run.of("plain", [spec(1, priority=5), spec(2)])])
    await store.push(
        A, [Run.of("limited", [spec(n, group=f"g{n % 3}", backoff=SOON) for n in range(9)])]
    )
    keyed = [spec(n, key=f"k{n}", keep_key="retained", on_conflict="replace") for n in range(4)]
    await store.push(A, [Run.of("keyed", keyed)])
    await store.push(A, [Run.of("keyed", [spec(40, key="k0", on_conflict="replace")])])
    said = {"delay_ms": 5_000, "ttl_ms": 20_000, "headers": {"a": "b"}, "tags": ("t",)}
    await store.push(A, [Run.of("plain", [spec(100, **said)])])
    for sequence in (1, 2, 2):
        run = Run.of("plain", [spec(200 + sequence, retain_ms=HOUR_MS)])
        await store.push(A, [run], producer="p", sequence=sequence)
    (first,) = (await store.push(A, [Run.of("flow", [spec(300)])])).ids
    await store.push(A, [Run.of("flow", [spec(301, depends_on=(first,))])])
    for name in ("kept", "dropped", "open"):
        await store.open_bulk(A, name, deadline_ms=HOUR_MS)
        await store.push(A, [Run.of("bulk", [spec(400), spec(401)])], bulk=name, part="one")
    await store.commit_bulk(A, "kept", ["one"])
    await store.abort_bulk(A, "dropped")
    every = CronSpec(name="often", queue="cron", schedule=Every(every_ms=60_000), payload=b"1")
    await store.put_cron(A, every)
    await store.put_cron(A, every, refresh=True)
    await store.put_cron(A, msgspec.structs.replace(every, name="gone"))
    await store.drop_cron(A, "gone")
    for config in ("1" * 16, "2" * 16):  # the second in the place of the first
        await store.put_instants(A, "made-up", config, instants(clock, 1, 2))
    await store.put_instants(A, "made-up", "2" * 16, instants(clock, 3), refresh=True)
    await store.put_instants(A, "left", "3" * 16, instants(clock, 1))
    await store.drop_instants(A, "cron", "left", "3" * 16)
    clock.advance(100)


async def work(store: EmbeddedStore, clock: ManualClock) -> None:
    """Every way for them to go on."""
    for queue in ("plain", "limited", "keyed", "flow"):
        lease = await store.claim(A, [queue], 6, lease_ms=10_000, worker="w")
        assert lease is not None
        ids = list(lease.ids)
        words = {"progress": 50, "message": "half", "partial": b"1"}
        await store.report(A, lease.token, ids[0], logs=[LogLine(1, "half")], **words)  # type: ignore[arg-type]
        await store.extend(A, lease.token, 12_000)
        clock.advance(50)
        await store.ack(A, lease.token, ids[:1], results={ids[0]: b'{"done":true}'})
        if len(ids) > 3:
            await store.fail(A, lease.token, ids[1:2], error=BROKE)
            await store.fail(A, lease.token, ids[2:3], error=BROKE, dead=True)
            await store.release(A, lease.token, ids[3:4])
    await end(store)
    ready = await store.find(A, "plain", limit=60)
    waiting = [job.id for job in ready.jobs if job.worker is None]
    await store.cancel(A, waiting[:2])
    await store.edit(A, waiting[2], priority=9, payload=b'{"edited":1}')
    await store.edit(A, waiting[3], delay_ms=7_000)
    await store.edit(A, waiting[4], run_at=clock.now + 8_000)
    await store.cancel(A, waiting[5:6], discard=True)
    await store.redrive(A, "plain")
    await store.purge_dead(A, "limited")
    await store.push(A, [Run.pack("drained", [b"1", b"2"]), Run.pack("purged", [b"1"])])
    await store.drain(A, "drained")
    await store.purge(A, "purged")
    await store.push(A, [Run.pack("cleaned", [b"1", b"2", b"3"])])
    clock.advance(1_000)
    assert await store.clean(A, "cleaned", State.READY, older_ms=500, limit=2) == 2
    clock.advance(14_000)  # leases end, delays do
    assert await store.claim(A, ["nowhere"]) is None  # time has passed, and nothing else
    clock.advance(15_000)
    await store.tick()
    assert await store.claim(A, ["plain"], 3, lease_ms=HOUR_MS) is not None


async def end(store: EmbeddedStore) -> None:
    """The other ways in which jobs end, and what becomes of the dead."""
    await store.push(A, [Run.pack("ends", [b"%d" % number for number in range(7)])])
    lease = await store.claim(A, ["ends"], 7, lease_ms=HOUR_MS)
    assert lease is not None
    ids = list(lease.ids)
    await store.ack(A, lease.token, ids[:1], results={ids[0]: b"\xc3"}, codec="msgpack")
    await store.fail(A, lease.token, ids[1:2], error=BROKE, retry_in_ms=3_000)
    await store.fail(A, lease.token, ids[2:], error=BROKE, dead=True)
    await store.redrive(A, "ends", ids=ids[2:3])
    await store.redrive(A, "ends", fingerprint=fingerprint_of(BROKE), limit=1)
    assert await store.purge_dead(A, "ends", ids=ids[4:5]) == 1


async def make(scheme: str, kind: str, path: Path) -> Golden:
    url = f"{scheme}:///{path}"
    clock = ManualClock()

    async def opened() -> EmbeddedStore:
        store = await open_store(url, clock=clock, seed=1, share=False)
        assert isinstance(store, EmbeddedStore)
        return store

    store = await opened()
    await produce(store, clock)
    if kind == "checkpoint":
        assert store.engine.keeper is not None
        await store.engine.keeper.checkpoint()
    await work(store, clock)
    store.engine.abandon()  # as if it were killed: what resumes goes on in new blocks
    store = await opened()
    await store.push(A, [Run.pack("plain", [b"1000"])])
    live = store.kernel.digest()
    await store.close()
    found = await look(url, clock.now, clock.elapsed)
    assert found.digest == live, "it does not replay to what it was"
    return found


async def main() -> None:
    target = HERE / f"format{frames.FORMAT}-kernel{VERSION}"
    if target.exists():
        sys.exit(f"{target.name} is there; a golden store is made once")
    target.mkdir()
    for scheme in SCHEMES:
        for kind in KINDS:
            with TemporaryDirectory() as directory:
                path = Path(directory) / "store"
                golden = await make(scheme, kind, path)
                pack(path, target / f"{scheme}-{kind}.tar.xz")
                encoded = msgspec.json.format(msgspec.json.encode(golden), indent=1)
                (target / f"{scheme}-{kind}.json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    asyncio.run(main())
