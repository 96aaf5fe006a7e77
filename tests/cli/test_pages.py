"""The pages about the command line: their commands run as they stand, and show what they say."""

import re
from pathlib import Path

import pytest

from penstock.model.answers import EXPLANATIONS
from tests.cli.shell import Shell, check_shown
from tools.commands import commands
from tools.docs import ROOT

PAGES = {
    name: (ROOT / "docs" / "how-to" / f"{name}.md").read_text("utf-8")
    for name in ("inspect-jobs", "dead-letters")
}
README = (ROOT / "README.md").read_text("utf-8")
PAGES["README"] = README.partition("## A shell\n")[2].partition("\n## ")[0]
LATER: set[str] = set()  # pages of commands that are not there yet


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_as_they_stand(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "users.jsonl").write_text('{"user": 1}\n{"user": 17}\n{"user": 3}\n')
    said = Shell(monkeypatch)("".join(blocks(PAGES[name], "sh")))
    for block in blocks(PAGES[name], "text"):
        check_shown(block, said)


def test_every_explanation_is_on_the_page() -> None:
    told = {
        each.split("|")[1].strip() for each in PAGES["inspect-jobs"].splitlines() if "|" in each
    }
    same = {"its group's rate limit has no token left": "its queue's rate limit has no token left"}
    assert {same.get(each, each) for each in EXPLANATIONS.values()} <= told


def test_every_command_that_a_page_names_exists() -> None:
    known = dict(commands())
    groups = {name.split()[0] for name in known if " " in name}
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for said in re.findall(r"`penstock ([a-z][^`]*)`", page.read_text("utf-8")):
            words = said.split()
            if words[0] in LATER or words in ([group] for group in groups):
                continue
            name = " ".join(words[: 2 if words[0] in groups else 1])
            assert name in known, (page.name, said)
            options = {option for each in known[name].params for option in each.opts}
            named = {word for word in words if word.startswith("--")}
            assert named <= {*options, "--help"}, (page.name, said)
