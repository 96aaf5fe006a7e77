"""Bad input: the named error with the field that is wrong, and nothing changed.

What is wrong with a push stands in `test_bad_pushes.py`; here are all other calls, and what every
call shares: tenants, queues, ids and leases.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import BatchTooLarge, Invalid, PayloadTooLarge, PenstockError
from penstock.model.job import JobError, JobOptions, JobSpec, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import Cron, CronSpec, Daily, Every
from tests.conformance.harness import BOOM, PATIENCE_S, Harness
from tests.conformance.test_tenants import Estate, settle_down

NAN = float("nan")
TOO_LARGE = b"x" * (10 * 1024 * 1024 + 1)
LONG = "x" * 513
SURROGATE = "\ud800"

Call = Callable[[Any, str, Estate], Awaitable[object]]  # store, tenant, what it owns


async def refuses(
    call: Awaitable[object], field: str, error: type[PenstockError] = Invalid
) -> None:
    """The call raises exactly this error, and says that this field is wrong."""
    with pytest.raises(PenstockError) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await call
    assert type(caught.value) is error, repr(caught.value)
    assert caught.value.field.split(".")[-1] in field.split("|"), repr(caught.value.field)
    assert caught.value.message


BAD_TENANTS: list[Any] = ["", "-a", "_a", "a" * 64, "a.b", "a b", "ä", "a\n", "a\0", None, 5, b"a"]
BAD_QUEUES: list[Any] = ["", "a b", "a/b", "ü", "x" * 257, "q\n", "a\0", "*", None, 7, b"q", "٣"]
BAD_IDS: list[Any] = [0, -1, 2**53, 2**70, True, 1.0, NAN, "1", None, b"1"]


# -- tenants, queues, ids --------------------------------------------------------------------------

WITH_TENANT: dict[str, Call] = {
    "push": lambda s, t, e: s.push(t, [Run.pack("q", [b"1"])]),
    "open_bulk": lambda s, t, e: s.open_bulk(t),
    "commit_bulk": lambda s, t, e: s.commit_bulk(t, "bulk"),
    "abort_bulk": lambda s, t, e: s.abort_bulk(t, "bulk"),
    "claim": lambda s, t, e: s.claim(t, ["q"]),
    "ack": lambda s, t, e: s.ack(t, e.lease),
    "fail": lambda s, t, e: s.fail(t, e.lease, error=BOOM),
    "release": lambda s, t, e: s.release(t, e.lease),
    "extend": lambda s, t, e: s.extend(t, e.lease),
    "report": lambda s, t, e: s.report(t, e.lease, e.active, progress=1),
    "get": lambda s, t, e: s.get(t, e.ids),
    "find": lambda s, t, e: s.find(t, "q"),
    "by_key": lambda s, t, e: s.by_key(t, "q", "k"),
    "result": lambda s, t, e: s.result(t, e.done),
    "logs": lambda s, t, e: s.logs(t, e.done),
    "explain": lambda s, t, e: s.explain(t, e.done),
    "waiting": lambda s, t, e: s.waiting(t),
    "watch": lambda s, t, e: anext(s.watch(t)),
    "cancel": lambda s, t, e: s.cancel(t, e.ids),
    "edit": lambda s, t, e: s.edit(t, e.ready, priority=1),
    "redrive": lambda s, t, e: s.redrive(t, "q"),
    "purge_dead": lambda s, t, e: s.purge_dead(t, "q"),
    "queues": lambda s, t, e: s.queues(t),
    "configure": lambda s, t, e: s.configure(t, "q", QueueConfig(paused=True)),
    "configure_tenant": lambda s, t, e: s.configure_tenant(t, Bounds(jobs=1)),
    "drain": lambda s, t, e: s.drain(t, "q"),
    "clean": lambda s, t, e: s.clean(t, "q", State.READY),
    "standing": lambda s, t, e: s.standing(t, [e.ready]),
    "purge": lambda s, t, e: s.purge(t, "q"),
    "put_cron": lambda s, t, e: s.put_cron(t, cron()),
    "crons": lambda s, t, e: s.crons(t),
    "drop_cron": lambda s, t, e: s.drop_cron(t, "cron"),
    "put_instants": lambda s, t, e: s.put_instants(t, "c", "0" * 16, instants()),
    "drop_instants": lambda s, t, e: s.drop_instants(t, "q", "c"),
}


def instants(queue: str = "q") -> Run:
    return Run(queue=queue, data=b"1", ends=[1], run_at=[1])


def cron(**changes: Any) -> CronSpec:
    good: dict[str, Any] = {"name": "new", "queue": "crons", "schedule": Every(every_ms=60_000)}
    return CronSpec(**(good | changes))


@pytest.mark.parametrize("name", WITH_TENANT)
async def test_every_call_refuses_a_tenant_that_cannot_be(h: Harness, name: str) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    for tenant in BAD_TENANTS:
        await refuses(WITH_TENANT[name](h.store, tenant, estate), "tenant")
    assert await estate.snapshot() == before


WITH_QUEUE: dict[str, tuple[str, Callable[[Any, str, Any], Awaitable[object]]]] = {
    "push": ("queue", lambda s, t, q: s.push(t, [Run.pack(q, [b"1"])])),
    "claim": ("queues|queue", lambda s, t, q: s.claim(t, ["good", q])),
    "find": ("queue", lambda s, t, q: s.find(t, q)),
    "by_key": ("queue", lambda s, t, q: s.by_key(t, q, "k")),
    "redrive": ("queue", lambda s, t, q: s.redrive(t, q)),
    "purge_dead": ("queue", lambda s, t, q: s.purge_dead(t, q)),
    "queues": ("names|queue", lambda s, t, q: s.queues(t, [q])),
    "configure": ("queue", lambda s, t, q: s.configure(t, q, QueueConfig(paused=True))),
    "drain": ("queue", lambda s, t, q: s.drain(t, q)),
    "clean": ("queue", lambda s, t, q: s.clean(t, q, State.READY)),
    "purge": ("queue", lambda s, t, q: s.purge(t, q)),
    "put_cron": ("queue", lambda s, t, q: s.put_cron(t, cron(queue=q))),
    "put_instants": ("queue", lambda s, t, q: s.put_instants(t, "c", "0" * 16, instants(q))),
    "drop_instants": ("queue", lambda s, t, q: s.drop_instants(t, q, "c")),
}


@pytest.mark.parametrize("name", WITH_QUEUE)
async def test_every_call_refuses_a_queue_that_cannot_be(h: Harness, name: str) -> None:
    field, call = WITH_QUEUE[name]
    for queue in BAD_QUEUES:
        await refuses(call(h.store, h.name, queue), field)
    assert await h.store.queues(h.name) == []


WITH_IDS: dict[str, Callable[[Any, str, Estate, Any], Awaitable[object]]] = {
    "ack": lambda s, t, e, ids: s.ack(t, e.lease, ids),
    "fail": lambda s, t, e, ids: s.fail(t, e.lease, ids, error=BOOM),
    "release": lambda s, t, e, ids: s.release(t, e.lease, ids),
    "get": lambda s, t, e, ids: s.get(t, ids),
    "cancel": lambda s, t, e, ids: s.cancel(t, ids),
    "redrive": lambda s, t, e, ids: s.redrive(t, "q", ids=ids),
    "purge_dead": lambda s, t, e, ids: s.purge_dead(t, "q", ids=ids),
    "standing": lambda s, t, e, ids: s.standing(t, ids),
}


@pytest.mark.parametrize("name", WITH_IDS)
async def test_every_list_of_ids_refuses_what_is_no_id(h: Harness, name: str) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    for bad in BAD_IDS:
        await refuses(WITH_IDS[name](h.store, h.name, estate, [estate.active, bad]), "ids")
    for bad in (5, "12", b"12", estate.active):
        await refuses(WITH_IDS[name](h.store, h.name, estate, bad), "ids")
    if name in ("ack", "fail", "release"):
        await refuses(WITH_IDS[name](h.store, h.name, estate, []), "ids")
    assert await estate.snapshot() == before


WITH_ID: dict[str, Callable[[Any, str, Estate, Any], Awaitable[object]]] = {
    "result": lambda s, t, e, job_id: s.result(t, job_id),
    "logs": lambda s, t, e, job_id: s.logs(t, job_id),
    "explain": lambda s, t, e, job_id: s.explain(t, job_id),
    "edit": lambda s, t, e, job_id: s.edit(t, job_id, priority=1),
    "report": lambda s, t, e, job_id: s.report(t, e.lease, job_id, progress=1),
}


@pytest.mark.parametrize("name", WITH_ID)
async def test_every_single_id_refuses_what_is_no_id(h: Harness, name: str) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    for bad in BAD_IDS:
        await refuses(WITH_ID[name](h.store, h.name, estate, bad), "job_id")
    assert await estate.snapshot() == before


# -- every other argument --------------------------------------------------------------------------

BAD_CALLS: list[tuple[str, str, Call]] = [
    # claiming
    ("n", "0", lambda s, t, e: s.claim(t, ["q"], 0)),
    ("n", "-1", lambda s, t, e: s.claim(t, ["q"], -1)),
    ("n", "True", lambda s, t, e: s.claim(t, ["q"], True)),
    ("n", "1.5", lambda s, t, e: s.claim(t, ["q"], 1.5)),
    ("n", "text", lambda s, t, e: s.claim(t, ["q"], "1")),
    ("queues", "none", lambda s, t, e: s.claim(t, [])),
    ("queues", "a text", lambda s, t, e: s.claim(t, "q")),
    ("lease_ms", "49", lambda s, t, e: s.claim(t, ["q"], lease_ms=49)),
    ("lease_ms", "a day and 1", lambda s, t, e: s.claim(t, ["q"], lease_ms=86_400_001)),
    ("lease_ms", "nan", lambda s, t, e: s.claim(t, ["q"], lease_ms=NAN)),
    ("wait_ms", "-1", lambda s, t, e: s.claim(t, ["q"], wait_ms=-1)),
    ("wait_ms", "infinity", lambda s, t, e: s.claim(t, ["q"], wait_ms=float("inf"))),
    ("worker", "too long", lambda s, t, e: s.claim(t, ["q"], worker=LONG)),
    ("worker", "surrogate", lambda s, t, e: s.claim(t, ["q"], worker=SURROGATE)),
    ("worker", "number", lambda s, t, e: s.claim(t, ["q"], worker=1)),
    # working
    ("results", "not json", lambda s, t, e: s.ack(t, e.lease, results={e.active: b"{"})),
    ("results", "text", lambda s, t, e: s.ack(t, e.lease, results={e.active: "1"})),
    ("results", "no mapping", lambda s, t, e: s.ack(t, e.lease, results=[b"1"])),
    ("results", "nan", lambda s, t, e: s.ack(t, e.lease, results={e.active: b"NaN"})),
    ("codec", "unknown", lambda s, t, e: s.ack(t, e.lease, codec="xml")),
    ("lease_ms", "extend 49", lambda s, t, e: s.extend(t, e.lease, 49)),
    ("lease_ms", "extend too long", lambda s, t, e: s.extend(t, e.lease, 86_400_001)),
    ("retry_in_ms", "-1", lambda s, t, e: s.fail(t, e.lease, error=BOOM, retry_in_ms=-1)),
    ("retry_in_ms", "1.0", lambda s, t, e: s.fail(t, e.lease, error=BOOM, retry_in_ms=1.0)),
    ("dead", "1", lambda s, t, e: s.fail(t, e.lease, error=BOOM, dead=1)),
    ("error", "a text", lambda s, t, e: s.fail(t, e.lease, error="boom")),
    ("kind", "number", lambda s, t, e: s.fail(t, e.lease, error=JobError(kind=5))),  # type: ignore[arg-type]
    ("progress", "101", lambda s, t, e: s.report(t, e.lease, e.active, progress=101)),
    ("progress", "-1", lambda s, t, e: s.report(t, e.lease, e.active, progress=-1)),
    ("progress", "nan", lambda s, t, e: s.report(t, e.lease, e.active, progress=NAN)),
    ("logs", "texts", lambda s, t, e: s.report(t, e.lease, e.active, logs=["line"])),
    ("at", "-1", lambda s, t, e: s.report(t, e.lease, e.active, logs=[LogLine(-1, "x")])),
    ("partial", "a text", lambda s, t, e: s.report(t, e.lease, e.active, partial="x")),
    ("message", "bytes", lambda s, t, e: s.report(t, e.lease, e.active, message=b"x")),
    # looking
    ("limit", "0", lambda s, t, e: s.find(t, "q", limit=0)),
    ("limit", "-5", lambda s, t, e: s.find(t, "q", limit=-5)),
    ("limit", "a million", lambda s, t, e: s.find(t, "q", limit=1_000_000)),
    ("limit", "waiting 0", lambda s, t, e: s.waiting(t, limit=0)),
    ("limit", "waiting True", lambda s, t, e: s.waiting(t, limit=True)),
    ("limit", "waiting 10,001", lambda s, t, e: s.waiting(t, limit=10_001)),
    ("cursor", "-1", lambda s, t, e: s.find(t, "q", cursor=-1)),
    ("cursor", "text", lambda s, t, e: s.find(t, "q", cursor="0")),
    ("state", "unknown", lambda s, t, e: s.find(t, "q", state="sleeping")),
    ("task", "number", lambda s, t, e: s.find(t, "q", task=5)),
    ("tag", "number", lambda s, t, e: s.find(t, "q", tag=5)),
    ("newest", "text", lambda s, t, e: s.find(t, "q", newest="yes")),
    ("key", "number", lambda s, t, e: s.by_key(t, "q", 5)),
    ("key", "too long", lambda s, t, e: s.by_key(t, "q", LONG)),
    ("wait_ms", "result -1", lambda s, t, e: s.result(t, e.done, wait_ms=-1)),
    ("queues", "watch a text", lambda s, t, e: anext(s.watch(t, queues="q"))),
    ("queues|queue", "watch a bad name", lambda s, t, e: anext(s.watch(t, queues=["a b"]))),
    ("kinds", "watch", lambda s, t, e: anext(s.watch(t, kinds=["slept"]))),
    # changing
    ("discard", "text", lambda s, t, e: s.cancel(t, [e.ready], discard="yes")),
    ("priority", "2**31", lambda s, t, e: s.edit(t, e.ready, priority=2**31)),
    ("priority", "-2**31-1", lambda s, t, e: s.edit(t, e.ready, priority=-(2**31) - 1)),
    ("priority", "False", lambda s, t, e: s.edit(t, e.ready, priority=False)),
    ("run_at", "-1", lambda s, t, e: s.edit(t, e.ready, run_at=-1)),
    ("delay_ms", "-1", lambda s, t, e: s.edit(t, e.ready, delay_ms=-1)),
    ("run_at|delay_ms", "both", lambda s, t, e: s.edit(t, e.ready, run_at=5, delay_ms=5)),
    ("payload", "not json", lambda s, t, e: s.edit(t, e.ready, payload=b"{")),
    ("payload", "not json, said", lambda s, t, e: s.edit(t, e.ready, payload=b"{", codec="json")),
    ("payload", "text", lambda s, t, e: s.edit(t, e.ready, payload="1")),
    ("codec", "unknown, edit", lambda s, t, e: s.edit(t, e.ready, payload=b"1", codec="xml")),
    ("limit", "redrive -1", lambda s, t, e: s.redrive(t, "q", limit=-1)),
    ("limit", "redrive 1.0", lambda s, t, e: s.redrive(t, "q", limit=1.0)),
    ("fingerprint", "number", lambda s, t, e: s.redrive(t, "q", fingerprint=5)),
    # queues and tenants
    ("config", "a dict", lambda s, t, e: s.configure(t, "q", {"paused": True})),
    ("paused", "1", lambda s, t, e: s.configure(t, "q", QueueConfig(paused=1))),  # type: ignore[arg-type]
    ("retain_ms", "-1", lambda s, t, e: s.configure(t, "q", QueueConfig(retain_ms=-1))),
    ("retain_count", "-1", lambda s, t, e: s.configure(t, "q", QueueConfig(retain_count=-1))),
    ("retain_dead_ms", "-1", lambda s, t, e: s.configure(t, "q", QueueConfig(retain_dead_ms=-1))),
    ("concurrency", "-1", lambda s, t, e: limited(s, t, concurrency=-1)),
    ("concurrency", "1.5", lambda s, t, e: limited(s, t, concurrency=1.5)),
    ("group_concurrency", "0", lambda s, t, e: limited(s, t, group_concurrency=0)),
    ("tokens", "0", lambda s, t, e: limited(s, t, rate=Rate(tokens=0))),
    ("tokens", "-1", lambda s, t, e: limited(s, t, group_rate=Rate(tokens=-1))),
    ("per_ms", "0", lambda s, t, e: limited(s, t, rate=Rate(tokens=1, per_ms=0))),
    ("burst", "-1", lambda s, t, e: limited(s, t, rate=Rate(tokens=1, burst=-1))),
    ("jobs", "-1", lambda s, t, e: s.configure(t, "q", QueueConfig(bounds=Bounds(jobs=-1)))),
    ("bytes", "-1", lambda s, t, e: s.configure_tenant(t, Bounds(bytes=-1))),
    ("bounds", "None", lambda s, t, e: s.configure_tenant(t, None)),
    # bulks
    ("deadline_ms", "0", lambda s, t, e: s.open_bulk(t, "x", deadline_ms=0)),
    ("deadline_ms", "-1", lambda s, t, e: s.open_bulk(t, "x", deadline_ms=-1)),
    ("name|bulk", "too long", lambda s, t, e: s.open_bulk(t, LONG)),
    ("name|bulk", "number", lambda s, t, e: s.open_bulk(t, 5)),
    ("bulk", "commit number", lambda s, t, e: s.commit_bulk(t, 5)),
    ("bulk", "abort number", lambda s, t, e: s.abort_bulk(t, 5)),
    ("parts", "a text", lambda s, t, e: s.commit_bulk(t, "bulk", "p")),
    ("parts", "numbers", lambda s, t, e: s.commit_bulk(t, "bulk", [1])),
    # crons
    ("name", "empty", lambda s, t, e: s.put_cron(t, cron(name=""))),
    ("name", "too long", lambda s, t, e: s.put_cron(t, cron(name="x" * 513))),
    ("name", "surrogate", lambda s, t, e: s.put_cron(t, cron(name=SURROGATE))),
    ("name", "of instants", lambda s, t, e: s.put_instants(t, "", "0" * 16, instants())),
    ("run", "no run", lambda s, t, e: s.put_instants(t, "c", "0" * 16, None)),
    ("refresh", "1", lambda s, t, e: s.put_instants(t, "c", "0" * 16, instants(), refresh=1)),
    ("name", "too long", lambda s, t, e: s.drop_instants(t, "q", "x" * 201)),
    ("every_ms", "0", lambda s, t, e: s.put_cron(t, cron(schedule=Every(every_ms=0)))),
    ("every_ms", "-1", lambda s, t, e: s.put_cron(t, cron(schedule=Every(every_ms=-1)))),
    ("expression", "bad", lambda s, t, e: s.put_cron(t, cron(schedule=Cron(expression="* *")))),
    (
        "expression",
        "never",
        lambda s, t, e: s.put_cron(t, cron(schedule=Cron(expression="0 0 30 2 *"))),
    ),
    (
        "tz",
        "unknown",
        lambda s, t, e: s.put_cron(t, cron(schedule=Cron(expression="0 0 * * *", tz="Mars"))),
    ),
    ("at", "25:00", lambda s, t, e: s.put_cron(t, cron(schedule=Daily(at=("25:00",))))),
    ("at", "none", lambda s, t, e: s.put_cron(t, cron(schedule=Daily(at=())))),
    ("schedule", "a text", lambda s, t, e: s.put_cron(t, cron(schedule="* * * * *"))),
    ("overlap", "unknown", lambda s, t, e: s.put_cron(t, cron(overlap="perhaps"))),
    ("missed", "unknown", lambda s, t, e: s.put_cron(t, cron(missed="some"))),
    ("limit", "cron 0", lambda s, t, e: s.put_cron(t, cron(limit=0))),
    ("payload", "cron", lambda s, t, e: s.put_cron(t, cron(payload=b"{"))),
    ("codec", "cron", lambda s, t, e: s.put_cron(t, cron(codec="xml"))),
    (
        "priority",
        "cron",
        lambda s, t, e: s.put_cron(t, cron(options=JobOptions(priority=2**40))),
    ),
    ("name", "drop a number", lambda s, t, e: s.drop_cron(t, 5)),
]


async def limited(store: Any, tenant: str, **limits: Any) -> None:
    await store.configure(tenant, "q", QueueConfig(limits=Limits(**limits)))


@pytest.mark.parametrize(
    ("field", "call"),
    [(field, call) for field, _, call in BAD_CALLS],
    ids=[f"{field}={what}" for field, what, _ in BAD_CALLS],
)
async def test_a_wrong_argument_is_named_and_changes_nothing(
    h: Harness, field: str, call: Call
) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    await refuses(call(h.store, h.name, estate), field)
    assert await estate.snapshot() == before


async def test_what_is_too_many_or_too_large_is_an_error_of_its_own(h: Harness) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    store, name, lease = h.store, h.name, estate.lease
    await refuses(store.claim(name, ["q"], 10_001), "n", BatchTooLarge)
    results = {estate.active: TOO_LARGE}
    await refuses(
        store.ack(name, lease, results=results, codec="bytes"), "results", PayloadTooLarge
    )
    await refuses(
        store.edit(name, estate.ready, payload=TOO_LARGE, codec="bytes"), "payload", PayloadTooLarge
    )
    many = range(1, 10_002)
    await refuses(store.cancel(name, many), "ids", BatchTooLarge)
    await refuses(store.ack(name, lease, many), "ids", BatchTooLarge)
    assert await estate.snapshot() == before


async def test_the_largest_values_allowed_are_allowed(h: Harness) -> None:
    job_id = await h.push("q", b"x" * (10 * 1024 * 1024), codec="bytes", lease_ms=86_400_000)
    lease = await h.lease("q", 10_000, worker="w" * 512, lease_ms=50)
    await h.extend(lease, 86_400_000)
    await h.report(lease, job_id, progress=100, message="")
    result = b"y" * (10 * 1024 * 1024)
    await h.ack(lease, results={job_id: result}, codec="bytes")
    assert (await h.result(job_id)).value == result
    assert await h.store.get(h.name, [2**53 - 1]) == [None]
    specs = [JobSpec(priority=2**31 - 1), JobSpec(priority=-(2**31))]
    await h.push_many("q", specs)


async def test_a_lease_that_never_was_is_lost_whatever_it_looks_like(h: Harness) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    for token in ("nonsense", estate.lease + "x", estate.lease[:-1], estate.lease.swapcase() + "é"):
        with pytest.raises(PenstockError) as caught:
            await h.ack(token)
        assert caught.value.code == "lease_lost"
    assert await estate.snapshot() == before
