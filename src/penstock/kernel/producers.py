"""Idempotent producers: the last answers of each, so that a repeated push adds nothing."""

from bisect import insort

import msgspec

from penstock.model.errors import Conflict, Invalid
from penstock.model.store import Pushed


class Answer(msgspec.Struct, frozen=True, gc=False):
    content: bytes  # a digest of what was pushed
    pushed: Pushed


class Producer(msgspec.Struct):
    used_at: int  # wall clock; forgotten a day after
    answers: dict[int, Answer] = {}
    order: list[int] = []  # the remembered sequences, ascending
    dropped: int = -1  # the highest sequence that is no longer remembered

    def recall(self, sequence: int, content: bytes) -> Pushed | None:
        """The answer given before, or None if this sequence is new."""
        answer = self.answers.get(sequence)
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

    def remember(self, sequence: int, content: bytes, pushed: Pushed, most: int) -> None:
        self.answers[sequence] = Answer(content, pushed)
        if not self.order or sequence > self.order[-1]:
            self.order.append(sequence)
        else:
            insort(self.order, sequence)
        while len(self.order) > most:
            oldest = self.order.pop(0)
            del self.answers[oldest]
            self.dropped = max(self.dropped, oldest)
