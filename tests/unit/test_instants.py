"""Instants that take the place of others are one record of the log, whatever ends the process."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.kernel import commands as c
from penstock.kernel.instants import waiting
from penstock.kernel.kernel import Kernel
from penstock.model.answers import PushedInstead
from penstock.model.errors import NotFound, Overloaded
from penstock.model.job import KeyClaim, Run
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import instant_key
from penstock.open import JOURNALS, open_store
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import frames
from penstock.stores.loading import load_of
from tests.durable import crash

T = "acme"
NOW, ELAPSED = 1_700_000_000_000, 1_000
ONE, TWO = "1" * 16, "2" * 16
AHEAD = [NOW + 1_000, NOW + 2_000]


def run() -> Run:
    return Run(queue="q", data=b"12", ends=[1, 2], run_at=AHEAD)


def put(config: str, chunk: int, *, refresh: bool = False) -> c.Push:
    keys = [(KeyClaim(instant_key("c", config, at), "return", 90_000_000),) for at in AHEAD]
    load = load_of(msgspec.structs.replace(run(), more_keys=keys), chunk, 0)
    instead = c.Instead(queue="q", name="c", config_hash=config, refresh=refresh)
    return c.Push(tenant=T, loads=[load], instead=instead)


def configs(kernel: Kernel) -> list[str]:
    return [each.config for each in waiting(kernel, T, "q", "c")]


def test_a_log_that_is_cut_anywhere_has_the_one_config_or_the_other() -> None:
    kernel, log, ends = Kernel(1), b"", []
    for position, config in enumerate((ONE, TWO, ONE), 1):
        command = put(config, position)
        decided = frames.decision(kernel.apply(command, NOW, ELAPSED))
        log += frames.encode(position, NOW, ELAPSED, command, decided)
        ends.append(len(log))
    for cut in range(len(log) + 1):
        again = Kernel(1)
        for record in frames.decode(log[:cut]):
            outcome = again.apply(record.command, record.now, record.elapsed)
            assert frames.decision(outcome) == record.decision
        whole = sum(end <= cut for end in ends)
        assert configs(again) == [[], [ONE] * 2, [TWO] * 2, [ONE] * 2][whole]


@pytest.mark.parametrize("scheme", sorted(JOURNALS))
def test_a_change_is_one_record_and_a_refusal_none(scheme: str, tmp_path: Path) -> None:
    async def opened() -> EmbeddedStore:
        store = await open_store(f"{scheme}:///{tmp_path}/s", clock=ManualClock(), share=False)
        assert isinstance(store, EmbeddedStore)
        return store

    async def whole() -> None:
        store = await opened()
        await store.configure(T, "q", QueueConfig(bounds=Bounds(jobs=2)))
        await store.put_instants(T, "c", ONE, run())
        await store.tick()  # time is passed: what follows is the calls' own
        at = store.kernel.position
        assert (await store.put_instants(T, "c", TWO, run())).removed == 2
        assert store.kernel.position == at + 1
        three = Run(queue="q", data=b"123", ends=[1, 2, 3], run_at=[*AHEAD, NOW + 3_000])
        with pytest.raises(Overloaded):
            await store.put_instants(T, "c", ONE, three)
        with pytest.raises(NotFound):
            await store.put_instants(T, "c", ONE, run(), refresh=True)
        assert store.kernel.position == at + 1
        await crash(store)
        store = await opened()
        assert configs(store.kernel) == [TWO, TWO]
        assert [job.payload for job in (await store.find(T, "q")).jobs] == [b"1", b"2"]
        assert await store.drop_instants(T, "q", "c") == 2
        await crash(store)
        store = await opened()
        assert configs(store.kernel) == []
        await store.close()

    asyncio.run(whole())


def test_commands_that_say_nothing_of_instants_are_written_as_ever() -> None:
    push, drop = c.Push(tenant=T, loads=[]), c.DropCron(T, "c")
    assert msgspec.to_builtins(push) == {"type": "Push", "tenant": T, "loads": []}
    assert msgspec.to_builtins(drop) == {"type": "DropCron", "tenant": T, "name": "c"}


def test_a_refresh_looks_at_no_other_job_while_one_of_its_own_waits() -> None:
    """A tick comes every second or so, and a queue may have many messages."""
    kernel = Kernel(1)
    kernel.apply(put(ONE, 1), NOW, ELAPSED)
    blocks = kernel.tenants[T].queues["q"].blocks
    sides = [block.sides for block in blocks.values()]

    class Closed(dict[int, object]):
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("somebody went through all jobs")

    for block, side in zip(blocks.values(), sides, strict=True):
        block.sides = Closed(side)  # type: ignore[assignment]
    pushed = kernel.apply(put(ONE, 2, refresh=True), NOW, ELAPSED)
    assert isinstance(pushed, PushedInstead)
    assert [outcome for _, outcome in pushed.jobs] == ["ignored", "ignored"]
    with pytest.raises(AssertionError, match="all jobs"):
        kernel.apply(put(TWO, 3, refresh=True), NOW, ELAPSED)
