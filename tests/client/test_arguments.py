"""Arguments: bound like a call, sent as named values, received as the handler's annotations say."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

from penstock import Context, Penstock
from penstock.client.arguments import Arguments, BadArguments, Items, Unsendable, encoded
from penstock.client.errors import BadDeclaration
from penstock.model.job import Codec

CONTEXT = Context.alone("default", "f")


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(msgspec.Struct):
    street: str
    points: list[Point] = []


def travel(handler: Callable[..., Any], *args: Any, codec: Codec = "json", **kwargs: Any) -> Any:
    """What the handler answers when its arguments have been sent and received."""
    arguments = Arguments(handler, "f")
    payload = arguments.encode(codec, args, kwargs)
    return arguments.call(handler, arguments.decode(codec, payload), CONTEXT)


def receive(handler: Callable[..., Any], payload: bytes) -> Any:
    """What the handler answers to a payload that somebody wrote by hand."""
    arguments = Arguments(handler, "f")
    return arguments.call(handler, arguments.decode("json", payload), CONTEXT)


# -- parameters of every kind --------------------------------------------------------------------


def plain(a: int, b: int = 2) -> Any:
    return a, b


def placed(a: int, b: int = 2, /, c: int = 3) -> Any:
    return a, b, c


def named(a: int, *, b: int, c: int = 3) -> Any:
    return a, b, c


def many(a: int, *args: int, b: int = 2, **more: str) -> Any:
    return a, args, b, more


def unannotated(a, b=None, *args, **more):  # type: ignore[no-untyped-def]
    return a, b, args, more


def nothing() -> str:
    return "called"


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (1, 5), {}),
    (plain, (), {"b": 5, "a": 1}),
    (placed, (1,), {}),
    (placed, (1, 5), {"c": 6}),
    (placed, (1, 5, 6), {}),
    (placed, (1,), {"c": 6}),
    (named, (1,), {"b": 2}),
    (named, (), {"a": 1, "b": 2, "c": 4}),
    (many, (1,), {}),
    (many, (1, 2, 3), {"b": 4, "x": "y"}),
    (many, (), {"a": 1, "z": "z"}),
    (unannotated, (1, "b", [2], None), {"more": {"x": 1.5}}),
    (nothing, (), {}),
]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("handler", "args", "kwargs"), CALLS)
def test_a_job_does_what_the_plain_call_does(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec
) -> None:
    assert travel(handler, *args, codec=codec, **kwargs) == handler(*args, **kwargs)


WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (plain, (), {}),
    (plain, (1, 2, 3), {}),
    (plain, (1,), {"a": 1}),
    (plain, (1,), {"c": 1}),
    (placed, (), {"a": 1}),
    (placed, (1,), {"b": 1}),
    (named, (1, 2), {}),
    (named, (1,), {}),
    (many, (), {}),
    (many, (1,), {"a": 1}),
    (nothing, (1,), {}),
    (nothing, (), {"a": 1}),
]


@pytest.mark.parametrize(("handler", "args", "kwargs"), WRONG)
def test_what_a_plain_call_refuses_is_refused_at_the_push(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        handler(*args, **kwargs)
    with pytest.raises(TypeError, match=r"^task 'f': "):
        Arguments(handler, "f").encode("json", args, kwargs)


def test_what_is_not_said_is_not_sent() -> None:
    assert Arguments(plain, "f").encode("json", (1,), {}) == b'{"a":1}'
    assert Arguments(named, "f").encode("json", (1,), {"b": 2}) == b'{"a":1,"b":2}'
    assert Arguments(many, "f").encode("json", (1, 2), {"x": "y"}) == (
        b'{"a":1,"args":[2],"more":{"x":"y"}}'
    )


# -- the context ---------------------------------------------------------------------------------


def context_first(ctx: Context, a: int) -> Any:
    return ctx.attempt, a


def context_between(a: int, ctx: Context, b: int = 2) -> Any:
    return ctx.attempt, a, b


def context_last(a: int, *, ctx: Context) -> Any:
    return ctx.attempt, a


def context_or_none(a: int, ctx: Context | None = None) -> Any:
    return None if ctx is None else ctx.attempt, a


def context_said_as_text(ctx: "Context", a: "int") -> Any:
    return ctx.attempt, a


@pytest.mark.parametrize(
    "handler",
    [context_first, context_between, context_last, context_or_none, context_said_as_text],
)
def test_the_context_is_given_wherever_it_stands(handler: Callable[..., Any]) -> None:
    assert Arguments(handler, "f").encode("json", (7,), {}) == b'{"a":7}'
    assert travel(handler, 7)[:2] == (1, 7)
    with pytest.raises(TypeError):
        Arguments(handler, "f").encode("json", (7,), {"ctx": CONTEXT})
    with pytest.raises(BadArguments, match="ctx"):
        receive(handler, b'{"a":7,"ctx":{}}')


def test_a_plain_call_needs_no_context(app: Penstock) -> None:
    first: Any = app.task(context_first)
    between: Any = app.task(context_between)
    last: Any = app.task(context_last)
    assert first(1) == (1, 1)
    assert between(1, 5) == (1, 1, 5)
    assert between(1) == between(a=1) == (1, 1, 2)
    assert last(1) == (1, 1)
    assert first.handler(Context.alone("q", "t"), 1) == (1, 1)
    assert first(Context.alone("q", "t"), 1) == (1, 1)


def test_two_contexts_are_a_mistake() -> None:
    def twice(one: Context, two: Context) -> None: ...

    with pytest.raises(TypeError, match="Context twice"):
        Arguments(twice, "f")


# -- conversions ---------------------------------------------------------------------------------

NOW = datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (int, 1),
    (int, 2**70),
    (float, 0.1),
    (bool, True),
    (str, "zwölf\u2028\0"),
    (bytes, b"\x00\xff"),
    (int | None, None),
    (int | str, "x"),
    (datetime, NOW),
    (date, NOW.date()),
    (timedelta, timedelta(hours=1, microseconds=5)),
    (UUID, UUID(int=5)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Literal["a", "b"], "b"),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("ab")),
    (dict[int, str], {1: "x"}),
    (dict[str, list[UUID | None]], {"x": [UUID(int=1), None]}),
    (Point, Point(1, 2)),
    (Address, Address("here", [Point(3)])),
    (list[Address], [Address("there")]),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, {"x": [1, None, "y"]}),
]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_arrives_as_what_it_was(kind: Any, value: Any, codec: Codec) -> None:
    if codec == "msgpack" and value == 2**70:
        return  # MessagePack ends at 64 bits: see the next test

    def handler(value):  # type: ignore[no-untyped-def]
        return value

    handler.__annotations__["value"] = kind
    arrived = travel(handler, value, codec=codec)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("value", "codec"),
    [
        (object(), "json"),
        (lambda: 1, "json"),
        ("\ud800", "json"),
        ({(1, 2): 3}, "json"),
        (2**70, "msgpack"),
        (Point, "json"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_push(value: Any, codec: Codec) -> None:
    arguments = Arguments(unannotated, "f")
    with pytest.raises(TypeError, match="task 'f': an argument cannot be sent"):
        arguments.encode(codec, (value,), {})
    with pytest.raises(TypeError, match="argument of job 1 cannot be sent"):
        arguments.encode_many(codec, [(1,), (value,)], bytearray())


NAN, ENDLESS = float("nan"), float("-inf")


def many_of_anything(items: list[Any]) -> None: ...


class Measured(msgspec.Struct):
    how: float
    note: str | None = None


@dataclasses.dataclass
class Sample:
    measured: list[Measured]


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        ENDLESS,
        [1.5, None, NAN],
        {"a": {"b": ENDLESS}},
        (None, {NAN}),
        Measured(NAN),
        Sample([Measured(1.5), Measured(ENDLESS, "null")]),
        [2**70, NAN],
    ],
)
def test_a_number_that_json_lacks_is_refused_where_it_is_said(value: Any) -> None:
    arguments = Arguments(unannotated, "f")
    with pytest.raises(TypeError, match="task 'f': an argument cannot be sent: JSON has no"):
        arguments.encode("json", (value,), {})
    said: list[Any] = [(None,), (1,), {"a": value}, (2,)]
    with pytest.raises(TypeError, match="argument of job 12 cannot be sent: JSON has no"):
        arguments.encode_many("json", said, bytearray(b"null"), 10)
    items = Items(many_of_anything, "g")
    with pytest.raises(TypeError, match="task 'g': an argument cannot be sent: JSON has no"):
        items.encode("json", (value,), {})
    with pytest.raises(TypeError, match="argument of job 1 cannot be sent: JSON has no"):
        items.encode_many("json", [None, value], bytearray())
    with pytest.raises(Unsendable, match="JSON has no"):
        encoded("json", value)


@pytest.mark.parametrize(
    "value", [None, "null", [None, 1.5], {"nan": None}, Measured(0.0), msgspec.Raw(b"[null]"), -0.0]
)
def test_what_only_looks_like_such_a_number_is_sent(value: Any) -> None:
    arguments = Arguments(unannotated, "f")
    alone = arguments.encode("json", (value,), {})
    data = bytearray(b"before")
    assert arguments.encode_many("json", [(value,), (None,)], data) == [6 + len(alone), len(data)]
    assert data == b"before" + alone + b'{"a":null}'


def test_messagepack_has_every_number() -> None:
    arguments = Arguments(unannotated, "f")
    payload = arguments.encode("msgpack", ([NAN, ENDLESS],), {})
    values = arguments.said(arguments.decode("msgpack", payload))
    assert repr(values) == "{'a': [nan, -inf]}"


def test_what_contains_itself_is_refused_at_the_push() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="cannot be sent"):
        Arguments(unannotated, "f").encode("json", (endless,), {})


def test_annotations_that_are_texts_are_resolved() -> None:
    def handler(when: "datetime", where: "list[Point]") -> "Point":
        return where[0]

    arguments = Arguments(handler, "f")
    payload = arguments.encode("json", (NOW, [Point(1)]), {})
    assert arguments.said(arguments.decode("json", payload)) == {"when": NOW, "where": [Point(1)]}
    assert arguments.returns is Point


def test_a_name_that_does_not_exist_is_named() -> None:
    def handler(user: "Uesr") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="task 'f': an annotation names 'Uesr'"):
        Arguments(handler, "f")


def test_an_annotation_that_nothing_can_be_decoded_to_is_named() -> None:
    def handler(value: dict[list[int], int] | dict[str, int]) -> None: ...

    with pytest.raises(TypeError, match="the parameter 'value' cannot be received"):
        Arguments(handler, "f")


# -- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "payload", "why"),
    [
        (plain, b"[1]", "Expected `object`, got `array`"),
        (plain, b"1", "Expected `object`, got `int`"),
        (plain, b"null", "missing required field `a`"),
        (plain, b"{}", "missing required field `a`"),
        (plain, b'{"a":"1"}', r"Expected `int`, got `str` - at `\$.a`"),
        (plain, b'{"a":1,"z":1}', "unknown field `z`"),
        (plain, b'{"a":1', "truncated"),
        (plain, b'{"a":1,"b":null}', "Expected `int"),
        (many, b'{"a":1,"args":[1,"x"]}', r"at `\$.args\[1\]`"),
        (many, b'{"a":1,"more":{"a":"x"}}', "'a' twice"),
        (named, b'{"a":1}', "missing required field `b`"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_a_sentence(
    handler: Callable[..., Any], payload: bytes, why: str
) -> None:
    with pytest.raises(BadArguments, match=why):
        receive(handler, payload)


def test_a_job_without_a_payload_has_no_arguments() -> None:
    assert receive(nothing, b"null") == "called"
    arguments = Arguments(nothing, "f")
    assert arguments.call(nothing, arguments.decode("msgpack", b"\xc0"), CONTEXT) == "called"


def test_what_follows_a_default_can_be_said_without_it() -> None:
    assert receive(placed, b'{"a":1,"c":9}') == (1, 2, 9)
    assert receive(many, b'{"a":1,"args":[5]}') == (1, (5,), 2, {})


def test_bytes_carry_no_arguments() -> None:
    with pytest.raises(BadArguments, match="'bytes' carries no arguments"):
        Arguments(plain, "f").decode("bytes", b"x")
    with pytest.raises(TypeError, match="codec bytes carries no arguments"):
        Arguments(plain, "f").encode("bytes", (1,), {})
    with pytest.raises(TypeError, match="codec bytes carries no arguments"):
        Arguments(plain, "f").encode_many("bytes", [(1,)], bytearray())


# -- many at once --------------------------------------------------------------------------------


def test_many_are_said_by_place_or_by_name() -> None:
    data = bytearray()
    said: list[Any] = [(1,), (1, 2), [3], {"a": 4}, {"b": 6, "a": 5}]
    ends = Arguments(plain, "f").encode_many("json", said, data)
    assert bytes(data) == b'{"a":1}{"a":1,"b":2}{"a":3}{"a":4}{"a":5,"b":6}'
    assert ends == [7, 20, 27, 34, 47]
    data = bytearray()
    Arguments(many, "f").encode_many("json", [(1, 2), {"a": 3, "x": "y"}], data)
    assert bytes(data) == b'{"a":1,"args":[2]}{"a":3,"more":{"x":"y"}}'


@pytest.mark.parametrize("said", [5, "ab", b"ab", None])
def test_an_argument_by_itself_is_no_tuple_of_arguments(said: Any) -> None:
    with pytest.raises(TypeError, match="write "):
        Arguments(plain, "f").encode_many("json", [said], bytearray())


def test_a_wrong_call_among_many_says_so_as_it_is() -> None:
    with pytest.raises(TypeError, match=r"^task 'f', job 1: Extra positional"):
        Arguments(plain, "f").encode_many("json", [(1,), (1, 2, 3)], bytearray())


# -- batches -------------------------------------------------------------------------------------


def test_an_item_of_a_batch_is_checked_by_the_lists_annotation() -> None:
    def handler(items: list[Point], ctx: Context) -> Any:
        return items, ctx.attempt

    items = Items(handler, "f")
    payload = items.encode("json", (Point(1, 2),), {})
    assert payload == b'{"x":1,"y":2}'
    assert items.decode_many("json", [payload, b'{"x":3}']) == [Point(1, 2), Point(3)]
    assert items.decode_many("msgpack", [items.encode("msgpack", (Point(1),), {})]) == [Point(1)]
    assert items.call(handler, [Point(1)], CONTEXT) == ([Point(1)], 1)
    with pytest.raises(BadArguments, match="missing required field `x`"):
        items.decode_many("json", [b"{}"])
    with pytest.raises(BadArguments, match="no item"):
        items.decode("bytes", b"x")
    with pytest.raises(TypeError, match="push takes one item"):
        items.encode("json", (1, 2), {})
    with pytest.raises(TypeError, match="cannot be sent"):
        items.encode_many("json", [object()], bytearray())


class Pair(NamedTuple):
    a: int
    b: int = 0


class Row(msgspec.Struct, array_like=True):
    a: int
    b: int = 0


ARGUMENTS: list[Any] = [(1,), (1, 2), [1], {"a": 1}, Pair(1)]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        (int, []),
        (str | None, []),
        (datetime, []),
        (Literal["a"], []),
        (Annotated[int, msgspec.Meta(ge=0)], []),
        (Any, ARGUMENTS),
        (msgspec.Raw, ARGUMENTS),
        (tuple[int, int], [(1,), (1, 2), [1], Pair(1)]),
        (set[int], [(1,), (1, 2), [1], Pair(1)]),
        (Pair, [(1,), (1, 2), [1], Pair(1)]),
        (Row, [(1,), (1, 2), [1], Pair(1)]),
        (Point, [{"a": 1}]),
        (dict[str, int], [{"a": 1}]),
        (int | dict[str, int], [{"a": 1}]),
        (int | list[int] | Point, ARGUMENTS),
    ],
)
def test_arguments_that_can_be_no_item_are_refused_where_they_are_pushed(
    kind: Any, taken: list[Any]
) -> None:
    def handler(items: list[Any]) -> None: ...

    handler.__annotations__["items"] = list[kind]
    items, data = Items(handler, "f"), bytearray()
    for said in ARGUMENTS:
        if said in taken:
            assert items.encode_many("json", [said], data)
            assert items.encode("json", (said,), {})
            continue
        with pytest.raises(BadDeclaration, match=r"^jobs: batch task 'f' .* and job 11 is "):
            items.encode_many("json", [None, said, said], data, 10)
        with pytest.raises(BadDeclaration, match=r"^item: batch task 'f' "):
            items.encode("json", (said,), {})


def test_a_batch_of_bytes_is_not_looked_into() -> None:
    def handler(items: list[bytes]) -> None: ...

    items, data = Items(handler, "f"), bytearray()
    assert items.encode_many("bytes", [b"ab", b"c"], data) == [2, 3]
    assert items.decode_many("bytes", [b"ab", b"c"]) == [b"ab", b"c"]
    with pytest.raises(TypeError, match="takes bytes, not str"):
        items.encode("bytes", ("text",), {})


def test_a_batch_task_takes_one_list() -> None:
    def two(a: list[int], b: list[int]) -> None: ...
    def none() -> None: ...
    def text(a: str) -> None: ...
    def mapping(a: dict[str, int]) -> None: ...

    for handler in (two, none):
        with pytest.raises(TypeError, match="must take one list"):
            Items(handler, "f")
    for handler in (text, mapping):  # type: ignore[assignment]
        with pytest.raises(TypeError, match="not annotated as one"):
            Items(handler, "f")
