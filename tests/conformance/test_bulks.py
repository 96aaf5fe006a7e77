"""Two-phase pushes: held until the commit, then there all at once, or not at all."""

from typing import Any

import pytest

from penstock.model.answers import BulkInfo
from penstock.model.errors import Conflict, Invalid, NotFound
from penstock.model.job import JobSpec, Run
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.harness import Harness, many_jobs

HOUR = 3_600_000
DAY = 24 * HOUR
SAID = 1_700_000_600_000  # ahead of where the clock begins


async def open_bulk(h: Harness, name: str | None = "b", **more: int) -> BulkInfo:
    return await h.store.open_bulk(h.name, name, **more)


async def commit(h: Harness, *parts: str, name: str = "b") -> BulkInfo:
    return await h.store.commit_bulk(h.name, name, parts or None)


# -- held ------------------------------------------------------------------------------------------


async def test_jobs_of_a_bulk_are_held_until_its_commit(h: Harness) -> None:
    assert (await open_bulk(h)).state == "open"
    pushed = await h.push_many("q", [{"key": "k"}, {"group": "g"}, {}], bulk="b")
    assert [outcome for _, outcome in pushed.jobs] == ["created"] * 3
    assert await h.counts("q") == {"held": 3}
    assert await h.claim("q", 10) is None
    assert await h.store.by_key(h.name, "q", "k") is None
    info = await commit(h)
    assert (info.bulk, info.state, info.jobs, info.dropped) == ("b", "committed", 3, 0)
    assert sorted(await h.claimed("q", 10)) == pushed.ids
    assert await h.store.by_key(h.name, "q", "k") == pushed.ids[0]


async def test_a_held_job_can_be_seen_and_cancelled_but_not_edited(h: Harness) -> None:
    await open_bulk(h)
    first, second = (await h.push_many("q", [{"payload": b"1"}, {}], bulk="b")).ids
    job = await h.job(first)
    assert (job.state, job.payload, job.attempt) == (State.HELD, b"1", 0)
    assert [held.id for held in await h.scan("q")] == [first, second]
    with pytest.raises(Conflict):
        await h.store.edit(h.name, first, priority=5)
    assert list((await h.cancel(first)).acked) == [first]
    assert await h.state(first) == State.CANCELLED
    await commit(h)
    assert await h.claimed("q", 5) == [second]
    assert await h.state(first) == State.CANCELLED


async def test_a_held_job_neither_expires_nor_comes_due(h: Harness) -> None:
    await open_bulk(h)
    expires, delayed = (
        await h.push_many("q", [{"ttl_ms": 1_000}, {"delay_ms": 1_000}], bulk="b")
    ).ids
    await h.advance(5_000)
    assert await h.counts("q") == {"held": 2}
    await commit(h)
    assert await h.state(delayed) == State.SCHEDULED
    await h.advance(999)
    assert await h.state(expires) == State.READY
    assert await h.claimed("q", 1, lease_ms=DAY) == [expires]
    await h.advance(1)
    assert await h.claimed("q", 5) == [delayed]


@pytest.mark.parametrize(
    "spec", [{}, {"headers": {"a": "1"}}, {"depends_on": (-1,)}], ids=["plain", "own", "blocked"]
)
async def test_run_at_of_a_held_job_is_shown_as_said(h: Harness, spec: dict[str, Any]) -> None:
    bulk = (await h.store.open_bulk(h.name)).bulk
    said = [{"run_at": SAID}, {"run_at": 5}, {"delay_ms": 1_000}, {"run_at": SAID + 1}]
    jobs: list[dict[str, Any]] = [{}, *({**times, **spec} for times in said)]
    ids = (await h.push_many("q", jobs, bulk=bulk)).ids
    pushed = h.now
    shown = [(await h.job(job_id)).run_at for job_id in ids]
    assert shown == [pushed, SAID, pushed, pushed, SAID + 1]
    await h.advance(SAID - pushed)
    await h.store.commit_bulk(h.name, bulk)
    shown = [(await h.job(job_id)).run_at for job_id in ids]
    assert shown == [SAID, SAID, SAID, SAID + 1_000, SAID + 1]


