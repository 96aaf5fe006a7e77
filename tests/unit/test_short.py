"""Short frames: what both ends say so, what they do not, and that it comes to the same."""

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from penstock.kernel.passing import passing
from penstock.model.errors import Forbidden, Invalid, LeaseLost, PenstockError
from penstock.model.job import JobOptions, JobSpec, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, QueueConfig
from penstock.open import open_store
from penstock.protocol.access import Grant, Principal
from penstock.protocol.framing import BadFrame, Frames
from penstock.protocol.native import NATIVE, Hello, Welcome
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claim
from penstock.protocol.runs import Single
from penstock.protocol.short import (
    KINDS,
    PAYLOAD_PUSHED,
    SHORT,
    JobKinds,
    push_frame,
    pushed_frame,
    read_job,
    read_push,
    read_pushed,
)
from penstock.stores import claims
from penstock.stores.payloads import Payloads
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener
from penstock.stores.target import target_of
from tests.unit.served import Rig, Tokens, Wire, framed, turns
from tests.unit.test_connection import looped
from tests.unit.test_remote import Open, Overheard, World

OPTIONS = (JobOptions(task="mail"),)
HOUR = 3_600_000
TOKEN = "0123456789abcdef" * 2
PLAIN = PushRun(
    queue="q",
    payloads=[b"[1]"],
    options=OPTIONS[0],
    producer="p",
    sequence=1,
    content=bytes(16),
    kind=7,
    req_id=1,
)


def single(**other: Any) -> Single:
    job = Single(TOKEN, "q", 2_000, 12, b"[1]", OPTIONS, 1_000)
    return msgspec.structs.replace(job, **other)


# -- frames ----------------------------------------------------------------------------------------


def test_what_is_said_is_read() -> None:
    frame = push_frame(3, 2**63, 9, b"[1]")
    frames = Frames()
    frames.feed(frame)
    message = frames.take()
    assert message is not None
    assert read_push(message) == (3, 2**63, 9)
    assert message[PAYLOAD_PUSHED:] == b"[1]"
    assert read_pushed(pushed_frame(8, 2**52)[4:]) == (8, 2**52)


def test_a_job_is_said_shortly_once_its_kind_was_told() -> None:
    kinds = JobKinds()
    assert kinds.frame(5, single()) is None
    assert kinds.told("q", OPTIONS) == 1
    assert kinds.told("q", OPTIONS) == 1
    assert kinds.told("other", OPTIONS) == 2
    frame = kinds.frame(5, single())
    assert frame is not None
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert frame[4] == SHORT
    known = {1: ("q", OPTIONS), 2: ("other", OPTIONS)}
    assert read_job(frame[4:], known) == (5, single())
    equal = (JobOptions(task="mail"),)
    for other in (single(queue="other"), single(options=equal), single()):
        frame = kinds.frame(6, other)
        assert frame is not None
        assert read_job(bytearray(frame[4:]), known) == (6, other)
    assert kinds.frame(8, single(options=(JobOptions(),))) is None


def test_a_job_of_a_kind_that_was_not_told_is_no_frame() -> None:
    kinds = JobKinds()
    kinds.told("q", OPTIONS)
    frame = kinds.frame(5, single())
    assert frame is not None
    with pytest.raises(BadFrame, match="1 is no kind that was said"):
        read_job(frame[4:], {2: ("q", OPTIONS)})


@pytest.mark.parametrize("request_", ("5", None, -1, 2**64))
def test_a_number_that_has_no_place_in_it_is_answered_at_length(request_: object) -> None:
    kinds = JobKinds()
    kinds.told("q", OPTIONS)
    assert kinds.frame(request_, single()) is None


def test_only_so_many_kinds_are_remembered() -> None:
    kinds = JobKinds()
    for number in range(KINDS):
        assert kinds.told(f"q{number}", OPTIONS) == number + 1
    assert kinds.told("one more", OPTIONS) is None
    assert kinds.frame(1, single(queue="one more")) is None
    assert kinds.frame(1, single(queue="q3")) is not None


@pytest.mark.parametrize("read", (read_push, read_pushed))
@pytest.mark.parametrize("message", (b"\xc1", b"\xc1j", b"\xc1p123456789", b"\xc1+1"))
def test_half_a_frame_is_none(read: Any, message: bytes) -> None:
    with pytest.raises(BadFrame, match="too short"):
        read(message)


