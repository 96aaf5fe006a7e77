"""Rules as values, and pure functions of time over them: backoff, limits, bounds, retention.

Everything here is an integer: no floats, no clock, no randomness. Jitter is a fixed hash of
(store seed, job id, attempt), so that a replay decides exactly as the original did.
"""

from typing import Final, Literal

import msgspec

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

MAX_DURATION_MS: Final = 100 * 366 * DAY_MS  # a century: longer is a mistake, not a wish

LEASE_MS: Final = 30 * SECOND_MS
MIN_LEASE_MS: Final = 50
MAX_LEASE_MS: Final = DAY_MS

BackoffKind = Literal["none", "fixed", "linear", "exponential", "list"]
Jitter = Literal["none", "full", "equal"]
OnConflict = Literal["return", "match", "replace", "reject"]
KeepKey = Literal["live", "started", "retained"] | int  # an int is a duration in ms from the push


class Backoff(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How long a failed attempt waits for the next one."""

    kind: BackoffKind = "exponential"
    base_ms: int = SECOND_MS
    cap_ms: int = 15 * MINUTE_MS
    jitter: Jitter = "full"
    list_ms: tuple[int, ...] = ()  # for kind "list": the waits in order, the last one repeats


def backoff_ms(backoff: Backoff, failures: int, seed: int, job_id: int) -> int:
    """The wait after the `failures`-th failure (1 = the first retry waits 1×base)."""
    kind = backoff.kind
    if kind == "none":
        return 0
    if kind == "fixed":
        wait = backoff.base_ms
    elif kind == "linear":
        wait = backoff.base_ms * failures
    elif kind == "exponential":
        # Past 2^40 any base is over any cap; the shift stays small for jobs that retry forever.
        wait = backoff.base_ms << min(failures - 1, 40)
    else:
        wait = backoff.list_ms[min(failures, len(backoff.list_ms)) - 1]
    wait = min(wait, backoff.cap_ms)
    if backoff.jitter == "none" or wait == 0:
        return wait
    draw = mix(seed, job_id, failures)
    if backoff.jitter == "full":
        return draw % (wait + 1)
    half = wait // 2
    return half + draw % (wait - half + 1)


def mix(seed: int, job_id: int, attempt: int) -> int:
    """A well-spread 64-bit number from three integers (SplitMix64's finaliser, applied twice)."""
    word = (seed ^ (job_id * 0x9E3779B97F4A7C15) ^ (attempt * 0xD1B54A32D192ED03)) & _WORD
    for _ in range(2):
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
        word ^= word >> 31
    return word


_WORD: Final = (1 << 64) - 1


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `tokens` per `per_ms`, with at most `burst` at one instant (default: `tokens`)."""

    tokens: int
    per_ms: int = SECOND_MS
    burst: int = 0  # 0 stands for `tokens`


class Limits(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What claims may take from a queue, across all workers. None = without limit."""

    rate: Rate | None = None
    concurrency: int | None = None
    group_rate: Rate | None = None
    group_concurrency: int = 1


class Bounds(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What pushes may put into a queue or a tenant. Counts the jobs that have not ended."""

    jobs: int | None = None
    bytes: int | None = None
    push_rate: Rate | None = None


class QueueConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Everything an operator may set on a queue."""

    paused: bool = False
    limits: Limits = Limits()
    bounds: Bounds = Bounds()
    retain_ms: int = HOUR_MS  # completed, cancelled and expired jobs
    retain_count: int = 10_000  # …together; jobs with an explicit `retain_ms` are exempt
    retain_dead_ms: int = 30 * DAY_MS


DEFAULT_CONFIG: Final = QueueConfig()


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The largest size of each collection that would otherwise grow without bound (per store)."""

    queues: int = 100_000
    kept_keys: int = 10_000_000  # keys that outlive their job
    producers: int = 100_000
    bulks: int = 10_000  # open at once
    bulk_names: int = 1_000_000  # of finished ones, remembered for a week
    crons: int = 100_000
    waiters: int = 100_000
    subscribers: int = 10_000
    logs_per_job: int = 100
    errors_per_job: int = 10
    answers_per_producer: int = 1_024


DEFAULT_CAPS: Final = Caps()

PRODUCER_IDLE_MS: Final = DAY_MS  # a producer's answers are kept this long after its last push
BULK_DEADLINE_MS: Final = HOUR_MS
BULK_MEMORY_MS: Final = 7 * DAY_MS  # how long the names of finished bulks are remembered
