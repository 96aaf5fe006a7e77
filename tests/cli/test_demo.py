"""The demo shows what the product does, so it is run as anybody would."""

import re
import subprocess
import sys


def test_the_demo_ends_by_itself_and_says_what_became_of_everything() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--scale", "0.02", "--no-spark"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    rows = {row[0]: row[1:] for row in re.findall(r"│ (\w+) +│ +([\d,]+) │ +(\d+) │", shown.stdout)}
    for queue in ("emails", "images", "reports", "payments", "etl", "imports"):
        assert int(rows[queue][0].replace(",", "")) > 0, f"nothing of {queue} was completed"
    assert int(rows["payments"][1]) > 0, "the third party is not flaky"
    assert "cron" in rows
    # One file of the imports kills whatever reads it, and ends among the dead letters.
    assert "WorkerDied" in shown.stdout
    for said in ("jobs ended in", " a second", "p50", "p99", "fingerprint"):
        assert said in shown.stdout
