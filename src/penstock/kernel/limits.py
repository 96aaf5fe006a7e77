"""Rate limits as GCRA in exact integers.

A meter remembers the theoretical arrival instant of the next job. To stay exact for any number of
tokens, instants are in microseconds *times tokens*, so the gap between two jobs is the period.
"""

from penstock.model.policy import Rate


class Meter:
    """How much of a rate has been used."""

    __slots__ = ("arrival", "rate")

    def __init__(self, rate: Rate, arrival: int = 0) -> None:
        self.rate = rate
        self.arrival = arrival  # microseconds × tokens

    def _parts(self, elapsed: int) -> tuple[int, int, int]:
        rate = self.rate
        return elapsed * 1000 * rate.tokens, rate.per_ms * 1000, rate.burst or rate.tokens

    def room(self, elapsed: int) -> int:
        """How many jobs may pass at this instant."""
        now, gap, burst = self._parts(elapsed)
        return max(0, (now + burst * gap - max(self.arrival, now)) // gap)

    def take(self, elapsed: int, n: int) -> None:
        now, gap, _ = self._parts(elapsed)
        self.arrival = max(self.arrival, now) + n * gap

    def next_at(self, elapsed: int, before: int = 0) -> int:
        """The first instant (elapsed, ms) at which a job may pass, behind so many others."""
        now, gap, burst = self._parts(elapsed)
        wait = max(self.arrival, now) + (before + 1 - burst) * gap - now
        if wait <= 0:
            return elapsed
        per_ms = 1000 * self.rate.tokens
        return elapsed + -(-wait // per_ms)

    def ahead(self) -> "Meter":
        """One to look ahead with, which takes nothing from this one.

        Commands come at whole milliseconds. Without a burst a job passes at the first of them behind
        its gap, and the next gap begins there: 300 a second are one every 4 ms. So it is with a burst
        that is spent within a millisecond; there, what is foreseen is only never too late.
        """
        rate = self.rate
        if (rate.burst or rate.tokens) > 1:
            return Meter(rate, self.arrival)
        apart = Rate(tokens=1, per_ms=-(-rate.per_ms // rate.tokens), burst=1)
        return Meter(apart, self.idle_at() * 1000)

    def pass_until(self, since: int, until: int, n: int) -> int:
        """Of n jobs that wait since an instant, those that pass until another, each as soon as it
        may. Answers how many."""
        begun, gap, burst = self._parts(since)
        begun = max(self.arrival, begun)
        end, _, _ = self._parts(until)
        passed = min(n, max((end - begun) // gap + burst, 0))
        if passed:
            self.arrival = begun + passed * gap
        return passed

    def idle_at(self) -> int:
        """The first instant (elapsed, ms) from which it is idle."""
        return -(-self.arrival // (1000 * self.rate.tokens))

    def idle(self, elapsed: int) -> bool:
        """Whether this meter remembers nothing that a new one would not."""
        return self.arrival <= elapsed * 1000 * self.rate.tokens
