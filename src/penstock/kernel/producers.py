"""Idempotent producers: the last answers of each, so that a repeated push adds nothing.

Nearly every producer numbers its pushes one by one and is answered with one range of ids each time.
Those answers lie in packed columns, in a row: every push by a connection leaves one here, and a
thousand small objects that come and go would cost it more than the push does. Whatever does not go
on where the row ends (a number left out, a late one, an answer that names ids) is kept by itself.
"""

from array import array
from bisect import insort
from typing import Final

import msgspec

from penstock.model.answers import Pushed, PushedRun
from penstock.model.errors import Conflict, Invalid

DIGEST: Final = 16  # bytes of a content
SLACK: Final = 512  # forgotten answers that may lie before the row until it is moved


class Answer(msgspec.Struct, frozen=True, gc=False):
    content: bytes  # a digest of what was pushed
    pushed: Pushed


class Remembered(msgspec.Struct):
    """A producer as a record has it."""

    used_at: int
    answers: dict[int, Answer] = {}
    order: list[int] = []  # the remembered sequences, ascending
    dropped: int = -1


class Producer:
    __slots__ = (
        "_apart",
        "_begin",
        "_contents",
        "_counts",
        "_firsts",
        "_order",
        "dropped",
        "next",
        "used_at",
    )

    def __init__(self, used_at: int) -> None:
        self.used_at = used_at  # wall clock; forgotten a day after
        self.dropped = -1  # the highest sequence that is no longer remembered
        self.next = 0  # above every sequence so far
        # The row: answers to consecutive sequences, the last of them to `next` - 1.
        self._begin = 0  # how many at the front of the columns are forgotten
        self._firsts = array("Q")
        self._counts = array("I")
        self._contents = bytearray()
        # Those apart from it, all to lower sequences.
        self._apart: dict[int, Answer] = {}
        self._order: list[int] = []  # their sequences, ascending

    def __len__(self) -> int:
        return len(self._firsts) - self._begin + len(self._order)

    def recall(self, sequence: int, content: bytes) -> Pushed | None:
        """The answer given before, or None if this sequence is new."""
        answer = self._answer(sequence)
        if answer is None:
            if sequence <= self.dropped:
                raise Conflict(
                    f"sequence {sequence} is older than the answers remembered "
                    f"(those above {self.dropped} are)",
                    "sequence",
                )
            return None
        if answer.content != content:
            raise Invalid(f"sequence {sequence} was used for another push", "sequence")
        return answer.pushed

    def _answer(self, sequence: int) -> Answer | None:
        if sequence >= self.next:
            return None
        at = sequence - self.next + len(self._firsts)
        return self._apart.get(sequence) if at < self._begin else self._in_row(at)

    def _in_row(self, at: int) -> Answer:
        content = bytes(self._contents[at * DIGEST : (at + 1) * DIGEST])
        return Answer(content, Pushed((PushedRun(self._firsts[at], self._counts[at]),)))

    def remember(self, sequence: int, content: bytes, pushed: Pushed, most: int) -> None:
        """Keep the answer to a new sequence, and no more than `most` answers: the highest."""
        runs = pushed.runs
        run = runs[0]
        if run.ids is None and len(runs) == 1 and len(content) == DIGEST:
            if sequence != self.next:
                if sequence < self.next:
                    self._set_apart(sequence, Answer(content, pushed))
                    self._forget(most)
                    return
                self._end_row()
            self.next = sequence + 1
            firsts = self._firsts
            firsts.append(run.first)
            self._counts.append(run.count)
            self._contents += content
            if len(firsts) <= most and not self._order:
                return
        else:
            if sequence >= self.next:
                self._end_row()
                self.next = sequence + 1
            self._set_apart(sequence, Answer(content, pushed))
        if len(self._firsts) - self._begin + len(self._order) > most:
            self._forget(most)

    def _set_apart(self, sequence: int, answer: Answer) -> None:
        self._apart[sequence] = answer
        insort(self._order, sequence)

    def _end_row(self) -> None:
        """The next answer does not go on where the row ends: there will be another row."""
        size = len(self._firsts)
        for at in range(self._begin, size):
            self._apart[self.next - size + at] = self._in_row(at)
        self._order.extend(range(self.next - size + self._begin, self.next))
        self._cut(size)

    def _cut(self, count: int) -> None:
        del self._firsts[:count], self._counts[:count], self._contents[: count * DIGEST]
        self._begin = 0

    def _forget(self, most: int) -> None:
        while len(self) > most:
            if self._order:
                sequence = self._order.pop(0)
                del self._apart[sequence]
            else:
                sequence = self.next - len(self._firsts) + self._begin
                self._begin += 1
                if self._begin > SLACK:
                    self._cut(self._begin)
            self.dropped = max(self.dropped, sequence)

    # -- as a record -----------------------------------------------------------------------------

    def record(self) -> Remembered:
        size = len(self._firsts)
        in_row = {self.next - size + at: self._in_row(at) for at in range(self._begin, size)}
        order = self._order + list(in_row)
        answers = {sequence: self._apart[sequence] for sequence in self._order} | in_row
        return Remembered(self.used_at, answers, order, self.dropped)

    @classmethod
    def of(cls, record: Remembered) -> "Producer":
        producer = cls(record.used_at)
        for sequence in record.order:
            answer = record.answers[sequence]
            producer.remember(sequence, answer.content, answer.pushed, len(record.order))
        producer.dropped = record.dropped
        producer.next = max(producer.next, record.dropped + 1)
        return producer
