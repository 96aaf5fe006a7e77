"""Running a job: whatever a handler does, there is an outcome; and what middleware hears of it."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from penstock import Context, Dead, Middleware, Penstock, Retry, SoftTimeout
from penstock.client.execute import (
    INTERRUPTED,
    Batch,
    BatchOutcome,
    Completed,
    Failed,
    Outcome,
    Prepared,
    broken,
    gathered,
)
from penstock.model.fingerprint import fingerprint
from penstock.model.job import Job, JobError, JobOptions


def context(payload: bytes = b"{}") -> Context:
    return Context(
        Job(
            id=1,
            queue="q",
            payload=payload,
            options=JobOptions(),
            attempt=1,
            created_at=0,
            run_at=0,
        )
    )


def run(app: Penstock, handler: Callable[..., Any], payload: bytes = b"{}", **options: Any) -> Any:
    """The outcome of a plain handler, having seen that an asynchronous one ends alike, also on the
    shorter way of those that nobody looks at."""

    async def twin(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    twin.__signature__ = inspect.signature(handler)  # type: ignore[attr-defined]
    twin.__annotations__ = handler.__annotations__
    plain = app.task(name="plain", **options)(handler)
    awaited = app.task(name="awaited", **options)(twin)
    outcomes = []
    for task in (plain, awaited):
        prepared = app.executor.prepare(task, context(payload))
        if isinstance(prepared, Prepared):
            outcome: Outcome = (
                asyncio.run(app.executor.run(prepared))
                if task.is_async
                else app.executor.run_here(prepared)
            )
        else:
            outcome = prepared
        outcomes.append(outcome)
        del app.tasks[task.name]
    if awaited.arguments.context is None and not app.middleware:
        unseen = app.executor.run_unseen(awaited, "json", payload)
        outcomes.append(asyncio.run(unseen))
    for another in outcomes[1:]:
        assert summary(another) == summary(outcomes[0])
    return outcomes[0]


def summary(outcome: Any) -> Any:
    if isinstance(outcome, Failed):
        error = outcome.error
        return error.kind, error.message, outcome.dead, outcome.retry_in_ms
    return outcome


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def test_an_answer(app: Penstock) -> None:
    assert run(app, lambda: {"a": [1, None]}) == Completed(b'{"a":[1,null]}', "json")
    assert run(app, lambda: None) == Completed()
    assert run(app, lambda: "unwanted", result=False) == Completed()


def object_made() -> object:
    return object()


def test_an_answer_that_cannot_be_sent_is_not_tried_again(app: Penstock) -> None:
    kind, message, dead, _ = summary(run(app, object_made))
    assert (kind, dead) == ("ResultNotSendable", True)
    assert "answer something that JSON can say, or say result=False" in message


def test_an_answer_that_would_not_arrive_is_no_answer(app: Penstock) -> None:
    """JSON has no NaN: a null would be read as something else, or by nobody."""
    kind, message, dead, _ = summary(run(app, lambda: {"loss": [0.5, float("nan")]}))
    assert (kind, dead) == ("ResultNotSendable", True)
    assert message.startswith("JSON has no nan; answer something that JSON can say")
    assert run(app, lambda: float("nan"), result=False) == Completed()


async def paid() -> int:
    return 1


class Promise:
    def __await__(self) -> Iterator[None]:
        yield


class Said(msgspec.Struct):
    """JSON can say it, whoever could await it."""

    n: int = 1

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("result", [True, False])
@pytest.mark.parametrize(("make", "what"), [(paid, "coroutine"), (Promise, "Promise")])
def test_what_has_to_be_awaited_is_no_answer(
    app: Penstock, make: Callable[[], Any], what: str, result: bool
) -> None:
    """It would be completed, and nothing has run."""
    made: list[Any] = []

    def handler() -> Any:
        made.append(make())
        return made[-1]

    kind, message, dead, _ = summary(run(app, handler, result=result, retry_on=TypeError))
    assert (kind, dead) == ("NotAwaited", True)
    assert message.startswith(f"the handler answered a {what}, and nobody awaits that: ")
    assert message.endswith("its wrapper has to be `async def`, too, with functools.wraps")
    if make is paid:
        assert {inspect.getcoroutinestate(each) for each in made} == {inspect.CORO_CLOSED}


def test_what_json_can_say_is_an_answer_whoever_could_await_it(app: Penstock) -> None:
    assert run(app, lambda: Said(n=2)) == Completed(b'{"n":2}', "json")


def test_arguments_that_do_not_fit_are_not_tried_again(app: Penstock) -> None:
    def handler(a: int) -> None:
        raise AssertionError("is not called")

    assert summary(run(app, handler, b'{"a":"x"}')) == (
        "BadArguments",
        "Expected `int`, got `str` - at `$.a`",
        True,
        None,
    )


@pytest.mark.parametrize(
    ("error", "options", "dead", "retry_in_ms"),
    [
        (ValueError("x"), {}, False, None),
        (ValueError("x"), {"retry_on": ConnectionError}, True, None),
        (ConnectionResetError(), {"retry_on": (OSError, KeyError)}, False, None),
        (KeyError("x"), {"dead_on": LookupError}, True, None),
        (KeyError("x"), {"retry_on": KeyError, "dead_on": (LookupError,)}, True, None),
        (Retry(), {}, False, None),
        (Retry("5m", "busy"), {}, False, 300_000),
        (Retry("5m"), {"retry_on": ConnectionError}, False, 300_000),
        (Dead("never"), {}, True, None),
        (Dead("never"), {"retry_on": Dead}, True, None),
        (SoftTimeout(), {}, False, None),
        (SoftTimeout(), {"retry_on": ConnectionError}, False, None),
        (SoftTimeout(), {"dead_on": SoftTimeout}, True, None),
        (SystemExit(3), {}, False, None),
    ],
)
def test_what_an_exception_means(
    app: Penstock, error: BaseException, options: Any, dead: bool, retry_in_ms: int | None
) -> None:
    outcome = run(app, raising(error), **options)
    assert summary(outcome) == (type(error).__name__, str(error), dead, retry_in_ms)


NESTED = ExceptionGroup("all", [KeyError(), ExceptionGroup("some", [ConnectionError()])])


@pytest.mark.parametrize(
    ("errors", "options", "dead", "retry_in_ms"),
    [
        ([KeyError(), ValueError()], {}, False, None),
        ([ConnectionResetError(), TimeoutError()], {"retry_on": OSError}, False, None),
        ([ConnectionResetError(), ValueError()], {"retry_on": OSError}, True, None),
        ([ConnectionResetError(), KeyError()], {"dead_on": LookupError}, True, None),
        ([NESTED], {"retry_on": (ConnectionError, LookupError)}, False, None),
        ([NESTED], {"retry_on": LookupError}, True, None),
        ([ValueError(), Dead("never")], {}, True, None),
        ([ValueError(), Retry("1s"), Retry("5m"), Retry()], {}, False, 300_000),
        ([ValueError(), Retry("1s")], {"retry_on": OSError}, True, None),
        ([Retry("1s"), Dead("never")], {}, True, None),
        ([KeyError(), SoftTimeout()], {}, False, None),
        ([KeyError(), SoftTimeout()], {"retry_on": OSError}, True, None),
        ([ValueError()], {"retry_on": ExceptionGroup}, False, None),
        ([ValueError()], {"dead_on": ExceptionGroup}, True, None),
    ],
)
def test_a_group_is_tried_again_if_all_that_is_in_it_would_be(
    app: Penstock,
    errors: list[BaseException],
    options: Any,
    dead: bool,
    retry_in_ms: int | None,
) -> None:
    outcome = run(app, raising(BaseExceptionGroup("some", errors)), **options)
    assert summary(outcome)[2:] == (dead, retry_in_ms)


def test_a_trace_begins_in_the_handler(app: Penstock) -> None:
    def inner() -> None:
        raise ValueError("deep")

    def handler() -> None:
        inner()

    trace = run(app, handler).error.trace
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "client/execute.py" not in trace.replace("test_execute.py", "")
    assert [line.split(", in ")[1] for line in trace.splitlines() if ", in " in line] == [
        "handler",
        "inner",
    ]


def test_an_exception_that_cannot_say_itself(app: Penstock) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise LookupError

    outcome = run(app, raising(Broken()))
    assert outcome.error.message == "its message cannot be said: LookupError"


def test_an_exception_whose_trace_cannot_be_written(app: Penstock) -> None:
    error: Any = SyntaxError("a quote is missing")
    error.filename, error.lineno, error.offset, error.text = "order.txt", 1, "7", b"name"
    told = run(app, raising(error)).error
    assert (told.kind, told.message) == ("SyntaxError", "a quote is missing (order.txt, line 1)")
    assert told.trace == "its trace cannot be said: TypeError"


class Nameless(type):
    """A class that does not say what it is called."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            raise LookupError(name)
        return super().__getattribute__(name)


