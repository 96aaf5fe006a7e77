"""What a store's url says, or what is wrong with it and how a right one looks.

Three slashes begin a path from the working directory, four one from the root, as with other
libraries' urls of SQLite. Settings of a durable store stand behind a `?`.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_type_hints
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

import msgspec

from penstock.model.allowed import wrong
from penstock.model.errors import Invalid
from penstock.model.urls import without_password
from penstock.stores.journal.settings import Settings

# How a url of each kind looks.
LOOKS: Final = {
    "memory": "memory://",
    "sqlite": "sqlite:///path",
    "rocksdb": "rocksdb:///path",
    "penstock": "penstock://host",
}
ON_A_DISK: Final = "sqlite:///path or rocksdb:///path"


def split(url: str) -> SplitResult:
    """The parts of a url that names a kind of store which there is."""
    if not url:
        raise _wrong("is empty: a store is a url, like sqlite:///jobs.db or penstock://host")
    try:
        parts = urlsplit(url)
    except ValueError:  # of nothing else
        raise _wrong(
            f"{shown(url)} is no url: an IPv6 address stands in brackets, penstock://[::1]:6789"
        ) from None
    if not parts.scheme:
        right = LOOKS.get(url)
        said = f"{right} is" if right else f"if it is a path, sqlite:///{url} is"
        raise _wrong(f"{shown(url)} is no url; {said}")
    if parts.scheme in ("http", "https"):
        raise _wrong(
            f"{shown(url)} is where a server speaks HTTP; as a store it is"
            f" penstock://{parts.hostname or 'host'}, with the port of TCP unless that is 6789"
        )
    if parts.scheme not in LOOKS and parts.scheme != "penstock+unix":
        near = get_close_matches(parts.scheme, LOOKS, 1)
        *most, last = LOOKS.values()
        there = f"{LOOKS[near[0]]} is" if near else f"{', '.join(most)} and {last} are"
        raise _wrong(f"{shown(url)} is no store that this release knows; {there}")
    if parts.scheme == "memory" and url != LOOKS["memory"]:
        if not url.startswith(LOOKS["memory"]):
            raise _wrong(f"{shown(url)} lacks its slashes: {LOOKS['memory']}")
        raise _wrong(f"{shown(url)} names more than {LOOKS['memory']} does")
    return parts


def path_of(url: str, parts: SplitResult) -> Path:
    """Where a durable store lies.

    Resolved at once: whatever the working directory will be, and under whichever name somebody
    else opens it, there is one lock and one socket.
    """
    start, path = f"{parts.scheme}:///", unquote(parts.path)
    why = ""
    if not url.lower().startswith(start) or len(path) < 2:
        right = unquote(parts.netloc.rpartition("@")[2] + parts.path).strip("/") or "jobs.db"
        why = (
            f"three slashes begin a path from here, {start}{right},"
            f" four one from the root, {start}/{right}"
        )
    elif parts.fragment:
        why = f"a # in one is said %23, {without_password(url).replace('#', '%23')}"
    elif path.endswith("/"):
        why = f"it ends with a slash; {start}{path[1:].rstrip('/')} is"
    elif "\0" in path:
        why = "it has a NUL character in it"
    if why:
        raise _wrong(f"{shown(url)} names no path: {why}")
    return Path(path[1:]).resolve()


def settings_of(query: str) -> Settings:
    """What stands behind the `?`."""
    known = get_type_hints(Settings, include_extras=True)
    values: dict[str, Any] = {}
    for said in query.split("&") if query else []:
        name, equals, text = said.partition("=")
        if not equals:
            raise _wrong(f"{unquote_plus(said)!r} is no setting like mode=ro")
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise _wrong(f"there is no setting {name!r}; {hint}")
        if name in values:
            raise _wrong(f"{name}: is said twice")
        value = unquote_plus(text)
        try:
            values[name] = msgspec.convert(value, known[name], strict=False)
        except msgspec.ValidationError:
            raise _wrong(f"{name}: {wrong(value, known[name])}") from None
    return Settings(**values)


def shown(url: str) -> str:
    return repr(without_password(url))


def _wrong(message: str) -> Invalid:
    return Invalid(message, "url")
