"""Where a task was declared, by which a second one of its name is known: another task, or the same again.

A module is run again when it is reloaded, or imported under another name (`python -m shop.tasks`, and
`import shop.tasks` somewhere in it). Its tasks are declared again then, perhaps at other lines: their
file has been edited. So a declaration is the same one again if it stands in the same file, under the
same qualified name, and in another run of a module. Within one run nothing is declared twice: two
functions of one name, or two closures that one function makes, are two tasks. At a prompt, and in a
notebook, there is only one run, and what is defined there is defined again to change it.
"""

import sys
from collections.abc import Callable
from inspect import unwrap
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.model.errors import Invalid

LAMBDA: Final = "<lambda>"


class Origin(NamedTuple):
    file: str | None  # of the function; None: it is not Python's
    line: int
    module: str
    qualname: str
    # The run of a module that declared it: its namespace, and its spec, which a reload makes anew.
    namespace: dict[str, Any] | None  # None: declared while no module is run, as by a thread
    spec: object

    @classmethod
    def of(cls, handler: Callable[..., Any]) -> "Origin":
        """Called while it is declared."""
        code = getattr(unwrap(handler), "__code__", None)
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>" and frame.f_back is not None:
            frame = frame.f_back
        running = frame.f_globals if frame.f_code.co_name == "<module>" else None
        return cls(
            file=None if code is None else code.co_filename,
            line=0 if code is None else code.co_firstlineno,
            module=handler.__module__ or "",  # of a method of a builtin
            qualname=handler.__qualname__,
            namespace=running,
            spec=None if running is None else running.get("__spec__"),
        )

    def again(self, earlier: "Origin") -> bool:
        """Whether it is the same declaration as an earlier one, made again."""
        if self.qualname != earlier.qualname:
            return False
        if self._prompt and earlier._prompt:
            return True
        another_run = self.namespace is not earlier.namespace or self.spec is not earlier.spec
        return another_run and _same(self.file, earlier.file)

    @property
    def _prompt(self) -> bool:
        """Whether it was typed there, and not made by something that was."""
        at = hasattr(sys, "ps1") and self.module == "__main__"
        return at and "<locals>" not in self.qualname and LAMBDA not in self.qualname

    def refused(self, name: str, earlier: "Origin") -> Invalid:
        """The error of a second task of that name."""
        places = f"they are at {earlier._place} and {self._place}"
        if name == LAMBDA:
            return Invalid(
                "two lambdas are tasks, and a lambda has no name of its own:"
                f" say @app.task(name=…) of each; {places}",
                "name",
            )
        instead = f"{self.module.rpartition('.')[2].strip('_') or 'other'}.{name}"
        return Invalid(
            f"two tasks are called {name!r}: give one of them a name,"
            f" as in @app.task(name={instead!r}); {places}",
            "name",
        )

    @property
    def _place(self) -> str:
        return self.module or "?" if self.file is None else f"{self.file}:{self.line}"


def _same(file: str | None, other: str | None) -> bool:
    if file is None or other is None:
        return file is other
    return file == other or Path(file).resolve() == Path(other).resolve()
