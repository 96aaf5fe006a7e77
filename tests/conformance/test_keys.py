"""Keys: who may take one, what a taken one answers, and when it is free again."""

from typing import Any

import pytest

from penstock.model.errors import Conflict
from penstock.model.job import JobOptions, JobSpec, Run
from penstock.model.policy import Backoff
from tests.conformance.blocks import fill_block
from tests.conformance.endings import SLOW
from tests.conformance.harness import Harness

SECOND = 1_000
HOUR = 3_600_000
DAY = 24 * HOUR
SHORT = 10 * SECOND  # a duration that is over when the cases look

NOT_STARTED = ("scheduled", "blocked", "ready")
STARTED = ("active", "backoff", "released")
ENDED = ("completed", "dead", "cancelled", "expired", "forgotten")


async def answered(h: Harness, queue: str, **spec: Any) -> tuple[int, str]:
    """(id, outcome) of one pushed job."""
    (answer,) = (await h.push_many(queue, [spec])).jobs
    return answer


async def bring(h: Harness, queue: str, state: str, **spec: Any) -> int:
    """A job of the queue, which has no other, brought into that state."""
    if state == "scheduled":
        return await h.push(queue, delay_ms=HOUR, **spec)
    if state == "blocked":
        return await h.push(queue, depends_on=(await h.push("dependencies"),), **spec)
    if state == "expired":
        job_id = await h.push(queue, ttl_ms=100, **spec)
        await h.advance(100)
        return job_id
    if state == "forgotten":
        return await h.finish(queue, retain_ms=0, **spec)
    job_id = await h.push(queue, backoff=SLOW, **spec)
    if state == "cancelled":
        await h.cancel(job_id)
    if state in ("ready", "cancelled"):
        return job_id
    lease = await h.lease(queue, lease_ms=DAY)
    if state == "backoff":
        await h.fail(lease)
    elif state == "released":
        await h.release(lease)
    elif state == "completed":
        await h.ack(lease)
    elif state == "dead":
        await h.fail(lease, dead=True)
    return job_id


def is_kept(keep_key: Any, state: str) -> bool:
    if keep_key == "live":
        return state not in ENDED
    if keep_key == "started":
        return state in NOT_STARTED
    if keep_key == "retained":
        return state != "forgotten"
    return bool(keep_key == HOUR)


@pytest.mark.parametrize("keep_key", ["live", "started", "retained", HOUR, SHORT])
@pytest.mark.parametrize("state", [*NOT_STARTED, *STARTED, *ENDED])
async def test_a_key_answers_by_its_keep_key_and_the_state_of_its_job(
    h: Harness, state: str, keep_key: Any
) -> None:
    keyed = {"key": "k", "keep_key": keep_key}
    for on_conflict in ("return", "match", "reject", "replace"):
        queue = on_conflict
        known = await bring(h, queue, state, payload=b"1", **keyed)
        if keep_key == SHORT:
            await h.advance(SHORT)
        again = keyed | {"on_conflict": on_conflict}

        if not is_kept(keep_key, state):
            assert await h.store.by_key(h.name, queue, "k") is None
            created, outcome = await answered(h, queue, payload=b"2", **again)
            assert (created > known, outcome) == (True, "created")
            assert await h.store.by_key(h.name, queue, "k") == created
            continue

        assert await h.store.by_key(h.name, queue, "k") == known
        if on_conflict == "return":
            assert await answered(h, queue, payload=b"2", **again) == (known, "ignored")
        elif on_conflict == "match":
            assert await answered(h, queue, payload=b"1", **again) == (known, "ignored")
            with pytest.raises(Conflict):
                await h.push(queue, b"2", **again)
        elif on_conflict == "reject":
            with pytest.raises(Conflict):
                await h.push(queue, b"1", **again)
        elif state in ENDED:
            created, outcome = await answered(h, queue, payload=b"2", **again)
            assert (created > known, outcome) == (True, "created")
            assert await h.store.by_key(h.name, queue, "k") == created
        else:
            assert await answered(h, queue, payload=b"2", **again) == (known, "updated")
        if on_conflict != "replace":
            assert await h.store.by_key(h.name, queue, "k") == known


# -- what the newcomer says ------------------------------------------------------------------------


async def test_a_job_without_a_key_is_always_created(h: Harness) -> None:
    first = await answered(h, "q", payload=b"1", on_conflict="reject")
    second = await answered(h, "q", payload=b"1", on_conflict="reject")
    assert (first[1], second[1]) == ("created", "created")
    assert first[0] != second[0]


