"""MODULE:APP → the app, with an error of one sentence for whatever may be wrong with it.

What is wrong is nearly always the reader's own: a name with a typing error, or a module that raises
when it is imported. Of the latter only their frames are told, and not the many of whoever imports;
`--log-level debug` has them all.
"""

import importlib
import logging
import os
import pkgutil
import sys
import sysconfig
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Final

import penstock
from penstock.client.app import Penstock
from penstock.model.errors import Invalid

log: Final = logging.getLogger("penstock.worker")

FIELD: Final = "app"
MOST_FRAMES: Final = 5
_NOT_THEIRS: Final = tuple(
    f"{directory}{os.sep}"
    for directory in (
        Path(penstock.__file__).parent,
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def load_app(where: str) -> Penstock:
    """Import the module, from the current directory too, and find the app in it."""
    module_name, colon, name = where.partition(":")
    if not module_name or not colon or not name:
        raise Invalid(f"{where!r} is not MODULE:APP, as in shop.tasks:app", FIELD)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name, name, here)
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Invalid(
                f"the module {module_name!r} has no {name!r}; {_instead(module, name)}", FIELD
            ) from None
    if not isinstance(found, Penstock):
        raise Invalid(
            f"{where!r} is a {type(found).__name__}, not a Penstock app; {_instead(module, name)}",
            FIELD,
        )
    if not found.tasks:
        raise Invalid(
            f"{where!r} has no tasks: import the modules that declare them in {module_name!r}",
            FIELD,
        )
    return found


def _imported(module_name: str, name: str, here: str) -> ModuleType:
    try:
        if "/" in module_name or module_name.startswith("."):
            raise ModuleNotFoundError(name=module_name)
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_of(error.name, module_name):
            raise Invalid(
                f"there is no module {error.name!r} in {here} or among what is installed"
                f"{_near(module_name, name, here)}",
                FIELD,
            ) from None
        log.debug("the module %r cannot be imported", module_name, exc_info=True)
        said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        lines = [f"the module {module_name!r} cannot be imported: {said}", *_their_frames(error)]
        raise Invalid("\n  ".join(lines), FIELD) from None


def _is_of(missing: str | None, module_name: str) -> bool:
    """Whether what is missing is the module itself, or a package around it, and not one of those
    that it imports."""
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _their_frames(error: BaseException) -> list[str]:
    """Where in the reader's own files it happened, as file:line; the last one is the nearest."""
    whole = [
        (each.filename, each.lineno or 0, each.name)
        for each in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        whole.append((error.filename, error.lineno or 0, ""))
    theirs = [
        each for each in whole if not each[0].startswith(("<frozen", "<string", *_NOT_THEIRS))
    ]
    return [
        f"{_short(file)}:{line}" + (f" in {name}" if name not in ("", "<module>") else "")
        for file, line, name in (theirs or whole)[-MOST_FRAMES:]
    ]


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _instead(module: ModuleType, name: str) -> str:
    """What the reader may have meant."""
    apps = [each for each, value in vars(module).items() if isinstance(value, Penstock)]
    if not apps:
        return "no Penstock app is in it"
    near = get_close_matches(name, apps, 1) or apps[:1] * (len(apps) == 1)
    if near:
        return f"did you mean {module.__name__}:{near[0]}?"
    return f"its apps are {', '.join(apps)}"


def _near(module_name: str, name: str, here: str) -> str:
    """A module that is there and has nearly that name; many say the file instead."""
    as_module = module_name.removesuffix(".py").strip("./").replace("/", ".")
    package, _, last = as_module.rpartition(".")
    there = Path(here, *package.split(".")) if package else Path(here)
    near = get_close_matches(last, [each.name for each in pkgutil.iter_modules([str(there)])], 1)
    if not near:
        return ""
    return f"; did you mean {f'{package}.' if package else ''}{near[0]}:{name}?"
