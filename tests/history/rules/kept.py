"""Nothing acknowledged is lost: not a push, not an end, not a result, and the books are right."""

from collections import Counter
from collections.abc import Iterator

from penstock.model.lifecycle import ENDED, LIVE, State
from tests.history import record as r
from tests.history.final import is_unfinished
from tests.history.operations import NEVER, Operation
from tests.history.story import Case, Finding, Life, Saying


def acknowledged_jobs_are_kept(case: Case) -> Iterator[Finding]:
    """A job whose push was answered, or that was handed out, is known at the end, or was forgotten
    in a way that the history explains."""
    for life in case.lives.values():
        known = life.created or life.deliveries
        if known and life.id not in case.final.jobs and not _may_be_forgotten(case, life):
            told = tuple(one.push for one in life.created[:1])
            told += tuple(delivery.claim for delivery in life.deliveries)
            yield Finding(f"job {life.id} is gone", told)


def _may_be_forgotten(case: Case, life: Life) -> bool:
    versions = case.versions(life)
    if not versions:
        return True  # nobody said it: that is another rule's
    return any(
        _never_published(case, one) or _swept(case, life, one) or _retention_over(case, life, one)
        for one in versions
    )


def _never_published(case: Case, one: Saying) -> bool:
    """Dropped with its bulk: aborted, its part not named, or its key taken at the commit."""
    if one.push.call.bulk is None:
        return False
    story = case.bulks[one.push.call.bulk]
    not_named = bool(story.commits) and not story.names(one.push)
    return bool(story.aborts) or not_named or (bool(story.commits) and one.said.key is not None)


def _swept(case: Case, life: Life, one: Saying) -> bool:
    for sweep in case.sweeps(one.queue):
        named = getattr(sweep.call, "ids", None)
        if sweep.told < one.push.asked or (named is not None and life.id not in r.each(named)):
            continue
        if not isinstance(sweep.call, r.PurgeDead) or _deaths(case, life):
            return True
    return False


def _deaths(case: Case, life: Life) -> list[int]:
    """The earliest instants (wall clock) at which the job may have died."""
    ends = [op.asked_now for op in life.may(r.Fail)]
    ends += [op.asked_now for op in life.may(r.Cancel) if op.call.discard]
    ends += [delivery.claim.asked_now for delivery in life.deliveries]  # and its lease ran out
    queue = life.queue if life.created else life.deliveries[0].queue
    return ends + [op.asked_now for op in case.unknown_claims(queue)]


def _finishes(life: Life, one: Saying) -> list[int]:
    """The earliest instants at which it may have been completed, cancelled or expired."""
    ends = [op.asked_now for op in life.may(r.Ack) + life.may(r.Cancel)]
    if one.said.ttl_ms is not None:
        ends.append(one.push.asked_now + one.said.ttl_ms)
    return ends


def _retention_over(case: Case, life: Life, one: Saying) -> bool:
    configs = case.configs(one.queue)
    said, now = one.said, case.final.now
    retain = min(c.retain_ms for c in configs) if said.retain_ms is None else said.retain_ms
    dead = min(c.retain_dead_ms for c in configs)
    dead = dead if said.retain_dead_ms is None else said.retain_dead_ms
    finishes = _finishes(life, one)
    if finishes and said.retain_ms is None:
        most = min(c.retain_count for c in configs)
        if case.born_in[one.queue] > most:
            return True
    return min(finishes, default=NEVER) + retain <= now or (
        min(_deaths(case, life), default=NEVER) + dead <= now
    )


def states_are_explained(case: Case) -> Iterator[Finding]:
    """Whatever state a job is found in, something in the history put it there, or may have."""
    for seen in case.final.jobs.values():
        life = case.lives.get(seen.id) or Life(seen.id)
        if not _explained(case, life, seen):
            told = tuple(one.push for one in life.created[:1])
            why = f" ({seen.dead_reason})" if seen.dead_reason else ""
            yield Finding(f"nothing made job {seen.id} {seen.state}{why}", told)


