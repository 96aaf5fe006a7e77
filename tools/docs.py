"""Check the documentation: every relative link leads to a file that exists.

`make docs` runs this. A page that is generated from the code gets its generator here, run
before the links are checked.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)")


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
    checked = pages(ROOT)
    broken = [(page, target) for page in checked for target in broken_links(page)]
    for page, target in broken:
        print(f"{page.relative_to(ROOT)}: no such file: {target}", file=sys.stderr)
    print(f"{len(checked)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
