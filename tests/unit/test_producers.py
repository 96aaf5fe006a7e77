"""What is remembered of a producer is the same however it lies in memory, and after a restart."""

import random

import msgspec
import pytest

from penstock.kernel.producers import SLACK, Producer, Remembered
from penstock.model.answers import Pushed, PushedRun
from penstock.model.errors import Conflict, Invalid

MOST = 24
KEYED = PushedRun(7, 1, ids=(7, 3), outcomes=b"\x00\x02")


class Naive:
    """Every answer by its sequence, and the highest so many of them."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[bytes, Pushed]] = {}
        self.dropped = -1

    def recall(self, sequence: int, content: bytes) -> Pushed | None:
        if sequence not in self.answers:
            if sequence <= self.dropped:
                raise Conflict("forgotten", "sequence")
            return None
        known, pushed = self.answers[sequence]
        if known != content:
            raise Invalid("another", "sequence")
        return pushed

    def remember(self, sequence: int, content: bytes, pushed: Pushed, most: int) -> None:
        self.answers[sequence] = (content, pushed)
        while len(self.answers) > most:
            oldest = min(self.answers)
            del self.answers[oldest]
            self.dropped = max(self.dropped, oldest)


def recalled(known: Producer | Naive, sequence: int, content: bytes) -> object:
    try:
        return known.recall(sequence, content)
    except (Conflict, Invalid) as error:
        return type(error)


def read_back(producer: Producer) -> Producer:
    record = producer.record()
    assert record.order == sorted(record.answers)
    written = msgspec.msgpack.encode(record)
    again = Producer.of(msgspec.msgpack.decode(written, type=Remembered))
    assert msgspec.msgpack.encode(again.record()) == written
    return again


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_sequences_is_remembered_as_by_a_dict(seed: int) -> None:
    chance = random.Random(seed)
    orderly = chance.random()  # how often the next sequence is the one behind the last
    producer, naive = Producer(0), Naive()
    last = 0
    for step in range(400):
        if chance.random() < orderly:
            sequence = last + 1
        else:
            sequence = max(0, last + chance.randint(-MOST - 5, 5))
        content = bytes([chance.randrange(3)]) * (16 if chance.random() < 0.95 else 3)
        answers = [recalled(known, sequence, content) for known in (producer, naive)]
        assert answers[0] == answers[1]
        if answers[0] is None:
            run = KEYED if chance.random() < 0.1 else PushedRun(step + 1, chance.randint(1, 9))
            pushed = Pushed((run,) if chance.random() < 0.9 else (run, run))
            for known in (producer, naive):
                known.remember(sequence, content, pushed, MOST)
            last = max(last, sequence)
        assert len(producer) == len(naive.answers)
        assert producer.dropped == naive.dropped
        if chance.random() < 0.05:
            producer = read_back(producer)


def test_a_long_row_takes_no_more_room_than_it_has_answers() -> None:
    producer = Producer(0)
    for sequence in range(10_000):
        producer.remember(sequence, bytes(16), Pushed((PushedRun(sequence + 1, 1),)), 1_024)
    assert len(producer) == 1_024
    assert len(producer._firsts) <= 1_024 + SLACK + 1
    assert producer.recall(9_999, bytes(16)) == Pushed((PushedRun(10_000, 1),))
    with pytest.raises(Conflict):
        producer.recall(9_999 - 1_024, bytes(16))


def test_who_may_keep_nothing_forgets_at_once() -> None:
    producer = Producer(0)
    producer.remember(5, bytes(16), Pushed((PushedRun(1, 1),)), 0)
    for known in (producer, read_back(producer)):
        with pytest.raises(Conflict):
            known.recall(5, bytes(16))
        assert known.recall(6, bytes(16)) is None