async def test_return_leaves_the_known_job_as_it_was_whatever_the_newcomer_says(h: Harness) -> None:
    known = await h.push("q", b"1", key="k", priority=1)
    before = await h.job(known)
    await h.advance(5)
    assert await answered(
        h, "q", payload=b"2", key="k", priority=9, delay_ms=HOUR, group="g", keep_key=SHORT
    ) == (known, "ignored")
    assert await h.job(known) == before
    await h.advance(SHORT)
    assert await h.store.by_key(h.name, "q", "k") == known


async def test_match_compares_the_codec_as_well_as_the_bytes(h: Harness) -> None:
    await h.push("q", b"1", key="k")
    with pytest.raises(Conflict):
        await h.push("q", b"1", codec="bytes", key="k", on_conflict="match")


async def test_match_compares_nothing_but_the_payload(h: Harness) -> None:
    known = await h.push("q", b"1", key="k", priority=1)
    again = await answered(h, "q", payload=b"1", key="k", priority=7, on_conflict="match")
    assert again == (known, "ignored")


async def test_match_compares_with_the_last_payload(h: Harness) -> None:
    known = await h.push("q", b"1", key="k")
    await h.store.edit(h.name, known, payload=b"2")
    assert await answered(h, "q", payload=b"2", key="k", on_conflict="match") == (known, "ignored")
    with pytest.raises(Conflict):
        await h.push("q", b"1", key="k", on_conflict="match")
    await h.push("q", b"3", key="k", on_conflict="replace")
    assert await answered(h, "q", payload=b"3", key="k", on_conflict="match") == (known, "ignored")


async def test_keys_of_two_queues_have_nothing_to_do_with_each_other(h: Harness) -> None:
    first = await h.push("q", key="k")
    second = await h.push("r", key="k", on_conflict="reject")
    assert await h.store.by_key(h.name, "q", "k") == first
    assert await h.store.by_key(h.name, "r", "k") == second
    await h.cancel(first)
    assert await h.store.by_key(h.name, "r", "k") == second


async def test_keys_that_only_look_alike_are_different_keys(h: Harness) -> None:
    keys = ["k", "K", "k ", "k\0", "ｋ", "k%", "k_", "é", "e\u0301", "k/1", "k\n"]
    pushed = await h.push_many("q", [{"key": key, "on_conflict": "reject"} for key in keys])
    assert [outcome for _, outcome in pushed.jobs] == ["created"] * len(keys)
    for key, job_id in zip(keys, pushed.ids, strict=True):
        assert await h.store.by_key(h.name, "q", key) == job_id
        assert (await h.job(job_id)).key == key


async def test_a_key_that_was_never_pushed_stands_for_nothing(h: Harness) -> None:
    await h.push("q", key="k")
    assert await h.store.by_key(h.name, "q", "other") is None
    assert await h.store.by_key(h.name, "nowhere", "k") is None


# -- how long a key is kept ------------------------------------------------------------------------


async def test_a_duration_ends_exactly_at_push_plus_duration(h: Harness) -> None:
    job_id = await h.push("q", key="k", keep_key=5_000)
    await h.advance(4_999)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    assert await answered(h, "q", key="k", keep_key=5_000) == (job_id, "ignored")
    h.clock.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


@pytest.mark.parametrize("on_conflict", ["return", "match", "replace"])
async def test_a_duration_is_not_restarted_by_what_is_ignored(h: Harness, on_conflict: str) -> None:
    keyed: dict[str, Any] = {"key": "k", "keep_key": 5_000, "on_conflict": on_conflict}
    job_id = await h.push("q", b"1", **keyed)
    await h.advance(3_000)
    assert await answered(h, "q", payload=b"1", **keyed) == (job_id, "ignored")
    await h.advance(2_000)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_duration_is_restarted_by_replace(h: Harness) -> None:
    job_id = await h.push("q", b"1", key="k", keep_key=5_000)
    await h.advance(3_000)
    again = await answered(h, "q", payload=b"2", key="k", keep_key=5_000, on_conflict="replace")
    assert again == (job_id, "updated")
    await h.advance(4_999)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_duration_that_ends_before_its_job_lets_a_second_one_in(h: Harness) -> None:
    first = await h.push("q", key="k", keep_key=1_000)
    await h.advance(1_000)
    second, outcome = await answered(h, "q", key="k", keep_key=1_000, on_conflict="reject")
    assert (second != first, outcome) == (True, "created")
    assert await h.claimed("q", 5) == [first, second]


