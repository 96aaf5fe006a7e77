"""The command, called as a person calls it: words in, an exit code and two streams out."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import penstock
from penstock.cli.main import build_app
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.clock import Clock

SOURCE = Path(penstock.__file__).parents[1]
COMMAND = (sys.executable, "-m", "penstock.cli.main")


class Cli:
    """In this process, for speed. What it wrote to standard error is in `told` afterwards."""

    def __init__(self, *always: str) -> None:
        self._always = always
        self.told = ""

    def __call__(self, *words: object, code: int = 0, given: str | bytes | None = None) -> str:
        said = [*map(str, words), *self._always]
        result = CliRunner().invoke(build_app(), said, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.told = result.stderr
        assert result.exit_code == code, (said, result.exit_code, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        return result.stdout

    def json(self, *words: object, code: int = 0, given: str | bytes | None = None) -> Any:
        said = self(*words, "--json", code=code, given=given)
        assert said.count("\n") == 1, "one document, on one line"
        return json.loads(said)

    def lease(self, *words: object) -> str:
        """Claim, and answer the token."""
        return str(self.json("claim", *words)["lease"])


def beforehand(work: Callable[[Store], Awaitable[None]], clock: Clock | None = None) -> None:
    """Do something to the store that PENSTOCK_URL names, quicker than by commands."""

    async def whole() -> None:
        store = await open_store(os.environ["PENSTOCK_URL"], clock=clock)
        await work(store)
        await store.close()

    asyncio.run(whole())


def environment(**more: str) -> dict[str, str]:
    kept = {name: said for name, said in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def process(words: Sequence[object], **more: Any) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
    more.setdefault("env", environment())
    return subprocess.Popen([*COMMAND, *map(str, words)], text=True, **more)
