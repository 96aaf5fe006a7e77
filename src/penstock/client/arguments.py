"""A task's arguments as one value: bound at the push, checked and converted at the worker.

For every task a msgspec Struct is made whose fields are the handler's parameters. Building it binds
the arguments of a call as Python would, encoding it gives a JSON object of what was said, and
decoding it at the worker validates and converts by the handler's annotations. All three happen in
C, once per job. A default that was not overridden is not sent: the handler's own applies.

The form on the wire is an object of named arguments, so that anybody who speaks HTTP can push a
task. `*args` and `**kwargs` travel as a list and an object under their own names.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from penstock.client.context import Context
from penstock.client.errors import BadDeclaration
from penstock.client.finite import NULL, check_finite
from penstock.client.forms import never
from penstock.model.checks_values import show
from penstock.model.job import Codec

ENCODERS: Final[dict[str, Any]] = {
    "json": msgspec.json.Encoder(),
    "msgpack": msgspec.msgpack.Encoder(),
}
_DECODERS: Final[dict[str, Any]] = {
    "json": msgspec.json.Decoder,
    "msgpack": msgspec.msgpack.Decoder,
}
# What a job has that was pushed without a payload, and what it stands for.
_NOTHING: Final = {"json": (b"null", b"{}"), "msgpack": (b"\xc0", b"\x80")}
# What encoding raises; integers beyond 64 bits overflow, and what contains itself never ends.
_ENCODING: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# What a job of `push_many` is said as: the positional arguments, or the named ones.
Said = Sequence[Any] | Mapping[str, Any]


class BadArguments(ValueError):
    """The payload is not what the handler's parameters ask for."""


class Unsendable(TypeError):
    """A value that the codec has no form for."""


class Hints:
    """What a handler's annotations say; a name that cannot be resolved is a mistake to report."""

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        try:
            self.types = get_type_hints(handler, include_extras=True)
        except NameError as error:
            raise BadDeclaration(
                f"task {name!r}: an annotation names {error.name!r}, which its module does not have;"
                " tasks need their annotations at run time"
            ) from error
        self.returns: Any = self.types.pop("return", Any)

    def of(self, parameter: inspect.Parameter) -> Any:
        return self.types.get(parameter.name, Any)

    def context(self, parameters: Iterable[inspect.Parameter], name: str) -> str | None:
        """The parameter that asks for the Context, be it `Context | None`."""
        asking = [
            each.name
            for each in parameters
            if (hint := self.of(each)) is Context or Context in get_args(hint)
        ]
        if len(asking) > 1:
            raise BadDeclaration(f"task {name!r} asks for its Context twice")
        return asking[0] if asking else None


