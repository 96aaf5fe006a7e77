"""Push: what a producer says is kept as it was said, for one job or ten thousand, or not at all."""

from typing import Any

import msgspec
import pytest

from penstock.model.errors import BatchTooLarge, Conflict, Invalid, PayloadTooLarge, PenstockError
from penstock.model.job import DEFAULT_OPTIONS, MAX_PAYLOAD, JobOptions, JobSpec, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff
from tests.conformance.harness import BLOCK, Harness, after, many_jobs

EVERYTHING = JobSpec(
    payload=b'{"to": "ada"}',
    task="mail.send",
    priority=7,
    max_attempts=5,
    backoff=Backoff(kind="linear", base_ms=250, cap_ms=9_000, jitter="equal"),
    lease_ms=12_000,
    timeout_ms=60_000,
    ttl_ms=90_000,
    key="ada/1",
    on_conflict="reject",
    keep_key="retained",
    group="ada",
    tags=("mail", "eu"),
    headers={"traceparent": "00-1-2-01"},
    retain_ms=5_000,
    retain_dead_ms=6_000,
)


async def test_a_pushed_job_is_ready_at_once(h: Harness) -> None:
    job_id = await h.push("q", b'{"a": 1}')
    job = await h.job(job_id)
    assert (job.id, job.queue, job.payload, job.state) == (job_id, "q", b'{"a": 1}', State.READY)
    assert (job.created_at, job.run_at, job.attempt) == (h.now, h.now, 0)


async def test_what_is_not_said_has_the_documented_default(h: Harness) -> None:
    job = await h.job(await h.push("q"))
    assert job.options == DEFAULT_OPTIONS
    options = job.options
    assert (options.codec, options.task, options.priority, options.max_attempts) == (
        "json",
        "",
        0,
        3,
    )
    assert options.backoff == Backoff(
        kind="exponential", base_ms=1_000, cap_ms=900_000, jitter="full"
    )
    assert (options.lease_ms, options.timeout_ms, options.ttl_ms) == (None, None, None)
    assert (options.on_conflict, options.keep_key) == ("return", "live")
    assert (options.on_dependency_failure, options.lifo, options.tags) == ("fail", False, ())
    assert (options.retain_ms, options.retain_dead_ms) == (None, None)
    assert (job.key, job.group, job.headers, job.depends_on) == (None, None, None, ())


async def test_a_new_job_has_no_past(h: Harness) -> None:
    job = await h.job(await h.push("q"))
    assert (job.worker, job.progress, job.progress_message, job.result) == (None, None, None, None)
    assert (job.started_at, job.finished_at, job.lease_expires_at) == (None, None, None)
    assert (job.errors, job.dead_reason, job.last_heartbeat) == ((), None, None)


async def test_every_option_is_kept_as_said(h: Harness) -> None:
    (job_id,) = (await h.push_many("q", [EVERYTHING])).ids
    job = await h.job(job_id)
    assert job.options == EVERYTHING.options()
    assert (job.payload, job.priority, job.key, job.group) == (
        EVERYTHING.payload,
        7,
        "ada/1",
        "ada",
    )
    assert job.headers == {"traceparent": "00-1-2-01"}


async def test_a_worker_sees_every_option_as_said(h: Harness) -> None:
    await h.push_many("q", [EVERYTHING])
    (job,) = (await h.lease("q")).jobs
    assert job.options == EVERYTHING.options()
    assert (job.payload, job.priority, job.key, job.group) == (
        EVERYTHING.payload,
        7,
        "ada/1",
        "ada",
    )
    assert job.headers == {"traceparent": "00-1-2-01"}
    assert (job.created_at, job.attempt, job.redelivered) == (h.now, 1, False)


@pytest.mark.parametrize("codec", ["json", "msgpack", "bytes"])
async def test_a_payload_comes_back_byte_for_byte(h: Harness, codec: str) -> None:
    payload = b' {"a" : [1.0, 1e2]}\n' if codec == "json" else b"\x93\x01\xc0\xa2\x00\xff"
    job_id = await h.push("q", payload, codec=codec)
    (claimed,) = (await h.lease("q")).jobs
    for job in (await h.job(job_id), claimed):
        assert (job.payload, job.options.codec) == (payload, codec)


