"""Operations put together from the lines of a log, in their order.

An operation whose answer stands above another's question happened before it; all others may have
happened in either order. Line numbers are that order; clocks serve only to tell how long a lease
or a delay lasts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tests.history import record as r

NEVER: Final = 2**62  # a line that no history has, an instant that does not come


class Operation(msgspec.Struct, eq=False):
    """One call: what was asked, what came back, and when."""

    call: Any  # one of record.Call
    run: str
    op: int
    asked: int  # line
    asked_now: int
    asked_at: int
    status: Literal["ok", "failed", "unknown"] = "unknown"
    answer: Any = None  # one of record.Answer, if ok
    code: str = ""  # if failed
    told: int = NEVER  # line of the answer
    told_now: int = NEVER
    told_at: int = NEVER

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def maybe(self) -> bool:
        """It happened, or may have."""
        return self.status != "failed"

    def before(self, other: "Operation") -> bool:
        return self.told < other.asked

    def __str__(self) -> str:
        asked = msgspec.json.encode(self.call).decode()
        answer = msgspec.json.encode(self.answer).decode() if self.ok else self.code or "?"
        return f"line {self.asked}: {asked} -> {answer}"

    __repr__ = __str__


class History:
    """The operations of a log, in the order of their questions."""

    def __init__(self, lines: Sequence[r.Line]) -> None:
        self.operations: list[Operation] = []
        self.opened: list[int] = []
        self._clock = list(accumulate((line.at for line in lines), max))
        open_: dict[tuple[str, int], Operation] = {}
        for number, line in enumerate(lines):
            if isinstance(line, r.Opened):
                self.opened.append(number)
            elif isinstance(line, r.Invoked):
                operation = Operation(line.call, line.run, line.op, number, line.now, line.at)
                open_[line.run, line.op] = operation
                self.operations.append(operation)
            else:
                _answer(open_[line.run, line.op], line, number)

    @classmethod
    def read(cls, path: Path | str) -> "History":
        return cls(r.read_lines(path))

    def ids(self) -> set[int]:
        """Every id that an answered push has given."""
        return {
            job_id
            for operation in self.operations
            if operation.ok and isinstance(operation.answer, r.Made)
            for run in operation.answer.runs
            for first, count, _ in run
            for job_id in range(first, first + count)
        }

    def line_at(self, elapsed: int) -> int:
        """The first line that was written at this instant or later."""
        return bisect_left(self._clock, elapsed)

    def next_opened(self, line: int) -> int:
        """The next line at which somebody opened the store."""
        index = bisect_right(self.opened, line)
        return self.opened[index] if index < len(self.opened) else NEVER

    def forgiving(self, after: int) -> "History":
        """The same history if what was answered from that instant (elapsed) on, until the store was
        next opened, may have been lost: those answers count as never given."""
        first = self.line_at(after)
        until = self.next_opened(first)
        copy = History(())
        copy.opened, copy._clock = self.opened, self._clock
        copy.operations = [
            _unanswered(operation)
            if operation.ok and first <= operation.told < until
            else operation
            for operation in self.operations
        ]
        return copy


def _answer(operation: Operation, line: r.Line, number: int) -> None:
    if isinstance(line, r.Answered):
        operation.status, operation.answer = "ok", line.answer
    elif isinstance(line, r.Refused):
        operation.status, operation.code = "failed", line.code
    else:
        return  # unknown: it may happen yet
    operation.told, operation.told_now, operation.told_at = number, line.now, line.at


def _unanswered(operation: Operation) -> Operation:
    """As if its answer had not come. Which jobs it was about is kept: the claim that could have told
    may be forgiven, too."""
    call = operation.call
    if isinstance(call, r.Ack | r.Release):
        call = msgspec.structs.replace(call, ids=operation.answer.ids)
    elif isinstance(call, r.Fail):
        call = msgspec.structs.replace(call, ids=r.spans(job.id for job in operation.answer.jobs))
    return msgspec.structs.replace(
        operation,
        call=call,
        status="unknown",
        answer=None,
        told=NEVER,
        told_now=NEVER,
        told_at=NEVER,
    )
