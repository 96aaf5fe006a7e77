"""`on_conflict="replace"`: what is identical, and what becomes of a job that is not running."""

from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff
from tests.conformance.endings import SLOW
from tests.conformance.harness import Harness

HOUR = 3_600_000


async def put(h: Harness, payload: bytes = b"1", queue: str = "q", **spec: Any) -> tuple[int, str]:
    """Push a job under the key `k`, replacing what stands there; (id, outcome)."""
    job = JobSpec(payload=payload, key="k", on_conflict="replace", **spec)
    (answer,) = (await h.push_many(queue, [job])).jobs
    return answer


# -- identical -------------------------------------------------------------------------------------

RUN_AT = 1_700_000_600_000


@pytest.mark.parametrize(
    "version",
    [
        {},
        {"run_at": RUN_AT},
        {"run_at": 1_600_000_000_000},
        {"group": "g", "tags": ("a", "b"), "headers": {"a": "1", "b": "2"}, "priority": 3},
        {"ttl_ms": 5_000},
        {"codec": "bytes"},
    ],
    ids=str,
)
async def test_an_identical_version_is_ignored_and_changes_nothing(
    h: Harness, version: dict[str, Any]
) -> None:
    job_id, outcome = await put(h, **version)
    assert outcome == "created"
    before = await h.job(job_id)
    await h.advance(10)
    assert await put(h, **version) == (job_id, "ignored")
    assert await h.job(job_id) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"payload": b"2"}),
        ({}, {"codec": "bytes"}),
        ({}, {"priority": 1}),
        ({}, {"group": "g"}),
        ({"group": "g"}, {"group": "h"}),
        ({}, {"headers": {"a": "1"}}),
        ({"headers": {"a": "1"}}, {"headers": {"a": "2"}}),
        ({}, {"tags": ("a",)}),
        ({}, {"max_attempts": 9}),
        ({}, {"backoff": SLOW}),
        ({}, {"keep_key": "retained"}),
        ({}, {"task": "t"}),
        ({}, {"run_at": RUN_AT}),
        ({"run_at": RUN_AT}, {}),
        ({"run_at": RUN_AT}, {"run_at": RUN_AT + 1}),
        ({}, {"delay_ms": 0}),
        ({"delay_ms": 0}, {}),
        ({"delay_ms": 0}, {"delay_ms": 0}),
        ({"delay_ms": HOUR}, {"delay_ms": HOUR}),
        ({"delay_ms": HOUR}, {"run_at": 1_700_003_600_000}),
    ],
    ids=str,
)
async def test_any_difference_and_any_relative_delay_makes_an_update(
    h: Harness, old: dict[str, Any], new: dict[str, Any]
) -> None:
    job_id, _ = await put(h, **old)
    assert await put(h, **new) == (job_id, "updated")
    assert (await h.job(job_id)).payload == new.get("payload", b"1")
    assert (await h.job(job_id)).group == new.get("group")
    assert (await h.job(job_id)).headers == new.get("headers")


async def test_another_dependency_makes_an_update(h: Harness) -> None:
    first, second = (await h.push_many("d", [{}, {}])).ids
    job_id, _ = await put(h, depends_on=(first,))
    assert await put(h, depends_on=(first,)) == (job_id, "ignored")
    assert await put(h, depends_on=(second,)) == (job_id, "updated")
    assert (await h.job(job_id)).depends_on == (second,)


async def test_an_identical_version_does_not_disturb_a_backoff(h: Harness) -> None:
    job_id, _ = await put(h, backoff=SLOW)
    await h.fail(await h.lease("q"))
    before = await h.job(job_id)
    assert await put(h, backoff=SLOW) == (job_id, "ignored")
    assert await h.job(job_id) == before
    assert before.state == State.SCHEDULED
    assert before.attempt == 1


# -- replacing a job that is not active ------------------------------------------------------------


async def test_a_replaced_job_begins_afresh_under_the_same_id(h: Harness) -> None:
    job_id, _ = await put(h, b"1", backoff=SLOW)
    lease = await h.lease("q", worker="w")
    await h.report(lease, job_id, progress=50, message="half")
    await h.fail(lease)
    await h.advance(700)
    assert await put(h, b"2", priority=4) == (job_id, "updated")
    job = await h.job(job_id)
    assert (job.state, job.payload, job.attempt, job.errors) == (State.READY, b"2", 0, ())
    assert (job.progress, job.progress_message, job.result) == (None, None, None)
    assert (job.created_at, job.priority, job.options.priority) == (h.now, 4, 4)
    (again,) = (await h.lease("q")).jobs
    assert (again.id, again.payload, again.attempt) == (job_id, b"2", 1)


