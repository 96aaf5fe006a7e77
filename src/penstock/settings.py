"""Every setting of the server, and where its value comes from.

Defaults < `penstock.toml` < `PENSTOCK_*` < flags. A key that nobody knows is an error that names the
nearest one that is known: a setting with a typing error in it must not be a setting that is off.
The descriptions below are what `--print-config` and the documentation show.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from penstock.model.allowed import allowed, shown, wrong
from penstock.model.errors import Invalid
from penstock.model.urls import HIDDEN, without_password

FILE: Final = "penstock.toml"
PREFIX: Final = "PENSTOCK_"
DEFAULT: Final = "default"

# Variables of that prefix that are said to others: to clients, and where our own file lies.
ELSEWHERE: Final = frozenset({"PENSTOCK_CONFIG", "PENSTOCK_TOKEN", "PENSTOCK_LONG"})

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]

T = TypeVar("T")


def _says(description: str) -> Meta:
    return Meta(description=description)


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One static token. The token itself is written nowhere: see `penstock token create`."""

    name: Annotated[str, Meta(min_length=1, description="Who it is; the audit log says so.")]
    hash: Annotated[str, _says("sha256: and the hash of the token, in hexadecimal.")]
    tenant: Annotated[str, _says('Whose jobs it is about; "*": any tenant\'s.')] = "*"
    scopes: Annotated[
        tuple[str, ...],
        _says("What it may do: push, claim, admin; each may name queues: claim:emails-*."),
    ] = ("push", "claim", "admin")
    expires_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None, _says("From when on it is refused.")
    ] = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connections may take."""

    connections: Annotated[Count, _says("Open at once, per transport.")] = 10_000
    connections_per_address: Annotated[Count, _says("Open at once from one host, over TCP.")] = (
        5_000
    )
    in_flight: Annotated[Count, _says("Requests of one connection that may be unanswered.")] = (
        10_000
    )
    stranger_bytes: Annotated[
        Count, _says("The largest frame or body of somebody who has not said who they are.")
    ] = 16 << 20
    frame_bytes: Annotated[Count, _says("The largest frame or body of anybody else.")] = 64 << 20
    handshake_s: Annotated[
        Seconds, _says("Within which a connection must have said something complete; 0: any time.")
    ] = 10.0
    frame_s: Annotated[
        Seconds, _says("Within which a frame or a request that began must be there; 0: any time.")
    ] = 30.0
    idle_s: Annotated[
        Seconds,
        _says("After which a connection that says nothing and waits for nothing ends; 0: never."),
    ] = 300.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, _says("The store.")] = "sqlite:///penstock.db"
    host: Annotated[
        str, _says("The address to listen at. Other than loopback, it needs tokens.")
    ] = "127.0.0.1"
    port: Annotated[Port, _says("Of TCP; 0: a free one.")] = 6_789
    http_port: Annotated[Port, _says("Of HTTP; 0: a free one.")] = 6_790
    no_http: Annotated[bool, _says("Do not listen for HTTP.")] = False
    unix: Annotated[str, _says("The path of a Unix socket (mode 0600); empty: none.")] = ""
    cron: Annotated[
        bool, _says("Keep the crons of the default tenant and of the tokens' tenants going.")
    ] = True
    shutdown_s: Annotated[
        Seconds, _says("How long a server that was told to end waits for active jobs.")
    ] = 30.0
    log_format: Annotated[
        LogFormat, _says("json: a line per event, for machines; text: for somebody who watches.")
    ] = "text"
    log_level: Annotated[
        LogLevel,
        _says("The least that is logged. What happens to jobs is info as json, debug as text."),
    ] = "info"
    audit_file: Annotated[
        str, _says("Where actions of administrators are written down; empty: the log.")
    ] = ""
    events: Annotated[
        str, _says("The directory of the event log, which the pipeline reads; empty: none.")
    ] = ""
    events_seal_s: Annotated[
        Annotated[float, Meta(gt=0)], _says("Within which what happened can be read there.")
    ] = 10.0
    events_keep_s: Annotated[
        Seconds, _says("How long it stays there, in seconds; 0: for ever.")
    ] = 30 * 86_400.0
    events_keep_bytes: Annotated[
        Annotated[int, Meta(ge=0)], _says("How much stays there; 0: everything.")
    ] = 0
    tokens_file: Annotated[
        str, _says("A TOML file with more [[tokens]]; only its owner should be able to read it.")
    ] = ""
    limits: Limits = Limits()
    tokens: Annotated[
        tuple[Token, ...], _says("Who may come in; none: whoever reaches a loopback address.")
    ] = ()


class Loaded(msgspec.Struct, frozen=True):
    """The effective settings."""

    settings: Settings
    sources: dict[str, str]  # by dotted key: who said so; what is not in it is a default
    path: Path | None = None  # of the file that was read

    @contextmanager
    def saying_who(self) -> Iterator[None]:
        """What is wrong with the store's url is told with who said it."""
        try:
            yield
        except Invalid as error:
            if error.field != "url":
                raise
            source = self.sources.get("url", DEFAULT)
            raise Invalid(f"{error.message} (said by {source})", "url") from error


