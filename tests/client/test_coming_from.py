"""What the table for those who come from other queues says of this one can be typed as it stands."""

import ast
import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Penstock
from penstock.client.options import Options, TaskOptions
from tools.commands import commands
from tools.docs import ROOT

PAGE = (ROOT / "docs" / "how-to" / "coming-from.md").read_text("utf-8")


def said() -> Iterator[str]:
    """Every piece of code of the last column."""
    head, _, *rows = (line for line in PAGE.splitlines() if line.startswith("|"))
    assert head.split("|")[-2].strip() == "Penstock"
    for row in rows:
        yield from re.findall(r"`([^`]+)`", row.rstrip("|").rpartition(" | ")[2])


def names(app: Penstock) -> dict[str, Any]:
    @app.task
    def f(n: int) -> int:
        return n

    @app.task
    def a(n: int) -> int:
        return n

    @app.task
    def b(n: int) -> int:
        return n

    @app.task
    def c(numbers: list[int]) -> int:
        return sum(numbers)

    given = {"app": app, "f": f, "a": a, "b": b, "c": c}
    return {**{name: getattr(penstock, name) for name in penstock.__all__}, **given}


async def awaited(code: str, known: dict[str, Any]) -> Any:
    whole = compile(code, "the page", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return await eval(whole, known)


@pytest.mark.parametrize("code", sorted(set(said())))
def test_what_the_column_says_can_be_typed(code: str) -> None:
    app = Penstock("memory://")
    known = names(app)
    option = re.fullmatch(r"(\w+)(?:=…)?", code)
    if option:
        assert option[1] in {*Options.__annotations__, *TaskOptions.__annotations__}
    elif code.startswith("@"):
        assert callable(eval(code[1:], known))
    elif code.startswith("raise "):
        with pytest.raises((penstock.Retry, penstock.Dead)):
            exec(code, known)
    elif code.startswith("penstock "):
        assert code.split()[1] in dict(commands())
    elif code == "app.testing()":
        with eval(code, known):
            pass
    else:
        with app.testing() as t:
            known["job"] = known["f"].push(1)
            t.drain()
            code = code.replace("group(…)", "group(a.s(1), a.s(2))")
            if code.startswith("await "):
                assert isinstance(asyncio.run(awaited(code, known)), penstock.PushedJob)
                return
            made = eval(code, known)
            if hasattr(made, "push"):
                made = made.push()
                t.drain()
                assert made.result() in (1, 3)
            else:
                assert made == 1 or isinstance(made, penstock.PushedJob)


def test_the_column_is_read() -> None:
    assert {"f.push(1)", "await f.apush(1)", 'job.result(timeout="5s")'} <= set(said())
