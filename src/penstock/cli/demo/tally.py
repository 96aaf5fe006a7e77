"""What the demo saw happen: counted from the store's events, as any dashboard would."""

from collections import Counter, defaultdict
from itertools import accumulate

from penstock.model.event import Event


class Tally:
    """Jobs by queue and kind of event, and how long they waited and ran.

    An event speaks of a range of jobs with the same times, so ten thousand of them cost one addition.
    """

    def __init__(self) -> None:
        self.kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by queue
        self.wait_ms: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.run_ms: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.events = 0
        self.whole = True  # nothing was missed

    def hear(self, event: Event) -> None:
        jobs = len(event.ids)
        self.events += 1
        self.kinds[event.queue][event.kind] += jobs
        if event.kind == "claimed" and event.ready_at:
            self.wait_ms[event.queue][max(event.at - event.ready_at, 0)] += jobs
        elif event.kind == "completed" and event.claimed_at:
            self.run_ms[event.queue][max(event.at - event.claimed_at, 0)] += jobs

    def total(self, kind: str) -> int:
        return sum(kinds[kind] for kinds in self.kinds.values())


def percentile(counts: Counter[int], share: float) -> int | None:
    """The value that this share of all the counted ones does not exceed."""
    total = counts.total()
    if not total:
        return None
    values = sorted(counts)
    seen = accumulate(counts[value] for value in values)
    return next(
        value for value, so_far in zip(values, seen, strict=True) if so_far >= share * total
    )
