"""A server whose store is another process's counts and logs what happens there by watching it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.server.server import Server
from penstock.settings import Settings
from tests.durable import scratch
from tests.replaying import environment
from tests.server.client import Client

PATIENCE_S = 60.0
PROGRAM = "import sys; from penstock.cli.main import main; sys.argv[0] = 'penstock'; main()"
OURS_NOW = "the store is this process's now"
IN_THE_LOG = "the store is another process's: what happens to jobs is counted by watching it"


def play(case: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await case()

    asyncio.run(timed())


class Up:
    """A `penstock serve` in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", where: dict[str, str]) -> None:
        self.process = process
        self.url = f"penstock://{where['tcp']}"
        host, _, port = where["http"].rpartition(":")
        self.http = (host, int(port))

    async def push(self, n: int) -> None:
        async with await Client.to(self.http) as client:
            for number in range(n):
                answer = await client.post("/v1/queues/q/jobs", {"payload": number})
                assert answer.status == 201

    async def metric(self, name: str) -> dict[str, float]:
        """By queue, or else by tenant."""
        async with await Client.to(self.http) as client:
            text = (await client.get("/metrics")).body.decode()
        return {
            sample.labels.get("queue") or sample.labels.get("tenant", ""): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    async def becomes(self, name: str, value: dict[str, float]) -> None:
        while await self.metric(name) != value:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.01)

    async def metrics(self) -> Any:
        async with await Client.to(self.http) as client:
            return (await client.post("/v1/command", {"cmd": "METRICS"})).json["metrics"]

    async def kill(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


@asynccontextmanager
async def serving(url: str, log: Path) -> AsyncIterator[Up]:
    ports = ("--port", "0", "--http-port", "0", "--json", "--log-format", "json")
    with (
        log.open("w") as errors,
        subprocess.Popen(  # noqa: ASYNC220 - asyncio's own would leave threads behind
            [sys.executable, "-c", PROGRAM, "serve", "--url", url, *ports],
            cwd=log.parent,
            env=environment(PENSTOCK_SHUTDOWN_S="0"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield Up(process, json.loads(await asyncio.to_thread(process.stdout.readline)))
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


def logged(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_server_that_cannot_keep_its_event_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever owns the path would write it, and was not told to."""

    async def case() -> None:
        url, events = f"sqlite:///{tmp_path}/jobs.db", str(tmp_path / "events")
        owner = await open_store(url)
        settings = Settings(url=url, port=0, http_port=0, events=events)
        server = await Server.open(settings)
        (said,) = [each for each in caplog.messages if "event log" in each]
        assert said.startswith(f"the event log {events} is not written")
        await server.stop(0)
        await owner.close()
        caplog.clear()
        server = await Server.open(settings)
        assert not any("event log" in each for each in caplog.messages), "it is ours"
        await server.stop(0)

    play(case)


@pytest.mark.parametrize("through", ["the path", "its server"])
def test_what_happens_in_another_process_is_counted_and_logged(
    through: str, tmp_path: Path
) -> None:
    async def case() -> None:
        path = f"sqlite:///{tmp_path}/jobs.db"
        async with serving(path, tmp_path / "owner.log") as owner:
            url = path if through == "the path" else owner.url
            async with serving(url, tmp_path / "here.log") as here:
                assert await owner.metric("penstock_store_owned") == {"": 1}
                assert await here.metric("penstock_store_owned") == {"": 0}
                await here.push(5)
                await here.becomes("penstock_jobs_pushed_total", {"q": 5})
                await owner.push(3)
                await here.becomes("penstock_jobs_pushed_total", {"q": 8})
                assert await owner.metric("penstock_jobs_pushed_total") == {"q": 8}
                assert (await here.metrics())["total_pushed"] == 8
                assert await here.metric("penstock_watch_gaps_total") == {"default": 0}

    play(case)
    lines = logged(tmp_path / "here.log")
    assert sum(line["jobs"] for line in lines if line.get("event") == "pushed") == 8
    assert sum(IN_THE_LOG in line.get("message", "") for line in lines) == 1
    assert not any(IN_THE_LOG in line.get("message", "") for line in logged(tmp_path / "owner.log"))


def test_a_server_that_inherits_the_path_goes_on_counting_and_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    async def case() -> None:
        path = f"sqlite:///{tmp_path}/jobs.db"
        async with (
            serving(path, tmp_path / "owner.log") as owner,
            serving(path, tmp_path / "here.log") as here,
        ):
            await owner.push(3)
            await here.push(5)
            await here.becomes("penstock_jobs_pushed_total", {"q": 8})
            await owner.kill()
            await here.push(7)
            assert await here.metric("penstock_store_owned") == {"": 1}
            assert await here.metric("penstock_jobs_pushed_total") == {"q": 15}
            await here.push(5)
            while OURS_NOW not in (tmp_path / "here.log").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until then a watch could still tell what we know
            assert await here.metric("penstock_jobs_pushed_total") == {"q": 20}
            assert await here.metric("penstock_watch_gaps_total") == {"default": 1}

    play(case)


def test_the_history_has_what_was_watched() -> None:
    async def case() -> None:
        with scratch() as directory:
            url = f"sqlite:///{directory}/jobs"
            owner = await open_store(url)
            server = await Server.open(Settings(url=url, port=0, http_port=0))
            await server.start()
            await server.parts.gate.push_jobs("default", "q", [JobSpec()] * 5)
            while server.parts.figures("default").pushed < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            server._telemetry.meter.sample()
            assert [point.pushed for point in server.parts.history("default")] == [5]
            await server.stop(0)
            assert asyncio.all_tasks() - {asyncio.current_task()} == tasks_of(owner)
            await owner.close()

    play(case)


def tasks_of(owner: Any) -> set["asyncio.Task[Any]"]:
    assert owner.owned
    return {owner._tenure._task}
