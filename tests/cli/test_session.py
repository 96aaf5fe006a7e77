"""What holds for every command: which store, whose jobs, errors, how it is loaded and completed."""

import json
import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.main import COMMANDS, build_app, in_order, load
from penstock.cli.session import NOT_SO, WRONG
from penstock.cli.show import console_for, plain, state_text, table
from penstock.model.lifecycle import State
from tests.cli.cli import Cli, environment, process
from tools.commands import commands

# -- which store -----------------------------------------------------------------------------------


def test_the_store_is_said_by_a_flag_the_environment_or_the_settings(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli()
    cli("push", "default")
    (place / "penstock.toml").write_text('url = "sqlite:///toml.db"\n')
    cli("push", "toml")
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///variable.db")
    cli("push", "variable")
    cli("push", "flag", "--url", "sqlite:///flag.db")
    names = {"penstock": "default", "toml": "toml", "variable": "variable", "flag": "flag"}
    for file, queue in names.items():
        (listed,) = cli.json("queues", "ls", "--url", f"sqlite:///{file}.db")["queues"]
        assert listed["queue"] == queue


def test_only_what_adds_something_makes_a_store(place: Path) -> None:
    cli = Cli("--url", "sqlite:///typo.db")
    for words in (["queues", "ls"], ["jobs", "ls"], ["stats"], ["tail"], ["claim", "q"]):
        cli(*words, code=WRONG)
        assert "there is no store at" in cli.told
        assert "penstock push" in cli.told
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("penstock://127.0.0.1:1", "is penstock serve running there?"),
        ("penstock+unix:///nowhere.sock", "is penstock serve running there?"),
        ("gopher://x", "is no store that this release knows"),
        ("memory://", "ends with this command"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_sentence(place: Path, url: str, told: str) -> None:
    cli = Cli("--url", url)
    cli("stats", code=WRONG)
    assert told in cli.told
    assert cli.told.count("\n") == 1


def test_a_url_with_settings_that_are_wrong_is_refused_before_anything_is_made(place: Path) -> None:
    cli = Cli("--url", "sqlite:///x.db?mode=odd")
    cli("push", "q", code=WRONG)
    assert cli.told == "url: mode: 'odd' is not one of rw, ro (said by --url)\n"
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("own_log")
def test_a_url_that_is_wrong_is_told_with_who_said_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli()
    (place / "penstock.toml").write_text('url = "jobs.db"\n')
    told = "url: 'jobs.db' is no url; if it is a path, sqlite:///jobs.db is (said by {})\n"
    for words in ("stats", "push q", "serve"):
        cli(*words.split(), code=WRONG)
        assert cli.told == told.format("penstock.toml")
    monkeypatch.setenv("PENSTOCK_URL", "jobs.db")
    for words in ("stats", "push q", "serve"):
        cli(*words.split(), code=WRONG)
        assert cli.told == told.format("PENSTOCK_URL")


def test_settings_that_are_wrong_are_named(place: Path) -> None:
    (place / "penstock.toml").write_text("porto = 1\n")
    cli = Cli()
    cli("stats", code=WRONG)
    assert "porto" in cli.told


def test_tenants_do_not_see_each_other(cli: Cli) -> None:
    cli("push", "q", "--tenant", "acme")
    assert cli.json("queues", "ls", "--tenant", "acme")["queues"]
    cli("queues", "ls", code=NOT_SO)
    cli("jobs", "show", 1, code=NOT_SO)
    cli("push", "q", "--tenant", "not one", code=WRONG)
    assert cli.told.startswith("--tenant: ")


def test_a_taken_key_is_a_state_that_forbids_it(cli: Cli) -> None:
    cli("push", "q", "--key", "k")
    cli("push", "q", "--key", "k", "--on-conflict", "reject", code=NOT_SO)
    assert cli.told.count("\n") == 1


def test_a_file_that_is_no_store_is_one_sentence(place: Path) -> None:
    (place / "jobs.db").write_text("no database, however you look at it" * 100)
    cli = Cli("--url", "sqlite:///jobs.db")
    cli("stats", code=WRONG)
    assert "jobs.db" in cli.told


# -- where answers go -------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["stats", "doctor", "serve --print-config", "--version"])
def test_an_answer_that_nobody_reads_to_the_end_is_no_error(place: Path, words: str) -> None:
    Cli("--url", "sqlite:///penstock.db")("push", "q")
    read, write = os.pipe()
    os.close(read)
    with process(words.split(), cwd=place, stdout=write, stderr=subprocess.PIPE) as command:
        os.close(write)
        _, told = command.communicate(timeout=60)
    assert (told, command.returncode) == ("", 0)


@pytest.mark.parametrize(
    "words", ["stats", "doctor", "serve --print-config", "--version", "--help"]
)
def test_an_answer_that_cannot_be_written_is_one_sentence(place: Path, words: str) -> None:
    Cli("--url", "sqlite:///penstock.db")("push", "q")
    (place / "answer").touch()
    with (
        (place / "answer").open("rb") as only_read,
        process(words.split(), cwd=place, stdout=only_read, stderr=subprocess.PIPE) as command,
    ):
        _, told = command.communicate(timeout=60)
    assert told == "the answer cannot be written: Bad file descriptor\n"
    assert command.returncode == WRONG


# -- a terminal ------------------------------------------------------------------------------------


def on_a_terminal(words: list[str], answer: bytes, place: Path) -> tuple[int, str]:
    """What whoever is asked and answers is shown."""
    here, there = pty.openpty()
    command = process(
        words, cwd=place, env=environment(TERM="xterm"), stdin=there, stdout=there, stderr=there
    )
    os.close(there)
    os.write(here, answer)
    shown = b""
    try:
        while block := os.read(here, 65_536):
            shown += block
    except OSError:  # how Linux tells that nobody is left at the other end
        pass
    os.close(here)
    return command.wait(30), shown.decode()


def test_on_a_terminal_whoever_purges_is_asked(place: Path) -> None:
    cli = Cli("--url", "sqlite:///jobs.db")
    cli("push", "q")
    purge = ["queues", "purge", "q", "--url", "sqlite:///jobs.db"]
    code, shown = on_a_terminal(purge, b"n\n", place)
    assert (code, "Forget every job of q" in shown) == (1, True)
    code, shown = on_a_terminal(purge, b"y\n", place)
    assert (code, "1 job forgotten" in shown) == (0, True)


ELAPSED = "0:00:0"  # of a bar
BACKUP = "backups/*.penstock.tar.gz"
LONG = {  # commands whose work may take long, and what they answer
    "push q --lines lines --url sqlite:///jobs.db": "2 jobs created",
    "bench --batch 1 --time 20ms --url sqlite:///bench.db": "durability",
    "backup sqlite:///jobs.db backups": ".penstock.tar.gz",
    f"verify {BACKUP}": "sound",
    f"restore {BACKUP} sqlite:///restored.db": "restored to",
    "doctor sqlite:///jobs.db --check": "nothing is wrong",
}


@pytest.mark.parametrize("command", LONG)
def test_long_work_shows_on_a_terminal_that_it_goes_on(command: str, place: Path) -> None:
    words = long_work(command, place)
    code, shown = on_a_terminal(words, b"", place)
    assert (code, ELAPSED in shown, LONG[command] in shown) == (0, True, True), shown


@pytest.mark.parametrize("command", LONG)
def test_long_work_says_nothing_of_itself_to_a_pipe(command: str, place: Path) -> None:
    cli = Cli()
    said = cli(*long_work(command, place))
    assert ELAPSED not in said + cli.told


def test_long_work_that_is_told_as_json_shows_nothing_else(place: Path) -> None:
    words = long_work("doctor sqlite:///jobs.db --check --json", place)
    code, shown = on_a_terminal(words, b"", place)
    assert (code, json.loads(shown)["problems"]) == (0, [])


def long_work(command: str, place: Path) -> list[str]:
    """The words of a command, and what it works on."""
    cli = Cli()
    (place / "lines").write_text("1\n2\n")
    cli("push", "q", "--url", "sqlite:///jobs.db")
    if BACKUP in command:
        taken = cli("backup", "sqlite:///jobs.db", "backups").strip()
        command = command.replace(BACKUP, taken)
    return command.split()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), StringIO()
    for file in (terminal, pipe):
        console_for(file).print(state_text(State.READY), plain("[b]\x1b[31m"))
    assert terminal.getvalue() == "\x1b[34mready\x1b[0m [b]\\x1b[31m\n"
    assert pipe.getvalue() == "ready [b]\\x1b[31m\n"


def test_a_narrow_terminal_cuts_texts_before_ids_and_names() -> None:
    file = StringIO()
    rows = table(">id", "queue", "fingerprint", "~error")
    rows.add_row("123456789", "emails", "77a921b503b4204c", "LookupError: " + "x" * 60)
    Console(file=file, width=60).print(rows)
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert re.search(r"123456789 +emails +77a921b503b4204c +Lookup.*…$", lines[-1].rstrip())


# -- the menu --------------------------------------------------------------------------------------


def python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout


def test_the_menu_loads_no_store() -> None:
    said = python(
        "import sys; from penstock.cli.main import build_app\n"
        "for word in ('--version', '--help', 'nonsense'):\n"
        "    try: build_app()([word])\n"
        "    except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('penstock.')], 'asyncio' in sys.modules)"
    )
    assert said.startswith("penstock ")
    loaded = ["penstock.model", "penstock.model.version", "penstock.cli", "penstock.descriptors"]
    loaded.append("penstock.cli.main")
    assert said.splitlines()[-1] == f"{loaded} False"


def test_every_command_is_on_the_menu_and_has_help(place: Path) -> None:
    cli = Cli()
    menu = cli("--help")
    for name, named in COMMANDS.items():
        assert f" {name} " in menu
        assert load(name).help
        if named.group:
            assert named.line in cli(name, "--help")
    found = dict(commands())
    assert len(found) > 35
    for name, command in found.items():
        assert command.help, name
        assert command.help.split("\n")[0].endswith("."), name


FIRST = ["--url x", "--url=x", "--tenant y", "--json", "--json --url x --tenant=y"]


@pytest.mark.parametrize("first", FIRST)
def test_options_before_any_command_or_group_hide_no_help(place: Path, first: str) -> None:
    cli = Cli()
    groups = [name for name, named in COMMANDS.items() if named.group]
    for name in [*groups, *dict(commands())]:
        help_of = cli(*name.split(), "--help")
        assert f"Usage: penstock {name} " in help_of
        assert cli(*first.split(), *name.split(), "--help") == help_of
    assert cli(*first.split(), "push", "q", "--task", "t", "--help") == cli("push", "--help")
    for name in groups:  # what may follow, as for whoever says nothing before
        assert cli(*first.split(), name, code=2) == cli(name, code=2)
    assert cli(*first.split(), code=2) == cli(code=2)


def test_every_listing_takes_json(place: Path) -> None:
    without = {"demo", "worker", "backup", "restore", "verify", "token hash"}
    without |= {"pipeline run", "pipeline report", "pipeline compact"}
    for name, command in commands():
        options = {option for each in command.params for option in each.opts}
        assert ("--json" in options) == (name not in without), name


def test_a_command_that_is_not_known_is_told_the_nearest(place: Path) -> None:
    cli = Cli()
    cli("quues", code=2)
    assert "Did you mean 'queues'?" in " ".join(cli.told.replace("│", " ").split())


def test_the_shell_completes_commands_and_options(place: Path) -> None:
    def completed(said: str) -> list[str]:
        asked = {"COMP_WORDS": said, "COMP_CWORD": str(said.count(" "))}
        asked["_PENSTOCK_COMPLETE"] = "complete_bash"
        return CliRunner().invoke(build_app(), [], env=asked, prog_name="penstock").stdout.split()

    assert completed("penstock qu") == ["queues"]
    assert completed("penstock queues p") == ["pause", "purge"]
    assert completed("penstock jobs ls --st") == ["--state"]


def test_what_is_installed_completes_the_command_however_it_was_called() -> None:
    said = [sys.executable, "-m", "penstock", "--show-completion", "bash"]
    script = subprocess.run(said, capture_output=True, text=True, check=True).stdout
    assert "complete -o default -F _penstock_completion penstock\n" in script
    assert "_PENSTOCK_COMPLETE=complete_bash" in script


def test_a_ctrl_c_behind_the_answer_changes_nothing_of_it() -> None:
    ended = (
        "import atexit, os, signal, sys\n"
        "from penstock.cli.main import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"  # as the process takes itself down
        "sys.argv = ['penstock', '--version']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", ended], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")


def test_what_nearly_every_command_takes_may_be_said_before_it(place: Path) -> None:
    cli = Cli()
    cli("--url", "sqlite:///other.db", "push", "q", "7")
    shown = json.loads(cli("--url=sqlite:///other.db", "--json", "jobs", "show", "1"))
    assert (shown["queue"], shown["payload"]) == ("q", 7)
    assert cli("--json", code=2) == cli(code=2)  # the menu: there is such an option
    assert cli("--url", code=2) == cli(code=2)
    assert cli("--url", "sqlite:///other.db", "--version").startswith("penstock ")
    assert in_order(["--tenant", "t", "push", "q", "--", "-1"]) == [
        *("push", "q", "--tenant", "t", "--", "-1")
    ]
