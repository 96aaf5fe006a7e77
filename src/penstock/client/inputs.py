"""What a job of a flow takes from the jobs before it.

Results do not exist yet when a flow is pushed. So a job's payload holds null in their places, and a
header says what belongs there; whoever runs the job fills it in first. Headers travel with a job
through every store and every wire, and other people's workers can read this one, too:

    penstock-input: {"image": 0, "sizes": "1:4"}

By parameter (of a batch task, whose payload is one item, without one): a number is the result of
that dependency, in the order of `depends_on` and from 0; `"1:4"` a list of the results of those
from 1 up to but not including 4; a list is a list of such. A dependency that did not complete, or
answered nothing, gives null.
"""

import inspect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from penstock.client.arguments import BadArguments, Items
from penstock.model.errors import Invalid
from penstock.model.job import Codec, Job
from penstock.model.lifecycle import State
from penstock.model.store import Store

if TYPE_CHECKING:
    from penstock.client.task import Task

HEADER: Final = "penstock-input"
LONGEST: Final = 3_072  # of the header; all headers of a job may have 4 KiB
DEEPEST: Final = 100  # lists in lists that a job takes; JSON is read to some depth, not to any
AT_ONCE: Final = 100  # dependencies that are asked for in one call: results may be large

# Results as a header says them, by dependency; and by their places in a flow.
Shape: TypeAlias = int | str | list["Shape"]
Places: TypeAlias = int | list["Places"]

_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Later:
    """Stands among the arguments of a call for results that there are not yet."""

    __slots__ = ("shape",)

    def __init__(self, shape: Shape) -> None:
        self.shape = shape


# -- at the push -----------------------------------------------------------------------------------


def with_holes(
    task: "Task[..., Any, Any]",
    codec: Codec,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    first: Shape | None,
) -> tuple[bytes, str | None]:
    """The payload of a call, and the header that goes with it.

    `first` is the result of what runs before: it takes the first parameter that the call leaves
    free. Raises TypeError as a plain call would, and where no parameter is free.
    """
    if first is None and not any(isinstance(each, Later) for each in (*args, *kwargs.values())):
        return task.arguments.encode(codec, args, kwargs), None
    if isinstance(task.arguments, Items):
        return _item(task, codec, args, kwargs, first)
    signature = task.arguments.signature
    fields = [each for each in signature.parameters.values() if each.name != task.arguments.context]
    try:
        bound = signature.replace(parameters=fields).bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"task {task.name!r}: {error}") from None
    said = bound.arguments
    holes = {name: value.shape for name, value in said.items() if isinstance(value, Later)}
    if first is not None:
        named = (each.name for each in fields if each.kind not in _VARIADIC)
        free = next((name for name in named if name not in said), None)
        if free is None:
            raise TypeError(
                f"task {task.name!r} has no parameter left for the result of what runs before it:"
                f" say {task.name}.si(…) if it needs none"
            )
        holes[free] = first
    known = {name: shape for name, shape in holes.items() if _names_nothing(shape)}
    said.update({**dict.fromkeys(holes), **known})
    payload = task.arguments.encode(codec, bound.args, bound.kwargs)
    unknown = {name: shape for name, shape in holes.items() if name not in known}
    return payload, _header(unknown) if unknown else None


def _item(
    task: "Task[..., Any, Any]",
    codec: Codec,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    first: Shape | None,
) -> tuple[bytes, str | None]:
    shape = first
    if args and isinstance(args[0], Later):
        args, shape = (None, *args[1:]), args[0].shape
    elif first is not None:
        if args or kwargs:
            raise TypeError(
                f"batch task {task.name!r} takes one item, and that is the result of what runs"
                f" before it: say {task.name}.s(), or {task.name}.si(…) if it needs none"
            )
        args = (None,)
    if shape is not None and _names_nothing(shape):
        args, shape = (shape, *args[1:]), None
    return task.arguments.encode(codec, args, kwargs), None if shape is None else _header(shape)


def _names_nothing(shape: Shape) -> bool:
    """Whether it is known at the push: groups without members come to empty lists, and a job that
    takes nothing else may wait for nobody, so that nobody would fill it in."""
    return isinstance(shape, list) and all(map(_names_nothing, shape))


def _header(holes: Any) -> str:
    text = msgspec.json.encode(holes).decode()
    if len(text) > LONGEST:
        raise Invalid("results of so many small groups cannot be told apart: join some of them")
    return text


