"""The test of the tester: a store that keeps its word is not accused, one with a bug is caught."""

import asyncio
import copy
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import msgspec
import pytest

from penstock.kernel.kernel import Kernel
from penstock.model.errors import Deadline
from penstock.model.job import JobOptions, Run
from penstock.model.lifecycle import State
from penstock.model.policy import HOUR_MS, Backoff
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.history import record as r
from tests.history.bugs import BUGS, Buggy
from tests.history.checker import RULES, Violation, assert_clean, check
from tests.history.final import FinalState, read_final, settle
from tests.history.operations import History
from tests.history.recorder import Recorder
from tests.history.workload import work

OPERATIONS: Final = 280
LEASES_MS: Final = (50, 60, 90)
ROOT: Final = Path(__file__).resolve().parents[2]


async def worked(store: EmbeddedStore, seed: int, operations: int = OPERATIONS) -> list[Violation]:
    """What the checker says of a workload on this store."""
    log = r.ListLog()
    recorder = Recorder(store, log)
    await work(recorder, seed=seed, operations=operations, leases_ms=LEASES_MS)
    final = await settle(recorder, known=History(log.lines).ids(), patience_ms=5_000)
    await store.close()
    return check(History(log.lines), final)


# -- stores that keep their word -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_keeps_its_word_is_not_accused(seed: int) -> None:
    assert_clean(asyncio.run(worked(EmbeddedStore.in_memory(seed=seed), seed)))


CHANGING: Final = (
    *("push", "open_bulk", "commit_bulk", "abort_bulk", "claim", "ack", "fail", "release"),
    *("extend", "cancel", "redrive", "purge_dead"),
)


class LosesAnswers:
    """A store that keeps its word behind a line that does not: one in eight answers never comes
    back, and half of those calls never arrived."""

    def __init__(self, seed: int) -> None:
        self.store = EmbeddedStore.in_memory(seed=seed)
        self.draw = Random(seed)
        self.loses = True

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        return partial(self._perhaps, call) if self.loses and name in CHANGING else call

    async def _perhaps(self, call: Callable[..., Awaitable[Any]], *said: Any, **more: Any) -> Any:
        fate = self.draw.random()
        if fate < 0.06:
            raise Deadline("the question was lost")
        answer = await call(*said, **more)
        if fate < 0.12:
            raise Deadline("the answer was lost")
        return answer


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_excuse_what_they_may_have_done_and_not_done(seed: int) -> None:
    async def scenario() -> list[Violation]:
        store, log = LosesAnswers(seed), r.ListLog()
        recorder = Recorder(cast(Store, store), log)
        await work(recorder, seed=seed, operations=OPERATIONS, leases_ms=LEASES_MS)
        store.loses = False
        final = await settle(recorder, known=History(log.lines).ids(), patience_ms=5_000)
        await store.close()
        assert sum(isinstance(line, r.Lost) for line in log.lines) > 20
        return check(History(log.lines), final)

    assert_clean(asyncio.run(scenario()))


def test_a_restart_in_the_middle_is_the_same_history() -> None:
    async def scenario() -> list[Violation]:
        store, log = EmbeddedStore.in_memory(seed=7), r.ListLog()
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
    for seed in range(1, 31):  # most show at once; how calls interleave is chance
        violations = asyncio.run(worked(bug(), seed))
        found |= {violation.rule for violation in violations}
        if BUGS[bug] in found:
            return
    pytest.fail(f"{bug.__name__} did not break {BUGS[bug]} but {found or 'nothing'}")


def test_every_rule_has_a_bug_that_it_catches() -> None:
    assert set(BUGS.values()) == RULES.keys()


# -- losses that a fault is allowed ----------------------------------------------------------------


async def lose_power(store: EmbeddedStore, log: r.ListLog) -> int:
    """Work, and lose the last third of it with everything that was answered meanwhile."""
    engine = store.engine
    recorder = Recorder(store, log)
    await work(recorder, seed=1, operations=250, leases_ms=LEASES_MS)
    kernel, payloads = engine.kernel.encode(), copy.deepcopy(engine.payloads)
    safe_until = recorder.clock.elapsed_ms()
    await work(recorder, seed=2, operations=150, leases_ms=LEASES_MS)
    engine.kernel, engine.payloads = Kernel.decode(kernel, engine.kernel.caps), payloads
    return safe_until