def test_half_a_job_is_no_frame() -> None:
    with pytest.raises(BadFrame, match="too short"):
        read_job(b"\xc1j" + bytes(30), {})


@pytest.mark.parametrize("read", (read_push, read_pushed))
def test_what_nobody_says_is_no_frame(read: Any) -> None:
    with pytest.raises(BadFrame, match="there is no short frame 'x'"):
        read(b"\xc1x" + bytes(80))


def test_a_token_that_is_no_text_is_no_frame() -> None:
    with pytest.raises(BadFrame, match="no text"):
        read_job(b"\xc1j" + b"\xff" * 80, {255: ("q", OPTIONS)})


# -- the server ------------------------------------------------------------------------------------


def short_ones(wire: Wire) -> list[bytes]:
    """The messages since the last look."""
    frames = Frames(2**32)
    frames.feed(b"".join(wire.writes))
    wire.writes.clear()
    return list(map(bytes, iter(frames.take, None)))


async def greeted(rig: Rig, token: str | None = None) -> Wire:
    wire = rig.wire()
    wire.say(Hello(token=token, short=True, req_id=0))
    (welcome,) = wire.told()
    assert welcome["short"] is True
    return wire


@looped
async def test_a_short_push_is_the_long_one_again() -> None:
    rig = Rig()
    wire = await greeted(rig)
    wire.say(PLAIN)
    assert wire.told() == [{"ok": True, "reqId": 1, "first": 1, "count": 1}]
    wire.connection.data_received(push_frame(7, 2, 2, b"[2]") + push_frame(7, 3, 3, b"[3]"))
    assert [read_pushed(each) for each in short_ones(wire)] == [(2, 2), (3, 3)]
    wire.connection.data_received(push_frame(7, 4, 3, b"[3]"))  # said again: it adds nothing
    assert [read_pushed(each) for each in short_ones(wire)] == [(4, 3)]
    jobs = await rig.store.get("default", [1, 2, 3, 4])
    assert [job and (job.payload, job.options) for job in jobs] == [
        (b"[1]", OPTIONS[0]),
        (b"[2]", OPTIONS[0]),
        (b"[3]", OPTIONS[0]),
        None,
    ]
    await rig.close()


@looped
async def test_what_is_wrong_with_a_short_push_is_said_as_of_a_long_one() -> None:
    rig = Rig()
    wire = await greeted(rig)
    wire.say(PLAIN)
    wire.told()
    for sequence, payload in ((2, b"NaN"), (2, b'{"a":1,"a":2}'), (1, b"[1]"), (2**63, b"1")):
        long = msgspec.structs.replace(
            PLAIN, payloads=[payload], sequence=sequence, kind=None, req_id=5
        )
        wire.say(long)
        (at_length,) = wire.told()
        wire.connection.data_received(push_frame(7, 5, sequence, payload))
        (message,) = short_ones(wire)
        if message[0] == SHORT:  # a repeat
            assert read_pushed(message) == (5, at_length["first"])
        else:
            assert msgspec.msgpack.decode(message) == at_length
            assert at_length["code"] == "invalid"
    await rig.store.configure("default", "q", QueueConfig(bounds=Bounds(jobs=1)))
    wire.connection.data_received(push_frame(7, 6, 2, b"1"))
    (refusal,) = wire.told()
    assert (refusal["code"], refusal["reqId"]) == ("overloaded", 6)
    (info,) = await rig.store.queues("default", ["q"])
    assert info.counts[State.READY] == 1
    await rig.close()


@looped
async def test_a_kind_that_was_not_said_is_refused() -> None:
    rig = Rig()
    wire = await greeted(rig)
    wire.connection.data_received(push_frame(7, 5, 1, b"1"))
    assert wire.told() == [
        {
            "ok": False,
            "reqId": 5,
            "code": "invalid",
            "field": "kind",
            "error": "7 is no kind that was said",
        }
    ]
    assert await rig.store.queues("default") == []
    await rig.close()