def _explained(case: Case, life: Life, seen: r.Seen) -> bool:
    versions = case.versions(life) or case.sayings.get(seen.serial, [])
    if seen.state is State.COMPLETED:
        return bool(life.may(r.Ack))
    if seen.state is State.CANCELLED:
        return any(not op.call.discard for op in life.may(r.Cancel))
    if seen.state is State.EXPIRED:
        return any(one.said.ttl_ms is not None for one in versions)
    if seen.state is State.HELD:
        return any(one.push.call.bulk is not None for one in versions)
    if seen.state is State.BLOCKED:
        return any(one.said.depends for one in versions)
    if seen.state is State.DEAD:
        return _death_explained(case, life, seen, versions)
    return True


def _death_explained(case: Case, life: Life, seen: r.Seen, versions: list[Saying]) -> bool:
    if seen.dead_reason == "rejected":
        return any(op.call.dead for op in life.may(r.Fail))
    if seen.dead_reason == "discarded":
        return any(op.call.discard for op in life.may(r.Cancel))
    if seen.dead_reason == "dependency_failed":
        return any(one.said.depends for one in versions)
    spent = any(0 < one.said.max_attempts <= seen.attempt for one in versions)
    return spent and bool(life.deliveries or case.unknown_claims(seen.queue))


def what_ended_stays_ended(case: Case) -> Iterator[Finding]:
    """After an acknowledged ack, cancel or death no claim hands the job out again, no read shows it
    alive, and the end shows what the answer said."""
    for life in case.lives.values():
        for end, states in _ends(case, life):
            for delivery in life.deliveries:
                if end.before(delivery.claim):
                    text = f"job {life.id} was handed out after its end"
                    yield Finding(text, (end, delivery.claim))
            for look, seen in life.shown:
                if end.before(look) and seen.state in LIVE:
                    yield Finding(f"job {life.id} was seen {seen.state} after its end", (end, look))
            found = case.final.jobs.get(life.id)
            if found is not None and found.state not in states:
                expected = " or ".join(sorted(states))
                text = f"job {life.id} should be {expected} and is {found.state}"
                yield Finding(text, (end,))


def _ends(case: Case, life: Life) -> Iterator[tuple[Operation, set[State]]]:
    """The acknowledged ends, each with the states that it leaves behind for good."""
    for ack in life.acks:
        if not _replaced_meanwhile(case, life, ack):
            yield ack, {State.COMPLETED}
    for cancel in life.cancels:
        if not cancel.call.discard:
            yield cancel, {State.CANCELLED}
        elif not _redriven_since(life, cancel):
            yield cancel, {State.DEAD}
    for fail, failed in life.fails:
        gone = failed.state is State.DEAD and not _redriven_since(life, fail)
        if gone and not _replaced_meanwhile(case, life, fail):
            yield fail, {State.DEAD}


def _redriven_since(life: Life, end: Operation) -> bool:
    return any(redrive.told > end.asked for redrive in life.may(r.Redrive))


def _replaced_meanwhile(case: Case, life: Life, end: Operation) -> bool:
    """Whether a new version may have come while the attempt ran, and started with its end."""
    claims = [d.claim for d in life.deliveries if d.lease == end.call.lease]
    began = min((claim.asked for claim in claims), default=0)
    return any(
        one.push.asked < end.told and one.push.told > began
        for one in case.versions(life)
        if one not in life.created
    )


