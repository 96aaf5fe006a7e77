"""The documentation is true: what it names exists, what is generated is fresh, no clause is bare."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import penstock
from tools.docs import ROOT, generated, pages

DOCS = ROOT / "docs"
CONTRACT = DOCS / "reference" / "contract.md"
LINEAGE = DOCS / "explanation" / "lineage.md"

# What the documentation was written from. It lies beside the repository, if it is there at all.
DESIGN = ROOT.parent / "shared" / "design" / "1-semantics.md"
SEEDS = sorted((ROOT.parent / "shared" / "seeds").glob("*.txt"))

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
# A dotted name of ours, but not that of a file.
SYMBOL = re.compile(r"penstock(?:\.(?!(?:db|sock|toml)\b)\w+)+")
FIELD = re.compile(r"([A-Z][a-z]\w*)\.([a-z_]\w*)")
CLAUSE = re.compile(r"^\| (\w+) (\d+) <!-- ([0-9a-f]{8}) --> \| (.+?) \| (.+) \|$", re.MULTILINE)


def in_code_font(page: Path) -> list[str]:
    return CODE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))


def named_on(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- generated pages -----------------------------------------------------------------------------


def test_the_generated_pages_are_up_to_date() -> None:
    for path, text in generated().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is stale: run make docs"


# -- names ---------------------------------------------------------------------------------------


def has(owner: Any, name: str) -> bool:
    """Whether a module or class has the name, be it an attribute that its instances are given."""
    return hasattr(owner, name) or (
        inspect.isclass(owner) and bool(re.search(rf"\bself\.{name}\b", inspect.getsource(owner)))
    )


def resolves(symbol: str) -> bool:
    owner: Any = penstock
    path = "penstock"
    names = symbol.split(".")[1:]
    for place, name in enumerate(names, 1):
        path += f".{name}"
        if not has(owner, name):
            try:
                owner = importlib.import_module(path)
            except ModuleNotFoundError:
                return False
        elif place < len(names):
            owner = getattr(owner, name)
    return True


@cache
def types_by_name() -> dict[str, type]:
    """The public classes of the model, the kernel, the stores and their journals."""
    found: dict[str, type] = {}
    for package in ("model", "kernel", "stores", "stores.journal"):
        home = importlib.import_module(f"penstock.{package}")
        for module in pkgutil.iter_modules(home.__path__, f"penstock.{package}."):
            for name, kind in inspect.getmembers(
                importlib.import_module(module.name), inspect.isclass
            ):
                if kind.__module__ == module.name:
                    found.setdefault(name, kind)
    return found


@pytest.mark.parametrize("page", pages(ROOT), ids=named_on)
def test_every_symbol_named_in_the_documentation_exists(page: Path) -> None:
    symbols = {word for word in in_code_font(page) if SYMBOL.fullmatch(word)}
    assert [symbol for symbol in sorted(symbols) if not resolves(symbol)] == []


@pytest.mark.parametrize("page", pages(ROOT), ids=named_on)
def test_every_setting_and_field_named_in_the_documentation_exists(page: Path) -> None:
    fields = [found for word in in_code_font(page) if (found := FIELD.fullmatch(word))]
    gone = [
        found[0]
        for found in fields
        if found[1] not in types_by_name() or not has(types_by_name()[found[1]], found[2])
    ]
    assert gone == []


def test_a_symbol_that_is_gone_is_noticed() -> None:
    assert resolves("penstock.kernel.lanes.Lane.take")
    assert resolves("penstock.kernel.kernel.Kernel.next_block")
    assert not resolves("penstock.kernel.lanes.Lane.grab")
    assert not resolves("penstock.kernel.kernel.Kernel.next_bloc")
    assert not resolves("penstock.kernel.heaps")
    assert has(types_by_name()["QueueConfig"], "retain_count")
    assert not has(types_by_name()["QueueConfig"], "retain_sum")


# -- lineage -------------------------------------------------------------------------------------


def headings(seed: Path) -> Iterator[str]:
    for line in FENCE.sub("", seed.read_text(encoding="utf-8")).splitlines():
        found = re.match(r"#{2,4} (.+?)\s*$", line)
        if found and found[1] != "Table of Contents":
            yield found[1].replace("`", "")


def test_the_lineage_has_a_row_for_every_heading_of_the_documents_it_comes_from() -> None:
    page = LINEAGE.read_text(encoding="utf-8").replace("`", "")
    for seed in SEEDS:
        number = seed.name[:3]
        section = page.partition(f"\n## {number} ")[2].partition("\n## ")[0]
        covered = {line.split("|")[1].strip() for line in section.splitlines() if "|" in line}
        assert [name for name in headings(seed) if name not in covered] == [], seed.name


def test_the_lineage_leaves_no_cell_empty() -> None:
    rows = [
        line
        for line in LINEAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| heading ")
    ]
    assert len(rows) > 200
    for row in rows:
        _, there, here = (cell.strip() for cell in row.strip("|").split(" | "))
        assert there, row
        assert here, row


# -- the contract --------------------------------------------------------------------------------


@cache
def cases() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test of the tree by its node name, read and not run."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name[:5] == "test_"
            ):
                found[f"{path.relative_to(ROOT)}::{node.name}"] = node
    return found


def clauses() -> list[tuple[str, int, str, str]]:
    """(section, number, mark of its line, proof) of every row."""
    text = CONTRACT.read_text(encoding="utf-8")
    return [(name, int(n), mark, proof) for name, n, mark, _, proof in CLAUSE.findall(text)]


def test_every_row_of_the_contract_is_read() -> None:
    rows = [
        line
        for line in CONTRACT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| clause ")
    ]
    assert len(clauses()) == len(rows) > 200


def test_clauses_are_numbered_by_section() -> None:
    expected: dict[str, int] = {}
    for section, number, _, _ in clauses():
        expected[section] = expected.get(section, 0) + 1
        assert (section, number) == (section, expected[section])


def test_every_clause_of_the_contract_has_a_case_that_exists() -> None:
    for section, number, _, proof in clauses():
        named = CODE.findall(proof)
        assert named, f"{section} {number} is proved by nothing"
        assert [case for case in named if case not in cases()] == [], f"{section} {number}"


def test_every_line_of_the_contract_has_a_clause() -> None:
    if not DESIGN.exists():
        return
    lines = [line.strip() for line in DESIGN.read_text(encoding="utf-8").splitlines()]
    rule = re.compile(r"[|\-: ]+")
    wanted = {}
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        header = line.startswith("|") and below.startswith("|") and rule.fullmatch(below)
        if line and not line.startswith("#") and not rule.fullmatch(line) and not header:
            mark = blake2b(" ".join(line.split()).encode(), digest_size=4).hexdigest()
            wanted[mark] = line
    known = {mark for _, _, mark, _ in clauses()}
    assert [line for mark, line in wanted.items() if mark not in known] == []
    assert known - wanted.keys() == set(), "marks of lines that the contract no longer has"


def test_the_readings_of_the_contract_are_written_down() -> None:
    assert (DOCS / "reference" / "semantics.md").stat().st_size > 1_000
    assert "(semantics.md)" in CONTRACT.read_text(encoding="utf-8")


def test_every_conformance_case_runs_on_every_store() -> None:
    """Whatever touches a store gets it from the fixtures, which know them all."""
    for name, case in cases().items():
        if name.startswith("tests/conformance/") and isinstance(case, ast.AsyncFunctionDef):
            assert {"h", "live"} & {argument.arg for argument in case.args.args}, name
