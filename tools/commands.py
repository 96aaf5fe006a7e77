"""docs/reference/cli.md, from the commands themselves: every one, its arguments and its options."""

import inspect
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from typer.main import get_command

from penstock.cli.bench import Bench
from penstock.cli.cron import Instants, Removed
from penstock.cli.dead import Groups
from penstock.cli.lines import PushedLines
from penstock.cli.main import COMMANDS, build_app, load
from penstock.cli.watch import StatsShown
from penstock.cli.workers import Workers
from penstock.protocol.http_shown import Shown

# What commands print that the HTTP interface has no shape for.
_OWN: Final = {
    "push --lines": PushedLines,
    "dead groups": Groups,
    "cron rm": Removed,
    "cron next": Instants,
    "workers ls": Workers,
    "stats": StatsShown,
    "bench": Bench,
}

_HEAD: Final = """# The command line

Generated from `penstock.cli` by `make docs`; do not edit.

`penstock COMMAND --help` prints what stands here. `penstock --install-completion` teaches the shell
to complete commands and options, `--show-completion` prints what that would install.

**Which store.** `--url`, else `PENSTOCK_URL`, else the `url` of `penstock.toml`, else
`sqlite:///penstock.db`. A server wants to know who you are: `PENSTOCK_TOKEN`, or
`penstock://:TOKEN@host`. A store on a disk may be in use by others meanwhile. Only `push`,
`cron put`, `bench` and `serve` make a store where there is none; others leave nothing behind there.

**Whose jobs.** `--tenant`, else the token's tenant, else `default`.

**Durations** are said with their units: `250ms`, `30s`, `1h30m`, `2d`. **Instants** are ISO 8601
(without an offset: local time), or milliseconds since 1970.

**JSON.** With `--json` a command prints one document, on one line unless it is a terminal that
reads it; shapes are those of [HTTP](http.md), instants and durations in milliseconds. `tail --json`
prints one line per event. Notes and errors go to standard error.

Documents that HTTP does not have:

{own}

**Exit codes.**

| code | meaning |
|---|---|
| 0 | done |
| 1 | the store has answered, and it is not what was hoped for: nothing found, nothing to claim, jobs or a lease lost, a state that forbids it; of `doctor`, `backup`, `restore` and `verify`: something is wrong |
| 2 | wrong usage, or the store did not do it: not reachable, not allowed, full, bad values; or the answer could not be written (a reader who has had enough, like `head`, is no error) |
| 130 | interrupted; `tail` and `serve` end that way with 0 |

What cannot be undone (`queues drain`, `queues purge`, `dead purge`) asks on a terminal, and needs
`--yes` elsewhere.
"""


def page() -> str:
    own = "\n".join(f"- `{name}`: `{_shape(kind)}`" for name, kind in _OWN.items())
    return "\n".join([_HEAD.format(own=own), *_sections()]).rstrip() + "\n"


def _shape(kind: Any) -> str:
    """The fields of a document, and those of what stands in them."""
    shown = []
    for name, hint in get_type_hints(kind).items():
        (within,) = [each for each in get_args(hint) if _is_own(each)] or [None]
        shown.append(f'"{name}"' if within is None else f'"{name}":[{_shape(within)}]')
    return f"{{{','.join(shown)}}}"


def _is_own(kind: object) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and not issubclass(kind, Shown)  # that HTTP has, too
    )


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    menu: Any = get_command(build_app())
    for name in menu.commands:
        command = load(name) if name in COMMANDS else menu.commands[name]
        if hasattr(command, "commands"):
            for below, each in command.commands.items():
                yield f"{name} {below}", each
        else:
            yield name, command


def _sections() -> Iterator[str]:
    for name, command in commands():
        said = inspect.signature(command.callback).parameters
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option"]
        yield f"## `penstock {' '.join([name, *map(_usage, arguments)])}`"
        yield ""
        yield " ".join(command.help.split())
        yield ""
        rows = [(f"`{_named(each)}`", _meaning(each, said[each.name])) for each in arguments]
        rows += [
            (_spelled(each, said[each.name]), _meaning(each, said[each.name]))
            for each in options
            if each.name in said  # --help is everywhere
        ]
        if rows:
            yield "| | |"
            yield "|---|---|"
            for spelled, meaning in rows:
                yield f"| {spelled} | {meaning} |".replace("  |", " |")
            yield ""


def _named(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _usage(argument: Any) -> str:
    name = _named(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _spelled(option: Any, said: inspect.Parameter) -> str:
    value = option.metavar or _value(said.annotation)
    shown = f" {value}" if value and not option.is_flag else ""
    return ", ".join(f"`{each}{shown}`" for each in (*option.opts, *option.secondary_opts)).replace(
        "|", "\\|"
    )


def _value(hint: Any) -> str:
    """What stands for the value of an option of that type."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is list:
        (hint,) = get_args(hint)
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    if isinstance(hint, EnumType):
        words: list[object] = list(hint)
        return "|".join(map(str, words))
    return {int: "N", float: "X", Path: "PATH"}.get(hint, "TEXT")


def _meaning(parameter: Any, said: inspect.Parameter) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    if parameter.required and parameter.param_type_name == "option":
        return f"{text} Required."
    if parameter.required or said.default in (None, False, ""):
        return text
    shown = f"{said.default:,}" if type(said.default) is int else str(said.default)
    return f"{text} Default: `{shown}`."
