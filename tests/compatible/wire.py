"""Connections as commands see them, over a real store: what is said is encoded and decoded, what is
answered too, and nothing else stands between a case and a command."""

import asyncio
from collections.abc import Coroutine
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec

from penstock.model.errors import PenstockError, Unauthenticated
from penstock.model.job import Job
from penstock.model.store import Store
from penstock.protocol.access import ANYBODY, Grant, Principal
from penstock.protocol.command import Encoding, Figures, Refusal, ReqId, Request, Session
from penstock.protocol.compatible import COMPATIBLE
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.durable import settled

TENANT: Final = "default"
ENCODINGS: Final[tuple[Encoding, ...]] = ("json", "msgpack")
TOKENS: Final = {
    "everything": ANYBODY,
    "acme": Principal("acme", "acme"),
    "nothing": Principal("nothing", TENANT, ()),
}

_ANY: Final = reduce(or_, COMPATIBLE)
_DECODERS: Final[dict[str, Any]] = {
    "json": msgspec.json.Decoder(_ANY),
    "msgpack": msgspec.msgpack.Decoder(_ANY),
}
_CODECS: Final[dict[str, Any]] = {"json": msgspec.json, "msgpack": msgspec.msgpack}

Answered = dict[str, Any]


class Connection(Session):
    def __init__(self, store: Store, encoding: Encoding, principal: Principal) -> None:
        self.store = store
        self.encoding = encoding
        self.principal = principal
        self.lines: list[Answered] = []  # what came and was no answer
        self.tasks: dict[object, asyncio.Task[None]] = {}
        self.stopped: list[asyncio.Task[None]] = []

    # -- what commands use -----------------------------------------------------------------------

    def authenticate(self, token: str) -> Principal:
        if token not in TOKENS:
            raise Unauthenticated("these credentials are not accepted")
        self.principal = TOKENS[token]
        return self.principal

    def send(self, message: msgspec.Struct) -> None:
        codec = _CODECS[self.encoding]
        self.lines.append(codec.decode(codec.encode(message)))

    def start(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        self.stop(name)
        self.tasks[name] = asyncio.ensure_future(work)

    def stop(self, name: object) -> bool:
        task = self.tasks.pop(name, None)
        if task is not None:
            task.cancel()
            self.stopped.append(task)
        return task is not None

    def figures(self, tenant: str) -> Figures:
        return Figures(pushed=7, completed=5, failed=2, timed_out=1, jobs_per_second=2.5)

    def abandon(self, request: ReqId) -> bool:
        return False

    # -- what cases use --------------------------------------------------------------------------

    def decode(self, said: Answered) -> Request:
        decoded = _DECODERS[self.encoding].decode(_CODECS[self.encoding].encode(said))
        assert isinstance(decoded, Request)
        return decoded

    async def ask(self, command: str, **fields: Any) -> Answered:
        """What comes back, be it a refusal."""
        request = self.decode({"cmd": command, **fields})
        answer: msgspec.Struct
        try:
            answer = await request.call(self)
            assert type(answer) is request.answer or type(request).answer is Request.answer
        except PenstockError as error:
            answer = Refusal.of(error)
        codec = _CODECS[self.encoding]
        decoded = codec.decode(codec.encode(answer))
        assert isinstance(decoded, dict)
        return decoded

    async def say(self, command: str, **fields: Any) -> Answered:
        """What comes back of what must succeed."""
        answer = await self.ask(command, **fields)
        assert answer["ok"] is True, answer
        assert answer["success"] is True
        assert answer.get("error", "") is not None
        return answer

    async def refused(self, command: str, code: str, field: str | None = None, **said: Any) -> str:
        """Why it was refused; the code, and the field if one is named, must be these."""
        answer = await self.ask(command, **said)
        assert answer["ok"] is False, answer
        assert answer["code"] == code, answer
        assert field is None or answer.get("field") == field, answer
        assert "success" not in answer
        return str(answer["error"])

    async def push(self, queue: str = "q", **fields: Any) -> int:
        answer = await self.say("PUSH", queue=queue, **{"data": {"n": 1}} | fields)
        return int(answer["id"])

    async def pull(self, queue: str = "q") -> Answered:
        """The next job, which must be there."""
        job = (await self.say("PULL", queue=queue))["job"]
        assert job is not None, f"{queue} has no job to give"
        assert isinstance(job, dict)
        return job

    async def state(self, job_id: int) -> str | None:
        return (await self.say("GETSTATE", id=job_id))["state"]  # type: ignore[no-any-return]

    async def known(self, job_id: int) -> Job:
        """The job as the store knows it."""
        (job,) = await self.store.get(self.principal.tenant_of(), [job_id])
        assert job is not None
        return job

    async def close(self) -> None:
        for name in list(self.tasks):
            self.stop(name)
        await asyncio.gather(*self.stopped, return_exceptions=True)


class World:
    """A store in memory with a clock that only the case moves, and connections to it."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.clock = ManualClock()
        self.connections: list[Connection] = []
        self.store: Store

    async def open(self) -> None:
        self.store = EmbeddedStore.in_memory(clock=self.clock, seed=1)

    def connect(
        self, principal: Principal = ANYBODY, encoding: Encoding | None = None
    ) -> Connection:
        connection = Connection(self.store, encoding or self.encoding, principal)
        self.connections.append(connection)
        return connection

    async def advance(self, ms: int) -> None:
        """Time passes, and whoever waited for it goes on."""
        self.clock.advance(ms)
        await self.store.tick()
        await self.settle()

    async def settle(self) -> None:
        await settled(self.store)

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()
        await self.store.close()


def words(text: str) -> list[str]:
    return text.split()


def may(*said: str, tenant: str = TENANT) -> Principal:
    """Somebody with these grants."""
    return Principal("somebody", tenant, tuple(map(Grant.of, said)))