def test_a_loss_is_caught_unless_it_is_allowed() -> None:
    async def scenario() -> tuple[History, FinalState, int]:
        store, log = EmbeddedStore.in_memory(seed=3), r.ListLog()
        safe_until = await lose_power(store, log)
        recorder = Recorder(store, log)
        final = await settle(recorder, known=History(log.lines).ids(), patience_ms=5_000)
        await store.close()
        return History(log.lines), final, safe_until

    history, final, safe_until = asyncio.run(scenario())
    rules = {violation.rule for violation in check(history, final)}
    assert "acknowledged_jobs_are_kept" in rules
    assert_clean(check(history, final, lost_ok_after=safe_until))


# -- histories told line by line -------------------------------------------------------------------

Script = Callable[[Recorder, ManualClock], Awaitable[object]]


def told(script: Script) -> tuple[list[r.Line], FinalState]:
    """The lines of a script on a store whose clock the script moves, and the state it leaves."""

    async def scenario() -> tuple[list[r.Line], FinalState]:
        clock, log = ManualClock(), r.ListLog()
        store = EmbeddedStore.in_memory(clock=clock, seed=1)
        recorder = Recorder(store, log, clock=clock, name="me")
        await script(recorder, clock)
        final = await read_final(recorder, History(log.lines).ids(), clock.now)
        await store.close()
        return log.lines, final

    return asyncio.run(scenario())


def rules_broken(lines: Sequence[r.Line], final: FinalState, **allowed: Any) -> set[str]:
    return {violation.rule for violation in check(History(lines), final, **allowed)}


def unanswered(lines: Iterable[r.Line], kind: type) -> list[r.Line]:
    """The same lines without the answers to calls of this kind."""
    asked = {line.op for line in lines if isinstance(line, r.Invoked) and type(line.call) is kind}
    return [
        line for line in lines if isinstance(line, r.Invoked | r.Opened) or line.op not in asked
    ]


def jobs(recorder: Recorder, count: int = 1, queue: str = "q", **said: Any) -> Run:
    options = {name: said.pop(name) for name in tuple(said) if name in JobOptions.__struct_fields__}
    return Run.pack(queue, recorder.payloads(count), JobOptions(**options), **said)


async def push_claim_ack(recorder: Recorder, clock: ManualClock) -> None:
    await recorder.push([jobs(recorder, 3)])
    lease = await recorder.claim(["q"], 3, lease_ms=1_000)
    assert lease is not None
    await recorder.ack(lease.token, results={lease.ids[0]: b'"done"'})


def without(final: FinalState, job_id: int) -> FinalState:
    """As found by a store that knows nothing of this job, and counts right."""
    job = final.jobs[job_id]
    counts = dict(final.counts)
    counts[job.queue] = counts[job.queue] | {job.state: counts[job.queue][job.state] - 1}
    return msgspec.structs.replace(
        final,
        jobs={other: seen for other, seen in final.jobs.items() if other != job_id},
        by_id={other: state for other, state in final.by_id.items() if other != job_id},
        counts=counts,
    )


def changed(final: FinalState, job_id: int, **facts: Any) -> FinalState:
    """As found by a store that has this job otherwise, and counts right."""
    before = final.jobs[job_id]
    after = msgspec.structs.replace(before, **facts)
    counts = {queue: dict(states) for queue, states in final.counts.items()}
    counts[before.queue][before.state] -= 1
    counts[after.queue][after.state] += 1
    return msgspec.structs.replace(
        final,
        jobs=final.jobs | {job_id: after},
        by_id=final.by_id | {job_id: after.state},
        counts=counts,
    )


def test_a_plain_history_is_clean_with_and_without_its_answers() -> None:
    lines, final = told(push_claim_ack)
    for kind in (r.Push, r.Ack):
        assert_clean(check(History(unanswered(lines, kind)), final))
    assert_clean(check(History(lines), final))


def test_an_acknowledged_job_that_is_gone_is_lost_and_an_unknown_one_is_not_while_it_is_alone() -> (
    None
):
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        await recorder.push([jobs(recorder)])

    lines, final = told(script)
    (job_id,) = final.jobs
    assert rules_broken(lines, without(final, job_id)) == {"acknowledged_jobs_are_kept"}
    assert not rules_broken(unanswered(lines, r.Push), without(final, job_id))


