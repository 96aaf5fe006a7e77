"""Reports of a running job: progress, log lines and partial results."""

import pytest

from penstock.model.errors import Deadline, Invalid, LeaseLost, NotFound
from penstock.model.job import Lease, LogLine
from penstock.model.lifecycle import State
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs


async def test_progress_is_kept_with_its_message_and_the_last_one_counts(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    for progress, message in ((10, "reading"), (55, "halfway"), (40, "once more")):
        h.clock.advance(5)
        await h.report(lease, job_id, progress=progress, message=message)
        job = await h.job(job_id)
        assert (job.progress, job.progress_message) == (progress, message)
        assert job.state == State.ACTIVE


async def test_progress_goes_from_nothing_to_a_hundred(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    for progress in (0, 100):
        await h.report(lease, job_id, progress=progress)
        assert (await h.job(job_id)).progress == progress
    for progress in (-1, 101):
        with pytest.raises(Invalid) as caught:
            await h.report(lease, job_id, progress=progress)
        assert "progress" in caught.value.field
    assert (await h.job(job_id)).progress == 100


@many_jobs
async def test_progress_of_one_job_of_a_large_lease_is_that_jobs_alone(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    lease = await h.lease("q", 10_000)
    await h.report(lease, ids[4_090], progress=30)
    jobs = await h.store.get(h.name, ids)
    assert {job.id: job.progress for job in jobs if job and job.progress is not None} == {
        ids[4_090]: 30
    }
    assert sorted((await h.ack(lease)).acked) == ids
    assert (await h.job(ids[4_090])).progress == 30


async def test_log_lines_are_kept_in_order_with_their_level(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    await h.report(lease, job_id, logs=[LogLine(7, "first", "debug"), LogLine(9, "second")])
    h.clock.advance(5)
    await h.report(lease, job_id, logs=[LogLine(8, "third", "error")])
    assert await h.store.logs(h.name, job_id) == [
        LogLine(7, "first", "debug"),
        LogLine(9, "second", "info"),
        LogLine(8, "third", "error"),
    ]


async def test_a_log_line_without_an_instant_is_of_now(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    h.clock.advance(12)
    await h.report(lease, job_id, logs=[LogLine(0, "undated")])
    assert await h.store.logs(h.name, job_id) == [LogLine(h.now, "undated")]


async def test_the_last_hundred_log_lines_are_kept(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    lines = [LogLine(n + 1, f"line {n}") for n in range(330)]
    await h.report(lease, job_id, logs=lines[:60])
    assert await h.store.logs(h.name, job_id) == lines[:60]
    await h.report(lease, job_id, logs=lines[60:130])
    assert await h.store.logs(h.name, job_id) == lines[30:130]
    await h.report(lease, job_id, logs=lines[130:])
    assert await h.store.logs(h.name, job_id) == lines[-100:]


async def test_a_job_that_said_nothing_has_no_logs_and_an_unknown_one_is_not_found(
    h: Harness,
) -> None:
    job_id = await h.push("q")
    assert await h.store.logs(h.name, job_id) == []
    with pytest.raises(NotFound):
        await h.store.logs(h.name, job_id + 1_000_000)


async def test_logs_of_all_attempts_stay_with_the_job_until_it_is_forgotten(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE, retain_ms=1_000)
    lease = await h.lease("q")
    await h.report(lease, job_id, logs=[LogLine(1, "first try")])
    await h.fail(lease)
    lease = await h.lease("q")
    await h.report(lease, job_id, logs=[LogLine(2, "second try")])
    await h.ack(lease)
    messages = [line.message for line in await h.store.logs(h.name, job_id)]
    assert messages == ["first try", "second try"]
    await h.advance(1_000)
    with pytest.raises(NotFound):
        await h.store.logs(h.name, job_id)


async def test_a_partial_result_is_an_event_and_changes_nothing(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    before = await h.job(job_id)
    async with h.watch() as watcher:
        await h.report(lease, job_id, partial=b'{"rows":10}')
        (event,) = await watcher.events()
    assert (event.kind, list(event.ids), event.data) == ("partial", [job_id], '{"rows":10}')
    assert await h.job(job_id) == before
    with pytest.raises(Deadline):
        await h.result(job_id)


async def test_one_report_may_say_all_three(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    async with h.watch() as watcher:
        await h.report(lease, job_id, progress=5, logs=[LogLine(1, "x")], partial=b"1")
        events = await watcher.events()
    assert sorted(event.kind for event in events) == ["log", "partial", "progress"]
    assert (await h.job(job_id)).progress == 5
    assert len(await h.store.logs(h.name, job_id)) == 1


async def test_only_the_holder_of_a_job_may_report_on_it(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    one, two = await h.lease("q", 2), await h.lease("q", 1)
    refused: list[tuple[Lease | str, int]] = [
        (one, ids[2]),
        (two, ids[0]),
        (one, ids[3]),
        ("unknown", ids[0]),
        (one, 10**9),
    ]
    for lease, job_id in refused:
        with pytest.raises(LeaseLost):
            await h.report(lease, job_id, progress=50, logs=[LogLine(1, "x")])
    jobs = await h.store.get(h.name, ids)
    assert [job.progress for job in jobs if job] == [None] * 4
    assert [await h.store.logs(h.name, job_id) for job_id in ids] == [[]] * 4


async def test_nobody_reports_on_a_job_that_left_its_lease(h: Harness) -> None:
    ids = await h.push_alike("q", 5, backoff=AT_ONCE)
    lease = await h.lease("q", 5, lease_ms=1_000)
    await h.ack(lease, ids[:1])
    await h.fail(lease, ids[1:2])
    await h.release(lease, ids[2:3])
    await h.cancel(ids[3])
    for job_id in ids[:4]:
        with pytest.raises(LeaseLost):
            await h.report(lease, job_id, progress=50)
    await h.report(lease, ids[4], progress=50)
    h.clock.advance(1_000)
    with pytest.raises(LeaseLost):
        await h.report(lease, ids[4], progress=60)


async def test_a_report_does_not_keep_a_lease_alive(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(50))
    lease = await h.lease("q", lease_ms=1_000)
    h.clock.advance(900)
    await h.report(lease, job_id, progress=50)
    assert (await h.job(job_id)).lease_expires_at == h.now + 100
    h.clock.advance(100)
    assert await h.state(job_id) == State.SCHEDULED


async def test_progress_and_logs_survive_a_restart(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    await h.report(lease, job_id, progress=50, message="half", logs=[LogLine(3, "x")])
    await h.restart()
    job = await h.job(job_id)
    assert (job.progress, job.progress_message) == (50, "half")
    assert await h.store.logs(h.name, job_id) == [LogLine(3, "x")]
    await h.report(lease, job_id, progress=60)
    assert (await h.job(job_id)).progress == 60
