"""A bar for work that takes long, on standard error, where somebody sees it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: float | None, *, in_bytes: bool = False) -> Iterator[Callable[[float], None]]:
    """Gives what is called with each bit that was done; `total` None: nobody knows how much."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn

    columns = (BarColumn(), *([DownloadColumn()] if in_bytes else []), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)