@pytest.mark.parametrize(
    "wrong",
    (
        {"kind": 0},
        {"kind": KINDS + 1},
        {"kind": -1},
        {"producer": None, "sequence": None, "content": None},
        {"content": None},
        {"payloads": [b"1", b"2"]},
        {"payloads": []},
        {"keys": ["k"]},
        {"delay_ms": 5},
        {"bulk": "b"},
    ),
)
@looped
async def test_a_kind_that_has_no_short_form_is_refused(wrong: dict[str, Any]) -> None:
    rig = Rig()
    wire = await greeted(rig)
    wire.say(msgspec.structs.replace(PLAIN, **wrong))
    (refusal,) = wire.told()
    assert (refusal["code"], refusal["field"]) == ("invalid", "kind")
    assert await rig.store.queues("default") == []
    wire.connection.data_received(push_frame(7, 5, 1, b"1"))
    (refusal,) = wire.told()
    assert refusal["field"] == "kind"
    await rig.close()


@looped
async def test_a_kind_is_remembered_of_who_may_push_it() -> None:
    mine = Principal("me", "mine", (Grant("push", "q"),))
    rig = Rig(Tokens(me=mine))
    stranger = rig.wire()
    stranger.connection.data_received(push_frame(7, 5, 1, b"1"))
    (refusal,) = stranger.told()
    assert (refusal["code"], refusal["reqId"]) == ("unauthenticated", 5)
    wire = await greeted(rig, "me")
    wire.say(msgspec.structs.replace(PLAIN, queue="another"))
    assert wire.told()[0]["code"] == "forbidden"
    wire.connection.data_received(push_frame(7, 5, 1, b"1"))
    assert wire.told()[0]["field"] == "kind"
    wire.say(msgspec.structs.replace(PLAIN, tenant="yours"))
    assert wire.told()[0]["code"] == "forbidden"
    wire.say(PLAIN)
    wire.told()
    wire.connection.data_received(push_frame(7, 5, 2, b"2"))
    assert [read_pushed(each) for each in short_ones(wire)] == [(5, 2)]
    assert [job and job.payload for job in await rig.store.get("mine", [2])] == [b"2"]
    other = await greeted(rig, "me")  # kinds are a connection's own
    other.connection.data_received(push_frame(7, 5, 3, b"3"))
    assert other.told()[0]["field"] == "kind"
    await rig.close()


@pytest.mark.parametrize("alone", (True, False))
@looped
async def test_what_is_no_frame_ends_the_connection(alone: bool) -> None:
    rig = Rig()
    wire = await greeted(rig)
    bad = b"\0\0\0\2\xc1p"
    wire.connection.data_received(bad if alone else push_frame(1, 1, 1, b"") + bad)
    *_, refusal = wire.told()
    assert (refusal["code"], refusal["error"]) == ("invalid", "a short frame is too short")
    assert wire.is_closing()
    await rig.close()


@looped
async def test_a_line_is_no_frame() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.connection.data_received(b'{"cmd":"PING"}\n\xc1p1234567890123456789\n')
    *_, refusal = (msgspec.json.decode(line) for line in b"".join(wire.writes).splitlines())
    assert refusal["code"] == "invalid"
    await rig.close()


@looped
async def test_whoever_has_not_said_so_is_answered_at_length() -> None:
    rig = Rig()
    producer = await greeted(rig)
    producer.say(PLAIN)
    worker = rig.wire()
    worker.say(Hello(req_id=0))
    worker.told()
    for number in range(1, 4):
        worker.say(Claim(queues=["q"], wait_ms=1_000, req_id=number))
        if number > 1:
            producer.connection.data_received(push_frame(7, number, number, b"[%d]" % number))
        await turns()
        (answer,) = worker.told()
        assert (answer["reqId"], answer["runs"][0]["data"]) == (number, b"[%d]" % number)
        assert "kind" not in answer
    await rig.close()


@looped
async def test_the_second_job_of_a_kind_comes_shortly() -> None:
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1))
    worker.told()
    for number in range(2, 5):
        worker.say(Claim(queues=["q"], wait_ms=1_000, lease_ms=500, req_id=number))
        producer.connection.data_received(push_frame(7, number, number, b"[%d]" % number))
        (message,) = short_ones(worker)
        if number == 2:
            answer = msgspec.msgpack.decode(message)
            assert (answer["kind"], answer["queue"]) == (1, "q")
        else:
            request, job = read_job(message, {1: ("q", OPTIONS)})
            assert (request, job.job_id, job.payload) == (number, number, b"[%d]" % number)
            assert (job.created_at, job.expires_at) == (rig.clock.now, rig.clock.now + 500)
            assert list((await rig.store.ack("default", job.token)).acked) == [number]
    await turns()
    await rig.close()