def nothing_is_stuck(case: Case) -> Iterator[Finding]:
    """Once all that could be claimed was claimed, what is left waits for an instant ahead, for a
    commit, for a dependency or for a paused queue."""
    for seen in case.final.jobs.values():
        if any(config.paused for config in case.configs(seen.queue)):
            continue
        if is_unfinished(seen, case.final.patient_until):
            yield Finding(f"job {seen.id} is still {seen.state} and nobody gets it")
        elif seen.state is State.SCHEDULED and seen.attempt == 0:
            said = case.sayings.get(seen.serial, [])
            if said and seen.run_at > max(_due_latest(case, one) for one in said):
                pushes = tuple(one.push for one in said)
                yield Finding(f"job {seen.id} waits for {seen.run_at}, later than said", pushes)


def _due_latest(case: Case, one: Saying) -> int:
    """The latest run_at (wall clock) that this push can have meant."""
    if one.said.run_at is not None:
        return max(one.said.run_at, one.push.told_now)
    bulk = one.push.call.bulk
    commits = case.bulks[bulk].commits if bulk is not None else [one.push]
    base = max((commit.told_now for commit in commits), default=NEVER)
    return base + (one.said.delay_ms or 0)


def new_versions_replace_old_ones(case: Case) -> Iterator[Finding]:
    """After an acknowledged `updated` no claim hands out an older version."""
    for life in case.lives.values():
        if life.may(r.Redrive):
            continue  # a discard of the running version ends both; what is redriven is that one
        for update in life.updated:
            versions = case.versions(life)
            recent = {one.serial for one in versions if not one.push.before(update.push)}
            older = {one.serial for one in versions} - recent
            for delivery in life.deliveries:
                if delivery.serial in older and update.push.before(delivery.claim):
                    text = f"job {life.id} was handed out as it was before its update"
                    yield Finding(text, (update.push, delivery.claim))


def results_are_what_was_acked(case: Case) -> Iterator[Finding]:
    """A result that is read is the one that the ack gave; success is never told of a failure."""
    for seen in case.final.jobs.values():
        life = case.lives.get(seen.id)
        if life is not None and seen.state is State.COMPLETED:
            yield from _compare_result(case, life, seen.result, ())
    for read in case.oks(r.ReadResult):
        life, answer = case.lives.get(read.call.id), read.answer
        if life is not None and answer.state is State.COMPLETED:
            yield from _compare_result(case, life, answer.value, (read,))
            if not life.may(r.Ack):
                yield Finding(f"job {life.id} is told as completed and was never acked", (read,))
        elif answer.state in ENDED and answer.value is not None:
            yield Finding(f"job {read.call.id} ended {answer.state} and has a result", (read,))


def _compare_result(
    case: Case, life: Life, value: str | None, read: tuple[Operation, ...]
) -> Iterator[Finding]:
    acks = life.acks if life.acks and case.is_one_version(life) else life.may(r.Ack)
    given = {ack.call.results.get(life.id) for ack in acks}
    if acks and value not in given:
        text = f"job {life.id} has the result {value!r}, not {' or '.join(map(repr, given))}"
        yield Finding(text, (*acks, *read))


def counters_equal_a_scan(case: Case) -> Iterator[Finding]:
    """The counts per queue and state are those of the jobs that a scan finds, and asking for each
    by its id gives the same."""
    scanned = Counter((job.queue, job.state) for job in case.final.jobs.values())
    for queue, counts in case.final.counts.items():
        for state, count in counts.items():
            if count != scanned[queue, state]:
                text = f"{queue} counts {count} {state}, a scan finds {scanned[queue, state]}"
                yield Finding(text)
    by_scan = {job.id: job.state for job in case.final.jobs.values()}
    for job_id in sorted(by_scan.keys() | case.final.by_id.keys()):
        scan, get = by_scan.get(job_id), case.final.by_id.get(job_id)
        if scan is not get:
            yield Finding(f"job {job_id} is {scan} by scan and {get} by its id")


RULES = (
    acknowledged_jobs_are_kept,
    states_are_explained,
    what_ended_stays_ended,
    nothing_is_stuck,
    new_versions_replace_old_ones,
    results_are_what_was_acked,
    counters_equal_a_scan,
)
