"""A pushed job in the hands of whoever pushed it."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from penstock import BadResult, Dead, JobFailed, Penstock, chain
from penstock.client.errors import BlocksTheLoop, Retry, UnknownTask
from penstock.model.errors import Deadline, Invalid, NotFound
from penstock.model.job import JobError
from penstock.model.lifecycle import DeadReason, State


@dataclass
class Point:
    x: int
    id: UUID


@pytest.fixture
def locate(app: Penstock) -> Any:
    @app.task(max_attempts=1)
    def locate(x: int) -> Point:
        return Point(x, UUID(int=x))

    return locate


async def work(app: Penstock, result: bytes | None = None, error: JobError | None = None) -> None:
    """What a worker would do with one job."""
    store = await app.store()
    lease = await store.claim(app.tenant, ["default"])
    assert lease is not None
    if error is not None:
        await store.fail(app.tenant, lease.token, error=error)
    else:
        results = None if result is None else {lease.ids[0]: result}
        await store.ack(app.tenant, lease.token, results=results)


def test_a_result_is_what_the_annotation_says(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    app.home.wait(work(app, b'{"x":1,"id":"00000000-0000-0000-0000-000000000005"}'))
    assert job.result() == job.result(timeout=1) == Point(1, UUID(int=5))


def test_whoever_knows_a_job_s_id_has_the_job(app: Penstock, locate: Any) -> None:
    pushed = locate.push(1)
    known, plain = locate.job(pushed.id), app.job(pushed.id)
    assert (known.outcome, repr(plain)) == (None, f"<job {pushed.id}>")
    assert known.get().state is State.READY
    app.home.wait(work(app, b'{"x":1,"id":"00000000-0000-0000-0000-000000000005"}'))
    assert known.result() == Point(1, UUID(int=5))
    assert plain.result() == {"x": 1, "id": "00000000-0000-0000-0000-000000000005"}
    assert not known.cancel()


def test_a_job_that_there_is_not_is_missed_when_something_is_asked_of_it(app: Penstock) -> None:
    nobody = app.job(12_345)
    with pytest.raises(NotFound, match="job 12345 is not known"):
        nobody.get()
    with pytest.raises(NotFound, match="job 12345 is not known"):
        nobody.result()
    assert not nobody.cancel()


@pytest.mark.parametrize("wrong", ["7", 0, -1, 1.0, True, None, 2**53])
def test_an_id_is_a_number(app: Penstock, locate: Any, wrong: Any) -> None:
    for ask in (app.job, locate.job):
        with pytest.raises(Invalid) as refused:
            ask(wrong)
        assert refused.value.field == "job_id"


def test_a_result_that_is_something_else(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    app.home.wait(work(app, b'{"x":"one"}'))
    with pytest.raises(BadResult, match=f"result of job {job.id} is not as annotated: Expected"):
        job.result()


def test_nothing_is_a_result(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    app.home.wait(work(app))
    assert job.result() is None


def test_a_result_is_waited_for(app: Penstock, locate: Any) -> None:
    async def both() -> Any:
        job = await locate.apush(1)
        waiting = asyncio.create_task(job.aresult(timeout="30s"))
        await asyncio.sleep(0)
        await work(app, b"null")
        return await waiting

    with pytest.raises(BadResult):
        asyncio.run(both())


def test_time_that_is_not_enough(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    with pytest.raises(Deadline):
        job.result(timeout=0)
    with pytest.raises(Deadline):
        job.result(timeout="1ms")


def test_a_job_that_failed(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    app.home.wait(work(app, error=JobError(kind="KeyError", message="'x'")))
    with pytest.raises(JobFailed, match=r"^job 1 is dead: KeyError: 'x'$") as raised:
        job.result()
    failed = raised.value
    assert (failed.job_id, failed.state) == (1, State.DEAD)
    assert failed.dead_reason == DeadReason.MAX_ATTEMPTS
    assert failed.error is not None and failed.error.kind == "KeyError"


def test_a_job_that_was_cancelled(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    assert job.cancel() is True
    assert job.cancel() is False
    with pytest.raises(JobFailed, match=r"^job 1 is cancelled$") as raised:
        job.result()
    assert raised.value.error is None


def test_a_job_that_is_not_known(app: Penstock, locate: Any) -> None:
    job = locate.options(retain=0).push(1)
    job.cancel()
    for look in (job.result, job.get, job.explain):
        with pytest.raises(NotFound, match=r"^job 1 is not known.* keep it longer with retain="):
            look()


def test_a_time_that_was_not_enough_is_told_as_it_was_said(app: Penstock, locate: Any) -> None:
    said = "^timeout: job 1 has not ended within 20ms$"
    with pytest.raises(Deadline, match=said):
        locate.push(1).result(timeout="20ms")
    with pytest.raises(Deadline, match=r"^timeout: the flow has not ended within 20ms$"):
        chain(locate.si(1), locate.si(2)).push().result(timeout="20ms")


def test_why_a_job_does_not_run(app: Penstock, locate: Any) -> None:
    assert locate.push(1).explain().reasons == ("next",)
    assert locate.options(delay="1h").push(1).explain().reasons == ("delayed",)


def test_every_call_has_an_asynchronous_twin(app: Penstock, locate: Any) -> None:
    async def twins() -> None:
        job = await locate.apush(1)
        assert (await job.aget()).state is State.READY
        assert (await job.aexplain()).reasons == ("next",)
        assert await job.acancel() is True
        with pytest.raises(JobFailed):
            await job.aresult()

    asyncio.run(twins())


def test_errors_survive_a_pool_of_processes(app: Penstock, locate: Any) -> None:
    job = locate.push(1)
    job.cancel()
    with pytest.raises(JobFailed) as raised:
        job.result()
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.state) == (str(raised.value), State.CANCELLED)
    retry = pickle.loads(pickle.dumps(Retry("5s", "later")))
    assert (retry.after_ms, str(retry)) == (5_000, "later")
    unknown = pickle.loads(pickle.dumps(UnknownTask("x", ["a"])))
    assert (unknown.name, str(unknown)) == ("x", "no task is called 'x'; known here: a")
    blocks = BlocksTheLoop("push()", "apush()")
    assert str(pickle.loads(pickle.dumps(blocks))) == str(blocks)
    assert str(pickle.loads(pickle.dumps(Dead("no")))) == "no"
