"""The pages about the event log: their tables are those of the code, their line is a line."""

import re
from typing import get_args

from penstock.events.segment import GAP, VERSION, Line, decode
from penstock.model.event import EventKind
from tests.unit.test_docs_stores import blocks, rows, section
from tools.docs import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")


def named(heading: str) -> list[str]:
    return [row[0].strip("`") for row in rows(section(PAGE, heading))]


def test_the_table_of_fields_is_that_of_the_code() -> None:
    assert named("Fields") == list(Line.__struct_fields__)
    types = {row[0].strip("`"): row[1] for row in rows(section(PAGE, "Fields"))}
    for field, hint in Line.__annotations__.items():
        expected = {int: ("integer", "time"), str: ("text",), bool: ("boolean",)}
        assert types[field] in expected.get(hint, ("list of [integer, integer]",)), field
    assert all(meaning for _, _, meaning in rows(section(PAGE, "Fields")))


def test_the_table_of_kinds_is_that_of_the_code() -> None:
    assert named("Kinds") == [*get_args(EventKind), GAP]


def test_the_page_says_which_version_it_is_of() -> None:
    assert f"\nVersion {VERSION}. " in PAGE


def test_the_line_on_the_page_can_be_read() -> None:
    (text,) = blocks(PAGE, "json")
    line = decode(re.sub("8c2e…", "8c2e" * 8, text).encode())
    assert (line.kind, line.count) == ("completed", 10_000)
