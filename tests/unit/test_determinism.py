"""The same commands give the same answers, events and state, whatever the process they run in.

The history is drawn and played in two child processes whose hash seeds differ: an iteration over a
set, or anything else that depends on hashes or addresses, would tell them apart. What is drawn
depends on the answers, so one different answer changes everything behind it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.kernel import Kernel
from penstock.model.event import Event
from tests.unit.history import QUEUES, TENANTS, History, play

ROOT = Path(__file__).parents[2]

CHILD = """
import sys
from tests.unit.test_determinism import tell
tell(int(sys.argv[1]), int(sys.argv[2]))
"""


def tell(seed: int, n: int) -> None:
    """In a child: every answer and its events on a line, the digest now and then."""
    history = History(seed)
    kernel = history.kernel
    kernel.events = []
    for number, (step, answer) in enumerate(history.steps(n)):
        print(type(step.command).__name__, repr(answer), repr(kernel.events))
        kernel.events.clear()
        if number % 250 == 249:
            print("digest", number, kernel.digest())
    print("hash", hash("a string"), file=sys.stderr)
    print("digest", "end", kernel.digest())


def in_children(seed: int, n: int, where: Path, *hash_seeds: str) -> list[tuple[list[str], str]]:
    """What each child said, and the hash of a string there."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    children = []
    for hash_seed in hash_seeds:
        with (where / hash_seed).open("w") as out, (where / f"{hash_seed}.err").open("w") as err:
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(seed), str(n)],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            )
        children.append(child)
    ends = [child.wait() for child in children]
    said = []
    for hash_seed, end in zip(hash_seeds, ends, strict=True):
        complaint = (where / f"{hash_seed}.err").read_text()
        assert end == 0, complaint
        said.append(((where / hash_seed).read_text().splitlines(), complaint))
    return said


def test_two_processes_with_different_hash_seeds_agree_on_everything(tmp_path: Path) -> None:
    (one, hash_one), (other, hash_other) = in_children(3, 5_000, tmp_path, "1", "4242")
    assert hash_one != hash_other, "the children really hash differently"
    assert len(one) > 5_000
    for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        assert mine == theirs, f"line {number}"


def test_commands_of_every_kind_that_the_kernel_knows_are_played() -> None:
    from penstock.kernel.kernel import HANDLERS

    done = set()
    for step, answer in History(3).steps(5_000):
        if not (isinstance(answer, tuple) and answer[0] == "error"):
            done.add(type(step.command))
        if len(done) == len(HANDLERS):
            break
    assert done == set(HANDLERS)


@pytest.mark.parametrize("seed", range(20, 24))
def test_the_steps_of_a_history_played_again_give_the_same_answers(seed: int) -> None:
    history = History(seed)
    told = list(history.steps(400))
    kernel = Kernel(history.kernel.seed, history.caps)
    for number, (step, answer) in enumerate(told):
        assert play(kernel, step) == answer, f"step {number}: {step.command}"
    assert kernel.digest() == history.kernel.digest()


@pytest.mark.parametrize("seed", range(30, 36))
def test_who_listens_and_who_waits_changes_no_decision(seed: int) -> None:
    history = History(seed)
    told = list(history.steps(400))
    kernel = Kernel(history.kernel.seed, history.caps)
    kernel.events = []
    kernel.watching = {(tenant, queue): None for tenant in TENANTS for queue in QUEUES}
    for number, (step, answer) in enumerate(told):
        if number % 10 == 0:
            known = history.ids["acme"]
            kernel.awaited = dict.fromkeys(known[-20:], 1)
        assert play(kernel, step) == answer, f"step {number}: {step.command}"
        kernel.events.clear()
        kernel.ends.clear()
        kernel.stirred.clear()
    assert kernel.digest() == history.kernel.digest()


def test_events_number_themselves_within_their_command() -> None:
    history = History(3)
    kernel = history.kernel
    kernel.events = []
    seen: list[Event] = []
    for _ in history.steps(800):
        assert [event.index for event in kernel.events] == list(range(len(kernel.events)))
        assert {event.position for event in kernel.events} <= {kernel.position}
        seen += kernel.events
        kernel.events.clear()
    assert [e.position for e in seen] == sorted(e.position for e in seen)
    encoded = json.dumps([event.kind for event in seen])
    assert all(kind in encoded for kind in ("pushed", "claimed", "completed", "retried"))


@pytest.mark.parametrize("seed", range(40, 44))
def test_letting_time_pass_first_and_then_speaking_is_the_same_as_speaking(seed: int) -> None:
    """A command lets everything that is due take effect; ticks before it change nothing."""
    from penstock.kernel.commands import Tick

    history = History(seed)
    told = list(history.steps(400))
    kernel = Kernel(history.kernel.seed, history.caps)
    answers: list[Any] = []
    for step, _ in told:
        if isinstance(step.command, Tick):
            continue  # a small tick leaves something over, to the next step's instant
        while not kernel.apply(Tick(3), step.now, step.elapsed):
            pass
        answers.append(play(kernel, step))
    again = Kernel(history.kernel.seed, history.caps)
    plain = [play(again, step) for step, _ in told if not isinstance(step.command, Tick)]
    assert answers == plain
    assert kernel.digest() == again.digest()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(500, 520))
def test_at_length_two_processes_agree(seed: int, tmp_path: Path) -> None:
    (one, _), (other, _) = in_children(seed, 20_000, tmp_path, "7", "99")
    assert one == other
