"""Whatever is said wrongly to the SDK is one named error, where it was said and in the words it was
said in: never an error of Python's own from somewhere inside, never later at a worker."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    CronService,
    DelayedQueue,
    Flow,
    Middleware,
    Offer,
    Penstock,
    Retry,
    chain,
    exponential,
    fixed,
    group,
    linear,
    waits,
)
from penstock.client.errors import BadDeclaration
from penstock.model.errors import Invalid

Call = Callable[[], Any]

# What options take nothing of, by the option; and what is said about it.
OPTIONS: dict[str, list[tuple[Any, str]]] = {
    "queue": [(5, "5 is not"), ("a b", "'a b' is not 1 to 256"), (None, "None"), ("", "''")],
    "priority": [("urgent", "high, normal, low"), (1.5, "1.5"), (True, "True"), (2**40, "integer")],
    "delay": [("soon", "30s"), (-1, "-1 is not"), ([], "duration"), (True, "True")],
    "run_at": [
        ("2030-01-01", "datetime"),
        (1.5, "1.5"),
        (True, "True"),
        (-5, "-5"),
        (datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001
        (datetime(1960, 1, 1, tzinfo=UTC), "^1960-01-01 00:00:00.00:00 lies before 1970"),
        (datetime(9500, 1, 1, tzinfo=UTC), "^9500-01-01 .* lies behind the year 9000"),
    ],
    "max_attempts": [("3", "'3'"), (-1, "-1"), (None, "None"), (1.0, "1.0"), (True, "True")],
    "backoff": [
        ("soon", r"exponential\("),
        ("5", r"exponential\("),
        (5, r"exponential\("),
        (None, r"exponential\("),
    ],
    "timeout": [(0, "longer than nothing"), ("90", "90s"), (-1, "-1"), (b"5s", "duration")],
    "lease": [("10ms", "50ms to 1d"), ("2d", "50ms to 1d"), ("x", "30s")],
    "ttl": [(0, "longer than nothing"), ("x", "30s")],
    "key": [(5, "5"), ("", "empty"), ("x" * 600, "512"), (b"k", "plain str")],
    "on_conflict": [("explode", "return, match, replace, reject"), (None, "None")],
    "keep_key": [
        ("forever", "live, started, retained"),
        (None, "None"),
        (0, "longer than nothing"),
    ],
    "group": [(5, "5"), ("", "empty")],
    "depends_on": [(5, "several jobs"), (["x"], "'x'"), ("ab", "several jobs"), (None, "None")],
    "on_dependency_failure": [("explode", "fail, ignore")],
    "lifo": [("yes", "neither True nor False"), (1, "neither True nor False")],
    "tags": [("urgent", "one text"), (5, "5"), ([5], "5"), (["x"] * 17, "16"), ([""], "''")],
    "headers": [
        (5, "5"),
        ({"a": 1}, "plain str"),
        ([("a", "b")], "list"),
        ({"a": "x" * 5_000}, "4096"),
    ],
    "retain": [("x", "30s"), (-1, "-1")],
    "retain_dead": [("x", "30s"), (-1, "-1")],
    "codec": [("pickle", "json, msgpack, bytes"), (None, "None"), (5, "5")],
    "durability": [("maybe", "fsync, os"), (True, "True")],
}
OF_TASKS: dict[str, list[tuple[Any, str]]] = {
    "batch": [("x", "'x'"), (0, "1 to 10000"), (1.5, "1.5"), (True, "True"), (10_001, "10000")],
    "name": [(5, "5"), ("", "empty"), ("x" * 600, "512")],
    "retry_on": [("x", "classes of exceptions"), ([5], "classes of exceptions")],
    "dead_on": [("x", "classes of exceptions"), (ValueError(), "classes of exceptions")],
    "soft_timeout": [("x", "30s"), (0, "longer than nothing"), (-1, "-1")],
    "result": [("yes", "neither True nor False"), (None, "neither True nor False")],
    "retries": [(3, "no option is called 'retries'")],
}


@pytest.fixture
def app() -> Iterator[Penstock]:
    with Penstock("memory://") as app:
        yield app


def refused(call: Call, field: str, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        call()
    error = raised.value
    assert error.field == field, error
    assert re.search(says, error.message), error
    # In the words of whoever said it: no name, unit or class of the inside.
    assert not re.search(r"_ms\b|NoneType|job_id|more_keys", str(error)), error


def test_every_option_has_its_wrong_values() -> None:
    from penstock.client.options import OF_TASKS as NAMES
    from penstock.client.options import Options

    assert OPTIONS.keys() == Options.__annotations__.keys()
    assert OF_TASKS.keys() == NAMES | {"batch", "retries"}


@pytest.mark.parametrize(
    ("option", "said", "says"),
    [(name, said, says) for name, each in OPTIONS.items() for said, says in each],
)
def test_an_option_is_refused_where_it_is_said(
    app: Penstock, option: str, said: Any, says: str
) -> None:
    wrong = {option: said}
    task = app.task(lambda: None)
    for call in (
        partial(Penstock, "memory://", **wrong),
        partial(app.task, **wrong),
        partial(task.options, **wrong),
    ):
        refused(call, option, says)


@pytest.mark.parametrize(
    ("option", "said", "says"),
    [(name, said, says) for name, each in OF_TASKS.items() for said, says in each],
)
def test_an_option_of_tasks_is_refused_at_the_declaration(
    app: Penstock, option: str, said: Any, says: str
) -> None:
    refused(lambda: app.task(**{option: said})(lambda: None), option, says)
    assert app.tasks == {}


def generates() -> Any:
    yield 1


async def generates_there() -> Any:
    yield 1


class Called:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (5, "5 is no function: @app.task stands above a def"),
        (None, "None is no function"),
        ("emails", r"'emails' is no function.*say @app.task\(queue='emails'\)"),
        (generates, "answers by return, not by yield"),
        (generates_there, "answers by return, not by yield"),
        (partial(print, 1), "is no function"),
        (Called(), "is no function"),
    ],
)
def test_a_handler_is_a_function(app: Penstock, handler: Any, says: str) -> None:
    for name in (None, "named"):
        more: Any = {} if name is None else {"name": name}
        refused(lambda: app.task(**more)(handler), "handler", says)  # noqa: B023
    refused(lambda: app.task(handler), "handler", says)


def test_a_task_is_declared_once_and_takes_one_handler(app: Penstock) -> None:
    task: Any = app.task(lambda: None)
    refused(lambda: app.task(task), "handler", "is a task already")
    refused(lambda: app.task(print, print), "handler", "one function")  # type: ignore[call-overload]


def test_bytes_are_for_items_of_batches(app: Penstock) -> None:
    says = "carries no arguments: only items of a batch task"
    refused(lambda: app.task(codec="bytes")(lambda: None), "codec", says)
    task = app.task(lambda: None)
    refused(lambda: task.options(codec="bytes"), "codec", says)

    @app.task(batch=5, codec="bytes")
    def rows(items: list[bytes]) -> None: ...

    assert rows.options(priority=1).plan.job.codec == "bytes"


@pytest.mark.parametrize("soft", ["30s", "45s"])
def test_a_soft_timeout_that_would_never_come_is_refused_where_it_is_declared(
    app: Penstock, soft: str
) -> None:
    says = f"^{soft} is not shorter than the timeout of 30s.*soft_timeout below 30s.*longer timeout"
    refused(lambda: app.task(timeout="30s", soft_timeout=soft), "soft_timeout", says)
    with Penstock("memory://", timeout="30s") as short:
        refused(lambda: short.task(soft_timeout=soft), "soft_timeout", says)
        assert short.task(timeout="1m", soft_timeout=soft)(generous).plan.soft_timeout_ms
        assert short.task(timeout=None, soft_timeout=soft, name="other")(
            generous
        ).plan.soft_timeout_ms
    assert app.task(timeout="30s", soft_timeout="29999ms")(generous).plan.soft_timeout_ms == 29_999


@pytest.mark.parametrize("timeout", ["25s", "1s"])
def test_a_timeout_that_leaves_no_time_for_the_soft_one_is_refused_where_it_is_said(
    app: Penstock, timeout: str
) -> None:
    task = app.task(soft_timeout="25s", timeout="30s")(generous)
    says = f"^{timeout} is not longer than the soft_timeout of 25s.*timeout above 25s"
    refused(lambda: task.options(timeout=timeout), "timeout", says)
    refused(lambda: task.options(priority=5).options(timeout=timeout), "timeout", says)
    assert task.options(timeout="26s").plan.job.timeout_ms == 26_000
    assert task.options(timeout=None).options(priority="high").plan.job.timeout_ms is None


def generous() -> None: ...


@pytest.mark.parametrize(
    ("said", "field", "says"),
    [
        ({"url": 5}, "url", "5"),
        ({"url": Path("jobs.db")}, "url", "sqlite:///"),
        ({"url": "jobs.db"}, "url", "'jobs.db' is no url.*sqlite:///jobs.db"),
        ({"url": ""}, "url", "is empty: a store is a url, like sqlite:///jobs.db"),
        ({"url": "redis://x"}, "url", "'redis://x' is no store that this release knows"),
        ({"url": "sqlite://jobs.db"}, "url", "three slashes begin a path.*sqlite:///jobs.db"),
        ({"url": "sqlite:///jobs.db?mod=ro"}, "url", "no setting 'mod'; did you mean 'mode'"),
        ({"url": "memory://x"}, "url", "names more than memory://"),
        ({"url": "penstock://"}, "url", "names no host"),
        ({"url": "penstock://host:x"}, "url", "has no port from 1 to 65535"),
        ({"url": "penstock+unix://x"}, "url", "names no socket"),
        ({"tenant": 5}, "tenant", "5"),
        ({"tenant": "a b"}, "tenant", "'a b'"),
        ({"middleware": 5}, "middleware", "list of Middleware"),
        ({"middleware": Middleware()}, "middleware", "list of Middleware"),
        ({"middleware": [Middleware]}, "middleware", r"Middleware\(\)"),
        ({"middleware": ["x"]}, "middleware", "'x'"),
    ],
)
def test_an_app_is_refused_where_it_is_made(said: Any, field: str, says: str) -> None:
    refused(lambda: Penstock(**said), field, says)


def _in_an_app(app: Penstock) -> dict[str, tuple[Call, str, str]]:
    """Calls by name, with the field that is to blame and what is said about it."""

    def f(n: int = 0) -> int:
        return n

    task: Any = app.task(f)
    here: Any = app
    step: Any = task.s(1)
    flow: Any = Flow()
    queue: Any = DelayedQueue(app, "mail", str)
    crons: Any = CronService(queue)
    delayed: Any = DelayedQueue
    offer: Any = Offer
    retry: Any = Retry
    later: Any = {"exponential": exponential, "linear": linear, "fixed": fixed}
    wait: Any = waits

    def made(schedule: Any) -> Call:
        return lambda: schedule()(task)

    return {
        # schedules
        "cron 5": (made(lambda: here.cron(5)), "expression", "text"),
        "cron words": (made(lambda: here.cron("daily")), "expression", "cron expression"),
        "cron tz": (made(lambda: here.cron("0 2 * * *", tz="Mars")), "tz", "time zone"),
        "cron tz 5": (made(lambda: here.cron("0 2 * * *", tz=5)), "tz", "5"),
        "every x": (made(lambda: here.every("x")), "period", "30s"),
        "every 0": (made(lambda: here.every(0)), "period", "longer than nothing"),
        "daily none": (made(here.daily), "at", "at least one hour"),
        "daily 5": (made(lambda: here.daily(5)), "at", "02:00"),
        "daily list": (made(lambda: here.daily(["02:00"])), "at", "02:00"),
        "overlap": (made(lambda: here.every("1m", overlap="x")), "overlap", "allow, skip"),
        "missed": (made(lambda: here.every("1m", missed="x")), "missed", "last, all, none"),
        "limit": (made(lambda: here.every("1m", limit=0)), "limit", "at least 1"),
        "limit x": (made(lambda: here.every("1m", limit="x")), "limit", "'x'"),
        "cron name": (made(lambda: here.every("1m", name=5)), "name", "text"),
        "arguments": (made(lambda: here.every("1m", arguments=5)), "arguments", "mapping"),
        "unknown": (made(lambda: here.every("1m", overlaps="skip")), "overlaps", "overlap"),
        "below": (lambda: here.every("1m")(f), "handler", "above @app.task"),
        # many
        "many None": (lambda: task.push_many(None), "jobs", "None"),
        "many 5": (lambda: task.push_many(5), "jobs", "tuples"),
        "many one": (lambda: task.push_many([5]), "jobs", r"write \(5,\)"),
        "many text": (lambda: task.push_many("ab"), "jobs", "write"),
        "chunk": (lambda: task.push_many([], chunk=0), "chunk", "1 to 10000"),
        "chunk x": (lambda: task.push_many([], chunk="x"), "chunk", "'x'"),
        "atomic": (lambda: task.push_many([], atomic="x"), "atomic", "neither True nor False"),
        "ttl": (
            lambda: task.options(ttl="1s", delay="1h"),
            "ttl",
            "1s is over before the delay of 1h is",
        ),
        "lifo": (lambda: task.options(lifo=True, group="g"), "lifo", "cannot go with a group"),
        **{
            f"ttl {name}": (partial(push, task.options(ttl="1s", run_at=2**46)), "ttl", "run_at")
            for name, push in {
                "one": lambda late: late.push(),
                "many": lambda late: late.push_many([()]),
                "flow": lambda late: late.s().push(),
            }.items()
        },
        # flows
        "chain none": (chain, "parts", "at least one"),
        "chain 5": (lambda: chain(5), "parts", "5 is no part"),  # type: ignore[arg-type]
        "chain task": (lambda: chain(task), "parts", r"say task\.s"),
        "chain list": (lambda: chain([step]), "parts", r"chain\(\*"),  # type: ignore[arg-type]
        "group list": (lambda: group([step]), "parts", r"group\(\*"),  # type: ignore[arg-type]
        "then": (lambda: step.then(5), "parts", "5 is no part"),
        "group none": (lambda: group().push(), "parts", "at least one"),
        "after 3": (lambda: flow.add(step, after=3), "after", "3 is no step"),
        "after None": (lambda: flow.add(step, after=None), "after", "None is no step"),
        "after part": (lambda: flow.add(step, after=[step]), "after", "is no step"),
        "add 5": (lambda: flow.add(5), "parts", "5 is no part"),
        "flow none": (lambda: Flow().push(), "parts", "at least one"),
        # jobs
        "timeout": (lambda: task.push(1).result(timeout="x"), "timeout", "30s"),
        "timeout -1": (lambda: task.push(1).result(timeout=-1), "timeout", "-1"),
        "flow timeout": (lambda: step.push().result(timeout="x"), "timeout", "30s"),
        # delayed queues
        "where": (lambda: delayed("memory://", "q"), "where", "app or a store"),
        "queue 5": (lambda: delayed(app, 5), "name", "5"),
        "queue name": (lambda: delayed(app, "a b"), "name", "'a b' is not"),
        "codec": (lambda: delayed(app, "q", codec="xml"), "codec", "json, msgpack, bytes"),
        "kind": (lambda: delayed(app, "q", 5), "kind", "5"),
        "acquire": (
            lambda: delayed(app, "q", acquire_timeout="x"),
            "acquire_timeout",
            "30s",
        ),
        "acquire 0": (lambda: delayed(app, "q", acquire_timeout=0), "acquire_timeout", "50ms"),
        "tenant": (lambda: delayed(app, "q", tenant="a b"), "tenant", "'a b'"),
        "key": (lambda: queue.offer_or_update(5, "x"), "key", "5"),
        "key none": (lambda: queue.offer_if_not_exists("", "x"), "key", "empty"),
        "payload": (lambda: queue.offer_or_update("k", object()), "payload", "cannot be sent"),
        "at": (lambda: queue.offer_or_update("k", "x", at="tomorrow"), "at", "datetime"),
        "at float": (lambda: queue.offer_or_update("k", "x", at=1.5), "at", "1.5"),
        "batch": (lambda: queue.offer_batch(None), "offers", "Offer"),
        "batch of 5": (lambda: queue.offer_batch([5]), "offers", "Offer"),
        "batch can": (
            lambda: queue.offer_batch([offer(key="k", payload="x", can_update="no")]),
            "can_update",
            "neither True nor False",
        ),
        "poll n": (lambda: queue.try_poll_many(0), "n", "1 to 10000"),
        "poll x": (lambda: queue.try_poll_many("x"), "n", "'x'"),
        "poll": (lambda: queue.poll(timeout="x"), "timeout", "30s"),
        "read": (lambda: queue.read(5), "key", "5"),
        "contains": (lambda: queue.contains(None), "key", "None"),
        "drop": (lambda: queue.drop(""), "key", "empty"),
        "drop all": (lambda: queue.drop_all(confirm="x"), "confirm", "'mail'"),
        # messages that come again
        "service": (lambda: CronService(5), "queue", "DelayedQueue"),  # type: ignore[arg-type]
        "tick": (lambda: crons.install_tick("0" * 16, "p", None), "messages", "CronMessage"),
        "tick 5": (lambda: crons.install_tick("0" * 16, "p", [5]), "messages", "CronMessage"),
        "hash": (lambda: crons.install_tick("x", "p", []), "config_hash", "16"),
        "hash 5": (lambda: crons.install_tick(5, "p", []), "config_hash", "16"),
        "prefix": (lambda: crons.install_tick("0" * 16, 5, []), "prefix", "5"),
        "uninstall": (lambda: crons.uninstall_tick(5), "prefix", "5"),
        "generate": (lambda: crons.install("0" * 16, "p", "1m", 5), "generate", "function"),
        "interval": (
            lambda: crons.install("0" * 16, "p", 0, lambda _: []),
            "interval",
            "longer than nothing",
        ),
        "message": (lambda: crons.install_daily("p", ["02:00"], "UTC", 5), "message", "function"),
        "hours": (lambda: crons.install_daily("p", "02:00", "UTC", str), "at", r"\['02:00'\]"),
        "zone": (lambda: crons.install_daily("p", ["02:00"], "Mars", str), "tz", "time zone"),
        "period": (lambda: crons.install_periodic("p", 0, str), "period", "longer than nothing"),
        # what handlers and backoffs say
        "retry": (lambda: retry("x"), "after", "30s"),
        "retry -1": (lambda: retry(-1), "after", "-1"),
        "waits none": (wait, "after", "at least one wait"),
        "waits x": (lambda: wait("x"), "after", "30s"),
        "waits many": (lambda: wait(*["1s"] * 101), "after", "100"),
        "jitter": (lambda: wait("1s", jitter="x"), "jitter", "none, full, equal"),
        **{
            f"{name} {field}": (partial(make, "1s", **{field: said}), field, says)
            for name, make in later.items()
            for field, said, says in (("jitter", 5, "none, full, equal"), ("cap", "x", "30s"))
            if not (name == "fixed" and field == "cap")
        },
        # tests
        "now": (lambda: here.testing(now=datetime(2030, 1, 1)), "now", "time zone"),  # noqa: DTZ001
        "now x": (lambda: here.testing(now="x"), "now", "datetime"),
        "seed": (lambda: here.testing(seed="x"), "seed", "'x'"),
        "advance": (lambda: _testing(app, lambda t: t.advance("x")), "by", "30s"),
        "drain": (lambda: _testing(app, lambda t: t.drain(limit=0)), "limit", "0"),
        "pushed": (lambda: _testing(app, lambda t: t.pushed("f")), "task", "'f'"),
    }


def _testing(app: Penstock, call: Callable[[Any], Any]) -> Any:
    with app.testing() as t:
        return call(t)


@pytest.mark.parametrize("name", _in_an_app(Penstock("memory://")))
def test_a_call_is_refused_in_the_words_of_its_caller(app: Penstock, name: str) -> None:
    refused(*_in_an_app(app)[name])


def test_what_python_calls_a_type_error_is_one_here_too(app: Penstock) -> None:
    assert issubclass(BadDeclaration, Invalid)
    with pytest.raises(TypeError):
        app.task(5)  # type: ignore[call-overload]
    assert penstock.BadDeclaration is BadDeclaration
