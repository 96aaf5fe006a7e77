"""Whatever a command cannot do is one clear sentence, in the caller's words, and an exit code."""

import os
import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from penstock.cli.session import NOT_SO, WRONG
from tests.cli.cli import Cli
from tools.commands import commands

pytestmark = pytest.mark.usefixtures("own_log")

NOWHERE = "penstock://127.0.0.1:1"
LEASE = "the lease has expired, or never was; claim again"
QUEUE = "there is no queue ghost; penstock queues ls names them"
UNKNOWN = "job 99 is not known: it never was, or it ended and is forgotten"
IDS = r"Invalid value for 'ID'"
USAGE = r"Invalid value for"

# What is said, how it ends, and what is told: of a store with one job in the queue `q`, id 1.
CASES: list[tuple[str, int, str]] = [
    ("demo --jobs many", WRONG, "No such option"),
    ("serve --port 99999", WRONG, "^port: .*65535"),
    ("serve --url gopher://x", WRONG, "^url: 'gopher://x' is no store that this release knows"),
    ("serve --config nowhere.toml", WRONG, "nowhere.toml"),
    ("serve --tokens-file nowhere", WRONG, "^tokens_file: nowhere cannot be read: No such file"),
    ("serve --events file", WRONG, "^events: the events cannot be kept in .*/file: File exists$"),
    ("worker nowhere:app", WRONG, "^there is no module 'nowhere'"),
    ("worker nowhere", WRONG, "^'nowhere' is not MODULE:APP"),
    ("worker x:y --lease soon", WRONG, "^--lease: 'soon' is not a duration"),
    ("worker x:y --lease 5", WRONG, "^--lease: "),
    ("worker x:y --pool fibers", WRONG, "^--pool: 'fibers' is not one of async"),
    ("worker x:y --log-level odd", WRONG, "^--log-level: 'odd' is not one of"),
    ("worker x:y -q a:x", WRONG, "^--queues: 'x' is no weight"),
    ("push 'a b' 1", WRONG, "^QUEUE: 'a b' is not"),
    ("push q nothing", WRONG, "^PAYLOAD: is not JSON"),
    ("push q @nowhere", WRONG, "^nowhere cannot be read"),
    ("push q --lines nowhere", WRONG, "^--lines: nowhere cannot be read"),
    ("push q 1 --timeout 0s", WRONG, "'--timeout': '0s' is not longer than nothing"),
    ("push q 1 --ttl 0s", WRONG, "'--ttl': '0s' is not longer than nothing"),
    ("push q 1 --lease 1ms", WRONG, "'--lease': '1ms' is not from 50ms to 1d"),
    ("push q 1 --lease 2d", WRONG, "'--lease': '2d' is not from 50ms to 1d"),
    ("push q 1 --ttl 1s --delay 1h", WRONG, "^--ttl: 1s is over before the delay of 1h is"),
    ("push q 1 --delay 1s --run-at 5", WRONG, "^--run-at: cannot go with --delay"),
    ("push q 1 --keep-key 0s --key k", WRONG, "'--keep-key': '0s' is neither"),
    ("push q 1 --depends-on 0", WRONG, "'--depends-on'"),
    ("push q 1 --priority 99999999999", WRONG, "^--priority: 99999999999 is not"),
    ("push q 1 --max-attempts 99999999999", WRONG, "^--max-attempts: 99999999999 is not"),
    ("push q 1 --tag ''", WRONG, "^--tag: '' is not"),
    ("push q 1 --header x", WRONG, "^--header: 'x' is no header"),
    ("push q 1 --key ''", WRONG, "^--key: is empty"),
    ("push q 1 --group ''", WRONG, "^--group: is empty"),
    ("push q 1 --backoff list", WRONG, '^--backoff-list: is empty; backoff "list" needs'),
    ("push q 1 --delay 90", WRONG, "with its unit it is"),
    ("push q 1 --sequence 1", WRONG, "^--sequence: goes with --producer"),
    ("push q 1 --producer p", WRONG, "^--producer: needs --sequence"),
    ("claim ghost", NOT_SO, "^nothing to claim"),
    ("claim q -n 0", WRONG, USAGE),
    ("claim 'a b'", WRONG, "^QUEUE: 'a b' is not"),
    ("claim q --lease 1ms", WRONG, "'--lease': '1ms' is not from 50ms to 1d"),
    ("claim q --wait 2d", WRONG, "'--wait': '2d' is not from 0s to 1d"),
    ("ack ghost", NOT_SO, f"^{LEASE}"),
    ("ack ghost 0", WRONG, IDS),
    ("ack ghost --result nothing", WRONG, "^--result: 'nothing' is no result like"),
    ("fail ghost", NOT_SO, f"^{LEASE}"),
    ("fail ghost --retry-in x", WRONG, USAGE),
    ("release ghost", NOT_SO, f"^{LEASE}"),
    ("release ghost x", WRONG, IDS),
    ("extend ghost", NOT_SO, f"^{LEASE}"),
    ("extend ghost --lease 1ms", WRONG, "'--lease': '1ms' is not from 50ms to 1d"),
    ("jobs ls -q ghost", NOT_SO, f"^{QUEUE}"),
    ("jobs ls -q 'a b'", WRONG, "^--queue: 'a b' is not"),
    ("jobs ls --limit 0", WRONG, USAGE),
    ("jobs ls --tag ''", WRONG, "^--tag: '' is not"),
    ("jobs ls --state odd", WRONG, USAGE),
    ("jobs ls --cursor 99999999999999999999", WRONG, "--cursor"),
    ("jobs show 99", NOT_SO, f"^{UNKNOWN}"),
    ("jobs show 0", WRONG, IDS),
    ("jobs show x", WRONG, IDS),
    ("jobs show 99999999999999999999", WRONG, IDS),
    ("jobs cancel 99", NOT_SO, "job 99 is not known"),
    ("jobs cancel 0", WRONG, IDS),
    ("jobs retry 99", NOT_SO, "job 99 is not known"),
    ("jobs retry 1", NOT_SO, "job 1 is not dead: it is ready"),
    ("jobs retry 0", WRONG, IDS),
    ("jobs logs 99", NOT_SO, f"^{UNKNOWN}"),
    ("jobs logs 0", WRONG, IDS),
    ("jobs explain 99", NOT_SO, f"^{UNKNOWN}"),
    ("jobs explain 0", WRONG, IDS),
    ("queues ls --tenant 'a b'", WRONG, "^--tenant: 'a b' is not"),
    ("queues pause ghost", NOT_SO, f"^{QUEUE}; --new makes it before its first job$"),
    ("queues resume ghost", NOT_SO, f"^{QUEUE}$"),
    ("queues limit ghost --rate 5/s", NOT_SO, f"^{QUEUE}; --new makes it before its first job$"),
    ("queues limit q --rate 5", WRONG, "is no rate like"),
    ("queues limit q --rate 0/s", WRONG, "--rate"),
    ("queues limit q --concurrency x", WRONG, "neither a number nor none"),
    ("queues limit q --concurrency 0", WRONG, "'--concurrency': 0 is neither none nor from 1"),
    ("queues limit q --concurrency 9999999999", WRONG, "is neither none nor from 1 to 2147483647"),
    ("queues limit q --burst 5", WRONG, "^--burst: goes with a rate"),
    ("queues drain ghost -y", NOT_SO, f"^{QUEUE}$"),
    ("queues drain q", WRONG, "say --yes"),
    ("queues purge ghost -y", NOT_SO, f"^{QUEUE}$"),
    ("queues purge q", WRONG, "say --yes"),
    ("dead ls", NOT_SO, "^no dead jobs"),
    ("dead ls ghost", NOT_SO, f"^{QUEUE}$"),
    ("dead groups", NOT_SO, "^no dead jobs"),
    ("dead groups ghost", NOT_SO, f"^{QUEUE}$"),
    ("dead redrive ghost", NOT_SO, f"^{QUEUE}$"),
    ("dead redrive q --fingerprint xyz", WRONG, "^--fingerprint: 'xyz' is not 16"),
    ("dead purge ghost -y", NOT_SO, f"^{QUEUE}$"),
    ("cron ls", NOT_SO, "^no crons"),
    ("cron put x q --every 0s", WRONG, "'--every': '0s' is not longer than nothing"),
    ("cron put x q --daily 25:00", WRONG, "^--daily: '25:00' is not an hour like"),
    ("cron put x q --daily 02:00 --tz Mars", WRONG, "^--tz: 'Mars' is not a time zone"),
    ("cron put x q -e '99 * * * *'", WRONG, "^--expression: "),
    ("cron put x q", WRONG, "--every"),
    ("cron rm ghost", NOT_SO, "^there is no cron ghost; penstock cron ls names them"),
    ("cron next ghost", NOT_SO, "^'ghost' is neither a cron expression"),
    ("cron next '* * * * *' --tz Europe/Berln", WRONG, "^--tz: 'Europe/Berln' is not a time zone"),
    ("cron next '99 * * * *'", WRONG, "^CRON: "),
    ("workers ls", NOT_SO, "^nobody holds a job or waits for one"),
    ("stats --tenant 'a b'", WRONG, "^--tenant: 'a b' is not"),
    ("stats --tenant ''", WRONG, "^--tenant: '' is not"),
    ("tail -q 'a b'", WRONG, "^--queue: 'a b' is not"),
    ("tail --kind odd", WRONG, "'odd' is not one of"),
    ("bench --batch 0", WRONG, USAGE),
    ("bench --queue q", WRONG, "q"),
    ("pipeline run --events nowhere --lake lake", WRONG, "^there is no directory nowhere"),
    ("pipeline run --events . --lake file", WRONG, "^no tables can be made in file: "),
    ("pipeline report", WRONG, "Missing option '--lake'"),
    ("pipeline report --lake nowhere", WRONG, "^there is no directory nowhere: penstock pipeline"),
    ("pipeline compact --lake nowhere", WRONG, "^there is no directory nowhere: penstock pipeline"),
    ("pipeline compact", WRONG, "Missing option '--lake'"),
    ("doctor gopher://x", NOT_SO, "^PROBLEM: url: 'gopher://x' is no store"),
    ("backup sqlite:///nowhere.db copies", NOT_SO, "^there is no store at .*nowhere.db"),
    ("backup memory:// copies", NOT_SO, "^url: a store in memory lies nowhere"),
    ("backup sqlite:///jobs.db file", NOT_SO, "file"),
    ("restore nowhere sqlite:///new.db", NOT_SO, "^there is no backup at nowhere"),
    ("restore file sqlite:///new.db", NOT_SO, "^file is no backup, or a damaged one"),
    ("restore nowhere gopher://x", NOT_SO, "^url: 'gopher://x' is no store"),
    ("verify nowhere", NOT_SO, "^there is no backup at nowhere"),
    ("verify file", NOT_SO, "^file is no backup, or a damaged one"),
    ("token create --name ''", WRONG, "name"),
    ("token create --name x --tenant 'a b'", WRONG, "tenant: 'a b' is not"),
    ("token create --name x --scope fly", WRONG, "fly"),
    ("token hash", WRONG, "^this is no token"),
]
# Commands that open the store that --url names.
OPEN = [
    *("push q", "claim q", "ack x", "fail x", "release x", "extend x"),
    *("jobs ls", "jobs show 1", "jobs cancel 1", "jobs retry 1", "jobs logs 1", "jobs explain 1"),
    *("queues ls", "queues pause q", "queues resume q", "queues limit q"),
    *("queues drain q -y", "queues purge q -y", "dead ls", "dead groups", "dead redrive q"),
    *("dead purge q -y", "cron ls", "cron put x q --every 1m", "cron rm x", "cron next x"),
    *("workers ls", "stats", "tail", "bench"),
]
MAKE = ("push q", "cron put x q --every 1m", "bench")  # a store where there is none


