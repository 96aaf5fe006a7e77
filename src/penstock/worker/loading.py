"""MODULE:APP → the app, with an error of one sentence for whatever may be wrong with it."""

import importlib
import sys
from pathlib import Path

from penstock.client.app import Penstock
from penstock.model.errors import Invalid

FIELD = "app"


def load_app(where: str) -> Penstock:
    """Import the module, from the current directory too, and find the app in it."""
    module_name, colon, name = where.partition(":")
    if not module_name or not colon or not name:
        raise Invalid(f"{where!r} is not MODULE:APP, as in shop.tasks:app", FIELD)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # of something that the module itself imports
        raise Invalid(
            f"there is no module {error.name!r} in {here} or among what is installed", FIELD
        ) from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Invalid(f"the module {module_name!r} has no {name!r}", FIELD) from None
    if not isinstance(found, Penstock):
        raise Invalid(f"{where!r} is a {type(found).__name__}, not a Penstock app", FIELD)
    if not found.tasks:
        raise Invalid(
            f"{where!r} has no tasks: import the modules that declare them in {module_name!r}",
            FIELD,
        )
    return found
