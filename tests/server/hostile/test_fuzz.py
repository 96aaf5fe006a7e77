"""Whatever bytes come: each costs its own connection at most, and disturbs nothing else.

After every spoilt conversation somebody else, on a connection that stays open throughout, is served
as ever, and what the kernel counts equals a scan.
"""

import asyncio
import logging
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernel.codes import GONE
from penstock.protocol.command import Encoding
from tests.server.hostile.served import Served, serving
from tests.server.hostile.talk import FIELDS, NAMES, Scene, earnest, introduced, short, spoilt
from tests.server.hostile.wire import ENCODINGS, Client, Said, message, messages

FRAMES: Final = 8  # of one conversation
KNOWN: Final = 30  # jobs at most that a conversation is about


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def scene_of(server: Served, random: Random) -> Scene:
    kernel = server.store.engine.kernel
    ids = [
        block.base + offset
        for block in list(kernel.blocks.values())[-KNOWN:]
        for offset, code in enumerate(block.codes[:KNOWN])
        if code != GONE
    ]
    short = kernel.producers.get(("default", "short"))
    before = 0 if short is None or short.next > 1 << 32 else short.next - 1
    return Scene(random, ids[-KNOWN:], list(kernel.leases)[-KNOWN:], before)


async def suffer(server: Served, said: bytes) -> list[Said]:
    """One connection that says this and no more; what it was answered."""
    async with await Client.to(server.address) as client:
        await client.send(said)
        client.writer.write_eof()
        return messages(await client.rest())


@pytest.fixture(autouse=True)
def nothing_fails_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A request that is wrong is refused; one at which the server fails is a mistake of ours."""
    with caplog.at_level(logging.ERROR):
        yield
    for when in ("setup", "call"):
        assert [each for each in caplog.get_records(when) if each.levelno >= logging.ERROR] == []


async def fuzz(seed: int, conversations: int) -> None:
    random = Random(seed)
    async with serving(handshake_s=0.5) as server:
        for number in range(conversations):
            encoding = random.choice(ENCODINGS)
            scene = scene_of(server, random)
            for queue in ("q", "p") if random.random() < 0.3 else ():
                await server.store.drain("default", queue)  # claims wait, and are told first
            said = [earnest(scene, encoding) for _ in range(FRAMES)]
            sent = b""
            if encoding == "msgpack" and random.random() < 0.5:
                sent = b"".join(message(each, encoding) for each in introduced(scene))
            for each in said:
                sent += spoilt(each, random, encoding)
                if encoding == "msgpack" and random.random() < 0.5:
                    sent += short(scene)
            if random.random() < 0.1:
                sent = sent[: random.randrange(len(sent))]
            try:
                for answer in await suffer(server, sent):
                    told = "event_type" in answer or "watch" in answer
                    assert told or isinstance(answer["ok"], bool), answer
                await server.check()
            except BaseException as error:
                error.add_note(f"seed {seed}, conversation {number}: {sent!r}")
                raise


@pytest.mark.parametrize("seed", [1, 2])
async def test_spoilt_conversations_disturb_nobody(seed: int, loop: str) -> None:
    await fuzz(seed, 750 // FRAMES)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 23))
async def test_many_spoilt_conversations_disturb_nobody(seed: int, loop: str) -> None:
    await fuzz(seed, 4_000 // FRAMES)


# -- whatever Hypothesis thinks of -----------------------------------------------------------------

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["q", "p", "completed", "ready", 1, 2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
requests = st.sampled_from(NAMES).flatmap(
    lambda name: st.fixed_dictionaries(
        {"cmd": st.just(name), "reqId": st.integers(0, 2**64 - 1)},
        optional={field: anything for field in FIELDS[name] if field != "tenant"},
    )
)


@given(st.data())
@settings(max_examples=60)
def test_whatever_fields_come_each_request_has_one_answer(data: st.DataObject) -> None:
    encoding: Encoding = data.draw(st.sampled_from(ENCODINGS))
    said = data.draw(st.lists(requests, min_size=1, max_size=FRAMES))

    async def run() -> None:
        async with serving(handshake_s=0.1) as server:
            sent = b"".join(message(each, encoding) for each in said)
            answers = [each for each in await suffer(server, sent) if "ok" in each]
            assert len(answers) <= len(said)
            assert {each["reqId"] for each in answers} <= {each["reqId"] for each in said}
            await server.check()

    asyncio.run(run())