async def test_a_replaced_job_has_all_its_attempts_and_its_first_backoff_again(h: Harness) -> None:
    waits = Backoff(kind="linear", base_ms=1_000, jitter="none")
    job_id, _ = await put(h, b"1", backoff=waits, max_attempts=2)
    await h.fail(await h.lease("q"))
    await put(h, b"2", backoff=waits, max_attempts=2)
    failed = await h.fail(await h.lease("q"))
    assert [(job.state, job.run_at) for job in failed.jobs] == [(State.SCHEDULED, h.now + 1_000)]
    await h.advance(1_000)
    await h.fail(await h.lease("q"))
    assert await h.state(job_id) == State.DEAD


async def test_a_replaced_job_takes_the_place_in_line_of_a_new_push(h: Harness) -> None:
    first, _ = await put(h, b"1")
    await h.advance(1)
    second = await h.push("q")
    await h.advance(1)
    await put(h, b"2")
    await h.advance(1)
    third = await h.push("q")
    assert await h.claimed("q", 3) == [second, first, third]


async def test_a_job_replaced_at_the_instant_of_its_push_keeps_its_place(h: Harness) -> None:
    first, _ = await put(h, b"1")
    second = await h.push("q")
    await put(h, b"2")
    assert await h.claimed("q", 3) == [first, second]


async def test_the_ttl_of_a_replaced_job_counts_from_the_replace(h: Harness) -> None:
    job_id, _ = await put(h, b"1", ttl_ms=1_000)
    await h.advance(900)
    await put(h, b"2", ttl_ms=1_000)
    await h.advance(999)
    assert await h.state(job_id) == State.READY
    await h.advance(1)
    assert await h.state(job_id) == State.EXPIRED


async def test_the_ttl_of_the_old_version_is_gone(h: Harness) -> None:
    job_id, _ = await put(h, b"1", ttl_ms=1_000)
    await put(h, b"2")
    await h.advance(2_000)
    assert await h.state(job_id) == State.READY


async def test_a_delayed_message_is_rescheduled(h: Harness) -> None:
    job_id, _ = await put(h, delay_ms=1_000)
    await h.advance(600)
    assert await put(h, delay_ms=1_000) == (job_id, "updated")
    await h.advance(999)
    assert await h.claimed("q") == []
    await h.advance(1)
    assert await h.claimed("q", 5) == [job_id]


async def test_a_delayed_job_is_hastened_and_a_ready_one_delayed(h: Harness) -> None:
    job_id, _ = await put(h, delay_ms=HOUR)
    await put(h, b"2")
    assert await h.state(job_id) == State.READY
    await put(h, b"3", run_at=h.now + 500)
    assert await h.state(job_id) == State.SCHEDULED
    assert await h.claimed("q") == []
    await h.advance(500)
    assert await h.claimed("q") == [job_id]


async def test_the_new_version_says_how_long_the_key_is_kept(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    await put(h, b"2", keep_key="retained", retain_ms=1_000)
    await h.ack(await h.lease("q"))
    assert await h.store.by_key(h.name, "q", "k") == job_id
    await h.advance(1_000)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_blocked_job_replaced_without_dependencies_no_longer_cares_for_them(
    h: Harness,
) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1", depends_on=(dependency,))
    await put(h, b"2")
    assert await h.state(job_id) == State.READY
    await h.cancel(dependency)
    assert await h.state(job_id) == State.READY


async def test_a_ready_job_replaced_with_a_dependency_waits_for_it(h: Harness) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1")
    await put(h, b"2", depends_on=(dependency,))
    assert await h.state(job_id) == State.BLOCKED
    assert await h.claimed("q") == []
    await h.ack(await h.lease("d"))
    assert await h.claimed("q") == [job_id]


async def test_a_replaced_job_moves_to_its_new_group(h: Harness) -> None:
    await h.push("q", group="busy")
    await h.lease("q")
    job_id, _ = await put(h, b"1", group="busy")
    assert await h.claimed("q") == []
    await put(h, b"2", group="free")
    assert await h.claimed("q") == [job_id]


async def test_dependants_wait_for_the_version_that_replaced(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    dependant = await h.push("d", depends_on=(job_id,))
    await put(h, b"2")
    assert await h.state(dependant) == State.BLOCKED
    await h.ack(await h.lease("q"))
    assert await h.state(dependant) == State.READY


async def test_the_known_job_is_updated_in_the_middle_of_a_mixed_batch(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    jobs = (
        await h.push_many(
            "q",
            [
                {"payload": b"10"},
                {"payload": b"2", "key": "k", "on_conflict": "replace"},
                {"payload": b"11", "group": "g"},
                {"payload": b"3", "key": "k", "on_conflict": "replace"},
                {"payload": b"12", "key": "other"},
            ],
        )
    ).jobs
    assert [outcome for _, outcome in jobs] == [
        "created", "updated", "created", "updated", "created",
    ]  # fmt: skip
    assert [jobs[0][0], jobs[2][0], jobs[4][0]] == [job_id + 1, job_id + 2, job_id + 3]
    assert (await h.job(job_id)).payload == b"3"