def test_half_of_an_unknown_push_is_wrong_and_all_or_nothing_is_right() -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        await recorder.push([jobs(recorder, 2)])

    lines, final = told(script)
    first, second = final.jobs
    unknown = unanswered(lines, r.Push)
    stuck = {"nothing_is_stuck"}  # nobody came for them
    assert rules_broken(unknown, final) == stuck
    assert rules_broken(unknown, without(final, first)) == stuck | {"pushes_are_whole"}
    assert not rules_broken(unknown, without(without(final, first), second))


def test_a_completed_job_needs_an_ack_that_happened_or_may_have() -> None:
    lines, final = told(push_claim_ack)
    without_ack = [line for line in lines if not isinstance(getattr(line, "call", None), r.Ack)]
    without_ack = [
        line for line in without_ack if not isinstance(getattr(line, "answer", None), r.Touched)
    ]
    assert rules_broken(without_ack, final) == {"states_are_explained"}
    job_id = max(final.jobs)
    again = changed(final, job_id, state=State.READY)
    assert "what_ended_stays_ended" in rules_broken(lines, again)
    assert "what_ended_stays_ended" not in rules_broken(unanswered(lines, r.Ack), again)


def test_a_result_of_an_unknown_ack_is_that_ack_s_or_none_if_another_was_first() -> None:
    lines, final = told(push_claim_ack)
    job_id = min(final.jobs)
    wrong = changed(final, job_id, result='"something else"')
    for history in (lines, unanswered(lines, r.Ack)):
        assert rules_broken(history, wrong) == {"results_are_what_was_acked"}
        assert not rules_broken(history, final)


def test_a_lease_that_ran_out_may_be_followed_by_another_and_not_a_moment_earlier() -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        await recorder.push([jobs(recorder, backoff=Backoff(kind="none"))])
        await recorder.claim(["q"], lease_ms=1_000)
        clock.advance(1_000)
        await recorder.claim(["q"], lease_ms=1_000)

    lines, final = told(script)
    assert rules_broken(lines, final) == {"nothing_is_stuck"}
    second = max(i for i, line in enumerate(lines) if isinstance(line, r.Answered))
    hurried = [
        msgspec.structs.replace(line, at=line.at - 1) if i >= second - 1 else line
        for i, line in enumerate(lines)
    ]
    assert "one_live_lease_per_job" in rules_broken(hurried, final)
    crashed = [*hurried[: second - 1], r.Opened(run="next", now=0, at=0), *hurried[second - 1 :]]
    assert "one_live_lease_per_job" in rules_broken(crashed, final)
    assert "one_live_lease_per_job" not in rules_broken(crashed, final, claims_survive=False)


def test_a_delayed_job_may_come_at_its_instant_and_not_a_moment_earlier() -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        await recorder.push([jobs(recorder, delay_ms=500)])
        clock.advance(500)
        lease = await recorder.claim(["q"], lease_ms=1_000)
        assert lease is not None
        await recorder.ack(lease.token)

    lines, final = told(script)
    assert not rules_broken(lines, final)
    early = [
        msgspec.structs.replace(line, now=line.now - 1)
        if isinstance(getattr(line, "answer", None), r.Leased)
        else line
        for line in lines
    ]
    assert rules_broken(early, final) == {"nothing_is_early"}


@pytest.mark.parametrize("fate", ["commit_bulk", "abort_bulk"])
def test_the_jobs_of_a_bulk_follow_its_end_and_an_unknown_end_leaves_both_ways_open(
    fate: str,
) -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        await recorder.open_bulk("b")
        await recorder.push([jobs(recorder, 2, delay_ms=HOUR_MS)], bulk="b")
        await getattr(recorder, fate)("b")

    lines, final = told(script)
    kind = r.CommitBulk if fate == "commit_bulk" else r.AbortBulk
    assert not rules_broken(lines, final)
    assert not rules_broken(unanswered(lines, kind), final)
    if fate == "commit_bulk":
        first, second = final.jobs
        neither = changed(changed(final, first, state=State.HELD), second, state=State.HELD)
        assert rules_broken(lines, neither) == {"bulks_appear_whole_or_not_at_all"}
        assert not rules_broken(unanswered(lines, kind), neither)
        half = changed(final, first, state=State.HELD)
        for history in (lines, unanswered(lines, kind)):
            assert rules_broken(history, half) == {"bulks_appear_whole_or_not_at_all"}