async def test_run_at_of_alike_held_jobs_is_shown_as_said(h: Harness) -> None:
    bulk = (await h.store.open_bulk(h.name)).bulk
    for run_at in (SAID, None, SAID):
        run = Run.pack("q", [b"1", b"2"], run_at=run_at)
        await h.store.push(h.name, [run], bulk=bulk)
    pushed = h.now
    expected = [SAID, SAID, pushed, pushed, SAID, SAID]
    assert [job.run_at for job in await h.scan("q")] == expected
    await h.advance(1)
    await h.store.commit_bulk(h.name, bulk)
    expected[2:4] = [h.now, h.now]
    assert [job.run_at for job in await h.scan("q")] == expected


async def test_the_ttl_counts_from_the_commit(h: Harness) -> None:
    await open_bulk(h)
    (job_id,) = (await h.push_many("q", [{"ttl_ms": 1_000}], bulk="b")).ids
    await h.advance(3_000)
    await commit(h)
    await h.advance(1_000)
    assert await h.state(job_id) == State.EXPIRED


async def test_the_place_in_line_counts_from_the_commit(h: Harness) -> None:
    await open_bulk(h)
    held = (await h.push_many("q", [{}, {}], bulk="b")).ids
    await h.advance(1)
    between = await h.push("q")
    await h.advance(1)
    await commit(h)
    await h.advance(1)
    later = await h.push("q")
    assert await h.claimed("q", 10) == [between, *held, later]


async def test_a_kept_keys_duration_counts_from_the_commit(h: Harness) -> None:
    await open_bulk(h)
    (job_id,) = (await h.push_many("q", [{"key": "k", "keep_key": 1_000}], bulk="b")).ids
    await h.advance(5_000)
    await commit(h)
    await h.advance(999)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_commit_serves_a_claim_that_waits(h: Harness) -> None:
    await open_bulk(h)
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    ids = (await h.push_many("q", [{}, {}], bulk="b")).ids
    await h.settle()
    assert not waiting.done()
    await commit(h)
    assert (await h.told(waiting)).ids == ids


# -- parts -----------------------------------------------------------------------------------------


async def test_a_commit_publishes_the_named_parts_and_drops_the_rest(h: Harness) -> None:
    await open_bulk(h)
    a = (await h.push_many("q", [{}, {}], bulk="b", part="a")).ids
    dropped = (await h.push_many("q", [{}, {"key": "k"}, {}], bulk="b", part="x")).ids
    c = (await h.push_many("r", [{}], bulk="b", part="c")).ids
    a += (await h.push_many("q", [{}], bulk="b", part="a")).ids
    info = await commit(h, "a", "c", "a")
    assert (info.jobs, info.dropped) == (4, 3)
    assert await h.claimed("q", 10) == a
    assert await h.claimed("r", 10) == c
    assert await h.states(dropped) == {"forgotten": 3}
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_part_that_was_never_pushed_is_refused_and_the_bulk_stays_open(
    h: Harness,
) -> None:
    await open_bulk(h)
    ids = (await h.push_many("q", [{}], bulk="b", part="a")).ids
    with pytest.raises(Invalid) as caught:
        await commit(h, "a", "missing")
    assert caught.value.field.endswith("parts")
    assert await h.counts("q") == {"held": 1}
    await commit(h, "a")
    assert await h.claimed("q") == ids


async def test_without_a_name_the_part_is_the_empty_one(h: Harness) -> None:
    await open_bulk(h)
    (plain,) = (await h.push_many("q", [{}], bulk="b")).ids
    await h.push_many("q", [{}], bulk="b", part="named")
    await commit(h, "")
    assert await h.claimed("q", 10) == [plain]


