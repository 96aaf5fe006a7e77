"""Clients as lean as they can be, so that what is measured is the server; and its processes."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from tests.server.hostile.storm import IDLE, SLOW

LOOK_S: Final = 0.005  # how often we look whether all of them have come, or gone


class Frames(asyncio.Protocol):
    """Says frames; answers come in their order."""

    def __init__(self) -> None:
        self._pieces = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass
        self._loop = asyncio.get_running_loop()

    def ask(self, frame: bytes) -> "asyncio.Future[bytes]":
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(future)
        self.transport.write(frame)
        return future

    def data_received(self, data: bytes) -> None:
        self._pieces += data
        while (end := self._end()) is not None:
            whole = bytes(self._pieces[:end])
            del self._pieces[:end]
            self._waiting.popleft().set_result(whole)

    def _end(self) -> int | None:
        pieces = self._pieces
        if len(pieces) < 4:
            return None
        end = 4 + int.from_bytes(pieces[:4], "big")
        return end if len(pieces) >= end else None


class Lines(Frames):
    def _end(self) -> int | None:
        at = self._pieces.find(b"\n")
        return at + 1 if at >= 0 else None


class Http(Frames):
    """Answers with a Content-Length, kept alive."""

    def _end(self) -> int | None:
        pieces = self._pieces
        head = pieces.find(b"\r\n\r\n")
        if head < 0:
            return None
        named = pieces.lower().find(b"content-length:", 0, head)
        length = int(pieces[named + 15 : pieces.find(b"\r", named)])
        end = head + 4 + length
        return end if len(pieces) >= end else None


def frame(message: object) -> bytes:
    packed = msgspec.msgpack.encode(message)
    return len(packed).to_bytes(4, "big") + packed


def line(message: object) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def post(path: str, message: object) -> bytes:
    body = msgspec.json.encode(message)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def sized(request: int, answer: int) -> bytes:
    """A frame for the echo: so many bytes there, so many back, both with their length."""
    return (request - 4).to_bytes(4, "big") + (answer - 4).to_bytes(4, "big") + bytes(request - 8)


# -- processes -------------------------------------------------------------------------------------


@contextmanager
def _process(*command: str, **environ: str) -> Iterator[tuple[int, IO[str], IO[str]]]:
    """A child: its id, and what it reads and prints."""
    child = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child.pid, child.stdin, child.stdout
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


class Address(msgspec.Struct, frozen=True):
    pid: int
    tcp: int
    http: int
    unix: str


class Echo(msgspec.Struct, frozen=True):
    pid: int
    tcp: int


@contextmanager
def serving(url: str, directory: Path, **settings: object) -> Iterator[Address]:
    """Settings by their names in the environment, without the prefix."""
    said = {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}
    unix = str(directory / "benchmark.sock")
    flags = ("--url", url, "--port", "0", "--http-port", "0", "--unix", unix, "--json")
    quiet = ("--log-level", "warning")
    with _process("-m", "penstock.cli.main", "serve", *flags, *quiet, **said) as (pid, _, out):
        where = json.loads(out.readline())
        yield Address(pid, _port(where["tcp"]), _port(where["http"]), unix)


@contextmanager
def echoing() -> Iterator[Echo]:
    with _process("-m", "benchmarks._server_echo") as (pid, _, out):
        yield Echo(pid, int(out.readline()))


class Crowd:
    """Everybody who is a burden to a server, there or not: see `_server_crowd.py`."""

    def __init__(self, server: Address, told: IO[str], heard: IO[str]) -> None:
        self._descriptors = Path(f"/proc/{server.pid}/fd")
        self._alone = self._open()
        self._told = told
        self._heard = heard
        self._there = False

    def come(self) -> None:
        """When this ends, the server has all of them."""
        if not self._there:
            self._there = True
            self._tell("come")
            while self._open() < self._alone + SLOW + IDLE:
                time.sleep(LOOK_S)

    def go(self) -> None:
        """When this ends, the server has none of them."""
        if self._there:
            self._there = False
            self._tell("go")
            while self._open() > self._alone:
                time.sleep(LOOK_S)

    @contextmanager
    def vanishing(self) -> Iterator[None]:
        """Some of them ask for much and vanish meanwhile."""
        self._tell("vanish")
        try:
            yield
        finally:
            self._tell("stay")

    def _tell(self, word: str) -> None:
        self._told.write(f"{word}\n")
        self._told.flush()
        answer = self._heard.readline()
        assert answer == "done\n", "the crowd has ended"

    def _open(self) -> int:
        return len(list(self._descriptors.iterdir()))


@contextmanager
def crowding(server: Address) -> Iterator[Crowd]:
    """A crowd that is not there yet. Whoever measures is connected by now."""
    ports = (str(server.tcp), str(server.http))
    with _process("-m", "benchmarks._server_crowd", *ports) as (_, told, heard):
        yield Crowd(server, told, heard)


@contextmanager
def on_one_core(*pids: int) -> Iterator[None]:
    """These processes and this one share a core meanwhile, with all their threads."""
    tasks = [Path(f"/proc/{pid}/task") for pid in (os.getpid(), *pids)]
    threads = [int(thread.name) for task in tasks for thread in task.iterdir()]
    before = {thread: os.sched_getaffinity(thread) for thread in threads}
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(before[thread])})
        yield
    finally:
        for thread, cores in before.items():
            with suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(thread, cores)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
