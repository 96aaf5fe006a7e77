"""Options: each reaches its job, each says what is wrong with it."""

import asyncio
from array import array
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Penstock, at_once, exponential, fixed, linear, waits
from penstock.client.options import OF_TASKS, Options, Plan, TaskOptions
from penstock.model.errors import Invalid
from penstock.model.job import Job, JobOptions
from penstock.model.policy import Backoff

SAID: dict[str, tuple[Any, str, Any]] = {
    # option: what is said, where the job has it, what it has
    "priority": ("high", "priority", 10),
    "max_attempts": (7, "options.max_attempts", 7),
    "backoff": (fixed("5s"), "options.backoff", fixed(5)),
    "timeout": ("30s", "options.timeout_ms", 30_000),
    "lease": (timedelta(minutes=2), "options.lease_ms", 120_000),
    "ttl": ("1h30m", "options.ttl_ms", 5_400_000),
    "key": ("k", "key", "k"),
    "on_conflict": ("reject", "options.on_conflict", "reject"),
    "keep_key": ("24h", "options.keep_key", 86_400_000),
    "group": ("g", "group", "g"),
    "on_dependency_failure": ("ignore", "options.on_dependency_failure", "ignore"),
    "lifo": (True, "options.lifo", True),
    "tags": (["a", "b"], "options.tags", ("a", "b")),
    "headers": ({"trace": "1"}, "headers", {"trace": "1"}),
    "retain": ("1d", "options.retain_ms", 86_400_000),
    "retain_dead": (0, "options.retain_dead_ms", 0),
    "codec": ("msgpack", "options.codec", "msgpack"),
    "queue": ("elsewhere", "queue", "elsewhere"),
}
ELSEWHERE = {"delay", "run_at", "depends_on", "durability"}  # each in a test of its own


def test_no_option_is_forgotten_here() -> None:
    assert SAID.keys() | ELSEWHERE == Options.__annotations__.keys()


def found(job: Job, path: str) -> Any:
    value: Any = job
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("option", SAID)
def test_an_option_reaches_the_job(app: Penstock, option: str) -> None:
    said, path, expected = SAID[option]

    def handler() -> None: ...

    options: Any = {option: said}
    of_the_task = app.task(**options, name="one")(handler)
    at_the_push = app.task(handler).options(**options)
    assert found(of_the_task.push().get(), path) == expected
    if option not in ("key", "on_conflict"):
        assert found(at_the_push.push().get(), path) == expected
    with Penstock("memory://", **options) as other:
        assert found(other.task(handler).push().get(), path) == expected


def test_delay_and_run_at(app: Penstock) -> None:
    @app.task(delay="5m")
    def later() -> None: ...

    job = later.push().get()
    assert job.run_at - job.created_at == 300_000
    at = datetime(2100, 1, 1, 0, 0, 0, 1_001, tzinfo=timezone(timedelta(hours=1)))
    assert later.options(run_at=at).push().get().run_at == 4_102_441_200_002  # never before it
    assert later.options(run_at=4_102_444_800_000).push().get().run_at == 4_102_444_800_000
    now = later.options(delay=None).push().get()
    assert now.run_at == now.created_at
    with pytest.raises(Invalid, match="say either delay or run_at"):
        later.options(delay=1, run_at=at)
    with pytest.raises(Invalid, match="run_at: a datetime needs a time zone"):
        later.options(run_at=datetime(2100, 1, 1))  # noqa: DTZ001


def test_an_instant_in_milliseconds_is_exact() -> None:
    app = Penstock("memory://")
    task = app.task(lambda: None)
    for ms in range(1_700_000_000_000, 1_700_000_000_100):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert task.options(run_at=at).plan.run_at == ms


def test_depends_on_takes_jobs_and_ids(app: Penstock) -> None:
    @app.task
    def step() -> None: ...

    first, more = step.push(), step.push_many([(), ()])
    assert step.options(depends_on=[first, first.id]).push().get().depends_on == (first.id,)
    assert step.options(depends_on=more).push().get().depends_on == tuple(more.ids)
    assert step.options(depends_on=more).push_many([(), ()])[1].get().depends_on == tuple(more.ids)
    for one in (first, first.id):
        with pytest.raises(Invalid, match=r"depends_on: takes several jobs"):
            step.options(depends_on=one)  # type: ignore[arg-type]


