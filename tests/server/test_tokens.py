"""Bad tokens: one refusal for all of them, in every place where a token may stand; and what a
connection may say before it has named one, and after."""

from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pytest

from penstock.model.errors import PenstockError, Unauthenticated
from penstock.protocol.table import name_of
from penstock.server import auth
from penstock.server.routes import ROUTES as SERVED
from penstock.server.tcp import COMMANDS as SPOKEN
from penstock.stores.remote import RemoteStore
from penstock.stores.target import target_of
from tests.server.client import written
from tests.server.estate import settle_in
from tests.server.matrix import COMMANDS, ROUTES
from tests.server.whole import (
    STREAMS,
    CommandWire,
    StreamWire,
    Way,
    everything,
    framed,
    secret,
    serving,
)

PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)
TOKENS: Final = (
    everything("ada", "ada"),
    everything("bob", "bob"),
    everything("late", "ada", expires_at=PAST),
    everything("x" * 5_000, "ada"),  # too long to be let in, though its hash is kept
)
GOOD: Final = secret("ada")
WRONG: Final = {
    "empty": "",
    "space": " ",
    "malformed": "secret",
    "shorter": GOOD[:-1],
    "longer": GOOD + "a",
    "trailing space": GOOD + " ",
    "leading space": " " + GOOD,
    "trailing line end": GOOD + "\n",
    "trailing NUL": GOOD + "\0",
    "other case": GOOD.upper(),
    "scheme and token": f"Bearer {GOOD}",
    "unknown": secret("eve"),
    "expired": secret("late"),
    "the hash": auth.hash_of(GOOD),
    "not ASCII": "pst_ädä",
    "1 MB": "a" * 1_000_000,
    "1 MB behind the right one": GOOD + "a" * 1_000_000,
    "known, and too long": secret("x" * 5_000),
}


def mangled(wire: StreamWire, cmd: str) -> list[bytes]:
    """Tokens that cannot be read, or are none, as whole messages."""
    values: list[Any] = [None, 7, True, [GOOD], {"token": GOOD}, b"\xff"]
    said: list[Any] = [{"cmd": cmd, "token": value} for value in values]
    if cmd == "AUTH":
        said.append({"cmd": cmd})
    if wire.lines:
        return [
            *(msgspec.json.encode(each) + b"\n" for each in said),
            b'{"cmd":"%b","token":"\xff\xfe"}\n' % cmd.encode(),
            b'{"cmd":"%b","token":"\\ud800"}\n' % cmd.encode(),
            b'{"cmd":"%b","token":\n' % cmd.encode(),
        ]
    name = msgspec.msgpack.encode(cmd)
    return [
        *(framed(msgspec.msgpack.encode(each)) for each in said),
        framed(b"\x82\xa3cmd" + name + b"\xa5token\xa2\xff\xfe"),
        framed(b"\x82\xa3cmd" + name + b"\xa5token\xa5"),
    ]


@pytest.mark.parametrize("way", STREAMS)
async def test_every_bad_token_gets_the_same_bytes_and_the_connection_ends(way: Way) -> None:
    seen: set[bytes] = set()
    async with serving(*TOKENS) as up:
        for cmd in ("AUTH", "HELLO"):
            wire = await up.stream(way)
            said = [wire.written({"cmd": cmd, "token": token}) for token in WRONG.values()]
            said += mangled(wire, cmd)
            if cmd == "HELLO":
                said.append(wire.written({"cmd": cmd}))
            for message in said:
                wire = await up.stream(way)
                await wire.send(message)
                seen.add(await wire.raw())
                assert await wire.ended()
        assert len(seen) == 1, seen
        decode: Any = msgspec.json.decode if way == "lines" else msgspec.msgpack.decode
        assert decode(seen.pop()) == {
            "ok": False,
            "error": "these credentials are not accepted",
            "code": "unauthenticated",
        }


@pytest.mark.parametrize("way", STREAMS)
async def test_the_number_of_the_request_is_all_that_differs(way: Way) -> None:
    async with serving(*TOKENS) as up:
        answers = []
        for said in ({"token": secret("eve")}, {"token": secret("late")}, {"token": 7}):
            wire = await up.stream(way)
            answers.append(await wire.ask("AUTH", **said, reqId="a"))
            assert await wire.ended()
        assert answers[0].pop("reqId") == "a"
        for answer in answers[1:]:
            assert answer.pop("reqId") == "a"
            assert answer == answers[0]


