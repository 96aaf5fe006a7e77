"""The pages about flows, messages and schedules: what they show is what happens."""

import asyncio
from typing import Any

import pytest

from tests.client.small_worker import SmallWorker
from tests.snippets import blocks, run
from tools.docs import ROOT


async def work(worker: SmallWorker) -> None:
    while True:
        await worker.drain()
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("page", ["flows", "delayed-queue", "cron"])
def test_the_page_is_true(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "memory://")
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    first, *rest = (block for language, block in blocks(text) if language == "python")
    names: dict[str, Any] = {}
    run(first, names)
    app = names["app"]
    with app:
        worker = SmallWorker(app, app.home.wait(app.store()))
        asyncio.run_coroutine_threadsafe(work(worker), app.home.loop)  # until the app is closed
        for block in rest:
            run(block, names)
