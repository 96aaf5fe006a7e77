"""Damaged conversations: whatever bytes a peer sends, the others are served and nothing is lost.

`PENSTOCK_LONG=1` sends 100,000 of them and more.
"""

import asyncio
import os
import random
from typing import Any

import msgspec
import pytest

from penstock.model.job import Run
from penstock.protocol.native import NATIVE, Hello, Ping
from penstock.protocol.native_look import Get, Watch
from penstock.protocol.native_manage import Queues
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claim, Complete, Release
from penstock.protocol.runs import packed_run
from penstock.protocol.short import push_frame, pushed_frame
from penstock.protocol.table import name_of
from tests.unit.served import Rig, Wire, framed, turns

LONG = os.environ.get("PENSTOCK_LONG") == "1"
pytestmark = [pytest.mark.long] if LONG else []
PEERS = 40_000 if LONG else 400  # each says a few messages


def kind(producer: str) -> PushRun:
    """What short frames of that producer name, from its first job on."""
    one = PushRun(queue="fuzz", payloads=[b"1"], producer=producer, content=bytes(16))
    return msgspec.structs.replace(one, sequence=0, kind=1, req_id=0)


SHORT: list[bytes] = [
    push_frame(1, 10, 1, b"1"),
    push_frame(1, 11, 2, b'{"a": 1}'),
    push_frame(2, 12, 3, b"1"),
    push_frame(1, 13, 2**64 - 1, b"["),
    pushed_frame(4, 1),
]
WAITING = [
    Claim(queues=["fuzz"], wait_ms=1_000, req_id=14),
    Claim(queues=["nothing", "fuzz"], wait_ms=1_000, req_id=15),
]
GOOD: list[Any] = [
    Hello(req_id=1),
    Hello(short=True, req_id=1),
    kind("q"),
    *SHORT,
    *WAITING,
    Ping(),
    PushRun(queue="fuzz", payloads=[b"1", b'{"a": 1}'], req_id=2),
    PushRun(runs=(packed_run(Run.pack("fuzz", [b"1"] * 9)),), producer="p", sequence=1, req_id=3),
    Claim(queues=["fuzz"], n=5, wait_ms=1_000, req_id=4),
    Complete(lease="nobody", ranges=[(1, 5)], results={1: b"1"}, req_id=5),
    Release(lease="nobody", ids=[1, 2, 3]),
    Get(ids=[1, 2, 3], req_id=6),
    Queues(req_id=7),
    Watch(watch=8),
    *({"cmd": name_of(command), "reqId": 9} for command in NATIVE),
]


def damaged(chance: random.Random) -> bytes:
    """A few messages in either form, with something wrong in most of them."""
    said = chance.choices(GOOD, k=chance.randint(1, 4))
    if chance.random() < 0.3:
        stream = bytearray(b"".join(msgspec.json.encode(each) + b"\n" for each in said))
    else:
        if chance.random() < 0.5:  # most of what short frames do, they do after this
            said[:0] = [Hello(short=True, req_id=1), *chance.choice(([kind("q")], WAITING))]
        whole = [each if isinstance(each, bytes) else framed(each) for each in said]
        stream = bytearray(b"".join(whole))
    for _ in range(chance.choice((0, 1, 1, 2, 8))):
        at = chance.randrange(len(stream))
        match chance.randrange(4):
            case 0:
                stream[at] = chance.randrange(256)
            case 1:
                stream[at] ^= 1 << chance.randrange(8)
            case 2:
                del stream[at : at + chance.randint(1, 9)]
            case _:
                stream[at:at] = chance.randbytes(chance.randint(1, 9))
        if not stream:
            break
    return bytes(stream)


@pytest.mark.timeout(3_600 if LONG else 300)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_peer_says(seed: int) -> None:
    asyncio.run(_converse(random.Random(seed)))


async def _converse(chance: random.Random) -> None:
    rig = Rig(requests=50)
    mine = (await rig.store.push("default", [Run.pack("mine", [b"1"] * 10)])).ids
    witness = rig.wire("10.0.0.9")
    producer = rig.wire("10.0.0.9")
    producer.say(kind("witness"))
    assert [answer["ok"] for answer in producer.told()] == [True]
    for number in range(PEERS // 2):
        await rig.store.drain("default", "fuzz")  # else nobody would have to wait
        wire = rig.wire()
        _send(wire, damaged(chance), chance)
        await asyncio.sleep(0)
        witness.say(Ping(req_id=number))
        assert witness.told() == [{"ok": True, "reqId": number}]
        for sequence in (2 * number + 1, 2 * number + 2):  # whoever waits there is told of it first
            producer.connection.data_received(push_frame(1, number, sequence, b"1"))
            assert b"".join(producer.writes)[:14] == pushed_frame(number, 1)[:14]
            producer.writes.clear()
        if chance.random() < 0.5:
            wire.connection.eof_received()
            await asyncio.sleep(0)
        if not wire.is_closing():
            wire.abort()
        await turns(6)
        if number % 100 == 0:
            await rig.store.purge("default", "fuzz")
    await turns()
    assert len(rig.listener) == 2, "the witnesses"
    health = (await rig.store.health()).detail
    assert health["waiting_claims"] == 0
    assert not rig.store.engine.telling.watchers
    jobs = await rig.store.get("default", mine)
    assert [job and job.state.value for job in jobs] == ["ready"] * 10
    await rig.close()


def _send(wire: Wire, stream: bytes, chance: random.Random) -> None:
    at = 0
    while at < len(stream) and not wire.is_closing():
        size = chance.choice((1, 3, 50, len(stream)))
        if not wire.is_reading():
            return
        wire.connection.data_received(stream[at : at + size])
        at += size
