"""Code on a page of the documentation, run as it stands: what its comments show is what comes."""

import ast
import re
from collections.abc import Iterator
from typing import Any

SHOWN = re.compile(r"^ *(\S.*?)  # ('.*'|\[.*\]|\(.*\)|\{.*\}|True|False|None|-?\d+)$")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of every block, in order."""
    for found in BLOCK.finditer(page):
        yield found[1], found[2]


def run(block: str, names: dict[str, Any]) -> None:
    """Execute a block; the value of an expression, wherever it stands, is what its comment says."""
    shown = {
        number: ast.literal_eval(found[2])
        for number, line in enumerate(block.splitlines(), 1)
        if (found := SHOWN.match(line))
    }
    checking = Checking(shown)
    whole = ast.fix_missing_locations(checking.visit(ast.parse(block)))
    names["__shown__"] = checking.compare
    exec(compile(whole, "the page", "exec"), names)


class Checking(ast.NodeTransformer):
    """Hands every expression that a comment stands behind over to be compared."""

    def __init__(self, shown: dict[int, Any]) -> None:
        self._shown = shown

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if node.end_lineno not in self._shown:
            return node
        line = ast.Constant(node.end_lineno)
        call = ast.Call(ast.Name("__shown__", ast.Load()), [line, node.value], [])
        return ast.copy_location(ast.Expr(call), node)

    def compare(self, line: int, value: Any) -> None:
        assert value == self._shown[line], f"line {line} of the block: {value!r}"
