"""Who may say which native command, about which queues: every command, every scope."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.model.errors import Forbidden, Invalid, NotFound, PenstockError
from penstock.model.event import Event
from penstock.model.job import JobError, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import CronSpec, Every
from penstock.protocol.access import Grant, Principal
from penstock.protocol.command import Figures, ReqId, Request, Session
from penstock.protocol.native import NATIVE, AskHealth, Tick
from penstock.protocol.native_look import (
    AskResult,
    ByKey,
    Explain,
    Find,
    Get,
    Happened,
    Logs,
    Reach,
    Waiting,
    Watch,
    WhereStanding,
)
from penstock.protocol.native_manage import (
    CancelJobs,
    Clean,
    Configure,
    ConfigureTenant,
    Crons,
    DrainQueue,
    DropCron,
    DropInstants,
    Edit,
    Purge,
    PurgeDead,
    PutCron,
    PutInstants,
    Queues,
    Redrive,
    RefreshCron,
    RefreshInstants,
)
from penstock.protocol.native_push import BulkAbort, BulkCommit, BulkOpen, PushRun
from penstock.protocol.native_work import Claim, Complete, Extend, Failed, Release, Report
from penstock.protocol.runs import PushedJobs
from penstock.protocol.table import name_of
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.unit.test_connection import looped


class Talk(Session):
    """A session that only remembers."""

    encoding = "msgpack"

    def __init__(self, store: EmbeddedStore, principal: Principal) -> None:
        self.store = store
        self.principal = principal
        self.said: list[Any] = []
        self.work: dict[object, asyncio.Task[None]] = {}

    def authenticate(self, token: str) -> Principal:
        return self.principal

    def send(self, message: Any) -> None:
        self.said.append(message)

    def start(self, name: object, work: Any) -> None:
        self.work[name] = asyncio.ensure_future(work)

    def stop(self, name: object) -> bool:
        return self.work.pop(name).cancel()

    def figures(self, tenant: str) -> Figures:
        return Figures()

    def abandon(self, request: ReqId) -> bool:
        return False


class Estate:
    """A tenant with jobs in two queues: `in.a` and `out.b`."""

    def __init__(self) -> None:
        self.store = EmbeddedStore.in_memory(clock=ManualClock())

    async def settle(self) -> "Estate":
        self.near = (await self.store.push("acme", [Run.pack("in.a", [b"1"] * 3)])).ids
        self.far = (await self.store.push("acme", [Run.pack("out.b", [b"1"] * 3)])).ids
        for queue in ("in.a", "out.b"):
            spec = CronSpec(name=f"of {queue}", queue=queue, schedule=Every(every_ms=3_600_000))
            await self.store.put_cron("acme", spec)
        lease = await self.store.claim("acme", ["in.a"])
        assert lease is not None
        self.lease = lease.token
        return self

    def talk(self, *grants: str, tenant: str | None = "acme") -> Talk:
        return Talk(self.store, Principal("me", tenant, tuple(map(Grant.of, grants))))


def cron(queue: str, name: str = "new") -> CronSpec:
    return CronSpec(name=name, queue=queue, schedule=Every(every_ms=3_600_000))


def put_instants(queue: str) -> dict[str, Any]:
    run = PushedJobs(queue=queue, data=b"1", ends=[1], run_at=[9])
    return {"name": "n", "config_hash": "0" * 16, "run": run}


def requests(estate: Estate, queue: str, job: int) -> dict[type[Request], tuple[Request, str]]:
    """Every command that is about something, and the scopes that it needs ("": any)."""
    lease = estate.lease
    told = [
        (PushRun(queue=queue, payloads=[b"1"]), "push"),
        (BulkOpen(name="b"), "push"),
        (BulkCommit(bulk="b"), "push"),
        (BulkAbort(bulk="b"), "push"),
        (Claim(queues=[queue]), "claim"),
        (Extend(lease=lease), "claim"),
        (Report(lease=lease, job_id=job, progress=1), "claim"),
        (Failed(lease=lease, error=JobError()), "claim"),
        (Complete(lease=lease), "claim"),
        (Release(lease=lease), "claim"),
        (Get(ids=[job]), ""),
        (WhereStanding(ids=[job]), "admin and claim"),
        (Reach(bulk="b"), ""),
        (Find(queue=queue), ""),
        (ByKey(queue=queue, key="k"), ""),
        (AskResult(job_id=job), ""),
        (Logs(job_id=job), ""),
        (Explain(job_id=job), ""),
        (Waiting(), ""),
        (Queues(names=[queue]), ""),
        (Crons(), ""),
        (AskHealth(), ""),
        (CancelJobs(ids=[job]), "admin"),
        (Edit(job_id=job, priority=1), "admin"),
        (Redrive(queue=queue), "admin"),
        (PurgeDead(queue=queue), "admin"),
        (Configure(queue=queue, config=QueueConfig()), "admin"),
        (ConfigureTenant(bounds=Bounds()), "admin"),
        (DrainQueue(queue=queue), "admin"),
        (Clean(queue=queue, state=State.READY), "admin"),
        (Purge(queue=queue), "admin"),
        (PutCron(spec=cron(queue)), "admin"),
        (RefreshCron(spec=cron(queue)), "admin"),
        (DropCron(name=f"of {queue}"), "admin"),
        (PutInstants(**put_instants(queue)), "admin"),
        (RefreshInstants(**put_instants(queue)), "push"),
        (DropInstants(queue=queue, name="n"), "admin"),
        (Tick(), "admin"),
    ]
    return {type(request): (request, scope) for request, scope in told}


ELSEWHERE = {"HELLO", "PING", "ABANDON", "WATCH", "UNWATCH"}
COMMANDS = [command for command in NATIVE if name_of(command) not in ELSEWHERE]
BY_LEASE = {"EXTEND", "REPORT", "FAILED", "COMPLETE", "RELEASE"}
BY_NAME = {"BULKOPEN", "BULKCOMMIT", "BULKABORT", "HEALTH", "CRONS", "REACH", "WAITING"}
QUIET = {"TICK", "REFRESHCRON"}  # administrators may say it, but decide nothing by it


@contextmanager
def not_forbidden() -> Iterator[None]:
    """Anything else may be wrong with it."""
    try:
        yield
    except Forbidden:
        raise
    except PenstockError:
        pass


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
@looped
async def test_every_command_needs_its_scope(command: type[Request]) -> None:
    estate = await Estate().settle()
    request, scope = requests(estate, "in.a", estate.near[1])[command]
    for held in ("push", "claim", "admin"):
        talk = estate.talk(held)
        if scope in ("", held):
            with not_forbidden():
                await request.call(talk)
        else:
            with pytest.raises(Forbidden):
                await request.call(talk)
    with not_forbidden():
        await request.call(estate.talk("push", "claim", "admin"))
    with pytest.raises(Forbidden):
        await request.call(estate.talk())
    await estate.store.close()


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
@looped
async def test_no_command_reaches_a_queue_out_of_sight(command: type[Request]) -> None:
    name = name_of(command)
    estate = await Estate().settle()
    before = await estate.store.find("acme", "out.b")
    request, _ = requests(estate, "out.b", estate.far[0])[command]
    talk = estate.talk(*(f"{held}:in.*" for held in ("push", "claim", "admin")))
    if name == "GET":
        assert (await request.call(talk)).jobs == [None]  # type: ignore[attr-defined]
    elif name == "CANCELJOBS":
        done: Any = await request.call(talk)
        assert (list(done.acked), list(done.lost)) == ([], [estate.far[0]])
    elif name == "CRONS":
        infos: Any = await request.call(talk)
        assert [info.spec.queue for info in infos.crons] == ["in.a"]
    elif name == "DROPCRON":
        assert not (await request.call(talk)).dropped  # type: ignore[attr-defined]
    elif name in ("RESULT", "LOGS", "EXPLAIN", "EDIT"):
        with pytest.raises(NotFound) as caught:
            await request.call(talk)
        unknown = type(request)(**{"job_id": 99_999} | ({"priority": 1} if name == "EDIT" else {}))
        with pytest.raises(NotFound) as other:
            await unknown.call(talk)
        assert str(caught.value).replace(str(estate.far[0]), "N") == str(other.value).replace(
            "99999", "N"
        )
    elif name in BY_LEASE | BY_NAME:
        with not_forbidden():
            await request.call(talk)
    else:
        with pytest.raises(Forbidden):
            await request.call(talk)
    assert await estate.store.find("acme", "out.b") == before
    await estate.store.close()


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
@looped
async def test_no_command_reaches_another_tenant(command: type[Request]) -> None:
    name = name_of(command)
    estate = await Estate().settle()
    before = await estate.store.find("acme", "in.a")
    request, _ = requests(estate, "in.a", estate.near[1])[command]
    if name not in ("TICK", "HEALTH"):
        request.tenant = "acme"  # type: ignore[attr-defined]
        with pytest.raises(Forbidden):
            await request.call(estate.talk("push", "claim", "admin", tenant="other"))
        request.tenant = None  # type: ignore[attr-defined]
    with not_forbidden():
        await request.call(estate.talk("push", "claim", "admin", tenant="other"))
    assert await estate.store.find("acme", "in.a") == before
    await estate.store.close()


@looped
async def test_health_tells_a_tenant_nothing_about_the_others() -> None:
    estate = await Estate().settle()
    mine: Any = await AskHealth().call(estate.talk("push"))
    ours: Any = await AskHealth().call(estate.talk("push", tenant=None))
    assert mine.health.detail == {}
    assert ours.health.detail["leases"] == 1
    await estate.store.close()


@looped
async def test_lists_show_what_is_in_sight() -> None:
    estate = await Estate().settle()
    talk = estate.talk("push:in.*")
    queues: Any = await Queues().call(talk)
    assert [info.queue for info in queues.queues] == ["in.a"]
    jobs: Any = await Get(ids=[estate.near[0], estate.far[0]]).call(talk)
    assert [job and job.id for job in jobs.jobs] == [estate.near[0], None]
    await estate.store.close()


@looped
async def test_of_those_who_wait_the_queues_in_sight_are_told_and_nobody_else() -> None:
    estate = await Estate().settle()
    said = {"far": ["out.c"], "both": ["out.c", "in.c", "in.d"], "near": ["in.c"]}
    waiters = [
        asyncio.ensure_future(estate.store.claim("acme", queues, worker=name, wait_ms=1_000))
        for name, queues in said.items()
    ]
    await asyncio.sleep(0)

    async def told(*grants: str, limit: int = 3) -> tuple[dict[str, Any], bool]:
        answer: Any = await Waiting(limit=limit).call(estate.talk(*grants))
        return {claim.worker: list(claim.queues) for claim in answer.claims}, answer.complete

    assert await told("push") == (said, True)
    seen = {"both": ["in.c", "in.d"], "near": ["in.c"]}
    assert await told("push:in.*") == (seen, True)
    assert await told("push:in.*", limit=2) == (seen, True)
    assert await told("push:in.*", limit=1) == ({"both": ["in.c", "in.d"]}, False)
    assert await told("claim:in.d", "admin:out.c") == (
        {"far": ["out.c"], "both": ["out.c", "in.d"]},
        True,
    )
    assert await told("push:elsewhere") == ({}, True)
    for grants in (("push",), ("push:in.*",)):
        with pytest.raises(Invalid):
            await told(*grants, limit=0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)
    await estate.store.close()


@looped
async def test_a_cron_of_a_queue_out_of_reach_is_not_taken_over() -> None:
    estate = await Estate().settle()
    talk = estate.talk("admin:in.*")
    with pytest.raises(Forbidden):
        await PutCron(spec=cron("in.a", "of out.b")).call(talk)
    with pytest.raises(Forbidden):
        await DropCron(name="of out.b").call(estate.talk("admin:in.*", "push:out.*"))
    unseen: Any = await DropCron(name="of out.b").call(talk)
    assert not unseen.dropped
    assert len(await estate.store.crons("acme")) == 2
    dropped: Any = await DropCron(name="of in.a").call(talk)
    assert dropped.dropped
    await estate.store.close()


@looped
async def test_cancelling_jobs_here_and_there_cancels_those_in_sight() -> None:
    estate = await Estate().settle()
    done: Any = await CancelJobs(ids=[estate.far[0], estate.near[1], 77]).call(
        estate.talk("admin:in.*")
    )
    assert (list(done.acked), list(done.lost)) == ([estate.near[1]], [estate.far[0], 77])
    with pytest.raises(Forbidden):
        await CancelJobs(ids=[estate.far[0]]).call(estate.talk("admin:in.*", "push:out.*"))
    await estate.store.close()


@looped
async def test_a_watcher_hears_of_queues_in_sight_only() -> None:
    estate = await Estate().settle()
    talk = estate.talk("push:in.*")
    with pytest.raises(Forbidden):
        await Watch(queues=["out.b"]).call(talk)
    await Watch(watch="w").call(talk)
    await asyncio.sleep(0)
    await estate.store.push("acme", [Run.pack("out.b", [b"1"]), Run.pack("in.a", [b"1"])])
    await estate.store.push("other", [Run.pack("in.a", [b"1"])])
    for _ in range(5):
        await asyncio.sleep(0)
    assert [type(message) for message in talk.said] == [Happened]
    event: Event = talk.said[0].event
    assert (event.tenant, event.queue) == ("acme", "in.a")
    talk.stop(("watch", "w"))
    await estate.store.close()


def test_the_matrix_is_whole() -> None:
    assert set(requests_by_name()) == {name_of(command) for command in COMMANDS}
    audited = {name_of(command) for command in NATIVE if command.audited}
    assert audited == {
        name for name, scope in requests_by_name().items() if scope == "admin" and name not in QUIET
    }


def requests_by_name() -> dict[str, str]:
    class Nothing(Estate):
        lease = ""

    told = requests(Nothing(), "q", 1)
    return {name_of(command): scope for command, (_, scope) in told.items()}
