"""Flows: jobs that wait for jobs, graphs in one push, and what a failed dependency does."""

from typing import Any

import pytest

from penstock.model.errors import Invalid
from penstock.model.job import JobSpec, Run
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.blocks import fill_block
from tests.conformance.harness import BLOCK, Harness, after

HOUR = 3_600_000


async def finish_next(h: Harness, queue: str, expected: int, result: bytes = b"1") -> None:
    lease = await h.lease(queue)
    assert lease.ids == [expected]
    await h.ack(lease, results={expected: result})


async def test_a_job_waits_until_all_its_dependencies_completed(h: Harness) -> None:
    first, second = (await h.push_many("d", [{}, {}])).ids
    job_id = await h.push("q", depends_on=(first, second))
    assert await h.state(job_id) == State.BLOCKED
    await finish_next(h, "d", first)
    assert await h.state(job_id) == State.BLOCKED
    assert await h.claim("q") is None
    await finish_next(h, "d", second)
    assert await h.state(job_id) == State.READY
    (job,) = (await h.lease("q")).jobs
    assert (job.id, job.depends_on) == (job_id, (first, second))


async def test_a_retry_or_a_release_of_a_dependency_unblocks_nothing(h: Harness) -> None:
    dependency = await h.push("d", backoff=after(0))
    job_id = await h.push("q", depends_on=(dependency,))
    await h.fail(await h.lease("d"))
    await h.release(await h.lease("d"))
    assert await h.state(job_id) == State.BLOCKED
    await finish_next(h, "d", dependency)
    assert await h.state(job_id) == State.READY


async def test_an_unblocked_job_is_ready_since_its_last_dependency_ended(h: Harness) -> None:
    dependency = await h.push("d")
    blocked = await h.push("q", depends_on=(dependency,))
    await h.advance(1)
    earlier = await h.push("q")
    await h.advance(1)
    await finish_next(h, "d", dependency)
    await h.advance(1)
    later = await h.push("q")
    assert await h.claimed("q", 5) == [earlier, blocked, later]


