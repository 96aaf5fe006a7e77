"""Messages that come again and again: each instant once, whoever installs them how often."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import CronMessage, CronService, DelayedQueue, Penstock
from penstock.client.crons import hash_of
from penstock.model.errors import Invalid, Overloaded
from penstock.model.policy import Bounds
from penstock.model.schedule import Daily, Every, instant_key, instants, parse_key
from tests.client.small_worker import url_of
from tests.client.stores import on_each_store
from tests.conformance.harness import Harness

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ONE, TWO = hash_of("one"), hash_of("two")


def service(h: Harness) -> CronService[Any]:
    return CronService(DelayedQueue(h.store, "q"), clock=h.clock)


def messages(h: Harness, *minutes: int, payload: Any = "tick") -> list[CronMessage]:
    return [CronMessage(payload, h.now + minute * MINUTE) for minute in minutes]


async def delivered(cron: CronService[Any]) -> list[Any]:
    batch = await cron.queue.atry_poll_many(100)
    await batch.aacknowledge()
    return [each.payload for each in batch]


@on_each_store
async def test_a_tick_offers_each_instant_under_its_key(h: Harness) -> None:
    cron = service(h)
    ahead = messages(h, 1, 2)
    assert await cron.ainstall_tick(ONE, "report", ahead) == 2
    assert await cron.ainstall_tick(ONE, "report", ahead) == 0
    jobs = await h.scan("q.json")
    assert [parse_key(job.key or "") for job in jobs] == [
        ("report", ONE, message.at) for message in ahead
    ]
    await h.advance(MINUTE)
    assert await delivered(cron) == ["tick"]


@on_each_store
async def test_an_instant_that_was_delivered_is_not_offered_again(h: Harness) -> None:
    cron = service(h)
    ahead = messages(h, 1)
    await cron.ainstall_tick(ONE, "report", ahead)
    await h.advance(MINUTE)
    assert await delivered(cron) == ["tick"]
    for lag in (0, -5 * MINUTE):
        await h.jump(lag)
        assert await cron.ainstall_tick(ONE, "report", ahead) == 0
    await h.advance(HOUR)
    assert await delivered(cron) == []
    at = ahead[0].at
    assert isinstance(at, int)
    assert not await cron.queue.acontains(instant_key("report", ONE, at))


@on_each_store
async def test_another_config_takes_the_place_of_the_old_one(h: Harness) -> None:
    cron = service(h)
    await cron.ainstall_tick(ONE, "report", messages(h, 1, 2, payload="old"))
    await cron.ainstall_tick(ONE, "other", messages(h, 1, payload="other"))
    await cron.ainstall_tick(TWO, "report", messages(h, 1, 3, payload="new"))
    await h.advance(5 * MINUTE)
    assert sorted(await delivered(cron)) == ["new", "new", "other"]


@on_each_store
async def test_a_config_that_comes_back_brings_its_instants_back(h: Harness) -> None:
    cron = service(h)
    first, second = messages(h, 1, 5, payload="one"), messages(h, 5, payload="two")
    await cron.ainstall_tick(ONE, "report", first)
    await h.advance(MINUTE)
    assert await delivered(cron) == ["one"]
    await cron.ainstall_tick(TWO, "report", second)
    assert await cron.ainstall_tick(ONE, "report", first) == 1
    await h.advance(10 * MINUTE)
    assert await delivered(cron) == ["one"]


@on_each_store
async def test_what_somebody_holds_is_not_removed(h: Harness) -> None:
    cron = service(h)
    await cron.ainstall_tick(ONE, "report", messages(h, 0, 0, payload="old"))
    held = await cron.queue.atry_poll()
    assert held is not None
    await cron.ainstall_tick(TWO, "report", [])
    assert await held.aacknowledge()
    assert await delivered(cron) == []


@on_each_store
async def test_a_config_that_cannot_come_leaves_the_old_one_where_it_was(h: Harness) -> None:
    cron = service(h)
    await cron.ainstall_tick(ONE, "report", messages(h, 1, 2, payload="old"))
    await h.configure("q.json", bounds=Bounds(jobs=2))
    with pytest.raises(Overloaded):
        await cron.ainstall_tick(TWO, "report", messages(h, 1, 2, 3, payload="new"))
    assert await cron.ainstall_tick(ONE, "report", messages(h, 1, 2, payload="old")) == 0
    assert await cron.ainstall_tick(TWO, "report", messages(h, 2, 3, payload="new")) == 2
    await h.advance(5 * MINUTE)
    assert await delivered(cron) == ["new", "new"]


@on_each_store
async def test_nobody_sees_both_configs_or_neither(h: Harness) -> None:
    """Somebody looks between any two turns of the loop while the configs take turns."""
    cron = service(h)
    await cron.ainstall_tick(ONE, "report", messages(h, 1, 2))
    seen = set()

    async def change() -> None:
        for turn in range(10):
            await cron.ainstall_tick((TWO, ONE)[turn % 2], "report", messages(h, 1, 2))

    changing = asyncio.ensure_future(change())
    while not changing.done():
        jobs = await h.scan("q.json")
        seen.add(tuple(parse_key(job.key or "")[1] for job in jobs))
        await asyncio.sleep(0)
    await changing
    assert seen <= {(ONE, ONE), (TWO, TWO)}


@on_each_store
async def test_of_two_configs_at_once_the_last_one_is_left(h: Harness) -> None:
    await service(h).ainstall_tick(ONE, "report", messages(h, 1, payload="old"))
    others = [hash_of(n) for n in range(5)]
    ticks = [service(h).ainstall_tick(each, "report", messages(h, 1, 2)) for each in others]
    assert sum(await asyncio.gather(*ticks)) == 10
    jobs = await h.scan("q.json")
    assert len({parse_key(job.key or "")[1] for job in jobs}) == 1
    assert len(jobs) == 2


@on_each_store
async def test_a_message_that_was_dropped_by_hand_stays_dropped(h: Harness) -> None:
    cron = service(h)
    first, second = messages(h, 1, 2)
    await cron.ainstall_tick(ONE, "report", [first, second])
    assert isinstance(first.at, int)
    assert await cron.queue.adrop(instant_key("report", ONE, first.at))
    assert await cron.ainstall_tick(ONE, "report", [first, second]) == 0
    await h.advance(HOUR)
    assert await delivered(cron) == ["tick"]


@on_each_store
async def test_other_messages_of_the_queue_are_nobody_s_instants(h: Harness) -> None:
    cron = service(h)
    for key in ("report", "report/", f"report/{ONE}", f"report/{ONE}/x"):
        await cron.queue.aoffer_or_update(key, "by hand")
    await cron.ainstall_tick(ONE, "report", messages(h, 0))
    await cron.ainstall_tick(TWO, "report", [])
    assert await cron.auninstall_tick("report") == 0
    assert await delivered(cron) == ["by hand"] * 4


@on_each_store
async def test_uninstalling(h: Harness) -> None:
    cron = service(h)
    await cron.ainstall_tick(ONE, "report", messages(h, 1, 2))
    await cron.ainstall_tick(ONE, "other", messages(h, 3))
    assert await cron.auninstall_tick("report", TWO) == 0
    assert await cron.auninstall_tick("report", ONE) == 2
    assert await cron.auninstall_tick("other") == 1
    again = await cron.ainstall_tick(ONE, "report", messages(h, 1, 2, payload="again"))
    assert again == 2
    await h.advance(HOUR)
    assert await delivered(cron) == ["again", "again"]


@pytest.mark.parametrize("prefix", ["a_b", "a%", "a/b", "a", "*", "ü"])
@pytest.mark.parametrize("other", ["axb", "ab", "a/c", "aa", "a/b/c"])
def test_prefixes_are_literal(prefix: str, other: str) -> None:
    async def whole() -> None:
        h = Harness.on("memory://")
        await h.open()
        cron = service(h)
        await cron.ainstall_tick(ONE, other, messages(h, 1, payload="other"))
        await cron.ainstall_tick(TWO, prefix, messages(h, 1, payload="mine"))
        assert await cron.auninstall_tick(prefix) == 1
        await h.advance(MINUTE)
        assert await delivered(cron) == ["other"]
        await h.close()

    asyncio.run(whole())


@on_each_store
async def test_a_hash_is_sixteen_hex_digits(h: Harness) -> None:
    with pytest.raises(Invalid, match="is not 16 hexadecimal digits"):
        await service(h).ainstall_tick("%", "report", messages(h, 1))
    with pytest.raises(Invalid, match="'report' is not 16 hexadecimal digits"):
        await service(h).auninstall_tick(ONE, "report")  # the wrong way round


@on_each_store
async def test_a_message_without_an_instant_is_refused(h: Harness) -> None:
    nowhen: Any = None
    with pytest.raises(Invalid, match="at: is None"):
        await service(h).ainstall_tick(ONE, "report", [CronMessage("now?", nowhen)])
    assert await service(h).queue.atry_poll() is None


# -- again and again -------------------------------------------------------------------------------


@on_each_store
async def test_ticks_of_two_processes_deliver_every_instant_once(h: Harness) -> None:
    """The second one was started later and sleeps now and then."""
    one, two = service(h), service(h)
    schedule = Every(every_ms=MINUTE)

    def generate(now: datetime) -> list[CronMessage]:
        at = int(now.timestamp() * 1_000)
        return [CronMessage(each, each) for each in instants(schedule, at, 4)]

    begin = h.now
    await one.ainstall_tick(ONE, "report", generate(datetime.fromtimestamp(begin / 1_000, UTC)))
    seen = []
    for turn in range(48):
        await h.advance(15_000)
        assert await one.atick(ONE, "report", generate)
        if turn > 10 and turn % 10 < 5:
            assert await two.atick(ONE, "report", generate)
        seen += await delivered(one)
    assert seen == instants(schedule, begin, 12)


@on_each_store
async def test_whoever_was_installed_before_another_config_ends(h: Harness) -> None:
    old, new = service(h), service(h)

    def generate(now: datetime) -> list[CronMessage]:
        return messages(h, 1, payload="old")

    await old.ainstall_tick(ONE, "report", generate(datetime.now(UTC)))
    assert await old.atick(ONE, "report", generate)
    await new.ainstall_tick(TWO, "report", messages(h, 1, payload="new"))
    assert not await old.atick(ONE, "report", generate)
    await h.advance(MINUTE)
    assert await delivered(new) == ["new"]


@on_each_store
async def test_daily_over_a_change_of_the_clocks(h: Harness) -> None:
    await h.advance(int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp() * 1_000) - h.now)
    cron = service(h)
    begin = h.now
    async with await cron.ainstall_daily("d", ["02:30"], "Europe/Berlin", str) as installed:
        assert installed.running
        at = [parse_key(job.key or "")[2] for job in await h.scan("q.json")]
        assert at == instants(Daily(at=("02:30",), tz="Europe/Berlin"), begin, 4)
        seen = []
        for _ in range(3):
            await h.advance(DAY)
            seen += await delivered(cron)
    assert seen == [
        "2026-03-29 03:00:00+02:00",
        "2026-03-30 02:30:00+02:00",
        "2026-03-31 02:30:00+02:00",
    ]
    assert not installed.running


@on_each_store
async def test_periods_are_multiples_since_the_epoch(h: Harness) -> None:
    cron = service(h)
    async with await cron.ainstall_periodic("p", "10m", lambda at: at.minute % 10):
        jobs = await h.scan("q.json")
        assert [job.run_at for job in jobs] == instants(Every(every_ms=10 * MINUTE), h.now, 4)
        await h.advance(HOUR)
        assert await delivered(cron) == [0, 0, 0, 0]


def test_synchronous_code_installs_and_closes(tmp_path: Path) -> None:
    with Penstock(url_of("sqlite://", tmp_path)) as app:
        cron: CronService[str] = CronService(DelayedQueue(app, "q", str))
        with cron.install_periodic("p", "50ms", str) as installed:
            seen: list[int] = []
            while len(seen) < 45:  # more than are offered at first: the next tick is a second on
                envelope = cron.queue.poll(timeout="10s")
                seen.append(parse_key(envelope.key)[2])
                envelope.acknowledge()
        assert not installed.running
        assert seen == [seen[0] + 50 * n for n in range(45)]
        assert cron.uninstall_tick("p") > 0
        assert cron.install_tick(ONE, "t", [CronMessage("x", datetime.now(UTC))]) == 1
        assert cron.queue.poll(timeout="10s").payload == "x"
        with cron.install(ONE, "u", "1h", lambda now: [CronMessage("y", now)]):
            assert cron.queue.poll(timeout="10s").payload == "y"
        with cron.install_daily("d", ["02:00"], "UTC", str):
            assert cron.uninstall_tick("d") == 4
