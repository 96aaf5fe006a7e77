"""Messages by key: offered, updated, delivered when due, again if nobody acknowledges."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import BlocksTheLoop, DelayedQueue, Offer, Penstock
from penstock.model.errors import Deadline, Invalid
from penstock.model.job import JobSpec
from tests.client.small_worker import url_of
from tests.client.stores import on_each_store
from tests.conformance.harness import Harness

MINUTE = 60_000


def queue(h: Harness, **more: Any) -> DelayedQueue[Any]:
    return DelayedQueue(h.store, "q", **more)


async def polled(q: DelayedQueue[Any]) -> Any:
    """The payload of what is due now, acknowledged; None if nothing is."""
    envelope = await q.atry_poll()
    if envelope is None:
        return None
    assert await envelope.aacknowledge()
    return envelope.payload


# -- offering --------------------------------------------------------------------------------------


@on_each_store
async def test_an_offer_is_created_updated_or_ignored(h: Harness) -> None:
    q, at = queue(h), h.now + MINUTE
    assert await q.aoffer_or_update("k", {"n": 1}, at) == "created"
    assert await q.aoffer_or_update("k", {"n": 1}, at) == "ignored"
    assert await q.aoffer_or_update("k", {"n": 2}, at) == "updated"
    assert await q.aoffer_or_update("k", {"n": 2}, at + 1) == "updated"
    assert await q.aoffer_if_not_exists("k", {"n": 3}, at) == "ignored"
    assert await q.aoffer_if_not_exists("other", {"n": 3}, at + 2) == "created"
    await h.advance(MINUTE + 5)
    assert [await polled(q), await polled(q), await polled(q)] == [{"n": 2}, {"n": 3}, None]


@on_each_store
async def test_the_same_message_is_the_same_however_it_was_offered(h: Harness) -> None:
    q, at = queue(h), h.now + MINUTE
    await q.aoffer_if_not_exists("k", 1, at)
    assert await q.aoffer_or_update("k", 1, at) == "ignored"


@on_each_store
async def test_an_update_reschedules(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_or_update("k", 1, h.now + MINUTE)
    await q.aoffer_or_update("k", 1, h.now + 2 * MINUTE)
    await h.advance(MINUTE)
    assert await q.atry_poll() is None
    await h.advance(MINUTE)
    assert await polled(q) == 1


@on_each_store
async def test_a_batch_answers_in_order(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_or_update("a", 1)
    outcomes = await q.aoffer_batch(
        [
            Offer(key="a", payload=2),
            Offer(key="a", payload=3, can_update=True),
            Offer(key="b", payload=4),
            Offer(key="b", payload=5, can_update=True),
            Offer(key="b", payload=5, can_update=True),
        ]
    )
    assert outcomes == ["ignored", "updated", "created", "updated", "ignored"]
    assert [await polled(q), await polled(q), await polled(q)] == [3, 5, None]


def test_a_batch_larger_than_a_push_goes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.delayed.MAX_BATCH", 10)

    async def whole() -> None:
        h = Harness.on("memory://")
        await h.open()
        q = queue(h)
        many = [Offer(key=str(n), payload=n) for n in range(25)]
        assert (await q.aoffer_batch(iter(many))).count("created") == 25
        assert await q.aoffer_batch([]) == []
        await h.close()

    asyncio.run(whole())


@on_each_store
async def test_a_batch_with_a_mistake_in_it_offers_nothing(h: Harness) -> None:
    q = queue(h)
    with pytest.raises(Invalid):
        await q.aoffer_batch([Offer(key="a", payload=1), Offer(key="", payload=1)])
    with pytest.raises(Invalid, match="payload: cannot be sent"):
        await q.aoffer_batch([Offer(key="a", payload=1), Offer(key="b", payload=object())])
    assert not await q.acontains("a")


# -- polling ---------------------------------------------------------------------------------------


@on_each_store
async def test_messages_come_in_the_order_of_their_instants(h: Harness) -> None:
    q = queue(h)
    for n in (3, 1, 2):
        await q.aoffer_or_update(str(n), n, h.now + n)
    await h.advance(2)
    batch = await q.atry_poll_many(10)
    assert [each.payload for each in batch] == [1, 2]
    assert [each.key for each in batch] == ["1", "2"]
    assert await batch.aacknowledge() == 2
    assert len(await q.atry_poll_many(10)) == 0


@on_each_store
async def test_what_is_not_acknowledged_is_delivered_again(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_or_update("k", 1)
    first = await q.atry_poll()
    assert first is not None
    assert (first.key, first.delivery, first.payload) == ("k", "first", 1)
    held = await q.aread("k")
    assert held is not None
    assert held.delivery == "first"
    await h.advance(5 * MINUTE - 1)
    assert await q.atry_poll() is None
    await h.advance(1)
    lying = await q.aread("k")
    assert lying is not None
    assert lying.delivery == "redelivery"
    (second,) = await q.atry_poll_many(5)
    assert (second.id, second.delivery) == (first.id, "redelivery")
    assert not await first.aacknowledge()
    assert await second.aacknowledge()
    assert not await second.aacknowledge()
    assert not await q.acontains("k")


@on_each_store
async def test_what_comes_again_is_due_when_the_time_of_its_holder_was_over(h: Harness) -> None:
    """The first instant is kept by nobody but the payload."""
    q, at = queue(h), h.now + MINUTE
    await q.aoffer_or_update("k", {"due": at}, at)
    await h.advance(2 * MINUTE)
    first = await q.atry_poll()
    assert first is not None
    assert first.at == at
    await h.advance(5 * MINUTE)
    again = await q.atry_poll()
    assert again is not None
    assert (again.at, again.payload, again.delivery) == (h.now, {"due": at}, "redelivery")
    assert await q.aoffer_or_update("k", {"due": at}, at) == "ignored"


@on_each_store
async def test_deliveries_have_no_end(h: Harness) -> None:
    q = queue(h, acquire_timeout="1s")
    await q.aoffer_or_update("k", 1)
    for _ in range(20):
        assert await q.atry_poll() is not None
        await h.advance(1_000)
    assert await polled(q) == 1


@on_each_store
async def test_an_update_of_a_message_that_is_out_is_delivered_after_it(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_or_update("k", "old")
    out = await q.atry_poll()
    assert out is not None
    assert await q.aoffer_or_update("k", "new", h.now + MINUTE) == "updated"
    assert await out.aacknowledge()
    assert await q.acontains("k")
    assert await q.atry_poll() is None
    await h.advance(MINUTE)
    new = await q.atry_poll()
    assert new is not None
    assert (new.payload, new.delivery) == ("new", "first")
    assert await new.aacknowledge()
    assert not await q.acontains("k")


@on_each_store
async def test_a_batch_is_acknowledged_whole_or_one_by_one(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_batch([Offer(key=str(n), payload=n) for n in range(4)])
    batch = await q.atry_poll_many(10)
    assert await batch[1].aacknowledge()
    assert [each.key for each in batch[2:]] == ["2", "3"]
    assert await batch.aacknowledge() == 3
    assert await batch.aacknowledge() == 0


@on_each_store
async def test_poll_waits_for_what_is_due(h: Harness) -> None:
    q = queue(h)
    waiting = await h.start(q.apoll())
    assert not waiting.done()
    await q.aoffer_or_update("k", 1)
    envelope = await h.told(waiting)
    assert envelope.payload == 1
    with pytest.raises(Deadline):
        await q.apoll(timeout=0)


@on_each_store
async def test_consumers_side_by_side_share_the_messages(h: Harness) -> None:
    one, two = queue(h), queue(h)
    await one.aoffer_batch([Offer(key=str(n), payload=n) for n in range(20)])
    seen = []
    for n in range(10):
        for each in (one, two):
            batch = await each.atry_poll_many(1 + n % 2)
            seen += [envelope.payload for envelope in batch]
            await batch.aacknowledge()
    assert sorted(seen) == list(range(20))


# -- looking and dropping --------------------------------------------------------------------------


@on_each_store
async def test_reading_holds_nothing(h: Harness) -> None:
    q = queue(h)
    assert await q.aread("k") is None
    await q.aoffer_or_update("k", 1, h.now + MINUTE)
    message = await q.aread("k")
    assert message is not None
    assert (message.key, message.payload, message.at) == ("k", 1, h.now + MINUTE)
    assert message.delivery == "first"
    assert not hasattr(message, "acknowledge")
    await h.advance(MINUTE)
    assert await q.aread("k") is not None
    assert await polled(q) == 1
    assert await q.aread("k") is None


@on_each_store
async def test_dropping(h: Harness) -> None:
    q = queue(h)
    assert not await q.adrop("k")
    await q.aoffer_or_update("k", 1)
    assert await q.adrop("k")
    assert not await q.acontains("k")
    assert await q.atry_poll() is None
    await q.aoffer_or_update("k", 2)
    held = await q.atry_poll()
    assert held is not None
    assert await q.adrop("k")
    assert not await held.aacknowledge()


@on_each_store
async def test_dropping_everything_asks_for_the_name(h: Harness) -> None:
    q = queue(h)
    await q.aoffer_batch([Offer(key=str(n), payload=n) for n in range(3)])
    await q.atry_poll()
    with pytest.raises(Invalid, match="say the name"):
        await q.adrop_all("yes")
    assert await q.adrop_all("q") == 3
    assert not await q.acontains("1")


# -- codecs and kinds ------------------------------------------------------------------------------


class Payment(msgspec.Struct):
    cents: int
    due: datetime


@on_each_store
async def test_messages_are_of_a_kind(h: Harness) -> None:
    payment = Payment(5, datetime(2026, 1, 1, tzinfo=UTC))
    for codec in ("json", "msgpack"):
        q = DelayedQueue(h.store, "q", Payment, codec=codec)
        await q.aoffer_or_update("k", payment)
        assert await polled(q) == payment
    raw = DelayedQueue(h.store, "q", bytes, codec="bytes")
    await raw.aoffer_or_update("k", b"\x00\xff")
    assert await polled(raw) == b"\x00\xff"


@on_each_store
async def test_queues_of_different_codecs_are_different_queues(h: Harness) -> None:
    json, packed = queue(h), queue(h, codec="msgpack")
    await json.aoffer_or_update("k", 1)
    assert not await packed.acontains("k")
    assert await packed.atry_poll() is None


@on_each_store
async def test_a_strange_payload_can_be_seen_for_what_it_is_and_acknowledged(h: Harness) -> None:
    q = DelayedQueue(h.store, "q", Payment)
    await h.store.push_jobs(h.name, q.queue, [JobSpec(payload=b'{"cents":"x"}')])
    envelope = await q.atry_poll()
    assert envelope is not None
    with pytest.raises(Invalid, match="is not what 'q' has messages of"):
        _ = envelope.payload
    assert await envelope.aacknowledge()


def test_names_that_no_queue_can_have_are_refused() -> None:
    with pytest.raises(Invalid):
        DelayedQueue(Penstock("memory://"), "a queue")


# -- synchronous code ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory://", "sqlite://"])
def test_synchronous_code_has_the_same(kind: str, tmp_path: Path) -> None:
    with Penstock(url_of(kind, tmp_path), tenant="acme") as app:
        q = DelayedQueue(app, "q", int)
        soon = datetime.now(UTC) + timedelta(milliseconds=20)
        assert q.offer_or_update("k", 1, soon) == "created"
        assert q.offer_if_not_exists("k", 2) == "ignored"
        assert q.contains("k")
        read = q.read("k")
        assert read is not None
        assert read.payload == 1
        envelope = q.poll(timeout="10s")
        assert datetime.now(UTC) >= soon
        assert (envelope.payload, envelope.acknowledge()) == (1, True)
        assert q.offer_batch([Offer(key="a", payload=1), Offer(key="b", payload=2)]) == [
            "created",
            "created",
        ]
        assert q.try_poll_many(5).acknowledge() == 2
        assert q.try_poll() is None
        assert not q.drop("a")
        assert q.drop_all("q") == 0

        async def inside() -> None:
            q.try_poll()

        with pytest.raises(BlocksTheLoop):
            asyncio.run(inside())


@on_each_store
async def test_a_bare_store_is_for_asynchronous_code(h: Harness) -> None:
    with pytest.raises(TypeError, match="await atry_poll"):
        queue(h).try_poll()


@on_each_store
async def test_an_instant_needs_a_time_zone(h: Harness) -> None:
    with pytest.raises(Invalid, match="time zone"):
        await queue(h).aoffer_or_update("k", 1, datetime(2026, 1, 1))  # noqa: DTZ001
