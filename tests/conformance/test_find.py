"""`find`: jobs of a queue by ascending id, or the newest first, page after page, by state, task and
tag."""

from typing import Any

import pytest

from penstock.model.job import Job, JobSpec
from penstock.model.lifecycle import State
from tests.conformance.blocks import fill_block, push_assorted
from tests.conformance.harness import BLOCK, Harness, after


async def find_all(
    h: Harness, queue: str, limit: int = 100, *, newest: bool = False, **filters: Any
) -> list[Job]:
    """All pages together."""
    jobs: list[Job] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await h.store.find(
            h.name, queue, cursor=cursor, limit=limit, newest=newest, **filters
        )
        assert len(page.jobs) <= limit
        assert page.cursor != 0, "0 is where a search begins"
        if page.cursor is not None and cursor:
            assert (page.cursor < cursor) if newest else (page.cursor > cursor)
        jobs += page.jobs
        cursor = page.cursor
    return jobs


async def test_every_job_is_found_once_by_ascending_id_whatever_the_page(h: Harness) -> None:
    ids = (await h.push_many("q", [{"priority": n % 3} for n in range(25)])).ids
    await h.push("r")
    for limit in (1, 7, 25, 1_000):
        assert [job.id for job in await find_all(h, "q", limit)] == ids


async def test_a_page_has_a_hundred_jobs_unless_said_otherwise(h: Harness) -> None:
    ids = await h.push_alike("q", 150)
    page = await h.store.find(h.name, "q")
    assert [job.id for job in page.jobs] == ids[:100]
    assert page.cursor is not None
    rest = await h.store.find(h.name, "q", cursor=page.cursor)
    assert [job.id for job in rest.jobs] == ids[100:]
    assert rest.cursor is None


async def test_a_cursor_is_an_id_to_start_from(h: Harness) -> None:
    ids = await h.push_alike("q", 10)
    page = await h.store.find(h.name, "q", cursor=ids[4], limit=3)
    assert [job.id for job in page.jobs] == ids[4:7]
    beyond = await h.store.find(h.name, "q", cursor=ids[-1] + 1)
    assert (beyond.jobs, beyond.cursor) == ((), None)


async def test_the_newest_come_first_where_that_is_asked_for(h: Harness) -> None:
    ids = (await h.push_many("q", [{"priority": n % 3} for n in range(25)])).ids
    await h.push("r")
    for limit in (1, 7, 25, 1_000):
        found = await find_all(h, "q", limit, newest=True)
        assert [job.id for job in found] == ids[::-1]
    page = await h.store.find(h.name, "q", newest=True, limit=3)
    assert [job.id for job in page.jobs] == ids[:-4:-1]


async def test_a_cursor_is_an_id_to_go_back_from_where_the_newest_come_first(h: Harness) -> None:
    ids = await h.push_alike("q", 10)
    page = await h.store.find(h.name, "q", newest=True, cursor=ids[4], limit=3)
    assert [job.id for job in page.jobs] == [ids[4], ids[3], ids[2]]
    assert page.cursor == ids[1]
    page = await h.store.find(h.name, "q", newest=True, cursor=2**53 - 1, limit=1)
    assert [job.id for job in page.jobs] == [ids[-1]]
    before = await h.store.find(h.name, "r", newest=True, cursor=ids[0])
    assert (before.jobs, before.cursor) == ((), None)
    after_all = await h.store.find(h.name, "q", newest=True, cursor=ids[0], limit=1)
    assert [job.id for job in after_all.jobs] == [ids[0]]
    assert after_all.cursor is None


async def test_an_unknown_queue_has_an_empty_page(h: Harness) -> None:
    for newest in (False, True):
        page = await h.store.find(h.name, "nowhere", newest=newest)
        assert (page.jobs, page.cursor) == ((), None)
    assert await h.store.queues(h.name) == []


async def test_jobs_are_found_by_every_state(h: Harness) -> None:
    by_state: dict[State, list[int]] = {state: [] for state in State}
    by_state[State.COMPLETED] = [await h.finish("q"), await h.finish("q")]
    by_state[State.SCHEDULED] = [await h.push("q", backoff=after(10**6))]
    await h.fail(await h.lease("q"))
    by_state[State.DEAD] = [await h.push("q")]
    await h.fail(await h.lease("q"), dead=True)
    by_state[State.EXPIRED] = [await h.push("q", ttl_ms=100)]
    await h.advance(100)
    by_state[State.CANCELLED] = [await h.push("q")]
    await h.cancel(*by_state[State.CANCELLED])
    by_state[State.ACTIVE] = [await h.push("q")]
    await h.lease("q")
    bulk = (await h.store.open_bulk(h.name)).bulk
    by_state[State.HELD] = (await h.push_many("q", [{}, {}], bulk=bulk)).ids
    by_state[State.READY] = [await h.push("q")]
    by_state[State.BLOCKED] = [await h.push("q", depends_on=(by_state[State.ACTIVE][0],))]
    by_state[State.SCHEDULED].append(await h.push("q", delay_ms=10**6))
    for state, ids in by_state.items():
        assert ids, state
        found = await find_all(h, "q", 1, state=state)
        assert [(job.id, job.state) for job in found] == [(job_id, state) for job_id in ids]
        assert await find_all(h, "q", 1, state=state, newest=True) == found[::-1]