async def test_a_published_job_that_depends_on_a_dropped_one_fails(h: Harness) -> None:
    await open_bulk(h)
    (dropped,) = (await h.push_many("q", [{}], bulk="b", part="x")).ids
    fails, goes_on = (
        await h.push_many(
            "q",
            [
                {"depends_on": (dropped,)},
                {"depends_on": (dropped,), "on_dependency_failure": "ignore"},
            ],
            bulk="b",
            part="a",
        )
    ).ids
    await commit(h, "a")
    assert (await h.job(fails)).dead_reason == DeadReason.DEPENDENCY_FAILED
    assert await h.claimed("q", 5) == [goes_on]


@many_jobs
async def test_parts_interleaved_with_plain_pushes_over_several_blocks(h: Harness) -> None:
    await open_bulk(h)
    ids: dict[str, list[int]] = {"a": [], "x": [], "plain": []}
    for part in ("a", "x", "a"):
        specs = [JobSpec(payload=b"%d" % n, task=f"t{n % 2}") for n in range(1_500)]
        ids[part] += (await h.push_many("q", specs, bulk="b", part=part)).ids
        ids["plain"].append(await h.push("q"))
        await h.advance(1)
    assert await h.claimed("q", 5) == ids["plain"]
    info = await commit(h, "a")
    assert (info.jobs, info.dropped) == (3_000, 1_500)
    assert await h.counts("q") == {"active": 3, "ready": 3_000}
    assert await h.states(ids["x"][::100]) == {"forgotten": 15}
    assert await h.claimed("q", 3) == ids["a"][:3]
    assert (await h.job(ids["a"][-1])).payload == b"1499"


# -- finished bulks --------------------------------------------------------------------------------


async def test_commit_is_idempotent(h: Harness) -> None:
    await open_bulk(h)
    await h.push_many("q", [{}, {}], bulk="b", part="a")
    await h.push_many("q", [{}], bulk="b", part="x")
    first = await commit(h, "a")
    await h.advance(10)
    assert await commit(h, "a") == first
    assert await commit(h) == first
    assert await h.counts("q") == {"ready": 2}


async def test_abort_drops_everything_and_is_idempotent(h: Harness) -> None:
    await open_bulk(h)
    ids = (await h.push_many("q", [{"key": "k"}, {}], bulk="b")).ids
    assert (await h.store.abort_bulk(h.name, "b")).state == "aborted"
    assert (await h.store.abort_bulk(h.name, "b")).state == "aborted"
    assert await h.states(ids) == {"forgotten": 2}
    assert await h.counts("q") == {}
    assert await h.push("q") > ids[-1]


async def test_what_is_finished_cannot_be_finished_otherwise(h: Harness) -> None:
    await open_bulk(h, "committed")
    await commit(h, name="committed")
    with pytest.raises(Conflict):
        await h.store.abort_bulk(h.name, "committed")
    await open_bulk(h, "aborted")
    await h.store.abort_bulk(h.name, "aborted")
    with pytest.raises(Conflict):
        await commit(h, name="aborted")


async def test_a_finished_bulk_takes_no_more_jobs(h: Harness) -> None:
    await open_bulk(h, "committed")
    await commit(h, name="committed")
    await open_bulk(h, "aborted")
    await h.store.abort_bulk(h.name, "aborted")
    for name in ("committed", "aborted"):
        with pytest.raises(Conflict):
            await h.push_many("q", [{}], bulk=name)
    assert await h.counts("q") == {}


async def test_an_unknown_bulk_is_not_found(h: Harness) -> None:
    with pytest.raises(NotFound):
        await h.push_many("q", [{}], bulk="b")
    with pytest.raises(NotFound):
        await commit(h)
    with pytest.raises(NotFound):
        await h.store.abort_bulk(h.name, "b")
    assert await h.counts("q") == {}


