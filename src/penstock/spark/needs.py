"""What Spark needs on this machine, and what of it is missing. Imports nothing of Spark's."""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from penstock.model.errors import Unavailable
from penstock.spark.java import find_java

# By package: from which version on, and before which.
PACKAGES: Final = {"pyspark": ((4, 3), (5,)), "pyarrow": ((18,), None), "pandas": ((2, 2), (3,))}
INSTALL: Final = "pip install 'penstock[spark]'"


def needs(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """By name what is there; under `missing` a sentence for each thing that is not, or not right."""
    found: dict[str, Any] = {}
    missing: list[str] = []
    for package, (least, below) in PACKAGES.items():
        try:
            found[package] = said = version(package)
        except PackageNotFoundError:
            found[package] = None
            missing.append(f"there is no {package}: {INSTALL}")
            continue
        numbers = _numbers(said)
        if numbers < least or (below is not None and numbers >= below):
            missing.append(f"{package} is {said}, and {_wanted(least, below)} is needed: {INSTALL}")
    try:
        java = find_java(environ)
        found["java"] = f"{java.version} at {java.home} ({java.found})"
    except Unavailable as error:
        found["java"] = None
        missing.append(error.message)
    return found | {"missing": missing}


def _numbers(said: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    numbers = []
    for part in said.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _wanted(least: tuple[int, ...], below: tuple[int, ...] | None) -> str:
    wanted = ">=" + ".".join(map(str, least))
    return wanted if below is None else f"{wanted},<{'.'.join(map(str, below))}"
