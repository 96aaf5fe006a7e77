"""Where an embedded store gets its time from: the machine, or a test that moves it by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """The wall clock: may jump."""

    def elapsed_ms(self) -> int:
        """Time that passed, by a clock that never jumps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        # The boot clock: goes on while the machine sleeps, so that leases do.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class ManualClock:
    """Stands still until told."""

    def __init__(self, now: int = 1_700_000_000_000, elapsed: int = 1_000_000) -> None:
        self.now = now
        self.elapsed = elapsed

    def now_ms(self) -> int:
        return self.now

    def elapsed_ms(self) -> int:
        return self.elapsed

    def advance(self, ms: int) -> None:
        """Time passes: both clocks go on."""
        self.now += ms
        self.elapsed += ms

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self.now += ms
