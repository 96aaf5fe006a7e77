"""What a program pays for at its start: only what it uses."""

import subprocess
import sys

import pytest


def imported(statement: str) -> set[str]:
    """Modules that there are after it, in a process of its own."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import penstock", ["msgspec", "asyncio", "penstock.client.app"]),
        ("from penstock import Penstock", ["apsw", "penstock.stores.remote"]),
        (
            "import penstock.open, penstock.stores.remote",
            ["penstock.kernel", "penstock.server", "apsw", "rocksdict"],
        ),
        ("import penstock.cli.main", ["penstock.kernel", "pyspark", "uvloop"]),
    ],
)
def test_nothing_is_imported_that_is_not_used(statement: str, without: list[str]) -> None:
    found = imported(statement)

    assert found.isdisjoint(without)
    assert "penstock" in found
