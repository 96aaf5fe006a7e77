"""Which form values of a type have when they are sent: an array, an object, either or neither.

`push_many` takes a tuple of arguments for each job of most tasks, and of a batch task the items
themselves. Whoever mixes them up is told at the push, where the form says that it cannot be right;
whatever else a type asks for is checked at the worker.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

_ARRAY: Final = (
    inspect.CollectionType,
    inspect.TupleType,
    inspect.VarTupleType,
    inspect.NamedTupleType,
)
_OBJECT: Final = (inspect.DictType, inspect.TypedDictType, inspect.DataclassType)
_NEITHER: Final = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)


def never(kind: Any) -> tuple[type, ...]:
    """The containers of arguments that no value of the type is sent as."""
    array, object_ = _forms(inspect.type_info(kind))
    return (*(() if array else (tuple, list)), *(() if object_ else (Mapping,)))


def _forms(kind: inspect.Type) -> tuple[bool, bool]:
    """Whether it may be an array, and whether an object. What is not known here may be both."""
    if isinstance(kind, inspect.Metadata):
        return _forms(kind.type)
    if isinstance(kind, inspect.UnionType):
        arrays, objects = zip(*map(_forms, kind.types), strict=True)
        return any(arrays), any(objects)
    if isinstance(kind, inspect.StructType):
        return kind.array_like, not kind.array_like
    known = isinstance(kind, (*_ARRAY, *_OBJECT, *_NEITHER))
    return isinstance(kind, _ARRAY) or not known, isinstance(kind, _OBJECT) or not known