@looped
async def test_a_kind_is_for_those_who_speak_short_frames() -> None:
    """Refused before anything is pushed: whoever was answered by an error would push again."""
    rig = Rig()
    wire = rig.wire()
    said = msgspec.json.encode(Hello(short=True, req_id=0))
    pushed = msgspec.json.encode(PLAIN)
    wire.connection.data_received(said + b"\n" + pushed + b"\n")
    welcome, refusal = map(msgspec.json.decode, b"".join(wire.writes).splitlines())
    assert welcome["short"] is False
    assert (refusal["code"], refusal["field"]) == ("invalid", "kind")
    assert await rig.store.queues("default") == []
    await rig.close()


LONG = JobOptions(task="mail", lease_ms=5_000, timeout_ms=60_000)


@pytest.mark.parametrize(
    "before",
    (
        [JobSpec(task="other")],
        [JobSpec(task="other", timeout_ms=9), JobSpec()],
        [JobSpec(delay_ms=50)],
    ),
)
@looped
async def test_what_other_jobs_of_its_block_are_does_not_keep_a_job_from_being_told(
    before: list[JobSpec],
) -> None:
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    plain = msgspec.structs.replace(PLAIN, options=LONG)
    producer.say(plain)
    worker.say(Claim(queues=["q"], req_id=1))
    await rig.store.push_jobs("default", "q", before)
    rig.clock.advance(50)
    worker.say(Claim(queues=["q"], n=9, req_id=2))
    await turns()
    told, message = [], b""
    for number in (3, 4):
        worker.say(Claim(queues=["q"], wait_ms=HOUR, req_id=number))
        worker.writes.clear()
        position = rig.store.kernel.position
        written = worker.write

        def write(data: Any, written: Any = written, position: int = position) -> None:
            told.append(rig.store.kernel.position - position)
            written(data)

        worker.write = write  # type: ignore[method-assign]
        producer.connection.data_received(push_frame(7, number, number - 1, b"[%d]" % number))
        worker.write = written  # type: ignore[method-assign]
        (message,) = short_ones(worker)
    assert told == [0, 0], "before anything was written down"
    request, job = read_job(message, {1: ("q", (LONG,))})
    assert (request, job.payload, job.expires_at) == (4, b"[4]", rig.clock.now + 5_000)
    assert list((await rig.store.ack("default", job.token)).acked) == [job.job_id]
    await turns()
    await rig.close()


@looped
async def test_a_worker_is_told_before_the_job_is_written_down_and_before_its_producer() -> None:
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1), Claim(queues=["q"], wait_ms=9, req_id=2))
    worker.told()
    producer.told()
    order: list[object] = []
    written = worker.write

    def write(data: Any) -> None:
        order.append(("told", rig.store.kernel.position, len(rig.store.kernel.leases)))
        written(data)

    worker.write = write  # type: ignore[method-assign]
    before = (rig.store.kernel.position, len(rig.store.kernel.leases))
    producer.connection.data_received(push_frame(7, 2, 2, b"[2]"))
    assert order == [("told", *before)]
    assert rig.store.kernel.position == before[0] + 2  # the push, and the claim
    assert len(rig.store.kernel.leases) == before[1] + 1
    assert [read_pushed(each) for each in short_ones(producer)] == [(2, 2)]
    await turns()
    await rig.close()


@looped
async def test_a_job_that_was_told_of_is_not_kept_until_its_claim_would_have_ended() -> None:
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1), Claim(queues=["q"], wait_ms=HOUR, req_id=2))
    producer.connection.data_received(push_frame(7, 2, 2, b"[2]"))
    await turns()
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Single]
    await rig.close()


