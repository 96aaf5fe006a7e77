"""The server as a whole, and `penstock serve` and `penstock token` around it."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.model.errors import Conflict, Invalid, Unavailable
from penstock.model.job import JobSpec
from penstock.protocol.access import OpenToAll
from penstock.server.auth import Tokens, hash_of
from penstock.server.parts import Kind, Parts
from penstock.server.server import Server, check_bind, is_loopback
from penstock.settings import Settings, Token, load
from tests.replaying import RECORDS, ended_while_replaying, environment

MEMORY = Settings(url="memory://")


class Listener:
    """A transport that counts the bytes of whoever connects."""

    def __init__(self, parts: Parts, kind: Kind = "tcp", port: int = 0) -> None:
        self.kind: Kind = kind
        self.parts = parts
        self.port = port
        self.connections = 0
        self.stopped: list[float] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", self.port)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()

    async def stop(self, grace_s: float) -> None:
        self.stopped.append(grace_s)
        if grace_s:
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def test_a_server_listens_counts_and_ends() -> None:
    async def run() -> None:
        made: list[Listener] = []

        def transports(parts: Parts) -> Sequence[Listener]:
            made.extend([Listener(parts), Listener(parts, "http")])
            return made

        server = await Server.open(MEMORY, transports)
        await server.start()
        assert server.addresses["tcp"] != server.addresses["http"]
        assert (server.addresses["grpc"], server.addresses["unix"]) == (None, None)
        parts = server.parts
        await parts.gate.push_jobs("acme", "q", [JobSpec()])
        assert parts.figures("acme").pushed == 1
        assert parts.history("acme") == []
        assert isinstance(parts.authenticator, OpenToAll)
        assert "penstock_connections" in await parts.metrics.text()
        await server.stop(7)
        assert [each.stopped for each in made] == [[7], [7]]
        with pytest.raises(Unavailable):
            await parts.gate.health()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_server_that_cannot_listen_everywhere_listens_nowhere() -> None:
    async def run() -> None:
        made: list[Listener] = []

        def transports(parts: Parts) -> Sequence[Listener]:
            made.extend([Listener(parts), Listener(parts, "http", port=taken)])
            return made

        holder = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        taken = holder.sockets[0].getsockname()[1]
        server = await Server.open(MEMORY, transports)
        with pytest.raises(Conflict, match=r"^http_port: 127.0.0.1:\d+ is taken$"):
            await server.start()
        assert made[0].stopped == [0]
        with pytest.raises(Unavailable):
            await server.parts.gate.health()
        holder.close()
        await holder.wait_closed()

    asyncio.run(run())


def test_a_server_without_a_way_in_does_not_start_and_lets_the_store_go() -> None:
    async def run() -> None:
        server = await Server.open(MEMORY, lambda parts: [])
        with pytest.raises(Unavailable, match="no transport"):
            await server.start()
        with pytest.raises(Unavailable, match="closed"):
            await server.parts.gate.health()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
        ("localhost.example", False),
    ],
)
def test_an_address_that_others_reach_needs_tokens(host: str, only_here: bool) -> None:
    assert is_loopback(host) == only_here
    settings = Settings(host=host)
    check_bind(settings, Tokens([Token(name="a", hash=hash_of("pst_a"))]))
    if only_here:
        check_bind(settings, OpenToAll())
    else:
        with pytest.raises(Invalid, match="penstock token create"):
            check_bind(settings, OpenToAll())


# -- the command -----------------------------------------------------------------------------------

# The command with a transport of the tests in it.
PROGRAM = """
import sys
from pathlib import Path
from penstock.server import server
from penstock.cli.serve import serve
from tests.unit.test_serve import Patient
server.transports_of = lambda parts: [Patient(parts)]
sys.exit(serve({"url": "memory://", "port": 0}, None, as_json=True, print_config=False))
"""


class Patient(Listener):
    """A transport that ends as late as it may."""

    async def stop(self, grace_s: float) -> None:
        print(f"stop {grace_s:g}", flush=True)
        if grace_s:
            await asyncio.sleep(grace_s)
        await super().stop(0)


@contextmanager
def serving(
    directory: Path, program: str = PROGRAM, *said: str, **more: str
) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, *said],
        cwd=directory,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said_next(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_serves_and_ends_gracefully(
    number: signal.Signals, tmp_path: Path
) -> None:
    with serving(tmp_path, PENSTOCK_SHUTDOWN_S="0.05") as process:
        line = json.loads(said_next(process))
        assert line.pop("tcp").startswith("127.0.0.1:")
        assert line == {
            "http": None,
            "grpc": None,
            "unix": None,
            "store": "memory://",
            "pid": process.pid,
        }
        process.send_signal(number)
        assert said_next(process) == "stop 0.05\n"
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, PENSTOCK_SHUTDOWN_S="3600") as process:
        said_next(process)
        process.send_signal(signal.SIGTERM)
        assert said_next(process) == "stop 3600\n"
        process.send_signal(signal.SIGINT)
        assert said_next(process) == "stop 0\n"
        process.communicate(timeout=60)
        assert process.returncode == 0


REPLAYING = """
from penstock.cli.serve import serve
flags = {"url": sys.argv[1], "port": 0, "no_http": True}
sys.exit(serve(flags, None, as_json=True, print_config=False))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_its_store_is_being_replayed(
    number: signal.Signals, tmp_path: Path
) -> None:
    last = ended_while_replaying(REPLAYING, number, tmp_path)
    assert f"{tmp_path}/jobs.db: not opened: told to end, " in last
    assert f" of {RECORDS + 1} records replayed in " in last