class Arguments:
    """How the arguments of one handler are bound, encoded, decoded and passed."""

    many: ClassVar = "tuples of arguments, or mappings of named ones"  # what push_many takes

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        self.name = name
        self.signature = inspect.signature(handler)
        hints = Hints(handler, name)
        self.returns = hints.returns if _receivable(hints.returns) else Any
        parameters = list(self.signature.parameters.values())
        self.context = hints.context(parameters, name)
        fields = [each for each in parameters if each.name != self.context]
        # Building the Struct binds like a call of the handler, but for these.
        peculiar = (*_VARIADIC, inspect.Parameter.POSITIONAL_ONLY)
        self._peculiar = any(each.kind in peculiar for each in parameters)
        self._bound = self.signature.replace(parameters=fields) if self._peculiar else None
        self._more = next(
            (each.name for each in fields if each.kind is inspect.Parameter.VAR_KEYWORD), None
        )
        self._named = {each.name for each in parameters if each.kind in _NAMED}
        # Most handlers: everything has a place, and nothing may be left out.
        self.placed = self.context is None and all(
            each.kind in _POSITIONAL and each.default is inspect.Parameter.empty for each in fields
        )
        self.form = _form(name, fields, hints)
        self._decode = {codec: make(self.form).decode for codec, make in _DECODERS.items()}

    # -- at the push -----------------------------------------------------------------------------

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], place: int | None = None
    ) -> Struct:
        """Raises TypeError as a plain call with these arguments would. `place`: among many."""
        try:
            if self._bound is None:
                return self.form(*args, **kwargs)
            return self.form(**self._bound.bind(*args, **kwargs).arguments)
        except TypeError as error:
            which = "" if place is None else f", job {place}"
            raise TypeError(f"task {self.name!r}{which}: {error}") from None

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        try:
            # `bind` without the call of it, for every single push.
            value = self.form(*args, **kwargs) if self._bound is None else self.bind(args, kwargs)
        except TypeError:
            value = self.bind(args, kwargs)  # which says whose arguments they are
        try:
            payload = _ENCODE[codec](value)
            if NULL in payload and codec == "json":  # else there is nothing to find
                check_finite(value, payload)
        except _ENCODING as error:
            raise _unsendable(self.name, error) from error
        return payload

    def encode_many(
        self, codec: Codec, said: Sequence[Said], data: bytearray, first: int = 0
    ) -> list[int]:
        """Append every job's payload to `data`; answers where each ends. `first`: how many jobs
        came before, for naming one that is wrong."""
        if codec == "bytes":
            _no_arguments(said)
        encode_into, form = ENCODERS[codec].encode_into, self.form
        straight = self._bound is None
        begin = len(data)
        ends: list[int] = []
        for each in said:
            # A tuple of all arguments is built in C; whatever else it is, `_one` knows.
            try:
                value = form(*each) if straight and type(each) is tuple else None
            except TypeError:
                value = None
            if value is None:
                value = self._one(each, first + len(ends))
            try:
                encode_into(value, data, -1)
            except _ENCODING as error:
                raise _unsendable(self.name, error, first + len(ends)) from error
            ends.append(len(data))
        if codec == "json":
            _check_all_finite(self.name, said, data, begin, ends, first)
        return ends

    def _one(self, said: Any, place: int) -> Struct:
        if isinstance(said, Mapping):
            return self.bind((), said, place)
        if isinstance(said, Sequence) and not isinstance(said, str | bytes):
            return self.bind(said, {}, place)
        raise BadDeclaration(
            "push_many takes a tuple of arguments or a mapping of named ones for each job,"
            f" and job {place} is {type(said).__name__}: write ({said!r},)",
            "jobs",
        )

    # -- at the worker ---------------------------------------------------------------------------

    def decode(self, codec: Codec, payload: bytes) -> Struct:
        try:
            form_of = self._decode[codec]
        except KeyError:
            raise BadArguments(f"the codec {codec!r} carries no arguments") from None
        values: Struct
        try:
            values = form_of(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            nothing, empty = _NOTHING[codec]
            if payload != nothing:
                raise BadArguments(str(error)) from None
            values = self.decode(codec, empty)
        if self._more is not None and (more := getattr(values, self._more)) is not UNSET:
            twice = self._named & more.keys()
            if twice:
                raise BadArguments(f"Object has {min(twice)!r} twice - at `$.{self._more}`")
        return values

    def said(self, values: Struct) -> dict[str, Any]:
        """The arguments that were said, by name."""
        return {
            field: value
            for field in values.__struct_fields__
            if (value := getattr(values, field)) is not UNSET
        }

    def call(self, handler: Callable[..., Any], values: Struct, context: Context | None) -> Any:
        """What the handler answers: of an asynchronous one, its coroutine. `context` may be None where
        no parameter asks for it."""
        if self.placed:
            return handler(*astuple(values))
        named = self.said(values)
        if self.context is not None:
            named[self.context] = context
        if self._bound is None:
            return handler(**named)
        bound = self.signature.bind_partial()
        bound.arguments.update(named)
        bound.apply_defaults()  # else what follows one that was not said could not be placed
        return handler(*bound.args, **bound.kwargs)


class Items:
    """The argument of a batch task: a list, of which every job carries one item."""

    many: ClassVar = "items of its batch"

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        self.name = name
        hints = Hints(handler, name)
        self.returns = Any
        self.signature = inspect.signature(handler)
        parameters = list(self.signature.parameters.values())
        self.context = hints.context(parameters, name)
        lists = [each for each in parameters if each.name != self.context]
        if len(lists) != 1 or lists[0].kind not in _POSITIONAL:
            raise BadDeclaration(
                f"batch task {name!r} must take one list (and, if it likes, a Context)"
            )
        item = _decodable(_item(hints.of(lists[0]), name), name, f"an item of {lists[0].name!r}")
        self._list = lists[0].name
        self._item_name = getattr(item, "__name__", str(item))
        self._never = never(item)
        self._takes_bytes = item in (bytes, Any)
        self._one = {codec: make(item) for codec, make in _DECODERS.items()}
        self._all: Any = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        if len(args) != 1 or kwargs:
            raise TypeError(f"batch task {self.name!r}: push takes one item")
        if codec != "bytes":
            self._check(args)
        try:
            return encoded(codec, args[0])
        except Unsendable as error:
            raise _unsendable(self.name, error) from error.__cause__

    def encode_many(
        self, codec: Codec, said: Sequence[Any], data: bytearray, first: int = 0
    ) -> list[int]:
        encode_into = _bytes_into if codec == "bytes" else ENCODERS[codec].encode_into
        if codec != "bytes":
            self._check(said, first)
        begin = len(data)
        ends: list[int] = []
        for each in said:
            try:
                encode_into(each, data, -1)
            except _ENCODING as error:
                raise _unsendable(self.name, error, first + len(ends)) from error
            ends.append(len(data))
        if codec == "json":
            _check_all_finite(self.name, said, data, begin, ends, first)
        return ends

    def _check(self, said: Sequence[Any], first: int | None = None) -> None:
        """Raises BadDeclaration for a tuple of arguments, or a mapping of them, that is no item."""
        if not any(issubclass(kind, self._never) for kind in set(map(type, said))):
            return
        place = next(at for at, each in enumerate(said) if isinstance(each, self._never))
        which = "it" if first is None else f"job {first + place}"
        raise BadDeclaration(
            f"batch task {self.name!r} is pushed by items, each {self._item_name}, and {which} is"
            f" {show(said[place])}",
            "item" if first is None else "jobs",
        )

    def decode(self, codec: Codec, payload: bytes) -> Any:
        decoder = self._one.get(codec)
        if decoder is None:
            if not self._takes_bytes:
                raise BadArguments(f"the codec {codec!r} carries no item of this task")
            return payload
        try:
            return decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadArguments(str(error)) from None

    def decode_many(self, codec: Codec, payloads: Sequence[bytes]) -> list[Any]:
        """All at once where that is possible: one call in C instead of one per job."""
        if codec == "json":
            try:
                return self._all.decode(b"[%b]" % b",".join(payloads))  # type: ignore[no-any-return]
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadArguments(str(error)) from None
        return [self.decode(codec, payload) for payload in payloads]

    def said(self, item: Any) -> Any:
        return item

    def call(self, handler: Callable[..., Any], items: list[Any], context: Context) -> Any:
        bound = self.signature.bind_partial()
        bound.arguments[self._list] = items
        if self.context is not None:
            bound.arguments[self.context] = context
        return handler(*bound.args, **bound.kwargs)


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def encoded(codec: Codec, value: Any) -> bytes:
    """Raises Unsendable."""
    if codec == "bytes":
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Unsendable(f"codec bytes takes bytes, not {type(value).__name__}")
        return bytes(value)
    try:
        said: bytes = ENCODERS[codec].encode(value)
        if codec == "json":
            check_finite(value, said)
    except _ENCODING as error:
        raise Unsendable(str(error)) from error
    return said


def _check_all_finite(
    name: str, said: Sequence[Any], data: bytearray, begin: int, ends: Sequence[int], first: int
) -> None:
    """As `check_finite`, of many whose JSON stands there, each up to its end."""
    try:
        check_finite(said, data, begin)
    except ValueError:
        for place, (each, end) in enumerate(zip(said, ends, strict=True)):
            try:
                check_finite(each, data[begin:end])
            except ValueError as error:
                raise _unsendable(name, error, first + place) from error
            begin = end
        raise


def _bytes_into(value: Any, data: bytearray, _: int) -> None:
    data += encoded("bytes", value)


def decoded(codec: Codec | None, value: bytes | None, kind: Any) -> Any:
    """A result as what the handler's annotation says; what never was, is None."""
    if value is None:
        return None
    if codec in _DECODERS:
        return _DECODERS[codec](kind).decode(value)
    return value


def _no_arguments(value: Any) -> NoReturn:
    raise TypeError("codec bytes carries no arguments: only items of a batch task")


_ENCODE: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": ENCODERS["json"].encode,
    "msgpack": ENCODERS["msgpack"].encode,
    "bytes": _no_arguments,
}


