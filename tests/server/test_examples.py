"""The examples do what they say, against a server that runs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.server.test_http_access import TOKENS
from tests.server.thread import served

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_curl_pushes_claims_and_acks() -> None:
    with served() as url:
        ran = run(str(EXAMPLES / "curl.sh"), PENSTOCK_HTTP=url)
    assert ran.returncode == 0, ran.stderr
    assert '{"jobs":[{"id":1,"outcome":"created"}]}' in ran.stdout
    assert '"payload":{"user": 1, "lang": "en"}' in ran.stdout
    assert '{"acked":[1],"lost":[]}' in ran.stdout
    assert '{"state":"completed","result":"sent"}' in ran.stdout


def test_node_pushes_claims_and_acks() -> None:
    with served() as url:
        ran = run("node", str(EXAMPLES / "node.mjs"), PENSTOCK_HTTP=url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "pushed [ 1, 2, 3 ]",
        "acked [ 1, 2, 3 ]",
        "result completed hello, user 1",
    ]


@pytest.mark.parametrize("example", [("curl.sh",), ("node", "node.mjs")], ids=["curl", "node"])
def test_the_examples_bring_their_token(example: tuple[str, ...]) -> None:
    *program, script = example
    command = [*program, str(EXAMPLES / script)]
    with served(tokens=TOKENS) as url:
        refused = run(*command, PENSTOCK_HTTP=url, PENSTOCK_TOKEN="nobody")
        taken = run(*command, PENSTOCK_HTTP=url, PENSTOCK_TOKEN="operator")
    assert refused.returncode != 0
    assert "unauthenticated" in refused.stdout + refused.stderr
    assert taken.returncode == 0, taken.stderr
