"""What a value may be, in words. Whoever said a wrong one knows neither Python's types nor msgspec's
names for them: `'many' is not a whole number from 0 to 65535`.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import inspect

MOST: Final = 60  # characters of a value that are shown


def wrong(value: object, kind: Any) -> str:
    """That this value is none of that annotated type."""
    return f"{shown(value)} is not {allowed(kind)}"


def allowed(kind: Any) -> str:
    """What the values of an annotated type are."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(bare) is Literal:
        return f"one of {', '.join(map(str, get_args(bare)))}"  # in the order of the code
    return _words(inspect.type_info(kind))


def shown(value: object) -> str:
    """A value as it was said, or its beginning."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, str):
        return repr(value if len(value) <= MOST else f"{value[:MOST]}…")
    said = json.dumps(value, default=str) if isinstance(value, bool | list) else str(value)
    return said if len(said) <= MOST else f"{said[:MOST]}…"


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return _words(info.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_within(info)}"
        case inspect.FloatType():
            return f"a number{_within(info)}"
        case inspect.StrType(min_length=least) if least:
            return f"text of at least {least} character{'s' if least > 1 else ''}"
        case inspect.StrType():
            return "text"
        case inspect.DateTimeType():
            return "an instant with its offset, like 2030-01-31T08:00:00+01:00"
        case inspect.VarTupleType():
            return "a list"
        case inspect.UnionType():
            some = (each for each in info.types if not isinstance(each, inspect.NoneType))
            return " or ".join(map(_words, some))
        case _:
            raise TypeError(f"no setting is a {info!r}")


def _within(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:.15g}"
    if info.ge is not None:
        return f" of at least {info.ge:g}"
    if info.gt is not None:
        return f" above {info.gt:g}"
    return ""
