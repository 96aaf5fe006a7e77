"""docs/protocol.md, from the classes that are the protocol.

The page is written by hand but for what stands between two marks, `<!-- begin NAME -->` and
`<!-- end NAME -->`: that is made here from the request and answer classes, their docstrings, fields
and the comments beside them. A test fails while page and code differ.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType

from penstock.model.errors import by_code
from penstock.protocol.command import Answer, Request
from penstock.protocol.table import name_of

_FIELD: Final = re.compile(
    r"^    (\w+)\s*:[^#\n]*(?:\n        [^#\n]*)*?(?:#\s*(.*))?$", re.MULTILINE
)
_MARK: Final = "<!-- {} {} -->"
Requests = Sequence[type[Request]]

_PLAIN: Final = {bytes: "bytes", str: "string", int: "integer", bool: "boolean", float: "number"}


# The codes that are a command's own, beside those that every command may answer.
_PUSHES: Final = (
    "conflict",
    "payload_too_large",
    "batch_too_large",
    "rate_limited",
    "storage_full",
)
_LEASED: Final = ("lease_lost",)
_NAMED: Final = ("not_found",)
ERRORS: Final[dict[str, tuple[str, ...]]] = {
    "HELLO": ("conflict",),
    "AUTH": ("conflict",),
    "PUSHRUN": (*_PUSHES, "not_found"),
    "BULKOPEN": (),
    "BULKCOMMIT": ("not_found", "conflict", "storage_full"),
    "BULKABORT": ("not_found", "conflict"),
    "COMPLETE": (*_LEASED, "payload_too_large"),
    "FAILED": _LEASED,
    "RELEASE": _LEASED,
    "EXTEND": _LEASED,
    "REPORT": _LEASED,
    "RESULT": ("not_found", "deadline"),
    "LOGS": _NAMED,
    "EXPLAIN": _NAMED,
    "EDIT": ("not_found", "conflict", "payload_too_large", "storage_full"),
    "PUTCRON": ("storage_full", "payload_too_large"),
    "PUTINSTANTS": _PUSHES[1:],
    "REFRESHINSTANTS": (*_PUSHES[1:], "not_found"),
    "PUSH": _PUSHES,
    "PUSHB": _PUSHES,
    "FLOW": _PUSHES,
    "ACK": ("not_found", "conflict", "lease_lost", "payload_too_large"),
    "FAIL": ("not_found", "conflict", "lease_lost"),
    "HEARTBEAT": ("not_found", "conflict", "lease_lost"),
    "PROGRESS": ("not_found", "conflict", "lease_lost"),
    "LOG": ("not_found", "conflict", "lease_lost"),
    "PARTIAL": ("not_found", "conflict", "lease_lost"),
    "GETJOB": _NAMED,
    "GETSTATE": _NAMED,
    "GETRESULT": _NAMED,
    "WAITJOB": ("not_found", "deadline"),
    "GETPROGRESS": _NAMED,
    "GETLOGS": _NAMED,
    "GETCHILDREN": _NAMED,
    "CANCEL": ("not_found", "conflict"),
    "DISCARD": ("not_found", "conflict"),
    "UPDATEJOB": ("not_found", "conflict", "payload_too_large", "storage_full"),
    "UPDATE": ("not_found", "conflict", "payload_too_large", "storage_full"),
    "CHANGEPRIORITY": ("not_found", "conflict"),
    "PROMOTE": ("not_found", "conflict"),
    "MOVETODELAYED": ("not_found", "conflict"),
    "RETRYDLQ": ("not_found", "conflict"),
    "CRON": ("storage_full", "payload_too_large"),
}


def page(written: str, native: Requests, compatible: Requests) -> str:
    """The page as it should be."""
    return fill(
        written,
        {
            "codes": codes(),
            "native": commands(native),
            "compatible": commands(compatible),
            "shapes": shapes((*native, *compatible)),
        },
    )


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with what lies between each pair of marks made anew."""
    for name, text in parts.items():
        begin, end = _MARK.format("begin", name), _MARK.format("end", name)
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no place for {name!r}")
        page = f"{head}{begin}\n{text}\n{end}{tail}"
    return page


def commands(requests: Requests) -> str:
    """A section for each command."""
    parts = []
    for request in requests:
        name = name_of(request)
        parts += [f"### {name}", "", _said(request), ""]
        parts += _table(request, skipped={"req_id"})
        answered = _table(request.answer, skipped={"ok", "req_id", "success"})
        parts += ["Answer:", "", *answered] if answered else ["Answer: nothing beyond `ok`.", ""]
        if ERRORS.get(name):
            parts += [f"Errors: {', '.join(f'`{code}`' for code in ERRORS[name])}.", ""]
    return "\n".join(parts).rstrip()


def shapes(requests: Requests) -> str:
    """A section for each Struct that commands are made of."""
    found: dict[str, type[msgspec.Struct]] = {}
    for request in requests:
        for root in (request, request.answer):
            for inner in _structs(root):
                if not issubclass(inner, Request | Answer):
                    found[inner.__name__] = inner
    parts = []
    for name, shape in sorted(found.items()):
        parts += [f"### {name}", "", _said(shape), "", *_table(shape, skipped=set())]
    return "\n".join(parts).rstrip()


def codes() -> str:
    """Every error code, with its class."""
    lines = ["| code | raised in Python as |", "|---|---|"]
    lines += [f"| `{code}` | `{error.__name__}` |" for code, error in by_code().items()]
    return "\n".join(lines)


# -- one class -------------------------------------------------------------------------------------


def _said(shape: type[Any]) -> str:
    return " ".join((shape.__doc__ or "").split())


def _table(shape: type[msgspec.Struct], skipped: set[str]) -> list[str]:
    comments = _comments(shape)
    rows = []
    for field in msgspec.structs.fields(shape):
        if field.name in skipped:
            continue
        rows.append(
            f"| `{field.encode_name}` | {_type(field.type)} | {_default(field)}"
            f" | {_cell(comments.get(field.name, ''))} |"
        )
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""] if rows else []


def _comments(shape: type[Any]) -> dict[str, str]:
    """What stands beside each field, in the class or in those that it extends."""
    found: dict[str, str] = {}
    for cls in reversed(shape.__mro__):
        if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct:
            body = inspect.getsource(cls)
            found |= {name: said for name, said in _FIELD.findall(body) if said}
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is UNSET:
        return ""
    if field.default is not NODEFAULT:
        if isinstance(field.default, msgspec.Struct):
            return "its defaults"
        if field.default is None:
            return ""
        if isinstance(field.default, msgspec.Raw):
            return "`null`"
        return f"`{msgspec.json.encode(field.default).decode()}`"
    if field.default_factory is not NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    return "required"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(kind: Any) -> str:
    if kind is Any or kind is msgspec.Raw:
        return "any value"
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(_type(one) for one in inner if one not in (type(None), UnsetType))
        )
    if origin is dict:
        return f"map of {_type(inner[0])} to {_type(inner[1])}"
    if origin is not None and inner:
        return f"list of {_type(inner[0])}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return str(getattr(kind, "__name__", kind))


def _structs(root: Any) -> Iterator[type[msgspec.Struct]]:
    seen: set[Any] = set()
    left: list[Any] = [root]
    while left:
        kind = left.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind in seen:
                continue
            seen.add(kind)
            yield kind
            left += [field.type for field in msgspec.structs.fields(kind)]
        else:
            left += get_args(kind)