async def test_reopening_an_open_bulk_finds_it_as_it_is(h: Harness) -> None:
    first = await open_bulk(h, deadline_ms=5_000)
    ids = (await h.push_many("q", [{}], bulk="b")).ids
    again = await open_bulk(h, deadline_ms=HOUR)
    assert (again.state, again.expires_at) == ("open", first.expires_at)
    await commit(h)
    assert await h.claimed("q") == ids


async def test_the_name_of_a_committed_bulk_is_remembered_for_seven_days(h: Harness) -> None:
    await open_bulk(h)
    await h.push_many("q", [{}], bulk="b")
    await commit(h)
    await h.advance(7 * DAY - 1)
    assert (await open_bulk(h)).state == "committed"
    await h.advance(1)
    assert (await open_bulk(h)).state == "open"


async def test_the_name_of_an_aborted_bulk_may_be_opened_again_empty(h: Harness) -> None:
    await open_bulk(h)
    await h.push_many("q", [{}], bulk="b", part="old")
    await h.store.abort_bulk(h.name, "b")
    await h.advance(1)
    assert (await open_bulk(h)).state == "open"
    ids = (await h.push_many("q", [{}], bulk="b", part="new")).ids
    with pytest.raises(Invalid):
        await commit(h, "old")
    assert (await commit(h)).jobs == 1
    assert await h.claimed("q", 5) == ids


async def test_bulks_without_a_name_get_one_each(h: Harness) -> None:
    first, second = await open_bulk(h, None), await open_bulk(h, None)
    assert first.bulk
    assert first.bulk != second.bulk
    await h.push_many("q", [{}], bulk=first.bulk)
    assert (await commit(h, name=second.bulk)).jobs == 0
    assert (await commit(h, name=first.bulk)).jobs == 1


async def test_an_open_bulk_aborts_at_its_deadline(h: Harness) -> None:
    info = await open_bulk(h, deadline_ms=5_000)
    assert info.expires_at == h.now + 5_000
    ids = (await h.push_many("q", [{}], bulk="b")).ids
    await h.advance(4_999)
    assert await h.counts("q") == {"held": 1}
    h.clock.advance(1)
    with pytest.raises(Conflict):
        await commit(h)
    assert await h.states(ids) == {"forgotten": 1}


async def test_each_push_renews_the_deadline(h: Harness) -> None:
    await open_bulk(h, deadline_ms=5_000)
    for _ in range(3):
        await h.advance(4_000)
        await h.push_many("q", [{}], bulk="b")
    assert (await open_bulk(h)).expires_at == h.now + 5_000
    await h.advance(4_999)
    assert (await commit(h)).jobs == 3


async def test_the_deadline_runs_on_time_that_passed_not_on_the_wall_clock(h: Harness) -> None:
    await open_bulk(h, deadline_ms=5_000)
    await h.jump(HOUR)
    assert (await open_bulk(h)).state == "open"
    await h.jump(-2 * HOUR)
    await h.advance(5_000)
    with pytest.raises(Conflict):
        await commit(h)


async def test_bulks_survive_a_restart(h: Harness) -> None:
    await open_bulk(h, "open")
    ids = (await h.push_many("q", [{"key": "k"}, {"delay_ms": 100}], bulk="open", part="p")).ids
    await open_bulk(h, "done")
    await commit(h, name="done")
    await h.restart()
    assert (await open_bulk(h, "done")).state == "committed"
    assert await h.counts("q") == {"held": 2}
    await commit(h, "p", name="open")
    assert await h.claimed("q", 5) == ids[:1]
    await h.advance(100)
    assert await h.claimed("q", 5) == ids[1:]


# -- keys and dependencies -------------------------------------------------------------------------


