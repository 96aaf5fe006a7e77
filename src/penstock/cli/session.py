"""How a command meets its store: opened, told whose jobs, closed; and how errors end.

A command is a coroutine function whose first parameter is a `Session`; `register` makes it one of
Typer's. The options of `Place` are added to it there, and fields of any other `Flags`, so that no
command says them again. It answers nothing, or the exit code where that is not 0:

    0  done
    1  the store has answered, and it is not what was hoped for: nothing found, nothing to claim,
       jobs or a lease lost, a state that forbids it
    2  wrong usage, or the store did not do it: not reachable, not allowed, full, bad values
"""

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final, get_type_hints

import msgspec
import typer
from rich.console import Console, RenderableType
from typer.models import ArgumentInfo, OptionInfo

from penstock.cli.options import Asked, Flags, Place
from penstock.cli.show import console_for, plain
from penstock.model.answers import QueueInfo
from penstock.model.errors import (
    Conflict,
    Deadline,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    Overloaded,
    PenstockError,
    StorageFull,
    Unauthenticated,
)
from penstock.model.policy import DEFAULT_CONFIG
from penstock.model.store import Store
from penstock.open import IS_IT_RUNNING, JOURNALS, journal_at, open_store
from penstock.settings import load
from penstock.stores.journal.base import JournalError
from penstock.stores.journal.there import is_there
from penstock.stores.remote import RemoteStore

DONE: Final = 0
NOT_SO: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT

DEFAULT_TENANT: Final = "default"

# What whoever reads the error can do about it.
_ADVICE: Final[dict[type[PenstockError], str]] = {
    Unauthenticated: "say who you are with PENSTOCK_TOKEN, or penstock://:TOKEN@host",
    Forbidden: "a token with that scope and tenant is needed: penstock token create",
    LeaseLost: "claim again",
    Overloaded: "try again when there is less, or raise the bound: penstock queues limit",
    StorageFull: "make room on the disk; jobs can still be claimed and acked",
}

_NO_WORDS: Final[dict[str, str]] = {}

Work = Callable[..., Awaitable[int | None]]


class Session:
    """One command's store, and where its answer goes."""

    def __init__(self, store: Store, url: str, tenant: str, as_json: bool) -> None:
        self.store = store
        self.url = url
        self.tenant = tenant
        self.as_json = as_json
        self.out: Console = console_for(sys.stdout)

    def answer(self, document: Any, *shown: RenderableType) -> None:
        """The one answer of a command: a document for machines, or what people are shown."""
        if self.as_json:
            print_document(document)
        else:
            for each in shown:
                self.out.print(each)

    async def queue(self, name: str) -> QueueInfo:
        """A queue that exists. The store answers any name, as empty: a typing error must not look
        like success."""
        (info,) = await self.store.queues(self.tenant, [name])
        if not any(info.counts.values()) and info.config == DEFAULT_CONFIG:
            known = [each.queue for each in await self.store.queues(self.tenant)]
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else "penstock queues ls names them"
                raise NotFound(f"there is no queue {name}; {hint}")
        return info


def print_document(document: Any) -> None:
    """JSON on one line, or indented for whoever looks at it."""
    indent = 2 if sys.stdout.isatty() else -1
    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=indent))


def note(text: str) -> None:
    """Something beside the answer: it never mixes with what a program reads."""
    typer.echo(plain(text), err=True)


def confirm(question: str) -> None:
    """Ask before something that cannot be undone; where nobody can be asked, --yes is needed."""
    if not sys.stdin.isatty():
        note(f"{question} Nobody can be asked here: say --yes")
        raise typer.Exit(WRONG)
    typer.confirm(plain(question), abort=True, err=True)


# -- running ---------------------------------------------------------------------------------------


def run(
    work: Callable[[Session], Awaitable[int | None]],
    place: Place,
    *,
    creates: bool = False,
    in_memory: bool = False,
    endless: bool = False,
    words: Mapping[str, str] = _NO_WORDS,
) -> int:
    """Open the store, do the work, close the store; answers the exit code.

    `words`: how the command line says what the store has another name for.
    """

    async def whole() -> int | None:
        loaded = load(environ=os.environ, flags={"url": place.url})
        url = loaded.settings.url
        with loaded.saying_who():
            _check_place(url, creates, in_memory)
            store = await open_store(url, token=os.environ.get("PENSTOCK_TOKEN") or None)
        try:
            owner = store.tenant if isinstance(store, RemoteStore) else None
            tenant = place.tenant if place.tenant is not None else owner or DEFAULT_TENANT
            return await work(Session(store, url, tenant, place.as_json))
        finally:
            await store.close()

    try:
        return asyncio.run(whole()) or DONE
    except PenstockError as error:
        note(_sentence(error, words))
        return NOT_SO if isinstance(error, NotFound | LeaseLost | Conflict | Deadline) else WRONG
    except JournalError as error:
        note(str(error))
        return WRONG
    except KeyboardInterrupt:
        return DONE if endless else INTERRUPTED


