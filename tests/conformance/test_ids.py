"""Ids: positive integers below 2⁵³, ascending in push order, contiguous per call, never reused."""

from penstock.model.job import MAX_ID, Run
from tests.conformance.harness import BLOCK, Harness, many_jobs


def contiguous(ids: list[int]) -> bool:
    return ids == list(range(ids[0], ids[0] + len(ids)))


@many_jobs
async def test_an_id_is_a_positive_integer_below_2_to_the_53(h: Harness) -> None:
    for job_id in [await h.push("q"), *await h.push_alike("q", 5_000)]:
        assert type(job_id) is int
        assert 0 < job_id <= MAX_ID


@many_jobs
async def test_the_ids_of_one_call_are_contiguous(h: Harness) -> None:
    assert contiguous(await h.push_alike("q", 10))
    assert contiguous(await h.push_alike("q", 10_000))


@many_jobs
async def test_the_ids_of_one_call_are_contiguous_wherever_the_last_call_ended(h: Harness) -> None:
    last = 0
    for count in (BLOCK - 3, 2, 1, 1, BLOCK, BLOCK - 1, 3, 9_999, 7):
        ids = await h.push_alike("q", count)
        assert contiguous(ids)
        assert ids[0] > last
        last = ids[-1]


@many_jobs
async def test_the_ids_of_one_call_are_contiguous_per_queue(h: Harness) -> None:
    for count in (3, 3_000, 2_500):
        runs = [Run.pack(queue, [b"1"] * count) for queue in ("a", "b", "a")]
        ids = (await h.store.push(h.name, runs)).ids
        assert contiguous(ids[:count] + ids[2 * count :])
        assert contiguous(ids[count : 2 * count])


async def test_within_a_queue_ids_ascend_in_push_order(h: Harness) -> None:
    ids: list[int] = []
    for turn in range(40):
        ids += await h.push_alike("q", 1 + turn * 7 % 20)
        ids.append(await h.push("q", priority=turn, delay_ms=turn))
        await h.push_alike("other", turn + 1)
        h.clock.advance(1)
    assert ids == sorted(set(ids))


async def test_within_a_queue_ids_ascend_over_a_clock_that_goes_back(h: Harness) -> None:
    before = await h.push("q")
    await h.jump(-3_600_000)
    assert await h.push("q") > before


@many_jobs
async def test_single_pushes_ascend_over_several_blocks(h: Harness) -> None:
    ids = [await h.push("q") for _ in range(BLOCK + 50)]
    assert ids == sorted(set(ids))
    assert await h.claimed("q", 10_000) == ids


async def test_jobs_that_a_key_ignores_leave_no_gap_in_the_created_ids(h: Harness) -> None:
    known = await h.push("q", key="k")
    specs = [{"key": "k"} if index % 4 == 1 else {} for index in range(20)]
    pushed = await h.push_many("q", specs)
    assert contiguous([job_id for job_id, outcome in pushed.jobs if outcome == "created"])
    assert {job_id for job_id, outcome in pushed.jobs if outcome == "ignored"} == {known}


@many_jobs
async def test_two_queues_and_two_tenants_never_share_an_id(h: Harness) -> None:
    acme = h.tenant("acme")
    ids: list[int] = []
    for _ in range(3):
        ids += await h.push_alike("a", 2_000)
        ids += await h.push_alike("b", 2_000)
        ids += await acme.push_alike("a", 2_000)
    assert len(set(ids)) == len(ids)


async def test_an_id_is_not_reused_after_its_job_is_forgotten(h: Harness) -> None:
    gone = [await h.finish("q", retain_ms=0) for _ in range(5)]
    assert await h.get(gone[-1]) is None
    assert await h.push("q") > gone[-1]


@many_jobs
async def test_an_id_is_not_reused_after_a_purge(h: Harness) -> None:
    gone = await h.push_alike("q", 5_000)
    await h.store.purge(h.name, "q")
    again = await h.push_alike("q", 5_000)
    assert again[0] > gone[-1]
    assert await h.get(gone[0]) is None


async def test_an_id_is_not_reused_after_a_drain(h: Harness) -> None:
    gone = await h.push_alike("q", 10)
    await h.store.drain(h.name, "q")
    assert await h.push("q") > gone[-1]


async def test_an_id_is_not_reused_after_its_queue_is_forgotten(h: Harness) -> None:
    gone = await h.finish("q", retain_ms=0)
    assert [info.queue for info in await h.store.queues(h.name)] == []
    await h.push("other")
    assert await h.push("q") > gone


async def test_an_id_is_not_reused_after_a_restart(h: Harness) -> None:
    kept = await h.push_alike("q", 10)
    await h.restart()
    assert await h.push("q") > kept[-1]


@many_jobs
async def test_an_id_is_not_reused_after_a_restart_that_found_its_job_forgotten(
    h: Harness,
) -> None:
    gone = await h.finish("q", retain_ms=0)
    last = await h.push_alike("other", 5_000)
    await h.store.purge(h.name, "other")
    await h.restart()
    assert await h.push("q") not in {gone, *last}
    again = await h.push_alike("other", 5_000)
    assert again[0] > last[-1]


async def test_an_unknown_id_names_nothing(h: Harness) -> None:
    job_id = await h.push("q")
    assert await h.store.get(h.name, [job_id + 1, job_id, MAX_ID]) == [
        None,
        await h.job(job_id),
        None,
    ]