def keys(kind: type[msgspec.Struct] = Settings, above: str = "") -> dict[str, Any]:
    """Every setting by its dotted key, with its annotated type."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found |= keys(hint, f"{above}{name}.")
        else:
            found[above + name] = hint
    return found


def variable(key: str) -> str:
    """The environment variable of a key."""
    return PREFIX + key.replace(".", "_").upper()


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Put the settings together. `file`: one that must be there; else `penstock.toml`, if it is.

    `flags` are what was said on the command line, by dotted key; None: not said.
    """
    environ = environ or {}
    said: dict[str, object] = {}
    sources: dict[str, str] = {}
    if file is None and environ.get("PENSTOCK_CONFIG"):
        file = Path(environ["PENSTOCK_CONFIG"])
    if file is None and Path(FILE).exists():
        file = Path(FILE)
    layers = [(_of_file(file), str(file))] if file is not None else []
    layers.append((_of_environment(environ), ""))
    layers.append(({key: v for key, v in (flags or {}).items() if v is not None}, "--"))
    for values, source in layers:
        for key, value in values.items():
            said[key] = value
            sources[key] = source
            if source == "--":
                sources[key] = "--" + key.replace("_", "-").replace(".", "-")
            elif not source:
                sources[key] = variable(key)
    return Loaded(_settings(said, sources), sources, file)


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The [[tokens]] of a file that has nothing else."""
    said = _read(path, "tokens_file")
    for key in said:
        if key != "tokens":
            raise Invalid(f"{path}: {key!r} is not known here: only [[tokens]] are", key)
    return _tokens(said.get("tokens", []), str(path))


# -- where values come from ------------------------------------------------------------------------


def _read(path: Path, key: str = "config") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", key) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path} is not TOML: {error}", key) from None


def _of_file(path: Path) -> dict[str, object]:
    known = keys()
    found: dict[str, object] = {}
    for key, value in _flat(_read(path), known):
        if key not in known:
            raise _unknown(key, known, str(path))
        found[key] = value
    return found


def _flat(table: Mapping[str, Any], known: Mapping[str, Any], above: str = "") -> Iterator[Any]:
    for name, value in table.items():
        key = above + name
        if isinstance(value, dict) and key not in known:
            yield from _flat(value, known, f"{key}.")
        else:
            yield key, value


def _of_environment(environ: Mapping[str, str]) -> dict[str, object]:
    known = {variable(key): key for key in keys()}
    found: dict[str, object] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in ELSEWHERE:
            continue
        if name not in known:
            raise _unknown(name, known, "the environment")
        if known[name] == "tokens":
            raise Invalid(f"{name}: tokens stand in a file: PENSTOCK_TOKENS_FILE", "tokens")
        found[known[name]] = value
    return found


def _unknown(key: str, known: Mapping[str, Any], where: str) -> Invalid:
    near = get_close_matches(key, known, 1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return Invalid(f"there is no such setting{hint} (said by {where})", key)


def _settings(said: Mapping[str, object], sources: Mapping[str, str]) -> Settings:
    known = keys()
    values: dict[str, Any] = {}
    for key, value in said.items():
        if key not in known:
            raise _unknown(key, known, sources[key])
        if key == "tokens":
            values[key] = _tokens(value, sources[key])
        else:
            values[key] = _convert(value, known[key], key, sources[key])
    limits = {key: values.pop(key) for key in list(values) if "." in key}
    within = {key.removeprefix("limits."): value for key, value in limits.items()}
    return Settings(limits=Limits(**within), **values)


def _convert(value: object, kind: type[T], key: str, source: str) -> T:
    # Text is read as what it stands for where it comes from a variable.
    strict = not (isinstance(value, str) and source.startswith(PREFIX))
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        raise Invalid(f"{wrong(value, kind)} (said by {source})", key) from None


def _tokens(said: object, source: str) -> tuple[Token, ...]:
    try:
        if not isinstance(said, list):
            raise Invalid(f"{shown(said)} is not a list: each begins with [[tokens]]")
        return tuple(_token(each, f"token {n}") for n, each in enumerate(said, 1))
    except Invalid as error:
        raise Invalid(f"{error.message} (said by {source})", "tokens") from None


def _token(said: object, called: str) -> Token:
    if not isinstance(said, dict):
        raise Invalid(f"{called} is {shown(said)}, and not a table: each begins with [[tokens]]")
    known = get_type_hints(Token, include_extras=True)
    for name, value in said.items():
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Invalid(f"{called}: there is no {name!r} in a token{hint}")
        for each, kind in _single(value, known[name]):
            try:
                msgspec.convert(each, kind)
            except msgspec.ValidationError:
                # Somebody may have put the token itself where its hash goes.
                told = f"{HIDDEN} is not {allowed(kind)}" if name == "hash" else wrong(each, kind)
                raise Invalid(f"{called}: {name}: {told}") from None
    for field in msgspec.structs.fields(Token):
        if field.required and field.name not in said:
            raise Invalid(f"{called} has no {field.name}")
    return msgspec.convert(said, Token)


def _single(value: object, hint: Any) -> Iterator[tuple[object, Any]]:
    """A value with what it has to be; of a list, each for itself."""
    kind = get_args(hint)[0]
    if get_origin(kind) is tuple and isinstance(value, list):
        yield from ((each, get_args(kind)[0]) for each in value)
    else:
        yield value, hint


# -- showing ---------------------------------------------------------------------------------------


def show(loaded: Loaded) -> str:
    """The effective settings as TOML, each with what it means and who said so; no secrets."""
    lines: list[str] = []
    section = ""
    for key, hint in keys().items():
        *above, name = key.split(".")
        if above and above[0] != section:
            section = above[0]
            lines += [f"[{section}]", ""]
        if key == "tokens":
            continue
        value: Any = loaded.settings
        for part in key.split("."):
            value = getattr(value, part)
        if key == "url":
            value = without_password(value)
        lines.append(f"# {description(hint)}")
        lines.append(f"{name} = {toml(value)}  # {loaded.sources.get(key, DEFAULT)}")
        lines.append("")
    for token in loaded.settings.tokens:
        lines += [f"[[tokens]]  # {loaded.sources.get('tokens', DEFAULT)}"]
        for name in Token.__struct_fields__:
            value = HIDDEN if name == "hash" else getattr(token, name)
            if value is not None:
                lines.append(f"{name} = {toml(value)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def description(hint: Any) -> str:
    """What a setting is for."""
    said = [meta.description for meta in hint.__metadata__ if isinstance(meta, Meta)]
    return next(filter(None, reversed(said)))


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value)  # text, numbers and booleans look alike there
