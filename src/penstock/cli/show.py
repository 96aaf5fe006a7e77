"""What people are shown: tables, ages, counts, states in colour.

Text of jobs is other people's: nothing in it is markup, and no control character of it reaches a
terminal. Where the output is no terminal there is no colour, and no line is cut or wrapped.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from errno import EPIPE
from os import strerror
from time import time
from typing import Any, Final, TextIO

from msgspec import Raw, UnsetType
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.model.lifecycle import State
from penstock.model.policy import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

PIPED_WIDTH: Final = 100_000  # columns of what is no terminal: as many as it takes
BRIEF: Final = 60  # characters of a payload or a message in a table
NOTHING: Final = "-"

STYLES: Final[dict[State, str]] = {
    State.HELD: "dim",
    State.BLOCKED: "yellow",
    State.SCHEDULED: "cyan",
    State.READY: "blue",
    State.ACTIVE: "bold green",
    State.COMPLETED: "green",
    State.DEAD: "bold red",
    State.CANCELLED: "magenta",
    State.EXPIRED: "magenta",
}
_AGES: Final = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "m"), (SECOND_MS, "s"))


class _Heard(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read us has had enough. Rich would end the process here, with an error."""
        raise BrokenPipeError(EPIPE, strerror(EPIPE))


def console_for(file: TextIO) -> Console:
    width = None if file.isatty() else PIPED_WIDTH
    return _Heard(file=file, width=width, markup=False, highlight=False, emoji=False)


def now_ms() -> int:
    return int(time() * 1_000)


# -- words -----------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Without anything that a terminal would obey."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text
    )


def brief(text: str, width: int = BRIEF) -> str:
    """One line of it."""
    line = " ".join(plain(text[: 4 * width]).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def span(ms: int) -> str:
    """A duration in its largest unit: 3m."""
    return next((f"{ms // size}{unit}" for size, unit in _AGES if ms >= size), f"{ms}ms")


def when(at: int | None, now: int) -> str:
    """An instant as seen from now: 3m ago, in 2h."""
    if not at:
        return NOTHING
    if abs(now - at) < SECOND_MS:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def clock(at: int) -> str:
    """An instant as the local clock shows it."""
    return f"{datetime.fromtimestamp(at / 1_000, UTC).astimezone():%Y-%m-%d %H:%M:%S %z}"


def state_text(state: State) -> Text:
    return Text(state.value, style=STYLES[state])


def many(count: int, word: str) -> str:
    """`1 job`, `1,000 jobs`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def value_text(value: Raw | UnsetType, encoded: bytes | UnsetType) -> str:
    """A payload or a result, as the HTTP shapes have it: a JSON value, or bytes."""
    if isinstance(value, Raw):
        return bytes(value).decode("utf-8", "replace")
    return repr(encoded) if isinstance(encoded, bytes) else NOTHING


# -- tables ----------------------------------------------------------------------------------------


class Rows(Table):
    """A table whose columns that are marked to give way do so, before ids and names are cut."""

    def add_row(self, *cells: RenderableType | None, **said: Any) -> None:
        shown = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        for cell in shown:
            if isinstance(cell, Text):
                cell.no_wrap, cell.overflow = True, "ellipsis"
        super().add_row(*shown, **said)


def table(*columns: str) -> Rows:
    """Columns by their heads: `>` aligns to the right, `~` gives way where the screen is narrow."""
    made = Rows(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.lstrip(">~"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.startswith("~"),
            overflow="ellipsis",
        )
    return made


def facts(pairs: Sequence[tuple[str | Text, str | Text]]) -> Table:
    """Names and what they are, one per line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made