async def test_the_end_of_an_older_job_does_not_free_the_key_of_a_newer_one(h: Harness) -> None:
    for queue, keep_key in (("started", "started"), ("duration", 1_000)):
        keyed: dict[str, Any] = {"key": "k", "keep_key": keep_key}
        older = await h.push(queue, **keyed)
        lease = await h.lease(queue)
        await h.advance(1_000)
        newer = await h.push(queue, **keyed)
        assert newer != older
        await h.ack(lease)
        assert await h.store.by_key(h.name, queue, "k") == newer


async def test_an_older_job_that_is_forgotten_does_not_free_the_key_of_a_newer_one(
    h: Harness,
) -> None:
    keyed: dict[str, Any] = {"key": "k", "keep_key": "retained"}
    older = await h.finish("q", retain_ms=2_000, payload=b"1", **keyed)
    newer = await h.push("q", b"2", on_conflict="replace", **keyed)
    assert newer != older
    await h.advance(2_000)
    assert await h.get(older) is None
    assert await h.store.by_key(h.name, "q", "k") == newer


async def test_a_retained_key_is_free_when_its_job_is_forgotten_by_age(h: Harness) -> None:
    job_id = await h.finish("q", retain_ms=2_000, key="k", keep_key="retained")
    await h.advance(1_999)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    h.clock.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_retained_key_is_free_when_its_job_is_forgotten_by_count(h: Harness) -> None:
    await h.configure("q", retain_count=1)
    first = await h.finish("q", key="a", keep_key="retained")
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", "a") == first
    await h.finish("q", key="b", keep_key="retained")
    assert await h.store.by_key(h.name, "q", "a") is None


async def test_a_live_key_is_free_when_its_job_dies_of_a_dependency(h: Harness) -> None:
    dependency = await h.push("q")
    await h.push("q", key="k", depends_on=(dependency,))
    await h.cancel(dependency)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_kept_key_outlives_a_drain_only_by_its_duration(h: Harness) -> None:
    keeps: list[Any] = ["live", "started", "retained", SHORT]
    pushed = await h.push_many("q", [{"key": str(keep), "keep_key": keep} for keep in keeps])
    assert await h.store.drain(h.name, "q") == 4
    kept = [await h.store.by_key(h.name, "q", str(keep)) for keep in keeps]
    assert kept == [None, None, None, pushed.ids[3]]


async def test_keys_survive_a_restart(h: Harness) -> None:
    live = await h.push("q", key="live")
    duration = await h.push("q", b"1", key="duration", keep_key=SHORT)
    retained = await h.push("q", key="retained", keep_key="retained", retain_ms=HOUR)
    started = await h.push("q", key="started", keep_key="started")
    await h.ack(await h.lease("q", 3), [duration, retained])
    await h.restart()
    keys = ("live", "duration", "retained", "started")
    found = [await h.store.by_key(h.name, "q", key) for key in keys]
    assert found == [live, duration, retained, started]
    with pytest.raises(Conflict):
        await h.push("q", b"2", key="duration", on_conflict="match")
    await h.advance(SHORT)
    assert await h.store.by_key(h.name, "q", "duration") is None
    assert await h.claimed("q") == [started]
    assert await h.store.by_key(h.name, "q", "started") is None


# -- duplicates within one push --------------------------------------------------------------------


async def test_duplicates_in_one_batch_answer_the_first_of_them(h: Harness) -> None:
    pushed = await h.push_many(
        "q",
        [
            {"payload": b"0"},
            {"payload": b"1", "key": "a"},
            {"payload": b"2", "key": "a"},
            {"payload": b"3"},
            {"payload": b"4", "key": "b"},
            {"payload": b"5", "key": "a"},
            {"payload": b"6", "group": "g"},
        ],
    )
    first = pushed.ids[0]
    created, ignored = "created", "ignored"
    assert pushed.jobs == [
        (first, created),
        (first + 1, created),
        (first + 1, ignored),
        (first + 2, created),
        (first + 3, created),
        (first + 1, ignored),
        (first + 4, created),
    ]
    assert (await h.job(first + 1)).payload == b"1"
    assert await h.counts("q") == {"ready": 5}


async def test_a_duplicate_in_one_batch_replaces_the_first_of_them(h: Harness) -> None:
    pushed = await h.push_many(
        "q", [{"payload": b"%d" % n, "key": "k", "on_conflict": "replace"} for n in (1, 2, 2)]
    )
    first = pushed.ids[0]
    assert pushed.jobs == [(first, "created"), (first, "updated"), (first, "ignored")]
    assert [job.payload for job in (await h.lease("q", 5)).jobs] == [b"2"]