def _check_place(url: str, creates: bool, in_memory: bool) -> None:
    scheme = url.partition(":")[0]
    if scheme == "memory" and not in_memory:
        raise Invalid("memory:// ends with this command: name a store with --url or PENSTOCK_URL")
    if scheme in JOURNALS and not creates:
        journal, path = journal_at(url)
        if not is_there(journal.scheme, path):
            raise Invalid(
                f"there is no store at {path}: name one with --url or PENSTOCK_URL;"
                " penstock push and penstock serve make one"
            )


def _sentence(error: PenstockError, words: Mapping[str, str]) -> str:
    """What is wrong, and what to do. What is not about a value says by itself what it is about."""
    said = error.message
    if isinstance(error, Invalid) and error.field:
        said = f"{_word(error.field, words)}: {said}"
    advice = _ADVICE.get(type(error))
    if said.endswith(IS_IT_RUNNING):
        return f"{said} --url or PENSTOCK_URL names another"
    return f"{said}; {advice}" if advice else said


def _word(field: str, words: Mapping[str, str]) -> str:
    """`--backoff-list` for `backoff.list_ms`, `ID` for `ids`, if the command has such a thing."""
    flat = field.replace(".", "_").removesuffix("_ms")
    names = (flat, f"{flat}s", flat.removesuffix("s"), f"job_{flat}", *field.split(".")[::-1])
    return next((words[name] for name in names if name in words), field)


# -- Typer -----------------------------------------------------------------------------------------


def register(
    app: typer.Typer,
    work: Work,
    name: str | None = None,
    *,
    creates: bool = False,
    in_memory: bool = False,
    endless: bool = False,
    asks: str | None = None,
    words: Mapping[str, str] = _NO_WORDS,
) -> None:
    """Make a coroutine function a command.

    `creates`: it may be the first to use a store. `in_memory`: that store may end with it.
    `endless`: Ctrl-C is how it ends. `asks`: what whoever calls it is asked before the store is
    opened, with the command's arguments in it. `words`: its options that the store knows by
    another name.
    """
    own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
    groups = {each.name: each.annotation for each in own if _is_flags(each.annotation)}
    shared = (*groups.values(), *([Asked] if asks else []), Place)

    def command(**said: Any) -> None:
        place = _gathered(Place, said)
        if asks is not None and not _gathered(Asked, said).yes:
            confirm(asks.format(**said))
        for group, kind in groups.items():
            said[group] = _gathered(kind, said)
        done = run(
            lambda at: work(at, **said),
            place,
            creates=creates,
            in_memory=in_memory,
            endless=endless,
            words=said_as,
        )
        raise typer.Exit(done)

    parameters = [each for each in own if each.name not in groups]
    for kind in shared:
        parameters += _parameters(kind)
    said_as = {**dict(map(_said_as, parameters)), **words}
    del said_as["url"]  # which may have been said in other places
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for each in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = work.__doc__
    app.command(name or work.__name__.replace("_", "-"))(command)


def _said_as(parameter: inspect.Parameter) -> tuple[str, str]:
    """A parameter, and what the command line calls it: `--run-at`, or `QUEUE`."""
    name = parameter.name.rstrip("_")
    (info,) = [
        each
        for each in parameter.annotation.__metadata__
        if isinstance(each, OptionInfo | ArgumentInfo)
    ]
    if isinstance(info, ArgumentInfo):
        return name, str(info.metavar or name.upper())
    long = (each for each in info.param_decls or () if each.startswith("--"))
    return name, next(long, f"--{name.replace('_', '-')}")


def _is_flags(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Flags)


def _parameters(kind: type[Flags]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]


def _gathered(kind: type[Any], said: dict[str, Any]) -> Any:
    """The fields of flags out of everything that was said."""
    return kind(**{field.name: said.pop(field.name) for field in fields(kind)})