def command(
    directory: Path, *arguments: str, said: str = "", **more: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        cwd=directory,
        env=environment(**more),
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_whose_store_has_ended_ends_too(tmp_path: Path) -> None:
    """Whoever watches over it would not start another one otherwise."""
    program = "import sys; from penstock.cli.main import main; sys.argv = ['penstock', *sys.argv[1:]]; main()"
    url = f"sqlite:///{tmp_path}/jobs.db"
    with serving(tmp_path, program, "serve", "--url", url, "--port", "0", "--json") as process:
        where = json.loads(said_next(process))["tcp"]
        (tmp_path / "jobs.db").unlink()
        pushed = subprocess.run(
            [sys.executable, "-c", program, "push", "q", "1", "--url", f"penstock://{where}"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert pushed.returncode != 0
        # Or it wrote something of its own before anybody came, and has ended by then.
        assert "deleted or replaced" in pushed.stderr or "cannot be reached" in pushed.stderr
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "the server ends: the store has ended: " in err


def test_the_command_refuses_an_open_door(tmp_path: Path) -> None:
    answer = command(tmp_path, "serve", "--host", "0.0.0.0")
    assert answer.returncode == 2
    assert "penstock token create" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port", "TAKEN"], "127.0.0.1:TAKEN is taken; --port (or PENSTOCK_PORT,"),
        (["--http-port", "TAKEN"], "127.0.0.1:TAKEN is taken; --http-port (or PENSTOCK_HTTP_PORT,"),
        (["--unix", "a.file"], "'a.file' is there and is no socket; --unix (or PENSTOCK_UNIX,"),
        (["--unix", "no/x"], "nobody can listen at no/x: No such file or directory; --unix (or"),
        (["--host", "::9", "--tokens-file", "tokens"], "nobody can listen at [::9]:0: "),
    ],
)
def test_a_place_where_nobody_can_listen_is_named_with_its_flag(
    tmp_path: Path, flags: list[str], told: str
) -> None:
    (tmp_path / "a.file").touch()
    tokens = f'[[tokens]]\nname = "ops"\nhash = "{hash_of("x" * 32)}"\n'
    (tmp_path / "tokens").write_text(tokens)
    (tmp_path / "tokens").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        anywhere = ["--url", "memory://", "--port", "0", "--http-port", "0"]
        said = [port if each == "TAKEN" else each for each in flags]
        answer = command(tmp_path, "serve", *anywhere, *said)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(told.replace("TAKEN", port))
    assert answer.stderr.count("\n") == 1


def test_the_command_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    answer = command(tmp_path, "serve", PENSTOCK_PROT="1")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "did you mean 'PENSTOCK_PORT'" in answer.stderr


def test_the_command_prints_its_settings(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("http_port = 1234\n")
    answer = command(
        tmp_path, "serve", "--print-config", "--port", "0", "--no-http", PENSTOCK_LOG_FORMAT="json"
    )
    assert answer.returncode == 0
    said = tomllib.loads(answer.stdout)
    assert (said["port"], said["http_port"], said["log_format"]) == (0, 1234, "json")
    assert "no_http = true  # --no-http" in answer.stdout
    assert 'log_format = "json"  # PENSTOCK_LOG_FORMAT' in answer.stdout


def test_a_token_that_was_made_is_let_in_by_what_was_printed(tmp_path: Path) -> None:
    scopes = ["--scope", "push", "--scope", "claim:mail-*"]
    answer = command(
        tmp_path,
        *("token", "create", "--name", 'we"b', "--tenant", "acme", "--expires-in-days", "1"),
        *scopes,
    )
    assert answer.returncode == 0
    head, table, tail = answer.stdout.partition("[[tokens]]")
    token = head.split()[1]
    (tmp_path / "penstock.toml").write_text(table + tail)
    (record,) = load(file=tmp_path / "penstock.toml").settings.tokens
    principal = Tokens([record]).authenticate(token)
    assert (principal.name, principal.tenant) == ('we"b', "acme")
    assert record.scopes == ("push", "claim:mail-*")
    assert record.expires_at is not None
    assert token not in table + tail
    assert command(tmp_path, "token", "hash", said=f"{token}\n").stdout == f"{record.hash}\n"


def test_a_token_is_made_as_json_too(tmp_path: Path) -> None:
    said = json.loads(command(tmp_path, "token", "create", "--name", "a", "--json").stdout)
    assert said["hash"] == hash_of(said["token"])
    assert (said["tenant"], said["scopes"]) == ("*", ["push", "claim", "admin"])
    assert said["expires_at"] is None


@pytest.mark.parametrize(
    "wrong", [["--scope", "write"], ["--tenant", "a b"], ["--scope", "push", "--scope", ""]]
)
def test_a_token_for_nothing_known_is_not_made(wrong: list[str], tmp_path: Path) -> None:
    answer = command(tmp_path, "token", "create", "--name", "a", *wrong)
    assert (answer.returncode, answer.stdout) == (2, "")


def test_the_hash_of_something_else_is_not_printed(tmp_path: Path) -> None:
    answer = command(tmp_path, "token", "hash", said="hunter2\n")
    assert (answer.returncode, answer.stdout) == (2, "")
