"""The pages by need: one session each from top to bottom, in Python and in a shell, on one store."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, check_shown
from tests.snippets import blocks, run
from tools.docs import ROOT

PAGES = ("keys", "limits", "results", "retries", "many-jobs")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_true_from_top_to_bottom(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "orders.jsonl").write_text("".join(f"{order}\n" for order in range(2_500)))
    page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    shell, names, said = Shell(monkeypatch), dict[str, Any](), ""
    try:
        for language, text in blocks(page):
            if language == "python":
                run(text, names)
            elif language == "sh":
                said = shell(text)
            else:
                assert language == "text", "nothing runs the others"
                check_shown(text, said)
    finally:
        if "app" in names:
            names["app"].close()