async def test_jobs_are_found_by_task_and_tag_and_both(h: Harness) -> None:
    specs = [
        {"task": f"t{n % 3}", "tags": ("all", f"x{n % 2}") if n % 5 else ()} for n in range(60)
    ]
    ids = (await h.push_many("q", specs)).ids

    async def found(**filters: Any) -> list[int]:
        ids = [job.id for job in await find_all(h, "q", 9, **filters)]
        newest = [job.id for job in await find_all(h, "q", 9, newest=True, **filters)]
        assert newest == ids[::-1]
        return ids

    assert await found(task="t1") == ids[1::3]
    assert await found(tag="all") == [ids[n] for n in range(60) if n % 5]
    assert await found(tag="x1", task="t0") == [
        ids[n] for n in range(60) if n % 5 and n % 2 == 1 and n % 3 == 0
    ]
    assert await found(task="t", tag="all") == []
    assert await found(tag="x") == []
    assert await found(task="") == []
    lease = await h.lease("q", 10)
    assert await found(task="t1", state=State.ACTIVE) == [
        job_id for job_id in lease.ids if job_id in ids[1::3]
    ]


async def test_what_is_found_is_what_get_gives(h: Harness) -> None:
    await h.push_many(
        "q",
        [
            {"payload": b"[1]", "key": "k", "headers": {"a": "b"}, "tags": ("t",)},
            {"payload": b"\xff", "codec": "bytes", "group": "g", "priority": -4},
            {"delay_ms": 500, "task": "later"},
        ],
    )
    lease = await h.lease("q", 1, worker="w")
    await h.report(lease, lease.ids[0], progress=40, message="on it")
    for job in await find_all(h, "q"):
        assert job == await h.job(job.id)


async def test_pages_across_a_block_boundary_miss_nothing(h: Harness) -> None:
    lease = await fill_block(h, "q", room=30)
    ids = (await h.push_many("q", [{"tags": (f"n{n % 2}",)} for n in range(80)])).ids
    assert [job.id for job in await find_all(h, "q", 7)] == [*lease.ids, *ids]
    assert [job.id for job in await find_all(h, "q", 7, tag="n1")] == ids[1::2]
    back = await find_all(h, "q", 7, newest=True)
    assert [job.id for job in back] == [*reversed(ids), *reversed(lease.ids)]
    assert [job.id for job in await find_all(h, "q", 7, tag="n1", newest=True)] == ids[::-2]


async def test_a_rare_job_is_found_behind_many_others(h: Harness) -> None:
    await push_assorted(h, "q", BLOCK + 300)
    rare = await h.push("q", tags=("rare",))
    assert [job.id for job in await find_all(h, "q", tag="rare")] == [rare]


async def test_a_rare_job_is_found_before_many_others(h: Harness) -> None:
    rare = await h.push("q", tags=("rare",))
    await push_assorted(h, "q", BLOCK + 300)
    assert [job.id for job in await find_all(h, "q", tag="rare", newest=True)] == [rare]
    assert await find_all(h, "q", tag="rarer", newest=True) == []


async def test_paging_goes_on_while_jobs_come_and_go(h: Harness) -> None:
    ids = await h.push_alike("q", 30)
    first = await h.store.find(h.name, "q", limit=10)
    await h.store.purge(h.name, "r")
    lease = await h.lease("q", 30)
    await h.ack(lease, ids[5:15])
    newer = await h.push("q")
    assert first.cursor is not None
    rest: list[int] = []
    cursor: int | None = first.cursor
    while cursor is not None:
        page = await h.store.find(h.name, "q", cursor=cursor, limit=10)
        rest += [job.id for job in page.jobs]
        cursor = page.cursor
    assert rest == [*ids[10:], newer]


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_get_answers_in_the_order_asked_with_gaps(h: Harness, count: int) -> None:
    ids = (await h.push_many("q", [JobSpec(payload=b"%d" % n) for n in range(3)])).ids
    asked = [*reversed(ids), ids[0] + 1_000, ids[1], 2**53 - 1][: 2 * count]
    answers = await h.store.get(h.name, asked)
    assert [None if job is None else job.id for job in answers] == [
        job_id if job_id in ids else None for job_id in asked
    ]
