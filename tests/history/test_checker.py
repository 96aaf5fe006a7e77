"""The test of the tester: a store that keeps its word is not accused, one with a bug is caught."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest

from penstock.model.errors import Deadline
from penstock.model.job import JobOptions, Run
from penstock.model.lifecycle import State
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.history import record as r
from tests.history.bugs import BUGS, Buggy
from tests.history.checker import RULES, Violation, assert_clean, check
from tests.history.final import FinalState, read_final, settle
from tests.history.recorder import Recorder
from tests.history.story import History
from tests.history.workload import work

OPERATIONS: Final = 450
ROOT: Final = Path(__file__).resolve().parents[2]


async def worked(store: EmbeddedStore, seed: int, operations: int = OPERATIONS) -> list[Violation]:
    """What the checker says of a workload on this store."""
    log = r.ListLog()
    recorder = Recorder(store, log)
    await work(recorder, seed=seed, operations=operations)
    final = await settle(recorder, known=History(log.lines).ids(), patience_ms=5_000)
    await store.close()
    return check(History(log.lines), final)


# -- stores that keep their word -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_keeps_its_word_is_not_accused(seed: int) -> None:
    assert_clean(asyncio.run(worked(EmbeddedStore(seed=seed), seed)))


class LosesAnswers(EmbeddedStore):
    """Keeps its word, but one in eight answers never arrives; half of those calls never did."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.draw = Random(seed)
        self.quiet = True

    async def _perhaps(self, doing: Awaitable[Any]) -> Any:
        fate = self.draw.random() if self.quiet else 1
        if fate < 0.06:
            doing.close()  # type: ignore[attr-defined]
            raise Deadline("the question was lost")
        answer = await doing
        if fate < 0.12:
            raise Deadline("the answer was lost")
        return answer


def _losing(name: str) -> Callable[..., Any]:
    async def call(self: LosesAnswers, *arguments: Any, **more: Any) -> Any:
        return await self._perhaps(getattr(EmbeddedStore, name)(self, *arguments, **more))

    return call


for _name in ("push", "claim", "ack", "fail", "release", "extend", "cancel", "redrive",
              "open_bulk", "commit_bulk", "abort_bulk", "purge_dead"):
    setattr(LosesAnswers, _name, _losing(_name))


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_excuse_what_they_may_have_done_and_not_done(seed: int) -> None:
    async def scenario() -> list[Violation]:
        store, log = LosesAnswers(seed), r.ListLog()
        recorder = Recorder(store, log)
        await work(recorder, seed=seed, operations=OPERATIONS)
        store.quiet = False
        final = await settle(recorder, known=History(log.lines).ids(), patience_ms=5_000)
        await store.close()
        assert sum(isinstance(line, r.Lost) for line in log.lines) > 20
        return check(History(log.lines), final)

    assert_clean(asyncio.run(scenario()))


def test_a_restart_in_the_middle_is_the_same_history() -> None:
    async def scenario() -> list[Violation]:
        store, log = EmbeddedStore(seed=7), r.ListLog()
        for part in range(3):
            await work(Recorder(store, log), seed=part, operations=200)
            store.rebuild()
        final = await settle(Recorder(store, log), known=History(log.lines).ids())
        await store.close()
        assert len(History(log.lines).opened) == 4
        return check(History(log.lines), final)

    assert_clean(asyncio.run(scenario()))


# -- stores with a bug -----------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_caught_by_the_rule_it_breaks(bug: type[Buggy]) -> None:
    found: set[str] = set()
    for seed in range(1, 6):
        violations = asyncio.run(worked(bug(), seed))
        found |= {violation.rule for violation in violations}
        if BUGS[bug] in found:
            return
    pytest.fail(f"{bug.__name__} did not break {BUGS[bug]} but {found or 'nothing'}")


def test_every_rule_has_a_bug_that_it_catches() -> None:
    assert set(BUGS.values()) == RULES.keys()