async def test_an_empty_payload_of_bytes_is_a_payload(h: Harness) -> None:
    pushed = await h.push_many("q", [{"payload": p, "codec": "bytes"} for p in (b"", b"x", b"")])
    assert [(await h.job(job_id)).payload for job_id in pushed.ids] == [b"", b"x", b""]
    assert [job.payload for job in (await h.lease("q", 3)).jobs] == [b"", b"x", b""]


@many_jobs
async def test_jobs_of_a_batch_over_several_blocks_keep_their_own_payload(h: Harness) -> None:
    payloads = [b'"%s"' % (b"x" * (index % 37) + b"%d" % index) for index in range(BLOCK + 1_500)]
    pushed = await h.push_many("q", [{"payload": payload} for payload in payloads])
    known = await h.store.get(h.name, pushed.ids)
    assert [job.payload for job in known if job is not None] == payloads
    claimed = [job for n in (999, 4_000, 5_000) for job in (await h.lease("q", n)).jobs]
    assert [job.payload for job in claimed] == payloads
    assert [job.id for job in claimed] == pushed.ids


async def test_three_hundred_distinct_option_sets_in_one_batch_stay_apart(h: Harness) -> None:
    specs = [
        JobSpec(
            payload=b"%d" % index,
            task=f"task-{index % 150}",
            tags=(f"tag-{index}",),
            max_attempts=1 + index % 300,
            lease_ms=50 + index % 300,
        )
        for index in range(900)
    ]
    pushed = await h.push_many("q", specs)
    assert len({spec.options() for spec in specs}) > 256
    known = await h.store.get(h.name, pushed.ids)
    assert [(job.payload, job.options) for job in known if job] == [
        (spec.payload, spec.options()) for spec in specs
    ]
    claimed = (await h.lease("q", 900, lease_ms=60_000)).jobs
    assert [(job.id, job.payload, job.options) for job in claimed] == [
        (job_id, spec.payload, spec.options())
        for job_id, spec in zip(pushed.ids, specs, strict=True)
    ]


@many_jobs
async def test_what_only_some_jobs_of_a_batch_have_stays_with_them(h: Harness) -> None:
    specs = [
        JobSpec(
            payload=b"%d" % index,
            key=f"key-{index}" if index % 3 == 0 else None,
            headers={"n": str(index)} if index % 5 == 0 else None,
            tags=("odd",) if index % 2 else (),
        )
        for index in range(BLOCK + 300)
    ]
    pushed = await h.push_many("q", specs)
    known = await h.store.get(h.name, pushed.ids)
    said = [(spec.payload, spec.key, spec.headers, spec.tags) for spec in specs]
    assert [(job.payload, job.key, job.headers, job.options.tags) for job in known if job] == said
    claimed = (await h.lease("q", 10_000)).jobs
    assert [(job.payload, job.key, job.headers, job.options.tags) for job in claimed] == said


async def test_one_push_may_speak_of_several_queues(h: Harness) -> None:
    pushed = await h.store.push(
        h.name,
        [
            Run.pack("a", [b"1", b"2"]),
            Run.pack("b", [b"3"], JobOptions(priority=5)),
            Run.pack("a", [b"4", b"5"], JobOptions(priority=-1)),
        ],
    )
    first, second, third, fourth, fifth = pushed.ids
    assert [outcome for _, outcome in pushed.jobs] == ["created"] * 5
    assert await h.claimed("a", 9) == [first, second, fourth, fifth]
    assert await h.claimed("b", 9) == [third]
    assert (await h.job(fifth)).payload == b"5"