def leaves(places: Places) -> list[int]:
    """The places themselves, in order."""
    found: list[int] = []
    left = [places]
    while left:
        each = left.pop()
        if isinstance(each, int):
            found.append(each)
        else:
            left += reversed(each)
    return found


def shape_of(places: Places, index: Mapping[int, int], room: int = DEEPEST) -> Shape:
    """By dependency, given which one stands at which place; neighbours are said as a stretch."""
    if isinstance(places, int):
        return index[places]
    if not room:
        raise Invalid(
            f"a job takes results of groups that stand in each other more than {DEEPEST} deep:"
            " join some of them by jobs of their own"
        )
    shape = [shape_of(each, index, room - 1) for each in places]
    first = shape[0] if shape else None
    if len(shape) > 2 and isinstance(first, int):
        end = first + len(shape)
        if shape == list(range(first, end)):
            return f"{first}:{end}"
    return shape


# -- at the worker ---------------------------------------------------------------------------------


async def with_inputs(store: Store, tenant: str, job: Job) -> bytes:
    """The payload of a job that has this header, with the results that it waited for in it.

    Raises BadArguments if the header, the payload or a result is nothing that this can be done
    with; errors of the store pass through, and another attempt may help against those.
    """
    codec = job.options.codec
    try:
        holes = msgspec.json.decode((job.headers or {})[HEADER])
        needed = max(chain([-1], _places(holes))) + 1
        ids = job.depends_on[:needed]
        if len(ids) < needed:
            raise BadArguments(f"{HEADER} names a dependency that the job does not have")
        results: list[Raw] = []
        for begin in range(0, needed, AT_ONCE):
            found = await store.get(tenant, ids[begin : begin + AT_ONCE])
            results += [_result(each, codec) for each in found]
        if not isinstance(holes, dict):
            return _encode(codec, _filled(holes, results))
        said = _arguments(codec, job.payload)
        said.update({name: _filled(shape, results) for name, shape in holes.items()})
        return _encode(codec, said)
    except (
        msgspec.MsgspecError,
        KeyError,
        TypeError,
        UnicodeDecodeError,
        RecursionError,  # lists in lists, as deep as there is room in a header
    ) as error:
        raise BadArguments(f"what the job waited for cannot be filled in: {error}") from None


def _places(shape: Any) -> list[int]:
    """The dependencies that a shape names."""
    if isinstance(shape, dict):
        return [place for each in shape.values() for place in _places(each)]
    if isinstance(shape, list):
        return [place for each in shape for place in _places(each)]
    if isinstance(shape, str):
        return list(_stretch(shape))
    if type(shape) is int and shape >= 0:
        return [shape]
    raise BadArguments(f"{HEADER} has {shape!r} in it, which names no result")


def _stretch(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and len(text) < 16):
        raise BadArguments(f"{HEADER} has {text!r} in it, which names no results")
    return range(int(first), int(end))


def _filled(shape: Shape, results: Sequence[Raw]) -> Any:
    if isinstance(shape, int):
        return results[shape]
    if isinstance(shape, str):
        return [results[place] for place in _stretch(shape)]
    return [_filled(each, results) for each in shape]


def _result(job: Job | None, codec: Codec) -> Raw:
    """In the codec of the payload that it goes into; bytes stay as they are where they are alike."""
    if job is None or job.state is not State.COMPLETED or job.result is None:
        return Raw(_encode(codec, None))
    if job.result_codec == codec:
        return Raw(job.result)
    if job.result_codec == "bytes" or job.result_codec is None:
        return Raw(_encode(codec, job.result))
    decode = msgspec.json.decode if job.result_codec == "json" else msgspec.msgpack.decode
    return Raw(_encode(codec, decode(job.result)))


def _arguments(codec: Codec, payload: bytes) -> dict[str, Any]:
    """The payload's arguments by name, undecoded."""
    decode: Any = msgspec.json.decode if codec == "json" else msgspec.msgpack.decode
    return decode(payload, type=dict[str, Raw])  # type: ignore[no-any-return]


def _encode(codec: Codec, value: Any) -> bytes:
    if codec == "bytes":
        if isinstance(value, Raw):
            return bytes(value)
        raise BadArguments("codec bytes carries no list of results")
    return msgspec.json.encode(value) if codec == "json" else msgspec.msgpack.encode(value)
