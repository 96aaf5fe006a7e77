"""What tests rest on when they wait for a disk: that `settled` ends when nothing moves any more."""

import asyncio

import pytest

from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from tests.durable import TURNS, scratch, settled
from tests.late import late_disk

T = "acme"


@pytest.mark.parametrize("turns", range(2 * TURNS))
def test_a_store_is_settled_when_its_callers_have_their_answers(turns: int) -> None:
    """However many turns of the loop the disk takes for each of its steps."""

    async def scenario(url: str) -> None:
        clock = ManualClock()
        store = await open_store(url, clock=clock, share=False)
        await store.push_jobs(T, "q", [JobSpec(payload=b"1", delay_ms=50)])
        claimed = asyncio.create_task(store.claim(T, ["q"], wait_ms=200))
        await settled(store)
        assert not claimed.done()
        clock.advance(50)
        await store.tick()
        await settled(store)
        assert claimed.done()
        await store.close()

    with scratch() as directory, late_disk(lambda: turns):
        asyncio.run(scenario(f"sqlite:///{directory}/store"))