def _command(line: str) -> str:
    first, *rest = shlex.split(line)
    return f"{first} {rest[0]}" if COMMANDS[first].group else first


def test_every_command_has_its_refusals() -> None:
    every = {name for name, _ in commands()}
    assert {_command(line) for line, _, _ in CASES} == every
    alone = {"demo", "serve", "worker", "doctor", "backup", "restore", "verify"}
    assert {_command(line) for line in OPEN} == {
        each for each in every - alone if not each.startswith(("pipeline", "token"))
    }


def _one_sentence(cli: Cli, out: str, told: str) -> None:
    said = cli.told or out
    flat = re.sub(r"\s*│\n│\s*", " ", said)  # Typer's own are in a box
    assert re.search(told, flat, re.MULTILINE), said
    if "Usage:" not in said:
        assert said.count("\n") == 1, said
    assert not re.search(r"Traceback|_ms\b|job_id|\bids:|neither None|\bstr\b", said), said


@pytest.mark.parametrize(("line", "code", "told"), CASES)
def test_a_refusal_is_a_sentence(cli: Cli, place: Path, line: str, code: int, told: str) -> None:
    cli("push", "q", "1")
    (place / "file").write_text("not what was hoped for")
    out = cli(*shlex.split(line), code=code)
    last = cli.told.splitlines()[-1:] if "cancel" in line or "retry" in line else []
    if last and "Usage:" not in cli.told:
        assert re.search(told, last[0])
    else:
        _one_sentence(cli, out, told)