def test_durability_is_the_pushs(tmp_path: Any) -> None:
    with Penstock(f"sqlite:///{tmp_path}/jobs.db", durability="os") as app:
        task = app.task(name="t")(lambda: None)
        assert task.plan.durability == "os"
        assert task.push().id == 1
        assert len(task.push_many([(), ()], atomic=True)) == 2
    with Penstock("memory://") as app:
        task = app.task(name="t", durability="fsync")(lambda: None)
        with pytest.raises(Invalid, match="durability"):
            task.push()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"priority": "urgent"}, "priority: 'urgent' is not high, normal, low or a number"),
        ({"timeout": "90"}, "timeout: .*with its unit"),
        ({"delay": -1}, "delay"),
        ({"tags": "urgent"}, "tags: 'urgent' is one text and not several"),
        ({"keep_key": "forever"}, "keep_key"),
    ],
)
def test_a_wrong_value_is_named_when_it_is_said(app: Penstock, said: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        app.task(**said)
    with pytest.raises(Invalid, match=why):
        app.task(lambda: None).options(**said)
    with pytest.raises(Invalid, match=why):
        Penstock("memory://", **said)


@pytest.mark.parametrize("of", ["app", "task", "push"])
def test_an_unknown_option_is_named(app: Penstock, of: str) -> None:
    said: Any = {"retries": 3}
    with pytest.raises(TypeError, match="no option is called 'retries'; there are backoff, codec"):
        if of == "app":
            Penstock("memory://", **said)
        elif of == "task":
            app.task(**said)
        else:
            app.task(lambda: None).options(**said)


def test_options_of_tasks_are_not_options_of_pushes(app: Penstock) -> None:
    task = app.task(lambda: None)
    assert TaskOptions.__annotations__.keys() - Options.__annotations__.keys() == OF_TASKS
    for name in OF_TASKS:
        with pytest.raises(TypeError, match=f"no option is called '{name}'"):
            task.options(**{name: ()})  # type: ignore[arg-type]


def test_options_change_nothing_in_place(app: Penstock) -> None:
    @app.task(queue="mail", tags=["a"], priority=5)
    def send() -> None: ...

    urgent = send.options(priority="high", key="k")
    slow = urgent.options(priority="low")
    assert (send.plan.job.priority, send.plan.key) == (5, None)
    assert (urgent.plan.job.priority, urgent.plan.key) == (10, "k")
    assert (slow.plan.job.priority, slow.plan.key, slow.plan.queue) == (-10, "k", "mail")
    assert app.tasks == {"send": send}
    assert urgent.plan.job.task == "send"
    with pytest.raises(AttributeError):
        urgent.plan.queue = "other"  # type: ignore[misc]


def test_tasks_have_the_apps_options_where_they_do_not_say_otherwise() -> None:
    app = Penstock("memory://", queue="all", max_attempts=9)

    @app.task(queue="own")
    def own() -> None: ...
    @app.task
    def other() -> None: ...

    assert (own.plan.queue, own.plan.job.max_attempts) == ("own", 9)
    assert (other.plan.queue, other.plan.job.max_attempts) == ("all", 9)
    assert app.queues == ["all", "own"]


def test_backoffs_in_words() -> None:
    assert exponential("1s", cap="10m") == Backoff(base_ms=1_000, cap_ms=600_000)
    assert linear(2, jitter="equal") == Backoff(
        kind="linear", base_ms=2_000, cap_ms=900_000, jitter="equal"
    )
    assert fixed("1m") == Backoff(kind="fixed", base_ms=60_000, cap_ms=60_000, jitter="none")
    assert waits("1s", "1m").list_ms == (1_000, 60_000)
    assert at_once().kind == "none"


@pytest.mark.parametrize("said", ["100ms", timedelta(milliseconds=100)])
def test_a_duration_is_a_backoff_that_is_always_the_same(app: Penstock, said: Any) -> None:
    task = app.task(name="t", backoff=said)(lambda: None)
    assert task.plan.job.backoff == fixed("100ms")
    assert task.options(backoff="0s").plan.job.backoff == fixed(0)


def test_two_tasks_of_one_name_are_a_mistake(app: Penstock) -> None:
    @app.task
    def send() -> None: ...

    def again() -> None: ...

    with pytest.raises(Invalid, match="two tasks are called 'send'"):
        app.task(name="send")(again)
    assert app.task(name="again")(again).name == "again"
    assert app.named("again").handler is again


def test_a_batch_is_of_some_jobs(app: Penstock) -> None:
    for batch in (0, 10_001):
        with pytest.raises(Invalid, match="batch"):
            app.task(batch=batch)


def test_a_task_knows_what_it_was_made_of(app: Penstock) -> None:
    @app.task
    async def send(to: str) -> str:
        """Sends."""
        return to

    assert (send.__name__, send.__doc__, send.__wrapped__) == ("send", "Sends.", send.handler)
    assert repr(send) == "<task send on default>"
    assert send.is_async
    assert asyncio.run(send("ada")) == "ada"


def test_jobs_are_packed_as_they_travel() -> None:
    """What is packed is known to be right, and not looked at again on its way to a server."""
    assert Plan().run(b"12", [1, 2]).ends == array("I", [1, 2])


def test_what_is_found_out_about_a_plan_is_not_handed_on() -> None:
    plan = Plan()
    assert plan.plain
    assert plan.options is plan.options == (JobOptions(),)
    said: list[dict[str, Any]] = [
        {"delay_ms": 1},
        {"run_at": 1},
        {"key": "k"},
        {"group": "g"},
        {"headers": {"a": "b"}},
        {"depends_on": (1,)},
        {"durability": "fsync"},
    ]
    assert not any(replace(plan, **each).plain for each in said)
    assert replace(plan, job=JobOptions(priority=1)).options == (JobOptions(priority=1),)
