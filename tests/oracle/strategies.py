"""What the machine says: few names and few numbers, so that things meet.

Each history picks a few features, and its jobs use the options of these only; so each history goes
deep somewhere, instead of all of them staying shallow everywhere. A job is said as pairs of numbers
that pick an option and a value among those, which shrink to nothing said.
"""

from typing import Any, Final

from hypothesis import strategies as st

from penstock.model.job import JobSpec, KeyClaim, Run
from penstock.model.policy import Backoff, Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every

TENANTS: Final = ("acme", "zeta")
QUEUES: Final = ("a", "b")
KEYS: Final = ("k", "l")
CRONS: Final = ("nightly", "a_b%")
CONFIGS: Final = ("0" * 16, "f" * 16)

PAYLOADS: Final = (b"1", b'{"two":2}')
BACKOFFS: Final = (
    Backoff(kind="none"),
    Backoff(kind="fixed", base_ms=40, jitter="none"),
    Backoff(kind="linear", base_ms=30, cap_ms=70, jitter="none"),
    Backoff(kind="exponential", base_ms=20, cap_ms=100, jitter="none"),
    Backoff(kind="exponential", base_ms=64, cap_ms=1_000, jitter="full"),
    Backoff(kind="fixed", base_ms=90, jitter="equal"),
    Backoff(kind="list", list_ms=(10, 0, 60), jitter="none"),
)
ON_CONFLICT: Final = ("return", "replace", "match", "replace", "reject")
KEEP_KEY: Final = ("live", "started", "retained", 30, 250)

# `run_at` is relative to now here. `depends_on` holds places: below 0 in the same push, from 0 on
# among the jobs known, the newest first.
FEATURES: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "order": {"priority": (1, -1), "lifo": (True,)},
    "time": {"delay_ms": (20, 0, 100, 400), "run_at": (30, -50, 0, 150), "ttl_ms": (40, 120, 500)},
    "attempts": {
        "max_attempts": (1, 2, 0),
        "backoff": BACKOFFS,
        "timeout_ms": (60, 25, 200),
        "lease_ms": (50, 200, 60_000),
    },
    "keys": {"key": KEYS, "on_conflict": ON_CONFLICT, "keep_key": KEEP_KEY},
    "groups": {"group": ("g", "h", "i")},
    "flows": {
        "depends_on": ((0,), (-1,), (1, 2), (-2,), (-1, 0), (3,), (-3, -2), (5,)),
        "on_dependency_failure": ("ignore",),
    },
    "retention": {"retain_ms": (0, 60, 100_000), "retain_dead_ms": (0, 80)},
    "content": {"payload": PAYLOADS, "tags": (("tag",),), "headers": ({"trace": "1"},)},
}

features = st.lists(st.sampled_from(sorted(FEATURES)), min_size=1, max_size=4, unique=True)
picks = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 7)), max_size=5)
jobs = st.lists(picks, min_size=1, max_size=4)

place = st.integers(0, 15)
tenant = st.sampled_from(TENANTS[:1] * 6 + TENANTS[1:])
queue = st.sampled_from(QUEUES[:1] * 3 + QUEUES[1:])


def options_of(chosen: list[str], picked: list[tuple[int, int]]) -> dict[str, Any]:
    """The options that a list of picks means, given the history's features."""
    table = [pair for feature in chosen for pair in FEATURES[feature].items()]
    said: dict[str, Any] = {}
    for which, value in picked:
        name, values = table[which % len(table)]
        said[name] = values[value % len(values)]
    if "group" in said:
        said.pop("lifo", None)
    if "run_at" in said:
        said.pop("delay_ms", None)
    return said


def spec(said: dict[str, Any], *, now: int, named: tuple[int, ...]) -> JobSpec:
    """The job that these options mean now; `named` are its dependencies."""
    absolute = dict(said)
    if "run_at" in absolute:
        absolute["run_at"] += now
    if "depends_on" in absolute:
        absolute["depends_on"] = named
    return JobSpec(**absolute)


more_keys = st.lists(
    st.builds(
        KeyClaim, st.sampled_from(KEYS), st.sampled_from(ON_CONFLICT), st.sampled_from(KEEP_KEY)
    ),
    max_size=2,
    unique_by=lambda claim: claim.key,
).map(tuple)

rates = st.sampled_from(
    (
        None,
        Rate(tokens=2, per_ms=100),
        Rate(tokens=3, per_ms=90, burst=1),
        Rate(tokens=1, per_ms=70),
    )
)
limits = st.builds(
    Limits,
    rate=rates,
    concurrency=st.sampled_from((None, 1, 2)),
    group_rate=rates,
    group_concurrency=st.sampled_from((1, 2)),
)
configs = st.one_of(
    st.builds(QueueConfig, limits=limits),
    st.builds(
        QueueConfig,
        retain_ms=st.sampled_from((0, 70, 3_600_000)),
        retain_count=st.sampled_from((0, 1, 3)),
        retain_dead_ms=st.sampled_from((0, 90, 3_600_000)),
    ),
    st.builds(QueueConfig, paused=st.booleans()),
)
bounds = st.builds(
    Bounds,
    jobs=st.sampled_from((None, None, 5, 12)),
    bytes=st.sampled_from((None, None, 16)),
    push_rate=rates,
)
crons = st.builds(
    CronSpec,
    name=st.sampled_from(CRONS),
    queue=queue,
    schedule=st.sampled_from((Every(every_ms=600_000), Every(every_ms=100_000))),
    payload=st.sampled_from(PAYLOADS),
    overlap=st.sampled_from(("allow", "skip")),
    missed=st.sampled_from(("last", "all", "none")),
    limit=st.sampled_from((None, 2)),
)


def instants(queue: str, now: int, ahead: list[int], payload: bytes) -> Run:
    """A run as `put_instants` takes it; the steps round, so that the same instants come again."""
    at = [now // 50_000 * 50_000 + step * 50_000 for step in ahead]
    ends = [len(payload) * (n + 1) for n in range(len(at))]
    return Run(queue=queue, data=payload * len(at), ends=ends, run_at=at)