def _unsendable(name: str, error: Exception, place: int | None = None) -> TypeError:
    which = "" if place is None else f" of job {place}"
    return TypeError(f"task {name!r}: an argument{which} cannot be sent: {error}")


def _item(kind: Any, name: str) -> Any:
    """What the list of a batch task has in it."""
    origin = get_origin(kind) or kind
    if kind is Any or (isinstance(origin, type) and issubclass(list, origin)):
        return get_args(kind)[0] if get_args(kind) else Any
    raise BadDeclaration(
        f"batch task {name!r} is given a list; its parameter is not annotated as one"
    )


def _decodable(kind: Any, name: str, what: str) -> Any:
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError) as error:
        raise BadDeclaration(f"task {name!r}: {what} cannot be received: {error}") from error
    return kind


def _receivable(kind: Any) -> bool:
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError):
        return False
    return True


def _form(name: str, parameters: Iterable[inspect.Parameter], hints: Hints) -> type[Struct]:
    """The Struct of the parameters: those behind `*` by name only, as in the handler."""
    placed: list[Any] = []
    named: list[Any] = []
    for each in parameters:
        kind = _decodable(hints.of(each), name, f"the parameter {each.name!r}")
        optional = each.default is not inspect.Parameter.empty
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            kind, optional = list[kind], True  # type: ignore[valid-type]
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            kind, optional = dict[str, kind], True  # type: ignore[valid-type]
        # `Union` and not `|`: an annotation need not be a class.
        field = (each.name, Union[kind, UnsetType], UNSET) if optional else (each.name, kind)  # noqa: UP007
        (placed if each.kind in _POSITIONAL else named).append(field)
    base = msgspec.defstruct(f"{name} arguments", placed, forbid_unknown_fields=True)
    if not named:
        return base
    return msgspec.defstruct(
        f"{name} arguments", named, bases=(base,), kw_only=True, forbid_unknown_fields=True
    )