@looped
async def test_what_was_foretold_and_did_not_come_true_is_nobody_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known that would bring it about, but for a machine without memory."""
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1), Claim(queues=["q"], wait_ms=HOUR, req_id=2))
    with monkeypatch.context() as without:
        without.setattr(Payloads, "add", Mock(side_effect=MemoryError))
        producer.connection.data_received(push_frame(7, 2, 2, b"[2]"))
    assert producer.told()[-1]["code"] == PenstockError.code
    await turns()
    assert not rig.store.engine.waiting
    *_, told = worker.told()
    with pytest.raises(LeaseLost):
        await rig.store.ack("default", told["lease"])
    worker.say(Claim(queues=["q"], wait_ms=HOUR, req_id=3))
    producer.connection.data_received(push_frame(7, 3, 2, b"[2]"))
    await turns()
    (message,) = short_ones(worker)
    number, job = read_job(message, {1: ("q", OPTIONS)})
    assert (number, job.job_id, job.payload) == (3, 2, b"[2]")
    assert list((await rig.store.ack("default", job.token)).acked) == [2]
    await rig.close()


@looped
async def test_a_job_that_comes_otherwise_than_it_was_foretold_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known that would bring it about: were there such a mistake, no ack of what was told
    would end what was not."""
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1), Claim(queues=["q"], wait_ms=HOUR, req_id=2))
    with monkeypatch.context() as wrong:
        wrong.setattr(claims, "passing", lambda *said: passing(*said) + 7)
        producer.connection.data_received(push_frame(7, 2, 2, b"[2]"))
    assert producer.told()[-1]["code"] == PenstockError.code
    await turns()
    *_, told = worker.told()
    with pytest.raises(LeaseLost):
        await rig.store.ack("default", told["lease"])
    lease = await rig.store.claim("default", ["q"])
    assert lease is not None
    assert [(job.id, job.payload, job.attempt) for job in lease.jobs] == [(2, b"[2]", 1)]
    await rig.close()


@looped
async def test_a_kind_whose_telling_is_too_large_is_not_taken_for_told() -> None:
    """Nobody could read a short frame that names it."""
    large = msgspec.structs.replace(PLAIN, options=JobOptions(task="t" * 400))
    rig = Rig(frame_bytes=len(framed(large)))
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(large)
    await rig.store.drain("default", "q")
    for number in range(2, 5):
        worker.say(Claim(queues=["q"], wait_ms=9, req_id=number))
        producer.connection.data_received(push_frame(7, number, number, b"[2]"))
        await turns()
        (answer,) = worker.told()
        assert (answer["reqId"], answer["code"]) == (number, "batch_too_large")
        await rig.store.drain("default", "q")
    await rig.close()


@looped
async def test_a_store_that_has_ended_tells_nobody_of_a_job_that_it_refuses() -> None:
    """As in a forked child, where those who wait are the parent's, and hear nothing of the end."""
    rig = Rig()
    producer, worker = await greeted(rig), await greeted(rig)
    producer.say(PLAIN)
    worker.say(Claim(queues=["q"], req_id=1), Claim(queues=["q"], wait_ms=9, req_id=2))
    producer.told(), worker.told()
    rig.store.engine.disown(1)
    producer.connection.data_received(push_frame(7, 2, 2, b"[2]"))
    (refusal,) = producer.told()
    assert refusal["code"] == "unavailable"
    assert worker.writes == []
    worker.abort()
    await turns()
    await rig.close()


# -- the client ------------------------------------------------------------------------------------


def overheard(store: RemoteStore) -> list[bytes]:
    """What the client says from now on, frame by frame."""
    link = store._link()
    assert link._wire is not None
    ear = link._wire.transport = Overheard(link._wire.transport)  # type: ignore[assignment]
    return ear.written


def are_short(said: list[bytes]) -> list[bool]:
    return [frame[4] == SHORT for frame in said]


@looped
async def test_the_first_job_of_a_kind_says_it_and_the_others_name_it() -> None:
    async with World() as world:
        await world.store.connect()
        said = overheard(world.store)
        other = (JobOptions(task="other"),)
        for options in (OPTIONS, OPTIONS, other, OPTIONS, other, (JobOptions(task="mail"),)):
            await world.store.push_one("default", "q", b"[1]", options)
        assert are_short(said) == [False, True, False, True, True, True]
        jobs = await world.inner.get("default", [1, 2, 3, 4, 5, 6])
        tasks = ["mail", "mail", "other", "mail", "other", "mail"]
        assert [job and job.options.task for job in jobs] == tasks


