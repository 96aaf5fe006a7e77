"""How long a failed attempt waits, said in words: `exponential("1s", cap="10m")`."""

from typing import get_args

from penstock.model.checks_push import MAX_BACKOFF_STEPS
from penstock.model.checks_values import check_one_of
from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Invalid
from penstock.model.policy import Backoff, Jitter


def exponential(
    base: Duration = "1s", *, cap: Duration = "15m", jitter: Jitter = "full"
) -> Backoff:
    """1×, 2×, 4× … the base, up to `cap`."""
    return _backoff("exponential", base, cap, jitter)


def linear(base: Duration, *, cap: Duration = "15m", jitter: Jitter = "full") -> Backoff:
    """1×, 2×, 3× … the base, up to `cap`."""
    return _backoff("linear", base, cap, jitter)


def fixed(wait: Duration, *, jitter: Jitter = "none") -> Backoff:
    """Always the same."""
    return _backoff("fixed", wait, wait, jitter)


def waits(*after: Duration, jitter: Jitter = "none") -> Backoff:
    """These, in order; the last one repeats."""
    each = tuple(duration_ms(wait, "after") for wait in after)
    if not each:
        raise Invalid('needs at least one wait: waits("1s", "1m")', "after")
    if len(each) > MAX_BACKOFF_STEPS:
        raise Invalid(f"are {len(each)} waits; at most {MAX_BACKOFF_STEPS} are allowed", "after")
    check_one_of(jitter, "jitter", get_args(Jitter))
    return Backoff(kind="list", list_ms=each, cap_ms=max(each), jitter=jitter)


def at_once() -> Backoff:
    """Try again without a wait."""
    return Backoff(kind="none")


def _backoff(kind: str, base: Duration, cap: Duration, jitter: Jitter) -> Backoff:
    check_one_of(jitter, "jitter", get_args(Jitter))
    return Backoff(
        kind=kind,  # type: ignore[arg-type]
        base_ms=duration_ms(base, "base"),
        cap_ms=duration_ms(cap, "cap"),
        jitter=jitter,
    )