async def _headers() -> list[str | None]:
    return [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer  ",
        GOOD,
        f"Basic {GOOD}",
        f"Token {GOOD}",
        f"Bearer{GOOD}",
        f"Bearer\t{GOOD}",
        f"Bearer {GOOD} {GOOD}",
        f"Bearer {GOOD},",
        f'Bearer "{GOOD}"',
        f"Bearer {GOOD}\xa0",  # white space to some, and none to HTTP
        f"Bearer {GOOD}\x85",
        "Bearer \xff\xfe",
        f"Bearer {'a' * 60_000}",
        *(f"Bearer {token}" for name, token in WRONG.items() if _fits(name, token)),
    ]


def _fits(name: str, token: str) -> bool:
    """Whether it can stand in a header, and is not the right one there: space around it is none."""
    return token.isprintable() and len(token) < 60_000 and token.strip() != GOOD


async def test_every_bad_token_gets_the_same_bytes_over_http() -> None:
    async with serving(*TOKENS) as up:
        seen = set()
        for said in await _headers():
            client = await up.client()
            headers = {} if said is None else {"Authorization": said}
            await client.send(written("GET", "/v1/queues", headers=headers))
            status, head = await client.head_of_answer()
            body = await client.reader.readexactly(int(head["content-length"]))
            assert status == 401, said
            assert head["www-authenticate"] == "Bearer"
            head.pop("date")
            seen.add((str(head), body))
        assert len(seen) == 1
        client = await up.client()
        answer = await client.get("/v1/queues", Authorization=f"Bearer {GOOD} ")
        assert answer.status == 200  # space around a header's value is no part of it


async def test_every_route_that_asks_for_a_token_asks_before_anything_else() -> None:
    """Whatever else is wrong with a request: a stranger is not told."""
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        seen = set()
        for route in SERVED:
            if route.scope is None:
                continue
            rows = ROUTES[route.name](theirs) if route.name in ROUTES else []
            paths = [(row.path(route), row.body) for row in rows] or [(route.path, {})]
            for path, body in paths:
                for sent in (body, b"{", None):
                    client = await up.client()
                    answer = await client.request(route.method, path, sent)
                    assert answer.status == 401, route
                    answer.headers.pop("date")
                    seen.add((str(answer.headers), answer.body))
                    await client.close()
        assert len(seen) == 1


async def test_every_bad_token_gets_the_same_bytes_as_a_command_over_http() -> None:
    async with serving(*TOKENS) as up:
        seen = set()
        for cmd in ("AUTH", "HELLO"):
            for token in WRONG.values():
                wire = CommandWire(await up.client("ada"))
                answer = await wire.asked(cmd, token=token)
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json["ok"] is False
                answer.headers.pop("date")
                seen.add((str(answer.headers), answer.body))
        assert len(seen) == 1


async def test_every_bad_token_in_the_url_of_a_store_is_refused_alike() -> None:
    async with serving(*TOKENS) as up:
        seen = set()
        host, port = up.tcp
        for token in (None, *WRONG.values()):
            said = "" if not token else f":{quote(token, safe='')}@"
            for url in (
                f"penstock://{said}{host}:{port}",
                f"penstock+unix://{said}{up.parts.settings.unix}",
            ):
                seen.add(await _refused(url))
        assert seen == {("these credentials are not accepted", "unauthenticated", "")}
        store = RemoteStore(target_of(f"penstock://:{quote(GOOD)}@{host}:{port}"))
        await store.connect()
        assert await store.queues("ada") == []
        await store.close()


async def _refused(url: str) -> tuple[str, str, str]:
    store = RemoteStore(target_of(url))
    try:
        with pytest.raises(Unauthenticated) as caught:
            await store.connect()
            await store.queues("ada")
    finally:
        await store.close()
    return caught.value.message, caught.value.code, caught.value.field


