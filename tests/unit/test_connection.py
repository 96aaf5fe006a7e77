"""Connections: order, pipelining, bounds, deadlines, and how they end."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ClassVar

import pytest

from penstock.model.job import Run
from penstock.model.lifecycle import State
from penstock.model.policy import QueueConfig
from penstock.protocol.access import Grant, Principal
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.native import NATIVE, Abandon, Hello, Ping
from penstock.protocol.native_look import AskResult, Get, Unwatch, Watch
from penstock.protocol.native_manage import Configure, Purge, Queues
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claim, Complete, Release
from penstock.stores import connection as connections
from penstock.stores.connection import TURN_S
from penstock.stores.payloads import Chunks
from tests.unit.served import Rig, Tokens, framed, turns

HOUR = 3_600_000
Case = Callable[..., Awaitable[None]]


def looped(case: Case) -> Callable[..., None]:
    """Run the case in a loop, and see that it leaves no task behind."""

    async def whole(*args: Any, **more: Any) -> None:
        await case(*args, **more)
        await turns()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    @wraps(case)
    def test(*args: Any, **more: Any) -> None:
        asyncio.run(whole(*args, **more))

    return test


def push(number: Any = None, queue: str = "q", count: int = 1) -> PushRun:
    request = PushRun(queue=queue, payloads=[b"1"] * count)
    if number is not None:
        request.req_id = number
    return request


# -- answers ---------------------------------------------------------------------------------------


@looped
async def test_what_comes_in_one_read_is_answered_in_one_write() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(*(push(number) for number in range(1, 101)))
    assert len(wire.writes) == 1
    assert [answer["reqId"] for answer in wire.told()] == list(range(1, 101))
    await rig.close()


@looped
async def test_a_turn_ends_when_its_time_is_up_and_the_next_goes_on() -> None:
    rig = Rig()
    wire = rig.wire()
    clock = itertools.count()
    rig.listener.now = lambda: next(clock) * TURN_S  # every look at the clock takes a turn's time
    wire.say(*(push(number) for number in range(1, 101)))
    first = [answer["reqId"] for answer in wire.told()]
    assert 0 < len(first) < 100  # others are served in between
    await turns()
    rest = [answer["reqId"] for answer in wire.told()]
    assert [*first, *rest] == list(range(1, 101))
    await rig.close()


@looped
async def test_a_request_that_waits_holds_up_no_other() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id="slow"), Ping(req_id="quick"))
    assert [answer["reqId"] for answer in wire.told()] == ["quick"]
    wire.say(push("push"))
    await turns()
    assert {answer["reqId"] for answer in wire.told()} == {"push", "slow"}
    await rig.close()


@looped
async def test_late_answers_of_one_turn_are_one_write() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(*(Claim(queues=["q"], wait_ms=HOUR, req_id=n) for n in range(20)))
    wire.say(push("push", count=20))
    await turns()
    assert len(wire.writes) == 2
    assert {answer["reqId"] for answer in wire.told()} == {"push", *range(20)}
    await rig.close()


@looped
async def test_requests_without_a_number_are_answered_in_their_order() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(Claim(queues=["q"], wait_ms=HOUR), Queues(), {"cmd": "NOPE"}, Ping(req_id=1), Ping())
    assert [answer.get("reqId") for answer in wire.told()] == [1]
    wire.say(push(2))
    await turns()
    numbered, claim, queues, nope, ping = wire.told()
    assert numbered["reqId"] == 2
    assert claim["lease"]
    assert queues["queues"] == []
    assert nope["code"] == "invalid"
    assert ping == {"ok": True}
    await rig.close()


@looped
async def test_lines_are_answered_by_lines() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.connection.data_received(b'{"cmd":"PING","reqId":1}\n{"cmd":"NOPE","re')
    wire.connection.data_received(b'qId":2}\n')
    lines = b"".join(wire.writes).split(b"\n")
    assert json.loads(lines[0]) == {"ok": True, "reqId": 1}
    assert json.loads(lines[1])["reqId"] == 2
    assert lines[2:] == [b""]
    await rig.close()


@looped
async def test_json_in_a_frame_is_answered_by_json_in_a_frame() -> None:
    rig = Rig()
    wire = rig.wire()
    payload = b'{"cmd":"PING","reqId":1}'
    frame = len(payload).to_bytes(4, "big") + payload
    wire.connection.data_received(frame + framed(Ping(req_id=2)) + frame)
    (written,) = wire.writes
    assert written.count(b'{"ok":true,"reqId":1}') == 2
    assert [answer["reqId"] for answer in wire.told()] == [1, 2, 1]
    await rig.close()


class Broken(Request, kw_only=True, tag="BROKEN"):
    """A command with a bug."""

    late: bool = False

    async def call(self, session: Session) -> Answer:
        if self.late:
            await asyncio.sleep(0)
        raise ZeroDivisionError


class Formless(Answer, kw_only=True):
    it: Any


class Senseless(Request, kw_only=True, tag="SENSELESS"):
    """A command whose answer cannot be written down."""

    answer: ClassVar[type[Answer]] = Formless

    async def call(self, session: Session) -> Answer:
        return Formless(it="\ud800")


@looped
async def test_a_bug_is_the_request_s_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(commands=(*NATIVE, Broken, Senseless))
    wire = rig.wire()
    wire.say(Broken(req_id=1), Broken(req_id=2, late=True), Senseless(req_id=3), Ping(req_id=4))
    await turns()
    answers = {answer["reqId"]: answer for answer in wire.told()}
    assert [answers[number].get("code") for number in (1, 2, 3, 4)] == [
        "error",
        "error",
        "error",
        None,
    ]
    assert caplog.text.count("BROKEN failed") == 2
    await rig.close()


# -- who speaks ------------------------------------------------------------------------------------


@looped
async def test_strangers_may_only_say_who_they_are() -> None:
    rig = Rig(Tokens(good=Principal("me", "acme")))
    wire = rig.wire()
    wire.say(Ping(req_id=1), push(2), Queues(req_id=3), Hello(token="good", req_id=4), push(5))
    answers = wire.told()
    assert [answer.get("code") for answer in answers] == [
        None, "unauthenticated", "unauthenticated", None, None,
    ]  # fmt: skip
    assert answers[3]["tenant"] == "acme"
    assert [info.queue for info in await rig.store.queues("acme")] == ["q"]
    assert await rig.store.queues("default") == []
    await rig.close()


@looped
async def test_credentials_that_are_wrong_are_answered_and_end_it() -> None:
    rig = Rig(Tokens(good=Principal("me", "acme")))
    for hello in (Hello(token="bad", req_id=1), Hello(req_id=1)):
        wire = rig.wire()
        wire.say(hello, push(2))
        (answer,) = wire.told()
        assert answer == {
            "ok": False,
            "error": "these credentials are not accepted",
            "code": "unauthenticated",
            "reqId": 1,
        }
        assert wire.is_closing()
    await turns()
    assert len(rig.listener) == 0
    await rig.close()


@looped
async def test_strangers_have_a_smaller_limit() -> None:
    rig = Rig(strangers_frame_bytes=1_000, frame_bytes=2_000)
    large = PushRun(queue="q", payloads=[b"1" * 1_500], req_id=2)
    wire = rig.wire()
    wire.say(large)
    assert [answer["code"] for answer in wire.told()] == ["payload_too_large"]
    assert wire.is_closing()
    wire = rig.wire()
    wire.say(Hello(req_id=1))
    assert wire.told()[0]["frame"] == 2_000
    wire.say(large)
    assert wire.told()[0]["ok"]
    await rig.close()


@looped
async def test_a_bad_frame_ends_its_connection_only() -> None:
    rig = Rig()
    good, bad = rig.wire(), rig.wire()
    bad.connection.data_received(framed(Ping(req_id=1)) + b"\xff\xff\xff\xff")
    assert [answer.get("code") for answer in bad.told()] == [None, "payload_too_large"]
    assert bad.is_closing()
    good.say(Ping(req_id=1))
    assert good.told() == [{"ok": True, "reqId": 1}]
    await rig.close()


@looped
async def test_what_administrators_do_is_audited() -> None:
    told: list[Any] = []
    owner = Principal("root", "acme")
    reader = Principal("reader", "acme", (Grant("push"),))
    rig = Rig(Tokens(root=owner, reader=reader), audit=lambda *said: told.append(said))
    for token in ("root", "reader"):
        wire = rig.wire()
        wire.say(
            Hello(token=token), push(), Purge(queue="q"), Configure(queue="*", config=QueueConfig())
        )
    refused = {"refused": "these credentials may not admin in this queue"}
    assert told == [
        (owner, "acme", "PURGE", {"queue": "q"}),
        (reader, "acme", "PURGE", {"queue": "q"} | refused),
        (reader, "acme", "CONFIGURE", {"queue": "*", "config": QueueConfig()} | refused),
    ]
    await rig.close()


# -- bounds ----------------------------------------------------------------------------------------


@looped
async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    """However much it has asked for: what is kept for it stays within the mark and one answer."""
    rig = Rig()
    await rig.store.push("default", [Run.pack("q", [b'"' + b"x" * 20_000 + b'"'])])
    wire = rig.wire()
    wire.greedy = False
    asked = [Get(ids=[1], req_id=number) for number in range(2_000)]  # 40 MB of answers
    wire.say(*asked)
    assert not wire.is_reading()
    answered = 0
    while answered < 2_000:
        assert wire.unread <= connections.HIGH_WATER + 2 * connections.JOINED
        numbers = [answer["reqId"] for answer in wire.told()]
        assert numbers == list(range(answered, answered + len(numbers)))
        answered += len(numbers)
        wire.read()
        await turns(3)
    assert wire.is_reading()
    await rig.close()


@looped
async def test_answers_that_wait_in_line_are_bounded() -> None:
    rig = Rig()
    await rig.store.push("default", [Run.pack("q", [b'"' + b"x" * 20_000 + b'"'])])
    wire = rig.wire()
    wire.say(Claim(queues=["none"], wait_ms=HOUR), *(Get(ids=[1]) for _ in range(2_000)))
    await turns(5)
    assert not wire.is_reading()
    assert wire.told() == []
    assert wire.connection._lined <= connections.HIGH_WATER + 25_000
    await rig.store.push("default", [Run.pack("none", [b"1"])])
    await turns(50)
    answers = wire.told()
    assert len(answers) == 2_001
    assert answers[0]["lease"]
    assert wire.connection._lined == 0
    assert wire.is_reading()
    await rig.close()


@looped
async def test_one_connection_gives_way_to_others_in_every_turn() -> None:
    rig = Rig()
    busy, other = rig.wire(), rig.wire()
    busy.say(*(Ping(req_id=number) for number in range(1_000)))
    assert len(busy.told()) == connections.TURN
    other.say(Ping(req_id=1))
    assert other.told() == [{"ok": True, "reqId": 1}]
    await turns()
    assert len(busy.told()) == 1_000 - connections.TURN
    await rig.close()


@looped
async def test_only_so_many_requests_are_in_hand() -> None:
    rig = Rig(requests=10)
    wire = rig.wire()
    wire.say(*(Claim(queues=["q"], wait_ms=HOUR, req_id=number) for number in range(15)))
    assert not wire.is_reading()
    assert (await rig.store.health()).detail["waiting_claims"] == 10
    await rig.store.push("default", [Run.pack("q", [b"1"] * 8)])
    await turns()
    assert [answer["reqId"] for answer in wire.told()] == list(range(8))
    assert (await rig.store.health()).detail["waiting_claims"] == 7
    assert wire.is_reading()
    await rig.close()


@looped
async def test_what_ends_together_is_not_more_than_a_turn_can_bear() -> None:
    """What waits for one commit is answered in one turn of the loop, and everybody waits for that."""
    rig = Rig()
    safe = asyncio.Event()
    begun = 0
    do = rig.store.engine.do

    async def slowly(*said: Any) -> Any:
        nonlocal begun
        begun += 1
        await safe.wait()
        return await do(*said)

    rig.store.engine.do = slowly  # type: ignore[method-assign,assignment]
    wire, other = rig.wire(), rig.wire()
    wire.say(*(Purge(queue="q", req_id=number) for number in range(500)))
    await turns(5)
    assert begun == connections.UNDER_WAY
    assert not wire.is_reading()
    other.say(Ping(req_id=1))
    assert other.told() == [{"ok": True, "reqId": 1}]
    safe.set()
    await turns(50)
    assert len(wire.told()) == begun == 500
    assert wire.connection._under_way == 0
    assert wire.is_reading()
    await rig.close()


@looped
async def test_only_a_few_requests_with_large_answers_are_in_hand_at_a_time() -> None:
    """They are read from a disk while the peer may read nothing: all at once would fill memory."""
    rig = Rig()
    fetch, reading = rig.store.engine.fetch, asyncio.Event()
    begun = 0

    async def slowly(chunks: list[int]) -> Chunks:
        nonlocal begun
        begun += 1
        await reading.wait()
        return await fetch(chunks)

    rig.store.engine.fetch = slowly  # type: ignore[method-assign,assignment]
    await rig.store.push("default", [Run.pack("q", [b"1"])])
    wire = rig.wire()
    wire.say(*(Get(ids=[1], req_id=number) for number in range(50)), Ping(req_id="later"))
    await turns()
    assert begun == connections.LARGE
    assert not wire.is_reading()
    reading.set()
    await turns(50)
    assert len(wire.told()) == 51
    assert wire.is_reading()
    await rig.close()


@looped
async def test_an_answer_that_is_too_large_is_refused_and_a_claim_given_back() -> None:
    rig = Rig(frame_bytes=10_000)
    await rig.store.push("default", [Run.pack("q", [b"1" * 4_000] * 4)])
    wire = rig.wire()
    wire.say(Get(ids=[1, 2, 3, 4], req_id=1))
    (answer,) = wire.told()
    assert (answer["code"], answer["reqId"]) == ("batch_too_large", 1)
    wire.say(Claim(queues=["q"], n=4, req_id=2))
    (claimed,) = wire.told()
    assert [(run["first"], run["span"]) for run in claimed["runs"]] == [(1, 1)]
    await turns()
    (info,) = await rig.store.queues("default", ["q"])
    assert (info.counts[State.ACTIVE], info.counts[State.READY]) == (1, 3)
    await rig.close()


@looped
async def test_a_watcher_that_is_ended_as_soon_as_it_is_begun_leaves_nothing() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(Watch(watch=1), Unwatch(watch=1), Watch(watch=2), Watch(watch=2))
    await turns()
    assert len(rig.store.engine.telling.watchers) == 1
    wire.connection.data_received(framed(Watch(watch=3)) + b"\xff" * 8)
    await turns()
    assert wire.is_closing()
    assert not rig.store.engine.telling.watchers
    await rig.close()


@looped
async def test_a_watcher_that_does_not_read_costs_no_more_than_the_mark() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.greedy = False
    wire.say(Watch(watch=1))
    for _ in range(300):
        await rig.store.push("default", [Run.pack(f"q{n}", [b"1"]) for n in range(50)])
        await turns(2)
        assert wire.unread <= connections.HIGH_WATER + 2 * connections.JOINED
    last: dict[str, Any] = {}
    for _ in range(100):
        wire.read()
        await turns(5)
        last = (wire.told() or [last])[-1]
    assert (last["watch"], last["code"]) == (1, "overloaded")
    assert not rig.store.engine.telling.watchers
    await rig.close()


class Flood(Request, kw_only=True, tag="FLOOD"):
    """Something that is said without waiting for room."""

    async def call(self, session: Session) -> Answer:
        for _ in range(1_000):
            session.send(Formless(it="x" * 50_000))
        return Answer()


@looped
async def test_what_is_said_without_room_ends_the_connection() -> None:
    rig = Rig(commands=(*NATIVE, Flood))
    wire = rig.wire()
    wire.greedy = False
    wire.say(Flood())
    assert wire.is_closing()
    assert wire.unread <= 2 * connections.CHATTY
    await turns()
    assert len(rig.listener) == 0
    await rig.close()


@looped
async def test_there_are_no_more_connections_than_the_cap() -> None:
    rig = Rig(connections=3, connections_per_address=2)
    first, second = rig.wire("10.0.0.1"), rig.wire("10.0.0.1")
    third = rig.wire("10.0.0.1")
    assert third.told()[0]["code"] == "overloaded"
    assert third.is_closing()
    await turns()
    other = rig.wire("10.0.0.2")
    assert not other.is_closing()
    beyond = rig.wire("10.0.0.3")
    assert beyond.told()[0]["code"] == "overloaded"
    await turns()
    first.abort()
    await turns()
    again = rig.wire("10.0.0.1")
    assert not again.is_closing()
    again.say(Ping(req_id=1))
    assert again.told() == [{"ok": True, "reqId": 1}]
    assert not second.is_closing()
    await rig.close()


# -- deadlines -------------------------------------------------------------------------------------


def sweep(rig: Rig, seconds: float) -> None:
    rig.time += seconds
    rig.listener.sweep()


@looped
async def test_a_handshake_has_to_come_in_time() -> None:
    rig = Rig(Tokens(good=Principal("me", "acme")))
    silent, partial, stranger, known = (rig.wire() for _ in range(4))
    partial.connection.data_received(b"\0\0")
    stranger.say(Ping())
    known.say(Hello(token="good"))
    sweep(rig, 9.9)
    assert not any(wire.is_closing() for wire in (silent, partial, stranger, known))
    stranger.say(Ping())
    sweep(rig, 0.2)
    assert [wire.is_closing() for wire in (silent, partial, stranger, known)] == [
        True,
        True,
        True,
        False,
    ]
    await rig.close()


@looped
async def test_a_message_that_began_has_to_be_whole_in_time() -> None:
    rig = Rig()
    slow, steady = rig.wire(), rig.wire()
    frame = framed(Ping())
    for wire in (slow, steady):
        wire.say(Ping())
        wire.connection.data_received(frame[:3])
    for step in range(29):
        sweep(rig, 1)
        slow.connection.data_received(b"")
        steady.connection.data_received(frame[3:] + frame[:3])  # another one begins
        assert not slow.is_closing(), step
    sweep(rig, 1.5)
    assert slow.is_closing()
    assert not steady.is_closing()
    await rig.close()


@looped
async def test_a_silent_connection_ends_unless_it_waits_for_something() -> None:
    rig = Rig()
    idle, waiting, watching = rig.wire(), rig.wire(), rig.wire()
    for wire in (idle, waiting, watching):
        wire.say(Ping())
    waiting.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1))
    watching.say(Watch(watch=1))
    sweep(rig, 299)
    assert not idle.is_closing()
    sweep(rig, 2)
    assert (idle.is_closing(), waiting.is_closing(), watching.is_closing()) == (True, False, False)
    watching.say(Unwatch(watch=1))
    waiting.say(Abandon(request=1))
    await turns()
    sweep(rig, 301)
    assert waiting.is_closing()
    assert watching.is_closing()
    await rig.close()


@looped
async def test_a_peer_that_never_reads_again_is_let_go() -> None:
    rig = Rig()
    await rig.store.push("default", [Run.pack("q", [b'"' + b"x" * 20_000 + b'"'])])
    wire = rig.wire()
    wire.greedy = False
    wire.say(*(Get(ids=[1], req_id=number) for number in range(100)))
    sweep(rig, 299)
    assert not wire.is_closing()
    sweep(rig, 2)
    assert wire.is_closing()
    await rig.close()


# -- ends ------------------------------------------------------------------------------------------


async def active(rig: Rig) -> int:
    return sum(info.counts[State.ACTIVE] for info in await rig.store.queues("default"))


@looped
async def test_a_connection_that_ends_gives_back_what_it_waited_for() -> None:
    for ticks in range(8):
        rig = Rig()
        wire = rig.wire()
        wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1), Watch(watch=2))
        pusher = rig.wire()
        pusher.say(push(1))
        await turns(ticks)
        sent = any("lease" in answer for answer in wire.told())
        wire.abort()
        await turns()
        assert await active(rig) == sent, "given back unless it was sent"
        assert not wire.writes
        assert (await rig.store.health()).detail["waiting_claims"] == 0
        assert not rig.store.engine.telling.watchers
        await rig.close()


@looped
async def test_a_job_is_sent_ahead_of_whatever_led_to_its_claim() -> None:
    """What is around the store may take its time when the claim has been served."""
    rig = Rig()
    claim, held_up = rig.listener.gate.claim, asyncio.Event()

    async def slow(*args: Any, **more: Any) -> Any:
        lease = await claim(*args, **more)
        await held_up.wait()
        return lease

    rig.listener.gate.claim = slow  # type: ignore[method-assign]
    wire, pusher = rig.wire(), rig.wire()
    wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1))
    pusher.say(push(2))
    (answer,) = wire.told()
    assert answer["reqId"] == 1
    assert answer["lease"]
    await turns()
    wire.say(Abandon(request=1, req_id=3))
    assert [answer.get("abandoned") for answer in wire.told()] == [False], "it has been answered"
    wire.abort()
    held_up.set()
    await turns()
    assert await active(rig) == 1, "the job is with whoever it was sent to"
    assert not wire.writes
    await rig.close()


@looped
@pytest.mark.parametrize("end", ["eof_received", "finish"])
@pytest.mark.parametrize("ticks", [0, 1, 2])
async def test_a_claim_that_was_told_to_end_is_sent_no_job_ahead(end: str, ticks: int) -> None:
    """Also if it is told so in the turn in which it was made."""
    rig = Rig()
    wire, pusher = rig.wire(), rig.wire()
    wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1))
    await turns(ticks)
    getattr(wire.connection, end)()
    pusher.say(push(2))
    await turns()
    assert [answer.get("lease") for answer in wire.told()] == [None]
    assert await active(rig) == 0
    await rig.close()


@looped
async def test_a_part_without_a_bulk_is_refused_of_one_job_too() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(PushRun(queue="q", payloads=[b"1"], part="first", req_id=1))
    (answer,) = wire.told()
    assert (answer["code"], answer["field"]) == ("invalid", "part")
    await rig.close()


@looped
async def test_a_job_that_is_too_large_for_an_answer_is_not_sent_ahead() -> None:
    rig = Rig()
    wire, pusher = rig.wire(), rig.wire()
    wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1))
    wire.connection._faces["msgpack"].frame_limit = 1_000
    pusher.say(PushRun(queue="q", payloads=[b'"%s"' % (b"x" * 600)], req_id=2))
    assert not wire.told()
    await turns()
    assert [answer["reqId"] for answer in wire.told()] == [1]
    assert await active(rig) == 1
    await rig.close()


@looped
async def test_an_abandoned_claim_is_not_answered_and_gives_back_what_it_got() -> None:
    for ticks in range(8):
        rig = Rig()
        wire = rig.wire()
        wire.say(Claim(queues=["q"], wait_ms=HOUR, req_id=1))
        await turns(3)
        wire.say(push(2))
        await turns(ticks)
        wire.say(Abandon(request=1, req_id=3))
        await turns()
        answers = {answer["reqId"]: answer for answer in wire.told()}
        if answers[3]["abandoned"]:
            assert 1 not in answers
            assert await active(rig) == 0
        else:
            assert answers[1]["lease"]
            assert list(answers) == [1, 2, 3]
            assert await active(rig) == 1
        await rig.close()


@looped
async def test_what_is_not_in_hand_cannot_be_abandoned() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(Ping(req_id=1), Abandon(request=1, req_id=2), Abandon(request="x", req_id=3))
    assert [answer.get("abandoned") for answer in wire.told()] == [None, False, False]
    await rig.close()


@looped
async def test_a_peer_that_says_no_more_gets_its_answers_but_no_jobs() -> None:
    rig = Rig()
    job = (await rig.store.push("default", [Run.pack("other", [b"1"])])).ids[0]
    wire = rig.wire()
    wire.say(
        Claim(queues=["q"], wait_ms=HOUR, req_id=1), AskResult(job_id=job, wait_ms=HOUR, req_id=2)
    )
    assert wire.connection.eof_received()
    await turns()
    assert not wire.is_closing()
    assert (await rig.store.health()).detail["waiting_claims"] == 0
    lease = await rig.store.claim("default", ["other"])
    assert lease is not None
    await rig.store.ack("default", lease.token)
    await turns()
    assert wire.is_closing()
    assert wire.told()[-1]["result"]["state"] == "completed"
    await rig.close()


@looped
async def test_a_conversation_cut_at_every_byte_leaves_nothing_half_done() -> None:
    rig = Rig()
    said = [
        Hello(req_id=1),
        push(2, count=2),
        Claim(queues=["q"], n=1, wait_ms=HOUR, req_id=3),
        Claim(queues=["none"], wait_ms=HOUR, req_id=4),
        Watch(watch=5),
    ]
    frames = [framed(request) for request in said]
    conversation = b"".join(frames)
    edges = [sum(map(len, frames[:n])) for n in range(1, len(frames) + 1)]
    pushed = claimed = 0
    witness = rig.wire("10.0.0.9")
    for cut in range(len(conversation) + 1):
        wire = rig.wire()
        wire.connection.data_received(conversation[:cut])
        whole = sum(edge <= cut for edge in edges)
        assert [answer["reqId"] for answer in wire.told() if "reqId" in answer] == [1, 2, 3][:whole]
        wire.abort()
        await turns(6)
        pushed += 2 * (whole >= 2)
        claimed += whole >= 3
        (info,) = await rig.store.queues("default", ["q"])
        assert sum(info.counts.values()) == pushed
        assert info.counts[State.ACTIVE] == claimed
        health = (await rig.store.health()).detail
        assert (health["waiting_claims"], health["leases"]) == (0, claimed)
        assert not rig.store.engine.telling.watchers
        witness.say(Ping(req_id=cut))
        assert witness.told() == [{"ok": True, "reqId": cut}]
    assert len(rig.listener) == 1
    await rig.close()


# -- stopping --------------------------------------------------------------------------------------


@looped
async def test_a_server_that_stops_hands_out_nothing_and_lets_workers_finish() -> None:
    rig = Rig()
    await rig.store.push("default", [Run.pack("q", [b"1", b"2"])])
    worker, idle = rig.wire(), rig.wire()
    worker.say(Claim(queues=["q"], req_id=1))
    (lease,) = [answer["lease"] for answer in worker.told()]
    idle.say(Claim(queues=["none"], wait_ms=HOUR, req_id=1))
    stopping = asyncio.ensure_future(rig.listener.stop(60))
    await turns()
    assert idle.told() == [{"ok": True, "reqId": 1, "lease": None, "runs": []}]
    worker.say(Claim(queues=["q"], wait_ms=HOUR, req_id=2), push(3))
    assert [answer.get("lease", "") for answer in worker.told()] == [None, ""]
    assert not stopping.done()
    worker.say(Complete(lease=lease, req_id=4))
    await stopping
    assert worker.told()[0]["ok"]
    assert worker.is_closing()
    assert idle.is_closing()
    assert await active(rig) == 0
    await rig.store.close()


@looped
async def test_a_server_waits_for_workers_only_so_long() -> None:
    rig = Rig()
    await rig.store.push("default", [Run.pack("q", [b"1"])])
    wire = rig.wire()
    wire.say(Claim(queues=["q"], req_id=1), AskResult(job_id=1, wait_ms=HOUR, req_id=2))
    wire.told()
    await rig.listener.stop(0.01)
    (answer,) = wire.told()
    assert (answer["reqId"], answer["code"]) == (2, "unavailable")
    assert wire.is_closing()
    assert await active(rig) == 1
    await rig.store.close()


@looped
async def test_released_jobs_do_not_hold_up_the_end() -> None:
    rig = Rig()
    wire = rig.wire()
    wire.say(push(1), Claim(queues=["q"], req_id=2))
    lease = wire.told()[1]["lease"]
    wire.say(Release(lease=lease))
    await asyncio.wait_for(rig.listener.stop(60), 5)
    await rig.store.close()