async def test_a_push_is_all_or_nothing_over_its_queues(h: Harness) -> None:
    await h.push("b", key="taken")
    good = Run.pack("a", [b"1", b"2"])
    bad = Run.of("b", [JobSpec(), JobSpec(key="taken", on_conflict="reject")])
    with pytest.raises(Conflict):
        await h.store.push(h.name, [good, bad])
    assert await h.counts("a") == {}
    assert await h.counts("b") == {"ready": 1}
    assert len(await h.claimed("b", 10)) == 1


async def test_one_wrong_job_at_the_end_of_a_batch_refuses_the_batch(h: Harness) -> None:
    jobs = [{"payload": b"%d" % index} for index in range(5_000)]
    with pytest.raises(PenstockError) as caught:
        await h.push_many("q", [*jobs, {"payload": b"{"}])
    assert caught.value.code == "invalid"
    assert await h.counts("q") == {}
    assert await h.claim("q", 10) is None


@many_jobs
async def test_ten_thousand_jobs_are_a_batch_and_one_more_is_an_error(h: Harness) -> None:
    with pytest.raises(BatchTooLarge):
        await h.push_alike("q", 10_001)
    assert await h.counts("q") == {}
    await h.push_alike("q", 10_000)
    assert await h.counts("q") == {"ready": 10_000}


async def test_the_largest_batch_is_counted_over_all_queues_of_the_call(h: Harness) -> None:
    runs = [Run.pack("a", [b"1"] * 6_000), Run.pack("b", [b"2"] * 4_001)]
    with pytest.raises(BatchTooLarge):
        await h.store.push(h.name, runs)
    assert (await h.counts("a"), await h.counts("b")) == ({}, {})


async def test_ten_mebibytes_are_a_payload_and_one_byte_more_is_an_error(h: Harness) -> None:
    most = b"x" * (10 * 1024 * 1024)
    job_id = await h.push("q", most, codec="bytes")
    with pytest.raises(PayloadTooLarge):
        await h.push("q", most + b"x", codec="bytes")
    assert await h.counts("q") == {"ready": 1}
    assert (await h.job(job_id)).payload == most


async def test_a_delayed_job_is_scheduled_until_its_instant(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=250)
    due = h.now + 250
    job = await h.job(job_id)
    assert (job.state, job.run_at) == (State.SCHEDULED, due)
    await h.advance(249)
    assert await h.claim("q") is None
    assert await h.state(job_id) == State.SCHEDULED
    await h.advance(1)
    assert await h.state(job_id) == State.READY
    (claimed,) = (await h.lease("q")).jobs
    assert (claimed.id, claimed.run_at) == (job_id, due)


async def test_run_at_says_the_instant_itself(h: Harness) -> None:
    job_id = await h.push("q", run_at=h.now + 77)
    assert (await h.job(job_id)).run_at == h.now + 77
    await h.advance(76)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_a_past_run_at_counts_as_now(h: Harness) -> None:
    earlier = await h.push("q")
    await h.advance(5)
    late = await h.push("q", run_at=h.now - 3_600_000)
    assert await h.state(late) == State.READY
    assert await h.claimed("q", 2) == [earlier, late]


async def test_no_delay_at_all_is_ready_at_once(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=0)
    now = await h.push("q", run_at=h.now)
    assert await h.claimed("q", 2) == [job_id, now]


@many_jobs
async def test_a_batch_may_be_delayed_as_a_whole(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100, delay_ms=500)
    assert await h.counts("q") == {"scheduled": BLOCK + 100}
    await h.advance(499)
    assert await h.claim("q", 10) is None
    await h.advance(1)
    assert await h.counts("q") == {"ready": BLOCK + 100}
    assert await h.claimed("q", 10_000) == ids


async def test_delays_within_a_batch_are_each_jobs_own(h: Harness) -> None:
    delays = [None, 30, 10, None, 20, 0]
    ids = (await h.push_many("q", [{"delay_ms": delay} for delay in delays])).ids
    assert await h.counts("q") == {"ready": 3, "scheduled": 3}
    assert await h.claimed("q", 9) == [ids[0], ids[3], ids[5]]
    for step, index in ((10, 2), (10, 4), (10, 1)):
        await h.advance(step - 1)
        assert await h.claim("q", 9) is None
        await h.advance(1)
        assert await h.claimed("q", 9) == [ids[index]]