def test_an_exception_whose_class_does_not_say_its_name(app: Penstock) -> None:
    class Broken(Exception, metaclass=Nameless):
        pass

    for error in (
        Broken("the bank is asleep"),
        ExceptionGroup("both", [Broken("the bank is asleep")]),
    ):
        told = run(app, raising(error)).error
        assert (told.kind, told.message) == ("Broken", "the bank is asleep")


class NoLeaves(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise LookupError


class NoHead(ExceptionGroup[Exception]):
    @property
    def message(self) -> Any:
        raise LookupError


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError


class Again(Exception):
    """And once more, for whoever asks what that was."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise Again


def nested(groups: int) -> Exception:
    error: Exception = ValueError("at the bottom")
    for _ in range(groups):
        error = ExceptionGroup("one more", [error])
    return error


SHY: list[tuple[Callable[[], Exception], str, str]] = [
    (lambda: NoLeaves("", [ValueError()]), "NoLeaves", "LookupError"),
    (lambda: NoHead("", [ValueError(), KeyError()]), "NoHead", "LookupError"),
    (NoClass, "NoClass", "LookupError"),
    (Again, "Again", "Again"),
    (lambda: nested(2_000), "ExceptionGroup", "RecursionError"),
]


@pytest.mark.parametrize(("make", "kind", "why"), SHY)
def test_an_exception_that_does_not_let_itself_be_asked_is_a_failure_like_any_other(
    app: Penstock, make: Callable[[], Exception], kind: str, why: str
) -> None:
    error = make()
    told = (kind, f"what it is cannot be said: {why}", False, None)
    assert summary(run(app, raising(error))) == told
    assert summary(broken(error)) == told


def test_a_message_that_is_a_text_of_another_class(app: Penstock) -> None:
    class Safe(str):
        def __str__(self) -> str:
            return self

    for error in (
        ValueError(Safe("<b>no</b>")),
        ExceptionGroup("", [ValueError(Safe("<b>no</b>"))]),
    ):
        outcome = run(app, raising(error), dead_on=ValueError)
        assert (outcome.error.kind, outcome.error.message) == ("ValueError", "<b>no</b>")
        assert type(outcome.error.message) is str
        assert outcome.dead


def test_a_cancelled_run_says_nothing_about_the_job(app: Penstock) -> None:
    assert run(app, raising(asyncio.CancelledError())) is INTERRUPTED


def test_a_group_of_exceptions_is_told_by_what_is_in_it(app: Penstock) -> None:
    def told(*leaves: BaseException) -> JobError:
        group = BaseExceptionGroup("unhandled errors in a TaskGroup", leaves)
        outcome = run(app, raising(group))
        assert isinstance(outcome, Failed)
        return outcome.error

    one = told(ValueError("row 17 is bad"))
    assert (one.kind, one.message) == ("ValueError", "row 17 is bad")
    assert "TaskGroup" in one.trace
    nested = told(ExceptionGroup("inner", [ValueError("row 4 is bad"), ValueError("row 5 is bad")]))
    assert (nested.kind, nested.message) == ("ValueError", "row 4 is bad")
    assert fingerprint(nested) == fingerprint(one) == fingerprint(told(ValueError("row 1 is bad")))
    two = told(ValueError("row 1 is bad"), KeyError("x"))
    assert two.kind == "ExceptionGroup"
    assert two.message == "unhandled errors in a TaskGroup: KeyError: 'x'; ValueError: row 1 is bad"
    assert fingerprint(two) == fingerprint(told(KeyError("y"), ValueError("row 9 is bad")))
    many = told(*(type(f"Error{letter}", (Exception,), {})() for letter in "abcdefghijkl"))
    assert many.message.endswith("Errorj; and 2 more")


# -- batches -------------------------------------------------------------------------------------


def run_batch(app: Penstock, answer: Callable[[list[int]], Any], *payloads: bytes) -> BatchOutcome:
    def handler(items: list[int]) -> Any:
        return answer(items)

    async def awaited(items: list[int]) -> Any:
        return answer(items)

    outcomes = []
    for each in (handler, awaited):
        task = app.task(batch=10)(each)
        batch = gathered(task, "json", payloads, context())
        if not isinstance(batch, Batch):
            outcomes.append(batch)
        elif task.is_async:
            outcomes.append(asyncio.run(app.executor.run(batch)))
        else:
            outcomes.append(app.executor.run_here(batch))
        del app.tasks[task.name]
    first, second = outcomes
    assert summary(first.all) == summary(second.all)
    assert {at: summary(one) for at, one in first.each.items()} == {
        at: summary(one) for at, one in second.each.items()
    }
    return first


def test_a_batch_that_answers_nothing_is_done(app: Penstock) -> None:
    assert run_batch(app, lambda _: None, b"1", b"2") == BatchOutcome(all=Completed())
    assert run_batch(app, lambda _: [None, None], b"1", b"2") == BatchOutcome(all=Completed())


def test_each_item_has_its_result(app: Penstock) -> None:
    outcome = run_batch(app, lambda items: [n * 2 for n in items], b"1", b"2")
    assert outcome == BatchOutcome(each={0: Completed(b"2", "json"), 1: Completed(b"4", "json")})


def test_an_exception_in_the_answer_is_its_items(app: Penstock) -> None:
    answer = [None, ValueError("two"), Retry("1s"), Dead("no"), object(), asyncio.CancelledError()]
    outcome = run_batch(app, lambda _: answer, *[b"1"] * 6)
    assert outcome.all is None
    assert 0 not in outcome.each
    assert summary(outcome.each[1]) == ("ValueError", "two", False, None)
    assert summary(outcome.each[2])[2:] == (False, 1_000)
    assert summary(outcome.each[3])[2:] == (True, None)
    assert summary(outcome.each[4])[0] == "ResultNotSendable"
    assert outcome.each[5] is INTERRUPTED


def test_an_exception_in_the_answer_that_cannot_be_asked_is_its_items_alone(app: Penstock) -> None:
    answer = [1, *(make() for make, _, _ in SHY)]
    outcome = run_batch(app, lambda _: answer, *[b"1"] * len(answer))
    assert outcome.each[0] == Completed(b"1", "json")
    for place, (_, kind, why) in enumerate(SHY, 1):
        told = (kind, f"what it is cannot be said: {why}", False, None)
        assert summary(outcome.each[place]) == told


def test_an_exception_of_the_handler_is_every_items(app: Penstock) -> None:
    def answer(_: list[int]) -> None:
        raise ValueError("all")

    outcome = run_batch(app, answer, b"1", b"2")
    assert summary(outcome.all) == ("ValueError", "all", False, None)
    mixed = run_batch(app, answer, b"1", b'"x"', b"3")
    assert {at: summary(one)[0] for at, one in mixed.each.items()} == {
        0: "ValueError",
        1: "BadArguments",
        2: "ValueError",
    }


def test_an_item_that_does_not_fit_is_refused_alone(app: Penstock) -> None:
    seen: list[list[int]] = []
    outcome = run_batch(app, seen.append, b"1", b'"x"', b"3")
    assert seen == [[1, 3], [1, 3]]
    assert {at: summary(one)[::2] for at, one in outcome.each.items()} == {
        1: ("BadArguments", True)
    }
    assert run_batch(app, seen.append, b'"x"').each.keys() == {0}
    assert len(seen) == 2
    results = run_batch(app, lambda items: items, b"1", b'"x"', b"3")
    assert results.each[2] == Completed(b"3", "json")


def test_what_has_to_be_awaited_is_no_batch_s_answer_and_no_item_s(app: Penstock) -> None:
    outcome = run_batch(app, lambda _: paid(), b"1", b"2")
    assert summary(outcome.all)[::2] == ("NotAwaited", True)
    outcome = run_batch(app, lambda items: [5, *(paid() for _ in items[1:])], b"1", b"2", b"3")
    assert outcome.each.pop(0) == Completed(b"5", "json")
    assert [summary(each)[::2] for each in outcome.each.values()] == [("NotAwaited", True)] * 2


@pytest.mark.parametrize("answer", [5, "ab", [1], {0: 1}])
def test_an_answer_of_another_length_is_an_error(app: Penstock, answer: Any) -> None:
    outcome = run_batch(app, lambda _: answer, b"1", b"2")
    kind, message, dead, _ = summary(outcome.all)
    assert (kind, dead) == ("TypeError", False)
    assert "a batch task answers" in message


# -- middleware ----------------------------------------------------------------------------------


class Noting(Middleware):
    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self.said = said
        self.fails: set[str] = set()

    def _say(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")
        if what.split(maxsplit=1)[0] in self.fails:
            raise LookupError(f"{self.name} {what}")

    def before_push(self, task: Any, plan: Any) -> Any:
        self._say("before_push")
        return msgspec.structs.replace(
            plan, headers={**(plan.headers or {}), self.name: "was here"}
        )

    def after_push(self, task: Any, ids: list[int]) -> None:
        self._say(f"after_push {ids}")

    def before_run(self, context: Context) -> None:
        self._say("before_run")

    def after_run(self, context: Context, outcome: Any) -> None:
        self._say(f"after_run {type(outcome).__name__}")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def around(said: list[str]) -> tuple[Noting, Noting]:
    return Noting("outer", said), Noting("inner", said)


def test_middleware_is_asked_in_order_and_told_in_reverse(
    around: tuple[Noting, Noting], said: list[str]
) -> None:
    with Penstock("memory://", middleware=around) as app:
        task = app.task(name="t")(lambda: said.append("run"))
        job = task.push()
        assert job.get().headers == {"outer": "was here", "inner": "was here"}
        assert len(task.push_many([(), ()])) == 2
        asyncio.run(task.apush_many([()]))
        assert said == [
            *(
                "outer before_push",
                "inner before_push",
                "inner after_push [1]",
                "outer after_push [1]",
            ),
            *("outer before_push", "inner before_push"),
            *("inner after_push [2, 3]", "outer after_push [2, 3]"),
            *(
                "outer before_push",
                "inner before_push",
                "inner after_push [4]",
                "outer after_push [4]",
            ),
        ]
        said.clear()
        prepared = app.executor.prepare(task, context())
        assert isinstance(prepared, Prepared)
        assert app.executor.run_here(prepared) == Completed()
        assert said == [
            *("outer before_run", "inner before_run", "run"),
            *("inner after_run Completed", "outer after_run Completed"),
        ]


def test_an_error_before_a_push_refuses_it(around: tuple[Noting, Noting], said: list[str]) -> None:
    around[1].fails = {"before_push"}
    with Penstock("memory://", middleware=around) as app:
        task = app.task(name="t")(lambda: None)
        for push in (task.push, lambda: task.push_many([()]), lambda: asyncio.run(task.apush())):
            with pytest.raises(LookupError, match="inner before_push"):
                push()
        assert said == ["outer before_push", "inner before_push"] * 3


def test_errors_that_come_too_late_are_logged(
    around: tuple[Noting, Noting], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    around[1].fails = {"after_push", "after_run"}
    with Penstock("memory://", middleware=around) as app, caplog.at_level(logging.ERROR):
        task = app.task(name="t")(lambda: None)
        assert task.push().id == 1
        prepared = app.executor.prepare(task, context())
        assert isinstance(prepared, Prepared)
        assert app.executor.run_here(prepared) == Completed()
        assert [record.message for record in caplog.records] == [
            "Noting.after_push failed",
            "Noting.after_run failed",
        ]
        assert said[-1] == "outer after_run Completed"


def test_a_soft_timeout_that_comes_behind_the_handler_takes_nothing_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Late(Middleware):
        def after_run(self, context: Context, outcome: Any) -> None:
            raise SoftTimeout  # as in a thread or a process: wherever that is

    with Penstock("memory://", middleware=[Late()]) as app, caplog.at_level(logging.ERROR):
        assert run(app, lambda: 5) == Completed(b"5")
        assert {record.message for record in caplog.records} == {"Late.after_run failed"}


def test_an_error_before_a_run_fails_the_attempt(
    around: tuple[Noting, Noting], said: list[str]
) -> None:
    around[1].fails = {"before_run"}
    with Penstock("memory://", middleware=around) as app:
        assert summary(run(app, lambda: said.append("run")))[:3] == (
            "LookupError",
            "inner before_run",
            False,
        )
        # Whoever was not asked does not hear of the end.
        assert said == ["outer before_run", "inner before_run", "outer after_run Failed"] * 2


def test_middleware_hears_how_a_batch_ended(around: tuple[Noting, Noting], said: list[str]) -> None:
    with Penstock("memory://", middleware=around[:1]) as app:
        run_batch(app, lambda _: [None, ValueError()], b"1", b"2")
        assert said == ["outer before_run", "outer after_run BatchOutcome"] * 2
