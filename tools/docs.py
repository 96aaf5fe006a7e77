"""Keep the documentation true: write the generated pages, then check every relative link.

`make docs` runs this. A page that is generated from the code has its generator here; a test fails
while the page in the tree is not what its generator gives.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from operator import attrgetter
from pathlib import Path

from penstock import settings
from penstock.model.lifecycle import ENDED, TRANSITIONS, DeadReason, Happening, State, mermaid
from penstock.protocol.compatible import COMPATIBLE
from penstock.protocol.native import NATIVE
from tools import commands, spark_page, wire

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = Path("docs/protocol.md")  # written by hand, but for what the code says
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)")
MEMBER = re.compile(r'^\s*(?:[A-Z_]+ = )?"(\w+)"(?:\s+# (.*))?$', re.MULTILINE)


# -- generated pages -----------------------------------------------------------------------------


def generated() -> dict[Path, str]:
    """The pages that come from the code, by their path in the repository."""
    return {
        Path("docs/reference/cli.md"): commands.page(),
        Path("docs/reference/lifecycle.md"): lifecycle_page(),
        Path("docs/reference/settings.md"): settings_page(),
        Path("docs/reference/spark.md"): spark_page.page(),
        PROTOCOL: wire.page((ROOT / PROTOCOL).read_text(encoding="utf-8"), NATIVE, COMPATIBLE),
    }


def settings_page() -> str:
    lines = [
        "# Settings of the server",
        "",
        "Generated from `penstock.settings` by `make docs`; do not edit.",
        "",
        "Defaults < `penstock.toml` < `PENSTOCK_*` < flags of `penstock serve`. A key that is not known",
        "is an error. `penstock serve --print-config` prints the effective settings, each with who said",
        "so, and no secrets. `--config` or `PENSTOCK_CONFIG` names another file.",
        "",
        "| key | variable | default | meaning |",
        "|---|---|---|---|",
    ]
    for key, hint in settings.keys().items():
        if key == "tokens":
            continue
        default = attrgetter(key)(settings.Settings())
        shown = f"`{settings.toml(default)}`"
        variable = settings.variable(key)
        lines.append(f"| `{key}` | `{variable}` | {shown} | {settings.description(hint)} |")
    lines += [
        "",
        "A dot stands for a section: `limits.idle_s` is `idle_s` under `[limits]`.",
        "",
        "## `[[tokens]]`",
        "| key | meaning |",
        "|---|---|",
    ]
    for key, hint in settings.keys(settings.Token).items():
        lines.append(f"| `{key}` | {settings.description(hint)} |")
    return "\n".join(lines) + "\n"


def lifecycle_page() -> str:
    lines = [
        "# Lifecycle",
        "",
        "Generated from `penstock.model.lifecycle` by `make docs`; do not edit.",
        "",
        "A job is in exactly one state. `TRANSITIONS[(state, happening)]` gives the next one; a pair",
        "that is missing cannot happen. How long an ended job is known is retention's business and no",
        "transition: a forgotten job has no state.",
        "",
        "```mermaid",
        *mermaid().splitlines(),
        "```",
        "",
        "## States",
        "| state | meaning | may go to |",
        "|---|---|---|",
    ]
    meanings = _comments(State)
    for state in State:
        after = dict.fromkeys(to for (before, _), to in TRANSITIONS.items() if before == state)
        ended = "ended" if state in ENDED else ""
        meaning = "; ".join(filter(None, (ended, meanings[state])))
        lines.append(f"| {state} | {meaning} | {', '.join(after)} |")
    lines += ["", "## Happenings", "| happening | meaning |", "|---|---|"]
    lines += [f"| {name} | {meaning} |" for name, meaning in _comments(Happening).items()]
    lines += ["", "## Transitions", "| state | happening | next state |", "|---|---|---|"]
    lines += [f"| {state} | {what} | {after} |" for (state, what), after in TRANSITIONS.items()]
    lines += ["", "## Why a job is dead", "| `dead_reason` | meaning |", "|---|---|"]
    lines += [f"| {name} | {meaning} |" for name, meaning in _comments(DeadReason).items()]
    return "\n".join(lines) + "\n"


def _comments(words: type[StrEnum]) -> dict[str, str]:
    """What the comment beside each member says; empty where its name says all."""
    found = dict(MEMBER.findall(inspect.getsource(words)))
    return {word.value: found[word.value] for word in words}


def write_generated(root: Path) -> list[Path]:
    """Write the pages that are not up to date; answers which."""
    stale = []
    for path, text in generated().items():
        page = root / path
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
            stale.append(path)
    return stale


# -- links ---------------------------------------------------------------------------------------


def pages(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def broken_links(page: Path) -> Iterator[str]:
    prose = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in LINK.findall(prose):
        path = target.partition("#")[0]
        elsewhere = "://" in path or path.startswith("mailto:")
        if path and not elsewhere and not (page.parent / path).exists():
            yield target


def main() -> int:
    for path in write_generated(ROOT):
        print(f"written: {path}")
    checked = pages(ROOT)
    broken = [(page, target) for page in checked for target in broken_links(page)]
    for page, target in broken:
        print(f"{page.relative_to(ROOT)}: no such file: {target}", file=sys.stderr)
    print(f"{len(checked)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