def test_a_repeat_after_a_crash_gives_the_first_answer() -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        run = jobs(recorder, delay_ms=HOUR_MS)
        for _ in range(2):
            await recorder.push([run], producer="p", sequence=1)

    lines, final = told(script)
    assert not rules_broken(lines, final)
    (job_id,) = final.jobs
    other = r.Made([[(job_id + 1, 1, "created")]])
    wrong = [*lines[:-1], msgspec.structs.replace(lines[-1], answer=other)]
    assert "repeats_give_the_first_answer" in rules_broken(wrong, final)
    assert not rules_broken([*lines[:2], *lines[3:]], final)  # the first answer never came


def test_order_is_claimed_only_where_one_call_was_answered_before_the_other_was_made() -> None:
    async def script(recorder: Recorder, clock: ManualClock) -> None:
        for _ in range(2):
            await recorder.push([jobs(recorder, delay_ms=HOUR_MS)])

    lines, final = told(script)
    _, asked_1, told_1, asked_2, told_2 = lines
    swapped_1 = msgspec.structs.replace(told_1, answer=told_2.answer)  # type: ignore[union-attr]
    swapped_2 = msgspec.structs.replace(told_2, answer=told_1.answer)  # type: ignore[union-attr]
    first, second = final.jobs
    as_found = msgspec.structs.replace(
        final,
        jobs={
            first: msgspec.structs.replace(final.jobs[second], id=first),
            second: msgspec.structs.replace(final.jobs[first], id=second),
        },
    )
    one_by_one = [lines[0], asked_1, swapped_1, asked_2, swapped_2]
    at_once = [lines[0], asked_1, asked_2, swapped_1, swapped_2]
    assert rules_broken(one_by_one, as_found) == {"ids_are_used_once_and_ascend"}
    assert not rules_broken(at_once, as_found)


# -- the log and the process -----------------------------------------------------------------------


def test_a_push_of_a_thousand_is_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        store = EmbeddedStore.in_memory(seed=1)
        with r.FileLog(path) as log:
            recorder = Recorder(store, log, name="me")
            await recorder.push([jobs(recorder, 1_000)])
            lease = await recorder.claim(["q"], 1_000)
            assert lease is not None
            await recorder.ack(lease.token)
        await store.close()

    asyncio.run(scenario())
    rows = path.read_bytes().splitlines()
    assert len(rows) == 7
    assert max(map(len, rows)) < 300
    assert len(History.read(path).ids()) == 1_000


def test_a_torn_line_is_no_line_and_the_next_writer_begins_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with r.FileLog(path) as log:
        log.append(r.Opened(run="a", now=1, at=1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-9])
    with r.FileLog(path) as log:
        log.append(r.Opened(run="b", now=2, at=2))
    assert [line.run for line in r.read_lines(path)] == ["a", "b"]


def process(log: Path, operations: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.history.process", "--url", "memory://"]
    command += ["--log", str(log), "--seed", "1", "--operations", str(operations), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_the_process_says_when_it_is_ready_and_when_it_is_done(tmp_path: Path) -> None:
    with process(tmp_path / "log", 200) as running:
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "READY\nDONE\n")
    history = History.read(tmp_path / "log")
    assert len(history.operations) > 150
    assert all(
        operation.status != "unknown" or isinstance(operation.call, r.ReadResult)
        for operation in history.operations
    )


def test_a_killed_process_leaves_a_history_that_can_be_read_and_gone_on_with(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    with process(path, 1_000_000, "--tell-after", "500") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "READY\n"
        assert running.stdout.readline() == "TOLD\n"
        running.kill()
    before = len(History.read(path).operations)
    assert before > 200  # each of two lines, if it was answered
    with process(path, 50) as running:
        assert running.wait(timeout=60) == 0
    history = History.read(path)
    assert len(history.opened) == 2
    assert len(history.operations) > before + 30