async def test_keys_are_decided_at_the_commit_in_push_order(h: Harness) -> None:
    known = await h.push("q", b"0", key="taken")
    await open_bulk(h)
    first, second = (
        await h.push_many(
            "q", [{"payload": b"1", "key": "k"}, {"payload": b"2", "key": "taken"}], bulk="b"
        )
    ).ids
    (third,) = (await h.push_many("q", [{"payload": b"3", "key": "k"}], bulk="b")).ids
    info = await commit(h)
    assert (info.jobs, info.dropped) == (1, 2)
    assert await h.store.by_key(h.name, "q", "k") == first
    assert await h.store.by_key(h.name, "q", "taken") == known
    assert await h.states([second, third]) == {"forgotten": 2}
    assert [job.payload for job in (await h.lease("q", 5)).jobs] == [b"0", b"1"]


async def test_a_key_taken_after_the_push_and_freed_before_the_commit_is_no_conflict(
    h: Harness,
) -> None:
    await open_bulk(h)
    ids = (await h.push_many("q", [{"key": "k", "on_conflict": "reject"}], bulk="b")).ids
    await h.finish("q", key="k", on_conflict="reject")
    await commit(h)
    assert await h.claimed("q", 5) == ids


async def test_replace_at_the_commit_keeps_the_id_of_the_live_job(h: Harness) -> None:
    known = await h.push("q", b"0", key="k")
    await h.advance(1)
    await open_bulk(h)
    held = (
        await h.push_many(
            "q",
            [{"payload": b"%d" % n, "key": "k", "on_conflict": "replace"} for n in (1, 2)],
            bulk="b",
        )
    ).ids
    info = await commit(h)
    assert (info.jobs, info.dropped) == (0, 2)
    assert [(job.id, job.payload) for job in (await h.lease("q", 5)).jobs] == [(known, b"2")]
    assert await h.states(held) == {"forgotten": 2}


@pytest.mark.parametrize("on_conflict", ["reject", "match"])
async def test_a_refused_key_fails_the_commit_and_leaves_the_bulk_open(
    h: Harness, on_conflict: str
) -> None:
    known = await h.push("q", b"0", key="k", priority=9)
    replaced = await h.push("q", b"0", key="r")
    before = await h.job(replaced)
    await open_bulk(h)
    ids = (
        await h.push_many(
            "q",
            [
                {"payload": b"1"},
                {"payload": b"2", "key": "r", "on_conflict": "replace"},
                {"payload": b"3", "key": "k", "on_conflict": on_conflict},
            ],
            bulk="b",
        )
    ).ids
    with pytest.raises(Conflict):
        await commit(h)
    assert await h.states(ids) == {"held": 3}
    assert await h.job(replaced) == before
    lease = await h.lease("q")
    assert lease.ids == [known]
    await h.ack(lease)
    info = await commit(h)
    assert (info.jobs, info.dropped) == (2, 1)
    assert await h.states(ids) == {"ready": 2, "forgotten": 1}
    assert (await h.job(replaced)).payload == b"2"


async def test_the_jobs_of_a_bulk_may_depend_on_each_other(h: Harness) -> None:
    await open_bulk(h)
    (first,) = (await h.push_many("q", [{}], bulk="b")).ids
    second, third = (
        await h.push_many("q", [{"depends_on": (-2,)}, {"depends_on": (first,)}], bulk="b")
    ).ids
    await commit(h)
    assert await h.counts("q") == {"blocked": 2, "ready": 1}
    for job_id in (first, third, second):
        lease = await h.lease("q", 5)
        assert lease.ids == [job_id]
        await h.ack(lease)


async def test_a_job_that_ended_while_held_names_who_has_the_key_as_others_do(h: Harness) -> None:
    await open_bulk(h)
    keyed: dict[str, Any] = {"key": "k"}
    _, discarded = (await h.push_many("q", [keyed, {"depends_on": (-1,)}], bulk="b")).ids
    await h.store.cancel(h.name, [discarded], discard=True)
    holder = await h.push("q", key="k")
    await commit(h)
    assert (await h.job(discarded)).depends_on == (holder,)


