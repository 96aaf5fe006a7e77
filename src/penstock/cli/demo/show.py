"""What the demo shows: queues while they are worked off, and what became of everything."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.cli.demo.load import Load
from penstock.cli.demo.tally import Tally, percentile
from penstock.model.answers import QueueInfo
from penstock.model.duration import about_ms
from penstock.model.lifecycle import State
from penstock.model.listing import page
from penstock.model.store import Store
from penstock.protocol.dead_groups import Grouping
from penstock.protocol.http_shown_queues import DeadGroup

SAYS = {
    "emails": "a mail relay, 1-5ms each",
    "images": "batch task, 1,000 a call",
    "reports": "computing in processes, high priority",
    "payments": "a flaky third party: retries, refusals",
    "etl": "flows: extract, four transforms, load",
    "cron": "every two seconds, once",
    "imports": "one file kills whatever reads it",
}
STATES = (State.READY, State.ACTIVE, State.SCHEDULED, State.BLOCKED, State.DEAD)


class Screen:
    """Live on a terminal; elsewhere a line at the beginning is enough."""

    def __init__(self, console: Console, says: Mapping[str, Any], load: Load) -> None:
        self._console = console
        self._load = load
        self._progress = Progress(
            TextColumn("{task.description:>6}"),
            BarColumn(bar_width=60),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._push = self._progress.add_task("pushed", total=load.jobs)
        self._done = self._progress.add_task("done", total=load.jobs)
        self._live = Live(self._progress, console=console, refresh_per_second=8, transient=True)
        self._says = says

    def __enter__(self) -> Self:
        self._console.print(
            f"penstock serve: SQLite with fsync, TCP {self._says['tcp']}, HTTP {self._says['http']};"
            f" two workers: one on a loop, one with processes. {self._load.jobs:,} jobs to do."
        )
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def pushed(self, jobs: int) -> None:
        self._progress.advance(self._push, jobs)

    def update(self, infos: Sequence[QueueInfo], tally: Tally, left: int) -> None:
        pushed = self._progress.tasks[self._push].completed
        self._progress.update(self._done, completed=max(pushed - left, 0))
        self._live.update(Group(_queues(infos, tally), self._progress))


def _queues(infos: Sequence[QueueInfo], tally: Tally) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("queue")
    for name in (*(state.value for state in STATES), "done", "retried"):
        table.add_column(name, justify="right")
    table.add_column("what it is", style="dim")
    for info in infos:
        kinds = tally.kinds[info.queue]
        counts = [f"{info.counts[state]:,}" for state in STATES]
        table.add_row(
            info.queue,
            *counts,
            f"{kinds['completed']:,}",
            f"{kinds['retried']:,}",
            SAYS.get(info.queue, ""),
        )
    return table


async def summary(
    console: Console,
    store: Store,
    tenant: str,
    infos: Sequence[QueueInfo],
    tally: Tally,
    jobs: int,
    pushed_s: float,
    seconds: float,
) -> None:
    table = Table(title="What became of it", title_justify="left")
    table.add_column("queue")
    for name in ("completed", "retried", "dead", "wait p50", "p99", "run p50", "p99"):
        table.add_column(name, justify="right")
    for info in infos:
        name, kinds = info.queue, tally.kinds[info.queue]
        times = [
            in_words(percentile(counts[name], share))
            for counts in (tally.wait_ms, tally.run_ms)
            for share in (0.5, 0.99)
        ]
        table.add_row(
            name,
            f"{kinds['completed']:,}",
            f"{kinds['retried']:,}",
            f"{info.counts[State.DEAD]:,}",
            *times,
        )
    console.print(table)
    console.print(
        f"{jobs:,} jobs ended in {about_ms(seconds * 1_000)}: {jobs / seconds:,.0f} a second, every push safe on"
        f" the disk before its answer ({jobs / pushed_s:,.0f} a second);"
        f" {tally.total('retried'):,} attempts tried again, told in {tally.events:,} events."
    )
    if not tally.whole:
        console.print(
            "This machine is busy: some events were missed, and the counts above are low."
        )
    await _dead(console, store, tenant, infos)


async def _dead(console: Console, store: Store, tenant: str, infos: Sequence[QueueInfo]) -> None:
    table = Table(title="Dead letters, by what they died of", title_justify="left")
    table.add_column("queue")
    table.add_column("jobs", justify="right")
    table.add_column("error")
    table.add_column("fingerprint", style="dim")
    for info in infos:
        grouping = Grouping()
        cursor: int | None = 0
        while info.counts[State.DEAD] and cursor is not None:
            jobs, cursor = await page(store, tenant, info.queue, cursor, 1_000, state=State.DEAD)
            grouping.add(jobs)
        for each in grouping.groups:
            table.add_row(info.queue, f"{each.count:,}", _error(each), each.fingerprint)
    console.print(table)


def _error(group: DeadGroup) -> str:
    return f"{group.kind}: {group.message}"[:90]


def in_words(value: int | None) -> str:
    return "-" if value is None else about_ms(value)