@pytest.mark.parametrize("on_conflict", ["reject", "match"])
async def test_a_refused_duplicate_refuses_the_whole_push(h: Harness, on_conflict: str) -> None:
    taken = await h.push("q", b"0", key="taken")
    before = await h.job(taken)
    with pytest.raises(Conflict):
        await h.push_many(
            "q",
            [
                {"payload": b"1"},
                {"payload": b"2", "key": "taken", "on_conflict": "replace"},
                {"payload": b"3", "key": "free"},
                {"payload": b"4", "key": "free", "on_conflict": on_conflict},
            ],
        )
    assert await h.job(taken) == before
    assert await h.store.by_key(h.name, "q", "free") is None
    assert await h.counts("q") == {"ready": 1}


async def test_duplicates_of_two_runs_of_one_push_count_like_those_of_one_run(h: Harness) -> None:
    runs = [
        Run.of("q", [JobSpec(key="k", payload=b"1")]),
        Run.of("r", [JobSpec(key="k", payload=b"2")]),
        Run.of("q", [JobSpec(payload=b"3"), JobSpec(key="k", payload=b"4")]),
    ]
    jobs = (await h.store.push(h.name, runs)).jobs
    assert [outcome for _, outcome in jobs] == ["created", "created", "created", "ignored"]
    assert jobs[3][0] == jobs[0][0]
    assert jobs[2][0] == jobs[0][0] + 1


async def test_a_refusal_in_the_last_run_leaves_no_trace_of_the_first(h: Harness) -> None:
    await h.push("r", key="k")
    runs = [
        Run.of("q", [JobSpec(key="new"), JobSpec()]),
        Run.of("r", [JobSpec(key="k", on_conflict="reject")]),
    ]
    with pytest.raises(Conflict):
        await h.store.push(h.name, runs)
    assert await h.store.by_key(h.name, "q", "new") is None
    assert [info.queue for info in await h.store.queues(h.name)] == ["r"]


async def test_ignored_jobs_use_up_no_ids(h: Harness) -> None:
    known = await h.push("q", key="k")
    for _ in range(5):
        await h.push_many("q", [{"key": "k"}, {"key": "k", "payload": b"9"}])
    assert await h.push("q") == known + 1


async def test_keyed_and_plain_jobs_across_a_block_boundary_keep_ids_and_order(
    h: Harness,
) -> None:
    await fill_block(h, "q", room=25)
    # Every third is plain, every third has a key of its own, every third repeats that key.
    specs = [
        JobSpec(payload=b"%d" % n, key=None if n % 3 == 0 else f"k{n // 3}") for n in range(90)
    ]
    pushed = await h.push_many("q", specs)
    created = sorted({job_id for job_id, outcome in pushed.jobs if outcome == "created"})
    assert len(created) == 60
    assert created == list(range(created[0], created[0] + 60))
    for n in range(2, 90, 3):
        assert pushed.jobs[n] == (pushed.ids[n - 1], "ignored")
        assert await h.store.by_key(h.name, "q", f"k{n // 3}") == pushed.ids[n - 1]
    lease = await h.lease("q", 10_000)
    assert lease.ids == created
    assert [job.payload for job in lease.jobs] == [b"%d" % n for n in range(90) if n % 3 != 2]
    await h.ack(lease, created[::2])
    kept = [await h.store.by_key(h.name, "q", f"k{n}") for n in range(30)]
    keyed = [pushed.ids[n] for n in range(1, 90, 3)]
    assert kept == [None if job_id in created[::2] else job_id for job_id in keyed]


async def test_a_whole_batch_of_duplicates_creates_nothing(h: Harness) -> None:
    specs = [JobSpec(key=f"k{n}", payload=b"%d" % n) for n in range(500)]
    first = await h.push_many("q", specs)
    again = await h.push_many("q", reversed(specs))
    assert again.jobs == [(job_id, "ignored") for job_id in reversed(first.ids)]
    assert await h.counts("q") == {"ready": 500}


async def test_one_options_table_serves_keyed_and_plain_jobs_of_a_run(h: Harness) -> None:
    """A run whose options say `reject` has no conflict where its jobs have no key."""
    options = JobOptions(on_conflict="reject", backoff=Backoff(kind="none"))
    run = Run.pack("q", [b"1", b"2", b"3"], options, keys=[None, "k", None])
    assert [outcome for _, outcome in (await h.store.push(h.name, [run])).jobs] == ["created"] * 3
    with pytest.raises(Conflict):
        await h.store.push(h.name, [run])
    assert await h.counts("q") == {"ready": 3}