async def test_nothing_outside_may_depend_on_a_held_job(h: Harness) -> None:
    await open_bulk(h)
    await open_bulk(h, "other")
    (held,) = (await h.push_many("q", [{}], bulk="b")).ids
    for more in ({}, {"bulk": "other"}):
        with pytest.raises(Invalid) as caught:
            await h.push_many("q", [{}, {"depends_on": (held,)}], **more)
        assert caught.value.field.endswith("depends_on")
    assert await h.counts("q") == {"held": 1}
    await commit(h)
    assert await h.state(await h.push("q", depends_on=(held,))) == State.BLOCKED


async def test_dependencies_outside_are_judged_at_the_commit(h: Harness) -> None:
    done, failed, runs = (await h.push_many("d", [{}, {}, {}])).ids
    await open_bulk(h)
    specs = [{"depends_on": (dependency,)} for dependency in (done, failed, runs)]
    ids = (await h.push_many("q", specs, bulk="b")).ids
    await h.ack(await h.lease("d"))
    await h.cancel(failed)
    assert await h.counts("q") == {"held": 3}
    await commit(h)
    states = [await h.state(job_id) for job_id in ids]
    assert states == [State.READY, State.DEAD, State.BLOCKED]


async def test_a_dependency_on_a_held_job_whose_key_was_taken_means_the_known_job(
    h: Harness,
) -> None:
    known = await h.push("q", key="k")
    await open_bulk(h)
    _, child = (await h.push_many("q", [{"key": "k"}, {"depends_on": (-1,)}], bulk="b")).ids
    await commit(h)
    assert (await h.job(child)).depends_on == (known,)
    await h.ack(await h.lease("q"))
    assert await h.claimed("q") == [child]


async def test_a_dependency_is_kept_for_a_held_job(h: Harness) -> None:
    failed, done = (
        await h.push_many("d", [{"retain_dead_ms": 500, "priority": 1}, {"retain_ms": 500}])
    ).ids
    await open_bulk(h)
    specs = [{"depends_on": (failed,)}, {"depends_on": (done,)}]
    ids = (await h.push_many("q", specs, bulk="b")).ids
    await h.fail(await h.lease("d"), dead=True)
    await h.ack(await h.lease("d"), results={done: b"7"})
    await h.advance(1_000)
    assert await h.states([failed, done]) == {"completed": 1, "dead": 1}
    await commit(h)
    assert [await h.state(job_id) for job_id in ids] == [State.DEAD, State.READY]
    await h.ack(await h.lease("q"))
    await h.advance(1)
    assert await h.states([failed, done]) == {"forgotten": 2}


async def test_an_identical_replace_at_the_commit_changes_nothing(h: Harness) -> None:
    spec: dict[str, Any] = {"payload": b"1", "key": "k", "on_conflict": "replace"}
    job_id = await h.push("q", **spec)
    before = await h.job(job_id)
    await open_bulk(h)
    await h.push_many("q", [spec], bulk="b")
    await h.advance(10)
    info = await commit(h)
    assert (info.jobs, info.dropped) == (0, 1)
    assert await h.job(job_id) == before


async def test_a_commit_that_would_make_a_job_wait_for_itself_is_refused(h: Harness) -> None:
    """What a held job's key stands for is only known at the commit."""
    bulk = (await h.store.open_bulk(h.name)).bulk
    first = JobSpec(key="k", depends_on=(-2,))
    await h.push_many("q", [first, JobSpec(key="k")], bulk=bulk)
    with pytest.raises(Invalid) as refused:
        await h.store.commit_bulk(h.name, bulk)
    assert refused.value.field == "depends_on"
    assert (await h.store.open_bulk(h.name, bulk)).state == "open"
    assert (await h.store.abort_bulk(h.name, bulk)).dropped == 2
