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
from typing import Any, Final, Union, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.client.context import Context
from penstock.model.job import Codec

ENCODERS: Final[dict[str, Any]] = {
    "json": msgspec.json.Encoder(),
    "msgpack": msgspec.msgpack.Encoder(),
}
_DECODERS: Final[dict[str, Any]] = {
    "json": msgspec.json.Decoder,
    "msgpack": msgspec.msgpack.Decoder,
}
_NOTHING: Final = {b"null", b"\xc0"}  # what a job has that was pushed without a payload

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# What a job of `push_many` is said as: the positional arguments, or the named ones.
Said = Sequence[Any] | Mapping[str, Any]


class BadArguments(ValueError):
    """The payload is not what the handler's parameters ask for."""


class Hints:
    """What a handler's annotations say; a name that cannot be resolved is a mistake to report."""

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        try:
            self.types = get_type_hints(handler, include_extras=True)
        except NameError as error:
            raise TypeError(
                f"task {name!r}: an annotation names {error.name!r}, which its module does not have;"
                " tasks need their annotations at run time"
            ) from error
        self.returns: Any = self.types.pop("return", Any)

    def of(self, parameter: inspect.Parameter) -> Any:
        return self.types.get(parameter.name, Any)


class Arguments:
    """How the arguments of one handler are bound, encoded, decoded and passed."""

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        self.name = name
        self.signature = inspect.signature(handler)
        hints = Hints(handler, name)
        self.returns = hints.returns if _receivable(hints.returns) else Any
        parameters = list(self.signature.parameters.values())
        contexts = [each for each in parameters if hints.of(each) is Context]
        if len(contexts) > 1:
            raise TypeError(f"task {name!r} asks for its Context twice")
        self.context = contexts[0].name if contexts else None
        fields = [each for each in parameters if each.name != self.context]
        self.variadic = any(each.kind in _VARIADIC for each in fields)
        self._positional_only = tuple(
            each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY
        )
        self._bound = self.signature.replace(parameters=fields) if self.variadic else None
        self.form = _form(name, fields, hints)
        self._decoders = {codec: make(self.form) for codec, make in _DECODERS.items()}

    # -- at the push -----------------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Struct:
        """Raises TypeError as a plain call with these arguments would."""
        try:
            if self._bound is None:
                return self.form(*args, **kwargs)
            return self.form(**self._bound.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"task {self.name!r}: {error}") from None

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        return encoded(codec, self.bind(args, kwargs), self.name)

    def encode_many(self, codec: Codec, said: Iterable[Said], data: bytearray) -> list[int]:
        """Append every job's payload to `data`; answers where each ends."""
        encode_into, form = ENCODERS[codec].encode_into, self.form
        ends = []
        for each in said:
            # A tuple of all arguments is built in C; whatever else it is, `_one` knows.
            try:
                value = form(*each) if type(each) is tuple and not self.variadic else None
            except TypeError:
                value = None
            try:
                encode_into(self._one(each) if value is None else value, data, -1)
            except (TypeError, ValueError, msgspec.MsgspecError) as error:
                raise _unsendable(self.name, error) from error
            ends.append(len(data))
        return ends

    def _one(self, said: Any) -> Struct:
        if isinstance(said, Mapping):
            return self.bind((), said)
        if isinstance(said, Sequence) and not isinstance(said, str | bytes):
            return self.bind(said, {})
        raise TypeError(
            "push_many takes a tuple of arguments or a mapping of named ones for each job,"
            f" not {type(said).__name__}: write ({said!r},)"
        )

    # -- at the worker ---------------------------------------------------------------------------

    def decode(self, codec: Codec, payload: bytes) -> Struct:
        decoder = self._decoders.get(codec)
        if decoder is None:
            raise BadArguments(f"the codec {codec!r} carries no arguments")
        try:
            return decoder.decode(b"{}" if codec == "json" and payload in _NOTHING else payload)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadArguments(str(error)) from None

    def call(self, handler: Callable[..., Any], values: Struct, context: Context) -> Any:
        """What the handler answers: of an asynchronous one, its coroutine."""
        named = {
            field: value
            for field in values.__struct_fields__
            if (value := getattr(values, field)) is not UNSET
        }
        if self.context is not None:
            named[self.context] = context
        if not self.variadic and not self._positional_only:
            return handler(**named)
        bound = self.signature.bind_partial()
        bound.arguments.update(named)
        return handler(*bound.args, **bound.kwargs)


class Items:
    """The argument of a batch task: a list, of which every job carries one item."""

    def __init__(self, handler: Callable[..., Any], name: str) -> None:
        self.name = name
        hints = Hints(handler, name)
        self.returns = Any
        parameters = list(inspect.signature(handler).parameters.values())
        self.context = next((each.name for each in parameters if hints.of(each) is Context), None)
        lists = [each for each in parameters if each.name != self.context]
        if len(lists) != 1 or lists[0].kind not in _POSITIONAL:
            raise TypeError(f"batch task {name!r} must take one list (and, if it likes, a Context)")
        item = getattr(hints.of(lists[0]), "__args__", (Any,))[0]
        item = _decodable(item, name, f"an item of {lists[0].name!r}")
        self._one = {codec: make(item) for codec, make in _DECODERS.items()}
        self._all: Any = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        if len(args) != 1 or kwargs:
            raise TypeError(f"batch task {self.name!r}: push takes one item")
        return encoded(codec, args[0], self.name)

    def encode_many(self, codec: Codec, said: Iterable[Any], data: bytearray) -> list[int]:
        encode_into, ends = ENCODERS[codec].encode_into, []
        for each in said:
            try:
                encode_into(each, data, -1)
            except (TypeError, ValueError, msgspec.MsgspecError) as error:
                raise _unsendable(self.name, error) from error
            ends.append(len(data))
        return ends

    def decode(self, codec: Codec, payload: bytes) -> Any:
        decoder = self._one.get(codec)
        if decoder is None:
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

    def call(self, handler: Callable[..., Any], items: list[Any], context: Context) -> Any:
        return handler(items) if self.context is None else handler(items, **{self.context: context})


def encoded(codec: Codec, value: Any, name: str) -> bytes:
    if codec == "bytes":
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"task {name!r}: codec bytes takes bytes, not {type(value).__name__}")
        return bytes(value)
    try:
        return ENCODERS[codec].encode(value)  # type: ignore[no-any-return]
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _unsendable(name, error) from error


def decoded(codec: Codec | None, value: bytes | None, kind: Any) -> Any:
    """A result as what the handler's annotation says; what never was, is None."""
    if value is None:
        return None
    if codec in _DECODERS:
        return _DECODERS[codec](kind).decode(value)
    return value


def _unsendable(name: str, error: Exception) -> TypeError:
    return TypeError(f"task {name!r}: an argument cannot be sent: {error}")


def _decodable(kind: Any, name: str, what: str) -> Any:
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError) as error:
        raise TypeError(f"task {name!r}: {what} cannot be received: {error}") from error
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
