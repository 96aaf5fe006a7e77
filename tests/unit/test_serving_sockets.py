"""Listening on real sockets: TCP and Unix, on both loops, private files, plain clients."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import uvloop

from penstock.model.errors import Conflict, Invalid
from penstock.model.job import Run
from penstock.open import open_store
from penstock.protocol.access import OpenToAll
from penstock.server.tcp import tcp_listener
from penstock.stores import unix
from penstock.stores.clock import SystemClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.serving import Listener, ServingLimits
from tests.served import ServedStore
from tests.unit.test_connection import looped

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: those of sockets may not be long."""
    with TemporaryDirectory(prefix="penstock-") as directory:
        yield Path(directory)


def listener(limits: ServingLimits | None = None) -> tuple[Listener, EmbeddedStore]:
    store = EmbeddedStore.in_memory()
    return tcp_listener(store, OpenToAll(), limits=limits), store


@pytest.mark.parametrize("how", ["tcp", "unix"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_and_its_server(loop: Loop, how: str) -> None:
    async def case() -> None:
        store = await ServedStore.open(how, clock=SystemClock())
        waiting = [
            asyncio.ensure_future(store.claim("default", ["q"], wait_ms=60_000)) for _ in range(50)
        ]
        await store.ping()
        one = [Run.pack("q", [b"1"])]
        pushed = await asyncio.gather(*(store.push("default", one) for _ in range(50)))
        assert [each.ids for each in pushed] == [[n] for n in range(1, 51)]
        leases = [await task for task in waiting]
        for lease in leases:
            assert lease is not None
            await store.ack("default", lease.token)
        large = Run.pack("q", [b"%d" % n for n in range(10_000)])
        await store.push("default", [large])
        got = await store.claim("default", ["q"], 10_000)
        assert got is not None
        assert len(got) == 10_000
        assert b"".join(run.data for run in got.runs) == large.data
        await store.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(case())


@looped
async def test_a_line_of_json_from_anybody() -> None:
    served, store = listener()
    host, port = await served.listen_tcp("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b'{"cmd":"PUSHRUN","queue":"q","payloads":["MQ==","Mg=="]}\n{"cmd":"PING"}\n')
    writer.write_eof()
    lines = (await reader.read()).splitlines()
    assert json.loads(lines[0]) == {"ok": True, "first": 1, "count": 2}
    assert json.loads(lines[1]) == {"ok": True}
    writer.close()
    await writer.wait_closed()
    await served.close()
    await store.close()


@looped
async def test_deadlines_come_by_themselves() -> None:
    limits = ServingLimits(handshake_s=0.05, message_s=0.05, idle_s=0.05)
    served, store = listener(limits)
    host, port = await served.listen_tcp("127.0.0.1", 0)
    for said in (b"", b"\0\0", b'{"cmd":"PING"}\n'):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(said)
        assert len(await asyncio.wait_for(reader.read(), 10)) == (12 if len(said) > 2 else 0)
        writer.close()
    await served.close()
    await store.close()


# -- socket files ----------------------------------------------------------------------------------


def test_a_socket_file_is_private_from_the_moment_it_exists(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    bind = socket.socket.bind

    class Watched(socket.socket):
        def bind(self, address: object) -> None:
            bind(self, address)  # type: ignore[arg-type]
            seen.append(stat.S_IMODE(Path(str(address)).stat().st_mode))

    monkeypatch.setattr(socket, "socket", Watched)
    before = os.umask(0o022)
    try:
        sock, inode = unix.bind(place / "sock")
        assert os.umask(0o022) == 0o022, "the mask is as it was"
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert inode == (place / "sock").stat().st_ino
    sock.close()


def test_a_socket_file_that_nobody_listens_at_is_replaced(place: Path) -> None:
    path = place / "sock"
    dead, _ = unix.bind(path)
    dead.listen()
    dead.close()
    assert path.exists()
    alive, inode = unix.bind(path)
    alive.listen()
    with pytest.raises(Conflict):
        unix.bind(path)
    unix.unlink(path, inode + 1)
    assert path.exists(), "somebody else's is left alone"
    unix.unlink(path, inode)
    assert not path.exists()
    unix.unlink(path, inode)
    alive.close()


def test_what_is_no_socket_is_left_alone(place: Path) -> None:
    path = place / "file"
    path.write_text("mine")
    with pytest.raises(Conflict):
        unix.bind(path)
    assert path.read_text() == "mine"
    with pytest.raises(Invalid):
        unix.bind(place / ("x" * 120))


@looped
async def test_the_file_goes_with_the_listener() -> None:
    with TemporaryDirectory(prefix="penstock-") as directory:
        path = Path(directory) / "sock"
        served, store = listener()
        await served.listen_unix(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        other, other_store = listener()
        with pytest.raises(Conflict):
            await other.listen_unix(path)
        client = await open_store(f"penstock+unix://{path}")
        assert (await client.health()).ok
        await client.close()
        await served.close()
        assert not path.exists()
        await other.close()
        await store.close()
        await other_store.close()