async def test_every_known_hash_is_compared_whatever_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither an early hit nor an early miss shows in the time that it takes."""
    compared: list[tuple[int, int]] = []

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare_digest(one, other)

    monkeypatch.setattr(auth, "compare_digest", counting)
    tokens = auth.Tokens(TOKENS)
    for token in (*WRONG.values(), GOOD, secret("bob")):
        compared.clear()
        try:
            tokens.authenticate(token)
        except PenstockError:
            assert token not in (GOOD, secret("bob"))
        assert len(compared) == len(TOKENS)
        assert len(set(compared)) == 1


# -- before a token, and after --------------------------------------------------------------------


@pytest.mark.parametrize("way", STREAMS)
async def test_a_stranger_is_heard_on_nothing_but_who_they_are(way: Way) -> None:
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        wire = await up.stream(way)
        seen = set()
        for command in map(name_of, SPOKEN):
            if command in ("AUTH", "HELLO", "PING"):
                continue
            for row in COMMANDS[command](theirs)[:1]:
                await wire.say(command, **row)
                seen.add(await wire.raw())
        assert len(seen) == 1
        assert b"unauthenticated" in seen.pop()
        assert (await wire.ask("PING"))["ok"]
        assert (await wire.ask("AUTH", token=GOOD))["ok"]
        assert (await wire.ask("GETSTATE", id=theirs.ready))["state"] == "waiting"


@pytest.mark.parametrize("way", STREAMS)
async def test_what_comes_behind_a_bad_token_is_not_looked_at(way: Way) -> None:
    async with serving(*TOKENS) as up:
        wire = await up.stream(way)
        await wire.send(
            wire.written({"cmd": "AUTH", "token": "wrong"})
            + wire.written({"cmd": "AUTH", "token": GOOD})
            + wire.written({"cmd": "PUSH", "queue": "q"})
        )
        assert (await wire.answer())["code"] == "unauthenticated"
        assert await wire.ended()
        assert await up.store.queues("ada") == []


@pytest.mark.parametrize("cmd", ["AUTH", "HELLO"])
@pytest.mark.parametrize("way", STREAMS)
async def test_a_connection_speaks_for_one_principal(way: Way, cmd: str) -> None:
    async with serving(*TOKENS) as up:
        wire = await up.greeted(way, "ada")
        assert (await wire.ask(cmd, token=GOOD))["ok"]  # the same again
        answer = await wire.ask(cmd, token=secret("bob"))
        assert (answer["code"], answer["field"]) == ("conflict", "token")
        await wire.ask("PUSH", queue="q")
        assert [info.queue for info in await up.store.queues("ada")] == ["q"]
        assert await up.store.queues("bob") == []
        answer = await wire.ask(cmd, token="wrong")
        assert answer["code"] == "unauthenticated"
        assert await wire.ended()


@pytest.mark.parametrize("way", STREAMS)
async def test_what_is_under_way_stays_with_whoever_began_it(way: Way) -> None:
    """Said in one breath: requests that wait, a watcher, and another's token behind them."""
    async with serving(*TOKENS) as up:
        wire = await up.greeted(way, "ada")
        await wire.send(
            wire.written({"cmd": "WATCH", "reqId": 1})
            + wire.written({"cmd": "SUBSCRIBE", "queue": "q", "reqId": 2})
            + wire.written({"cmd": "CLAIM", "queues": ["q"], "wait_ms": 60_000, "reqId": 3})
            + wire.written({"cmd": "PULL", "queue": "q", "timeout": 60_000, "reqId": 4})
            + wire.written({"cmd": "AUTH", "token": secret("bob"), "reqId": 5})
            + wire.written({"cmd": "GETJOBS", "reqId": 6})
        )
        answers: dict[Any, Any] = {}
        while set(answers) != {1, 2, 5, 6}:
            answer = await wire.answer()
            answers[answer["reqId"]] = answer
        assert answers[5]["code"] == "conflict"
        assert answers[6]["jobs"] == []
        bobs = await up.greeted(way, "bob")
        await bobs.ask("PUSHB", queue="q", jobs=[{"data": "bob"}, {"data": "bob"}])
        adas = await up.greeted(way, "ada")
        pushed = await adas.ask("PUSHB", queue="q", jobs=[{"data": "ada"}, {"data": "ada"}])
        claimed, pulled = await wire.answer(), await wire.answer()
        if claimed["reqId"] == 4:
            claimed, pulled = pulled, claimed
        assert sorted((claimed["runs"][0]["first"], pulled["job"]["id"])) == pushed["ids"]
        assert (await bobs.ask("GETJOBCOUNTS", queue="q"))["waiting"] == 2


async def test_another_token_within_one_request_changes_nothing() -> None:
    async with serving(*TOKENS) as up:
        wire = CommandWire(await up.client("ada"))
        assert (await wire.ask("AUTH", token=GOOD))["ok"]
        for cmd in ("AUTH", "HELLO"):
            answer = await wire.asked(cmd, token=secret("bob"))
            assert (answer.status, answer.json["code"]) == (409, "conflict")
        await wire.ask("PUSH", queue="q")
        assert [info.queue for info in await up.store.queues("ada")] == ["q"]