@pytest.mark.parametrize("line", OPEN)
def test_a_server_that_nobody_reaches_is_told(place: Path, line: str) -> None:
    cli = Cli("--url", NOWHERE)
    assert cli(*shlex.split(line), code=WRONG) == ""
    assert "is penstock serve running there?" in cli.told
    assert "cannot be reached: Connection refused; " in cli.told
    assert cli.told.count("\n") == 1


@pytest.mark.parametrize("line", [line for line in OPEN if line not in MAKE])
def test_a_store_that_is_not_there_is_not_made(place: Path, line: str) -> None:
    cli = Cli("--url", "sqlite:///nowhere.db")
    assert cli(*shlex.split(line), code=WRONG) == ""
    assert cli.told.startswith("there is no store at")
    assert os.listdir(place) == []  # noqa: PTH208


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
@pytest.mark.parametrize("line", ["queues ls", "stats", "tail", "doctor", "backup"])
def test_where_there_is_no_store_nothing_is_left_behind(
    place: Path, line: str, scheme: str
) -> None:
    (place / "empty").touch() if scheme == "sqlite" else (place / "empty").mkdir()
    (place / "file").touch()
    for name in ("empty", "nowhere", "nowhere/at/all", "file/below"):
        url = f"{scheme}:///{name}"
        command = {"doctor": ["doctor", url], "backup": ["backup", url, "copies"]}
        cli = Cli()
        code = NOT_SO if line in command else WRONG
        cli(*command.get(line, [*line.split(), "--url", url]), code=code)
        assert f"there is no store at {place}/{name}: name" in cli.told
        assert cli.told.count("\n") == 1
        assert sorted(os.listdir(place)) == ["empty", "file"]  # noqa: PTH208


@pytest.mark.parametrize("line", ["queues ls", "push q", "serve --port 0 --http-port 0"])
def test_a_store_that_cannot_be_opened_is_told_once(
    place: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "file").write_text("not what was hoped for")
    cli = Cli("--url", "sqlite:///file")
    assert cli(*line.split(), code=WRONG) == ""
    assert cli.told == (
        f"the store cannot be opened: {place}/file is no SQLite file: it is something else,"
        " or a damaged store; name another, or restore a backup\n"
    )
    assert not caplog.records
    assert os.listdir(place) == ["file"]  # noqa: PTH208


@pytest.mark.parametrize("line", [line for line in OPEN if line not in (*MAKE, "tail")])
def test_an_empty_store_is_no_mistake_of_ours(cli: Cli, line: str) -> None:
    cli("push", "other", "1")
    cli("queues", "purge", "other", "--yes")
    cli(*shlex.split(line), code=0 if line == "stats" else NOT_SO)
    assert cli.told.count("\n") <= 1
