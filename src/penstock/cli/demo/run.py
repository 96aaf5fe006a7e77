"""The demo from its first process to its last line."""

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Final

from rich.console import Console

from penstock.cli.demo import processes
from penstock.cli.demo.load import Load, push_all
from penstock.cli.demo.pipeline import tables
from penstock.cli.demo.show import Screen, summary
from penstock.cli.demo.tally import Tally
from penstock.model.answers import QueueInfo
from penstock.model.errors import Overloaded
from penstock.model.event import EventKind
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.open import open_store

TENANT: Final = "default"
LOOK_S: Final = 0.2
LIMIT_S: Final = 100.0  # a demo that takes longer than this is broken, and says so
UNFINISHED: Final = (State.BLOCKED, State.SCHEDULED, State.READY, State.ACTIVE)
ALWAYS: Final = "cron"  # a queue that is never done
HEARD: Final[tuple[EventKind, ...]] = ("pushed", "claimed", "completed", "retried", "dead")
# Handlers that wait share a loop; those that compute, or crash, have processes of their own.
WAITING: Final = ("-q", "cron:4,payments:2,etl:2,emails:1,images:1", "-c", "200", "--name", "loop")
COMPUTING: Final = ("-q", "reports,imports", "--pool", "process", "-c", "2", "--name", "processes")


def demo(scale: float = 1.0, out: Path | None = None) -> int:
    """Answers the exit code: 0 if everything ended as it should. `out`: where the report goes."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        directory = Path(name)
        code = asyncio.run(_demo(directory, Load.of(scale), console))
        if code == 0 and out is not None:
            tables(console, directory, out)
    return code


async def _demo(directory: Path, load: Load, console: Console) -> int:
    with processes.server(directory) as says:
        url = f"penstock://{says['tcp']}"
        store = await open_store(url)
        tally = Tally()
        listening = asyncio.create_task(_listen(store, tally))
        try:
            with (
                Screen(console, says, load) as screen,
                processes.worker(directory, url, *WAITING),
                processes.worker(directory, url, *COMPUTING),
            ):
                began = perf_counter()
                pushed = asyncio.Event()
                watching = asyncio.create_task(_watch(store, screen, tally, pushed))
                await push_all(url, load, screen.pushed)
                pushed_s = perf_counter() - began
                pushed.set()
                async with asyncio.timeout(LIMIT_S):
                    infos = await watching
                seconds = perf_counter() - began
            await summary(console, store, TENANT, infos, tally, load.jobs, pushed_s, seconds)
            return 0
        except TimeoutError:
            console.print(f"not done after {LIMIT_S:.0f}s:\n{processes.tail(directory)}")
            return 1
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await store.close()


async def _listen(store: Store, tally: Tally) -> None:
    """Whoever listens too slowly is let go, and begins again with a gap."""
    while True:
        try:
            async for event in store.watch(TENANT, kinds=HEARD):
                tally.hear(event)
        except Overloaded:
            tally.whole = False


async def _watch(
    store: Store, screen: Screen, tally: Tally, pushed: asyncio.Event
) -> list[QueueInfo]:
    """Show how far it is until everything that was pushed has ended; then how the queues are."""
    while True:
        over = pushed.is_set()
        infos = await store.queues(TENANT)
        left = sum(
            info.counts[state] for info in infos for state in UNFINISHED if info.queue != ALWAYS
        )
        screen.update(infos, tally, left)
        if over and not left:
            return infos
        await asyncio.sleep(LOOK_S)
