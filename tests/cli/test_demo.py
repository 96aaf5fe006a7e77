"""The demo shows what the product does, so it is run as anybody would."""

import subprocess
import sys


def test_the_demo_ends_by_itself_and_says_what_became_of_everything() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--scale", "0.02", "--no-spark"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for queue in ("emails", "images", "reports", "payments", "etl", "imports"):
        assert queue in shown.stdout
    # One file of the imports kills whatever reads it, and ends among the dead letters.
    assert "WorkerDied" in shown.stdout
    assert "jobs ended in" in shown.stdout