@looped
async def test_a_kind_that_was_refused_is_said_again() -> None:
    async with World() as world:
        await world.store.connect()
        said = overheard(world.store)
        for _ in range(2):
            with pytest.raises(Invalid):
                await world.store.push_one("default", "q", b"NaN", OPTIONS)
        assert await world.store.push_one("default", "q", b"1", OPTIONS) == 1
        with pytest.raises(Invalid):
            await world.store.push_one("default", "q", b"NaN", OPTIONS)
        assert await world.store.push_one("default", "q", b"1", OPTIONS) == 2
        assert are_short(said) == [False, False, False, True, True]


@looped
async def test_of_many_kinds_those_are_named_that_were_said_last() -> None:
    async with World() as world:
        await world.store.connect()
        said = overheard(world.store)
        often = 0
        for number in range(2 * KINDS):
            for queue in ("often", f"q{number}"):
                job_id = await world.store.push_one("default", queue, b"1", OPTIONS)
                (job,) = await world.inner.get("default", [job_id])
                assert job is not None and job.queue == queue
            often += 1
        assert are_short(said) == [False, False, *[True, False] * (often - 1)]
        said.clear()
        for number in (2 * KINDS - 1, 2 * KINDS - KINDS + 1, KINDS // 2):
            await world.store.push_one("default", f"q{number}", b"1", OPTIONS)
        assert are_short(said) == [True, True, False]


@pytest.mark.parametrize("first", (True, False))
@looped
async def test_a_push_whose_answer_was_lost_is_repeated_at_length_and_adds_nothing(
    first: bool,
) -> None:
    async with World() as world:
        if not first:
            assert await world.store.push_one("default", "q", b"[0]", OPTIONS) == 1
        expected = 1 if first else 2
        world.proxy.mute = True
        assert await world.store.push_one("default", "q", b"[1]", OPTIONS) == expected
        said = overheard(world.store)
        other = (JobOptions(task="other"),)
        for options in (other, OPTIONS, other, OPTIONS):
            expected += 1
            assert await world.store.push_one("default", "q", b"[2]", options) == expected
        assert are_short(said) == [False, False, True, True]
        assert await world.counts() == {State.READY: expected}
        jobs = await world.inner.get("default", list(range(expected - 3, expected + 1)))
        assert [job and job.options.task for job in jobs] == ["other", "mail", "other", "mail"]


class Older(Hello, kw_only=True, tag="HELLO"):
    """Of a server that knows nothing of it."""

    async def call(self, session: Any) -> Welcome:
        welcome = await super().call(session)
        session.kinds = None
        return msgspec.structs.replace(welcome, short=False)


@looped
async def test_a_server_that_does_not_understand_it_hears_everything_at_length() -> None:
    commands = tuple(Older if each is Hello else each for each in NATIVE)
    async with World(commands) as world:
        await world.store.connect()
        said = overheard(world.store)
        for expected in (1, 2, 3):
            assert await world.store.push_one("default", "q", b"[1]", OPTIONS) == expected
        assert are_short(said) == [False] * 3
        assert all("kind" not in msgspec.msgpack.decode(frame[4:]) for frame in said)


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[RemoteStore, RemoteStore]]:
    """A store behind a server, and two clients of it."""
    store = await open_store(url)
    listener = Listener(store, NATIVE, Open())
    host, port = await listener.listen_tcp("127.0.0.1", 0)
    clients = [RemoteStore(target_of(f"penstock://{host}:{port}")) for _ in range(2)]
    for client in clients:
        await client.connect()
    try:
        yield clients[0], clients[1]
    finally:
        for client in clients:
            await client.close()
        await listener.close()
        await store.close()


