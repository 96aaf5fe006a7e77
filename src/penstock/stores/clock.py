"""Where an embedded store gets its time from: the machine, or a test that moves it by hand."""

import os
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime_ns, time_ns
from typing import Protocol

Instant = tuple[int, int]  # now, elapsed


class Clock(Protocol):
    def now_ms(self) -> int:
        """The wall clock: may jump."""

    def elapsed_ms(self) -> int:
        """Time that passed, by a clock that never jumps."""

    def instant(self) -> Instant:
        """Both, as a command carries them."""

    def boot_id(self) -> str:
        """Names the stretch of time over which `elapsed_ms` goes on: until the next boot."""


class SystemClock:
    def now_ms(self) -> int:
        return time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        # The boot clock: goes on while the machine sleeps, so that leases do.
        return clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000

    def instant(self) -> Instant:
        # One call: who pushes to an idle worker waits for it.
        return time_ns() // 1_000_000, clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:  # a machine that does not say: every start counts as a boot
            return os.urandom(16).hex()


class SteadyClock:
    """The machine's clock, its elapsed time moved so that it suits a store's history."""

    def __init__(self, clock: Clock, boot: str, offset: int) -> None:
        self.clock = clock
        self.boot = boot
        self.offset = offset

    @classmethod
    def going_on(cls, clock: Clock, elapsed: int, boot: str, offset: int) -> "SteadyClock":
        """From where a history ended. Within one boot the time between two openings counts; across
        a boot it does not."""
        here = clock.elapsed_ms()
        present = clock.boot_id()
        if present != boot:
            offset = elapsed - here
        return cls(clock, present, max(offset, elapsed - here))

    @classmethod
    def behind(cls, clock: Clock, ms: int) -> "SteadyClock":
        """That clock without the last so many milliseconds, which its store does not count."""
        if isinstance(clock, SteadyClock):
            return cls(clock.clock, clock.boot, clock.offset - ms)
        return cls(clock, clock.boot_id(), -ms)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def elapsed_ms(self) -> int:
        return self.clock.elapsed_ms() + self.offset

    def instant(self) -> Instant:
        now, elapsed = self.clock.instant()
        return now, elapsed + self.offset

    def boot_id(self) -> str:
        return self.boot


class ManualClock:
    """Stands still until told."""

    def __init__(self, now: int = 1_700_000_000_000, elapsed: int = 1_000_000) -> None:
        self.now = now
        self.elapsed = elapsed
        self.boot = "manual"

    def now_ms(self) -> int:
        return self.now

    def elapsed_ms(self) -> int:
        return self.elapsed

    def instant(self) -> Instant:
        return self.now, self.elapsed

    def boot_id(self) -> str:
        return self.boot

    def advance(self, ms: int) -> None:
        """Time passes: both clocks go on."""
        self.now += ms
        self.elapsed += ms

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self.now += ms