async def test_the_widest_priorities_are_kept(h: Harness) -> None:
    lowest = await h.push("q", priority=-(2**31))
    highest = await h.push("q", priority=2**31 - 1)
    assert (await h.job(lowest)).priority == -(2**31)
    assert await h.claimed("q", 2) == [highest, lowest]


async def test_pushes_to_many_queues_in_turn_do_not_mix(h: Harness) -> None:
    queues = [f"q{index}" for index in range(7)]
    pushed: dict[str, list[int]] = {queue: [] for queue in queues}
    for turn in range(30):
        for index, queue in enumerate(queues):
            pushed[queue] += await h.push_alike(queue, 1 + (turn * index) % 5, task=queue)
            h.clock.advance(1)
    for queue in queues:
        jobs = (await h.lease(queue, 10_000)).jobs
        assert [job.id for job in jobs] == pushed[queue]
        assert {job.options.task for job in jobs} == {queue}


@many_jobs
async def test_pushed_work_survives_a_restart(h: Harness) -> None:
    alike = await h.push_alike("q", BLOCK + 10, task="many")
    h.clock.advance(3)
    (own,) = (await h.push_many("q", [msgspec.structs.replace(EVERYTHING, group=None)])).ids
    h.clock.advance(3)
    later = await h.push("q", delay_ms=1_000, backoff=after(5))
    await h.restart()
    assert await h.counts("q") == {"ready": BLOCK + 11, "scheduled": 1}
    job = await h.job(own)
    assert (job.options, job.key, job.headers) == (
        EVERYTHING.options(),
        EVERYTHING.key,
        EVERYTHING.headers,
    )
    assert await h.claimed("q", 10_000) == [own, *alike]
    await h.advance(1_000)
    assert await h.claimed("q") == [later]


async def test_one_job_said_by_its_payload_and_options(h: Harness) -> None:
    options = (JobOptions(codec="bytes", task="mail.send", priority=7),)
    ids = [await h.store.push_one(h.name, "q", b"%d" % at, options) for at in range(3)]
    jobs = [await h.job(job_id) for job_id in ids]
    assert ids == sorted(set(ids))
    assert [(job.queue, job.payload, job.options, job.state) for job in jobs] == [
        ("q", b"%d" % at, options[0], State.READY) for at in range(3)
    ]


@pytest.mark.parametrize(
    ("queue", "payload", "options"),
    [
        ("q q", b"1", (DEFAULT_OPTIONS,)),
        (1, b"1", (DEFAULT_OPTIONS,)),
        ("q", "1", (DEFAULT_OPTIONS,)),
        ("q", None, (DEFAULT_OPTIONS,)),
        ("q", b"{", (DEFAULT_OPTIONS,)),
        ("q", b"1", ()),
        ("q", b"1", (DEFAULT_OPTIONS, DEFAULT_OPTIONS)),
        ("q", b"1", [DEFAULT_OPTIONS]),
        ("q", b"1", (JobOptions(priority="high"),)),  # type: ignore[arg-type]
        ("q", b"1" * (MAX_PAYLOAD + 1), (DEFAULT_OPTIONS,)),
    ],
)
async def test_one_job_that_is_wrong_is_refused_and_adds_nothing(
    h: Harness, queue: Any, payload: Any, options: Any
) -> None:
    good = (DEFAULT_OPTIONS,)
    await h.store.push_one(h.name, "q", b"1", good)
    for _ in range(2):  # also when nothing is new about it
        with pytest.raises((Invalid, PayloadTooLarge)):
            await h.store.push_one(h.name, queue, payload, options)
    await h.store.push_one(h.name, "q", b"1", good)
    (info,) = await h.store.queues(h.name, ["q"])
    assert info.counts[State.READY] == 2