@pytest.mark.parametrize("kept", (False, True))
@looped
async def test_jobs_come_as_they_were_pushed(kept: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if kept else "memory://"
    async with served(url) as (producer, worker):
        said = overheard(producer)
        for number in range(1, 6):
            claim = asyncio.create_task(worker.claim("default", ["q"], wait_ms=60_000))
            await _in_line(worker)
            payload = b"[%d]" % number
            assert await producer.push_one("default", "q", payload, OPTIONS) == number
            lease = await claim
            assert isinstance(lease, Lease)
            (job,) = lease.jobs
            assert (job.id, job.payload, job.options) == (number, payload, OPTIONS[0])
            assert (job.attempt, job.created_at) == (1, job.run_at)
            (read,) = await worker.get("default", [number])
            assert read is not None
            assert (read.state, read.created_at) == (State.ACTIVE, job.created_at)
            assert read.lease_expires_at is not None  # two clocks, each in whole milliseconds
            assert abs(read.lease_expires_at - lease.expires_at) <= 1
            assert list((await worker.ack("default", lease.token)).acked) == [number]
        assert are_short(said) == [False] + [True] * 4


async def _in_line(store: RemoteStore) -> None:
    """Until the claim has been heard: requests are begun in their order."""
    await asyncio.sleep(0)
    await store.health()


@looped
async def test_a_job_for_a_claim_that_is_given_up_goes_back() -> None:
    async with served("memory://") as (producer, worker):
        for number in (1, 2):  # the third comes shortly
            claim = asyncio.create_task(worker.claim("default", ["q"], wait_ms=60_000))
            await _in_line(worker)
            assert await producer.push_one("default", "q", b"1", OPTIONS) == number
            lease = await claim
            assert lease is not None
            await worker.ack("default", lease.token)
        claim = asyncio.create_task(worker.claim("default", ["q"], wait_ms=60_000))
        await _in_line(worker)
        link = worker._link()
        assert link._wire is not None
        link._wire.transport.pause_reading()
        assert await producer.push_one("default", "q", b"1", OPTIONS) == 3
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        link._wire.transport.resume_reading()
        while link._given_up:  # until it is known what became of it
            await asyncio.wait(list(link._given_up))
        (job,) = await worker.get("default", [3])  # asked behind what gives it back
        assert job is not None
        assert (job.state, job.attempt) == (State.READY, 0)


@looped
async def test_a_kind_that_may_not_be_pushed_is_refused_each_time() -> None:
    rig = Rig(Tokens(me=Principal("me", "mine", (Grant("push", "q"),))))
    host, port = await rig.listener.listen_tcp("127.0.0.1", 0)
    store = RemoteStore(target_of(f"penstock://me@{host}:{port}"))
    for _ in range(3):
        with pytest.raises(Forbidden):
            await store.push_one("mine", "other", b"1", OPTIONS)
    assert await store.push_one("mine", "q", b"1", OPTIONS) == 1
    with pytest.raises(PenstockError):
        await store.push_one("yours", "q", b"1", OPTIONS)
    await store.close()
    await rig.close()


# -- a server that says what it should not ---------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    (
        pushed_frame(2, 9),
        pushed_frame(3, 9),
        framed({"ok": True, "reqId": 2, "lease": 7}),
        framed({"ok": True, "reqId": 3, "first": "x", "count": 1}),
        b"\0\0\0\1\xc1",
    ),
)
@looped
async def test_an_answer_of_another_kind_leaves_nobody_waiting(said: bytes) -> None:
    """It ends the connection, and who waits is answered over the next."""
    async with World() as world:
        await world.store.connect()
        link = world.store._link()
        assert link._wire is not None
        link._wire.transport.pause_reading()
        calls: list[Coroutine[Any, Any, Any]] = [
            world.store.push("default", [Run.pack("q", [b"1", b"2"])]),
            world.store.claim("default", ["other"], wait_ms=1),
            *(world.store.push_one("default", "p", b"1", OPTIONS) for _ in range(2)),
        ]
        waiting = [asyncio.create_task(call) for call in calls]
        await turns()
        assert len(link._pending) == 3
        link._wire.data_received(said)
        async with asyncio.timeout(20):
            pushed, lease, *ids = await asyncio.gather(*waiting)
        assert (pushed.ids, lease, len(set(ids))) == ([1, 2], None, 2)
        assert world.proxy.made == 2


@pytest.mark.parametrize("more", ({"kind": 1}, {"kind": 65, "queue": "q", "lease": TOKEN}))
@looped
async def test_a_kind_of_no_job_leaves_nobody_waiting(more: dict[str, Any]) -> None:
    async with World() as world:
        await world.store.connect()
        link = world.store._link()
        assert link._wire is not None
        link._wire.transport.pause_reading()
        calls = [world.store.claim("default", ["q"], wait_ms=1) for _ in range(2)]
        waiting = [asyncio.create_task(call) for call in calls]
        await turns()
        assert len(link._pending) == 2
        link._wire.data_received(framed({"ok": True, "reqId": 2, **more}))
        async with asyncio.timeout(20):
            assert await asyncio.gather(*waiting) == [None, None]
        assert world.proxy.made == 2
