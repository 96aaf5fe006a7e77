"""Apps that are closed behind their tests, and servers to push to."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import Penstock

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}


@pytest.fixture
def app() -> Iterator[Penstock]:
    with Penstock("memory://") as app:
        yield app


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The url of a server in another process."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--url", "memory://", "--json"]
    command += ["--port", "0", "--no-http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        said = msgspec.json.decode(process.stdout.readline())
        yield f"penstock://{said['tcp']}"
        process.terminate()


@pytest.fixture(params=["memory", "sqlite", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every kind of home that a store has."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("server"))


@pytest.fixture(params=["sqlite", "server"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Those that other processes can reach."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("server"))


Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs a program of its own to its end; answers what it printed."""

    def run(text: str, *args: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(path), *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=ENVIRONMENT,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    return run
