"""The pages about flows, messages and schedules: what they show is what happens."""

import ast
import asyncio
import re
from typing import Any

import pytest

from tests.client.small_worker import SmallWorker
from tools.docs import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^(\S.*?)  # ('.*'|\[.*\]|True|False|None|\d+)$")


def run(block: str, names: dict[str, Any]) -> None:
    """Execute a block; the value of an expression is what its comment says."""
    shown = {
        number: ast.literal_eval(found[2])
        for number, line in enumerate(block.splitlines(), 1)
        if (found := SHOWN.match(line))
    }
    for statement in ast.parse(block).body:
        if isinstance(statement, ast.Expr) and statement.lineno in shown:
            value = eval(ast.unparse(statement), names)
            assert value == shown[statement.lineno], ast.unparse(statement)
        else:
            exec(compile(ast.Module([statement], []), "docs", "exec"), names)


async def work(worker: SmallWorker) -> None:
    while True:
        await worker.drain()
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("page", ["flows", "delayed-queue", "cron"])
def test_the_page_is_true(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "memory://")
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    first, *rest = BLOCK.findall(text)
    names: dict[str, Any] = {}
    run(first, names)
    app = names["app"]
    with app:
        worker = SmallWorker(app, app.home.wait(app.store()))
        asyncio.run_coroutine_threadsafe(work(worker), app.home.loop)  # until the app is closed
        for block in rest:
            run(block, names)
