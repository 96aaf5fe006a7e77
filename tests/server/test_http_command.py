"""Commands of the TCP wire in requests of their own, with two small commands of our own."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from penstock.model.errors import Deadline
from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.protocol.access import Principal
from penstock.protocol.command import Answer, Request, Session
from penstock.server.http import HttpLimits
from tests.server.harness import asking, running
from tests.server.test_http_access import TOKENS
from tests.server.test_http_jobs import refused


class Put(Request, tag="PUT"):
    """Push one job."""

    queue: str
    data: msgspec.Raw

    async def call(self, session: Session) -> "PutAnswer":
        session.principal.require("push", self.queue)
        spec = JobSpec(payload=bytes(self.data))
        pushed = await session.store.push_jobs(session.principal.tenant_of(), self.queue, [spec])
        return PutAnswer(id=pushed.ids[0])


class PutAnswer(Answer):
    id: int


class Wipe(Request, tag="WIPE"):
    """Purge a queue."""

    audited: ClassVar[bool] = True
    queue: str

    async def call(self, session: Session) -> Answer:
        session.principal.require("admin", self.queue)
        await session.store.purge(session.principal.tenant_of(), self.queue)
        return Answer()


class Pull(Request, tag="PULL"):
    """Wait for a job."""

    queue: str

    async def call(self, session: Session) -> Answer:
        tenant = session.principal.tenant_of()
        if await session.store.claim(tenant, [self.queue], wait_ms=60_000) is None:
            raise Deadline("nothing came")
        return Answer()


class Take(Request, tag="TAKE"):
    """A claim whose answer is large, and which can be undone."""

    async def call(self, session: Session) -> "TakeAnswer":
        lease = await session.store.claim("default", ["q"])
        assert lease is not None
        return TakeAnswer(lease=lease.token, much="x" * 9_000_000)

    async def take_back(self, session: Session, answer: Answer) -> None:
        assert isinstance(answer, TakeAnswer)
        await session.store.release("default", answer.lease)


class TakeAnswer(Answer):
    lease: str
    much: str


class Watch(Request, tag="WATCH"):
    """Something that needs a connection that stays."""

    async def call(self, session: Session) -> Answer:
        async def work() -> None:
            session.send(Answer())

        assert not session.stop("watch")
        assert not session.abandon(1)
        session.start("watch", work())
        return Answer()


class Send(Request, tag="SEND"):
    async def call(self, session: Session) -> Answer:
        session.send(Answer())
        return Answer()


class Auth(Request, tag="AUTH"):
    token: str

    async def call(self, session: Session) -> "AuthAnswer":
        assert session.encoding == "json"
        figures = session.figures("default")
        return AuthAnswer(name=session.authenticate(self.token).name, pushed=figures.pushed)


class AuthAnswer(Answer):
    name: str
    pushed: int


COMMANDS: tuple[type[Request], ...] = (Put, Wipe, Pull, Take, Watch, Send, Auth)


async def test_a_command_is_answered_as_on_the_wire() -> None:
    async with asking(commands=COMMANDS) as (up, client):
        for path in ("/v1/command", "/api/command"):
            said = {"cmd": "PUT", "queue": "q", "data": {"a": [1]}, "reqId": "r1", "more": 1}
            answer = await client.post(path, said)
            assert answer.status == 200
            assert answer.json["ok"] is True
            assert answer.json["reqId"] == "r1"
            (job,) = await up.store.get("default", [answer.json["id"]])
            assert job is not None
            assert job.payload == b'{"a": [1]}'
        answer = await client.post("/v1/command", {"cmd": "WIPE", "queue": "q"})
        assert answer.json == {"ok": True}
        assert await up.count(State.READY) == 0


async def test_a_refusal_is_a_problem_and_a_refusal_of_the_wire() -> None:
    async with asking(commands=COMMANDS) as (_, client):
        answer = await client.post(
            "/v1/command", {"cmd": "PUT", "queue": "?", "data": 1, "reqId": 7}
        )
        assert refused(answer, 400, "invalid", "queue")
        said = answer.json
        assert (said["ok"], said["error"], said["reqId"]) == (False, said["detail"], 7)
        for body, field in [
            ({"cmd": "NOPE"}, "cmd"),
            ({"cmd": "put"}, "cmd"),
            ({"cmd": 1}, "cmd"),
            ({}, "cmd"),
            ({"cmd": "PUT", "queue": 5, "data": 1}, "queue"),
            ({"cmd": "PUT", "data": 1}, "queue"),
            ({"cmd": "WATCH"}, "cmd"),
            ({"cmd": "SEND"}, "cmd"),
        ]:
            answer = await client.post("/v1/command", body)
            assert refused(answer, 400, "invalid", field), body
        twice = b'{"cmd": "PUT", "queue": "q", "queue": "p", "data": 1}'
        assert refused(await client.request("POST", "/v1/command", twice), 400, "invalid")


async def test_without_a_table_there_is_no_command() -> None:
    async with asking() as (_, client):
        assert refused(await client.post("/v1/command", {"cmd": "PUT"}), 400, "invalid", "cmd")


async def test_commands_look_who_asks_and_administrators_are_written_down() -> None:
    written: list[tuple[str, str, dict[str, object]]] = []

    def audit(who: Principal, tenant: str, action: str, details: Mapping[str, object]) -> None:
        written.append((who.name, action, dict(details)))

    async with running(tokens=TOKENS, commands=COMMANDS, audit=audit) as up:
        async with await up.client("worker") as worker:
            push = {"cmd": "PUT", "queue": "q", "data": 1}
            assert refused(await worker.post("/v1/command", push), 403, "forbidden", "queue")
            wipe = {"cmd": "WIPE", "queue": "q"}
            assert refused(await worker.post("/v1/command", wipe), 403, "forbidden", "queue")
            auth = {"cmd": "AUTH", "token": "admin"}
            assert refused(await worker.post("/v1/command", auth), 409, "conflict", "token")
            auth["token"] = "worker"
            answer = await worker.post("/v1/command", auth)
            assert answer.json == {"ok": True, "name": "worker", "pushed": 0}
            auth["token"] = "nobody"
            assert refused(await worker.post("/v1/command", auth), 401, "unauthenticated")
        async with await up.client("admin") as admin:
            assert (await admin.post("/v1/command", wipe)).status == 200
    assert [entry[:2] for entry in written] == [("worker", "WIPE"), ("admin", "WIPE")]
    assert written[0][2]["refused"]
    assert written[1][2] == {"queue": "q"}


async def test_a_command_that_waits_ends_with_its_client_and_with_the_server() -> None:
    async with asking(commands=COMMANDS) as (up, client):
        gone = await up.client()
        await gone.ask("POST", "/v1/command", {"cmd": "PULL", "queue": "q"})
        await up.claims_wait(1)
        gone.vanish()
        await up.claims_wait(0)
        await client.ask("POST", "/v1/command", {"cmd": "PULL", "queue": "q"})
        await up.claims_wait(1)
        up.server.service.stop_claims()
        assert refused(await client.answer(), 503, "unavailable")


async def test_what_only_the_client_could_use_is_taken_back_if_it_has_left() -> None:
    limits = HttpLimits(stalled_s=0.1)
    async with asking(commands=COMMANDS, limits=limits) as (up, _):
        await up.store.push_jobs("default", "q", [JobSpec()])
        gone = await up.client()
        gone.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await gone.ask("POST", "/v1/command", {"cmd": "TAKE"})
        await up.jobs_are(State.ACTIVE, 1)
        await up.jobs_are(State.READY, 1)
        gone.vanish()