async def test_an_unblocked_job_still_waits_for_its_run_at(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", depends_on=(dependency,), run_at=h.now + 1_000)
    await finish_next(h, "d", dependency)
    assert await h.state(job_id) == State.SCHEDULED
    await h.advance(999)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_a_blocked_job_whose_run_at_has_passed_stays_blocked(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", depends_on=(dependency,), delay_ms=100)
    await h.advance(500)
    assert await h.state(job_id) == State.BLOCKED
    await finish_next(h, "d", dependency)
    assert await h.claimed("q") == [job_id]


async def test_a_wall_clock_set_back_does_not_delay_a_job_without_a_delay(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", depends_on=(dependency,))
    await h.jump(-2_000)
    await finish_next(h, "d", dependency)
    assert await h.state(job_id) == State.READY
    assert await h.claimed("q") == [job_id]


async def test_a_dependency_that_completed_already_holds_nothing(h: Harness) -> None:
    done = await h.finish("d")
    assert await h.state(await h.push("q", depends_on=(done,))) == State.READY


async def test_a_dependency_named_twice_counts_once(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", depends_on=(dependency, dependency))
    await finish_next(h, "d", dependency)
    assert await h.claimed("q") == [job_id]


async def test_dependants_are_the_known_jobs_that_ever_waited_for_it(h: Harness) -> None:
    needed = await h.push("d", delay_ms=2 * HOUR)
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    ended = await h.push("q", depends_on=(needed,))
    moved = await h.push("q", depends_on=(needed,), **keyed)
    await h.store.open_bulk(h.name, "b")
    (held,) = (await h.push_many("q", [{"depends_on": (needed,)}], bulk="b")).ids
    active = await h.push("r", **keyed)
    lease = await h.lease("r")
    await h.push("r", depends_on=(needed,), **keyed)
    await h.cancel(ended)
    await h.push("q", b"2", **keyed)  # waits for it no longer
    assert sorted((await h.job(needed)).dependants) == [ended, moved]
    await h.ack(lease)
    await h.store.commit_bulk(h.name, "b")
    assert sorted((await h.job(needed)).dependants) == sorted([ended, moved, held, active])
    await h.advance(HOUR)  # the cancelled one is forgotten
    assert ended not in (await h.job(needed)).dependants


async def test_a_job_that_several_wait_for_names_its_dependants(h: Harness) -> None:
    dependency = await h.push("d")
    ids = (await h.push_many("q", [{"depends_on": (dependency,)}] * 3)).ids
    assert (await h.job(dependency)).dependants == tuple(ids)


async def test_a_job_that_is_forgotten_is_no_longer_named_as_a_dependant(h: Harness) -> None:
    dependency = await h.push("d")
    forgotten, waits = (
        await h.push_many("q", [{"depends_on": (dependency,), "retain_ms": n} for n in (0, 500)])
    ).ids
    await h.cancel(forgotten)
    assert (await h.job(dependency)).dependants == (waits,)


async def test_a_new_dependant_leaves_a_job_that_runs_or_ended_as_it_is(h: Harness) -> None:
    done = await h.finish("d")
    runs = await h.push("d", max_attempts=2, backoff=after(0))
    lease = await h.lease("d")
    waits = await h.push("q", depends_on=(done, runs))
    assert [(await h.job(job_id)).attempt for job_id in (done, runs)] == [1, 1]
    await h.fail(lease)
    again = await h.lease("d")
    assert [(job.id, job.attempt) for job in again.jobs] == [(runs, 2)]
    await h.fail(again)
    assert await h.state(runs) == State.DEAD
    assert await h.state(waits) == State.DEAD


# -- whole graphs ----------------------------------------------------------------------------------


async def test_a_chain_pushed_at_once_runs_in_its_order(h: Harness) -> None:
    """Pushed backwards: the first of the push waits for the second, and so on."""
    specs = [JobSpec(depends_on=(-(n + 2),) if n < 4 else ()) for n in range(5)]
    ids = (await h.push_many("q", specs)).ids
    for job_id in reversed(ids):
        assert (await h.counts("q"))["ready"] == 1
        await finish_next(h, "q", job_id)
    assert await h.counts("q") == {"completed": 5}


async def test_references_of_a_push_are_answered_as_ids(h: Harness) -> None:
    outside = await h.push("d")
    ids = (await h.push_many("q", [{}, {"depends_on": (-1, outside)}])).ids
    assert set((await h.job(ids[1])).depends_on) == {ids[0], outside}
    assert (await h.job(ids[0])).dependants == (ids[1],)


async def test_references_count_over_all_runs_of_the_push(h: Harness) -> None:
    runs = [
        Run.of("a", [JobSpec(), JobSpec(depends_on=(-4,))]),
        Run.of("b", [JobSpec(depends_on=(-1,))]),
        Run.of("a", [JobSpec(depends_on=(-3,))]),
    ]
    first, second, third, fourth = (await h.store.push(h.name, runs)).ids
    assert (await h.job(second)).depends_on == (fourth,)
    assert (await h.job(third)).depends_on == (first,)
    assert (await h.job(fourth)).depends_on == (third,)
    for queue, job_id in (("a", first), ("b", third), ("a", fourth), ("a", second)):
        await finish_next(h, queue, job_id)


async def test_a_reference_to_a_known_key_means_the_known_job(h: Harness) -> None:
    known = await h.push("q", key="k")
    jobs = (await h.push_many("q", [{"key": "k"}, {"depends_on": (-1,)}])).jobs
    assert jobs[0] == (known, "ignored")
    assert (await h.job(jobs[1][0])).depends_on == (known,)
    await finish_next(h, "q", known)
    assert await h.claimed("q") == [jobs[1][0]]


async def test_a_reference_to_a_kept_key_of_a_completed_job_holds_nothing(h: Harness) -> None:
    await h.finish("q", key="k", keep_key="retained")
    jobs = (await h.push_many("q", [{"key": "k"}, {"depends_on": (-1,)}])).jobs
    assert await h.state(jobs[1][0]) == State.READY


async def test_a_version_replaced_within_its_batch_may_wait_for_a_later_job(h: Harness) -> None:
    jobs = (
        await h.push_many(
            "q",
            [
                {"payload": b"1", "key": "k"},
                {"payload": b"2", "key": "k", "on_conflict": "replace", "depends_on": (-4,)},
                {"depends_on": (-2,)},
                {},
            ],
        )
    ).jobs
    keyed, child, last = jobs[0][0], jobs[2][0], jobs[3][0]
    assert jobs[1] == (keyed, "updated")
    assert (await h.job(keyed)).depends_on == (last,)
    assert (await h.job(child)).depends_on == (keyed,)
    for job_id in (last, keyed, child):
        lease = await h.lease("q", 5)
        assert lease.ids == [job_id]
        await h.ack(lease)


@pytest.mark.parametrize(
    "depends_on",
    [
        [(-1,)],
        [(-2,), (-1,)],
        [(), (-4,), (-2,), (-3,)],
        [(-2,), (-3,), (-1,)],
    ],
    ids=str,
)
async def test_a_cycle_is_refused_and_changes_nothing(
    h: Harness, depends_on: list[tuple[int, ...]]
) -> None:
    plain = await h.push("q")
    specs = [{"depends_on": each, "key": f"k{n}"} for n, each in enumerate(depends_on)]
    with pytest.raises(Invalid) as caught:
        await h.push_many("q", specs)
    assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {"ready": 1}
    assert await h.store.by_key(h.name, "q", "k0") is None
    assert await h.push("q") == plain + 1


async def test_a_cycle_through_a_key_of_the_same_push_is_refused(h: Harness) -> None:
    """The second of them is ignored, so what depends on it depends on the first: on itself."""
    with pytest.raises(Invalid) as caught:
        await h.push_many("q", [{"key": "k", "depends_on": (-2,)}, {"key": "k"}])
    assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {}


async def test_a_cycle_is_refused_even_where_a_failed_dependency_would_break_it(
    h: Harness,
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    with pytest.raises(Invalid) as caught:
        await h.push_many("q", [{"depends_on": (-2,)}, {"depends_on": (-1, failed)}])
    assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {}


async def test_a_cycle_made_by_a_replace_is_refused(h: Harness) -> None:
    first = await h.push("q", key="k")
    second = await h.push("q", depends_on=(first,))
    with pytest.raises(Invalid) as caught:
        await h.push("q", b"2", key="k", on_conflict="replace", depends_on=(second,))
    assert caught.value.field.endswith("depends_on")
    assert await h.state(first) == State.READY


async def test_a_job_replaced_to_depend_on_itself_is_refused(h: Harness) -> None:
    first = await h.push("q", key="k")
    with pytest.raises(Invalid):
        await h.push("q", b"2", key="k", on_conflict="replace", depends_on=(first,))
    assert (await h.job(first)).depends_on == ()


async def test_fan_out_and_fan_in_over_a_thousand_jobs(h: Harness) -> None:
    start = JobSpec(payload=b"0")
    middle = [JobSpec(payload=b"%d" % n, depends_on=(-1,)) for n in range(1_000)]
    join = JobSpec(depends_on=tuple(range(-2, -1_002, -1)))
    ids = (await h.push_many("q", [start, *middle, join])).ids
    await finish_next(h, "q", ids[0])
    assert await h.counts("q") == {"blocked": 1, "completed": 1, "ready": 1_000}
    lease = await h.lease("q", 1_000)
    assert lease.ids == ids[1:-1]
    await h.ack(lease, ids[1:-2])
    assert await h.state(ids[-1]) == State.BLOCKED
    await h.ack(lease)
    assert await h.claimed("q") == [ids[-1]]


async def test_a_graph_across_a_block_boundary_mixed_with_plain_jobs(h: Harness) -> None:
    running = await fill_block(h, "q")
    await h.cancel(*running.ids)
    # Jobs 0, 3, 6, … form a chain; of the others every second has a group.
    specs = [
        JobSpec(
            payload=b"%d" % n,
            depends_on=(-(n - 2),) if n % 3 == 0 and n else (),
            group="g" if n % 3 == 1 else None,
        )
        for n in range(30)
    ]
    ids = (await h.push_many("q", specs)).ids
    assert ids == list(range(ids[0], ids[0] + 30))
    assert await h.counts("q") == {"blocked": 9, "cancelled": 1, "ready": 21}
    done: list[int] = []
    while (lease := await h.claim("q", 100)) is not None:
        done += lease.ids
        await h.ack(lease)
        await h.advance(1)
    assert sorted(done) == ids
    assert [job_id for job_id in done if (job_id - ids[0]) % 3 == 0] == ids[::3]


# -- ids that are not known ------------------------------------------------------------------------


async def test_an_unknown_id_that_was_reserved_counts_as_completed(h: Harness) -> None:
    known = await h.push("q")
    assert await h.state(await h.push("r", depends_on=(known + 1,))) == State.READY
    await h.store.purge(h.name, "q")
    assert await h.state(await h.push("r", depends_on=(known,))) == State.READY


async def test_an_id_above_every_reserved_one_is_refused(h: Harness) -> None:
    with pytest.raises(Invalid) as caught:
        await h.push("q", depends_on=(1_000_000,))
    assert caught.value.field.endswith("depends_on")
    known = await h.push("q")
    for beyond in (known + 100 * BLOCK, 2**53 - 1):
        with pytest.raises(Invalid) as caught:
            await h.push_many("q", [{}, {"depends_on": (known, beyond)}])
        assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {"ready": 1}


async def test_an_id_of_another_tenant_counts_as_completed(h: Harness) -> None:
    other = h.tenant("other")
    theirs = await other.push("q")
    mine = await h.push("q", depends_on=(theirs,))
    assert await h.state(mine) == State.READY
    assert (await other.job(theirs)).dependants == ()
    await other.cancel(theirs)
    assert await h.state(mine) == State.READY
    assert await h.state(await h.push("q", depends_on=(theirs,))) == State.READY


@pytest.mark.parametrize("bad", [(0,), (-3,), (2**53,)], ids=str)
async def test_an_id_that_no_job_can_have_is_refused(h: Harness, bad: tuple[int, ...]) -> None:
    with pytest.raises(Invalid) as caught:
        await h.push_many("q", [{}, {"depends_on": bad}])
    assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {}


async def test_a_thousand_dependencies_are_allowed_and_one_more_is_not(h: Harness) -> None:
    ids = await h.push_alike("d", 1_001)
    with pytest.raises(Invalid) as caught:
        await h.push("q", depends_on=tuple(ids))
    assert caught.value.field.endswith("depends_on")
    assert await h.state(await h.push("q", depends_on=tuple(ids[1:]))) == State.BLOCKED


async def test_flows_survive_a_restart(h: Harness) -> None:
    first, second = (await h.push_many("d", [{}, {}])).ids
    waits = await h.push("q", depends_on=(first, second))
    fails = await h.push("q", depends_on=(second,))
    await finish_next(h, "d", first)
    await h.restart()
    await h.cancel(second)
    for job_id in (waits, fails):
        assert (await h.job(job_id)).dead_reason == DeadReason.DEPENDENCY_FAILED
