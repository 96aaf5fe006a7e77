"""Pushes: nothing appears that nobody said, ids are used once, a key stands for one job, repeats
repeat, and what is pushed together appears together."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from penstock.model.lifecycle import LIVE, State
from tests.history import record as r
from tests.history.operations import NEVER, Operation
from tests.history.story import BulkStory, Case, Finding, Life, Saying, Sighting, sayings

ANSWERS_KEPT: Final = 1_024


def nothing_is_unexpected(case: Case) -> Iterator[Finding]:
    """Every job that is handed out or found was in a push that was not refused, into that queue,
    and has the id which that push was answered."""
    for serial, met in case.sightings.items():
        said = case.sayings.get(serial, [])
        for sighting in met:
            if not any(_may_be(case, one, sighting) for one in said):
                pushes = tuple(one.push for one in said)
                text = f"job {sighting.id} of {sighting.queue} with payload {serial}: nobody's"
                yield Finding(text, pushes + sighting.operations)
                break


def _may_be(case: Case, one: Saying, sighting: Sighting) -> bool:
    if one.queue != sighting.queue:
        return False
    if one.push.ok:
        return one.id == sighting.id and one.outcome != "ignored"
    life = case.lives.get(sighting.id)
    if life is None or not life.created:
        return True
    replaces = one.said.on_conflict == "replace" and one.said.key is not None
    return replaces and one.said.key == life.birth.said.key


def ids_are_used_once_and_ascend(case: Case) -> Iterator[Finding]:
    """No id is given to two jobs; those of one call are contiguous per queue; a later push into a
    queue gets higher ones."""
    for life in case.born:
        origins = {id(case.origin(one.push)): one.push for one in life.created}
        if len(origins) > 1 or len({one.serial for one in life.created}) > 1:
            yield Finding(f"id {life.id} was given twice", tuple(one.push for one in life.created))
    for queue, made in _created_by_queue(case).items():
        for push, ids in made:
            if any(second != first + 1 for first, second in pairwise(ids)):
                yield Finding(f"the ids of one call in {queue} have gaps: {ids}", (push,))
        yield from _ascend(case, queue, made)


def _created_by_queue(case: Case) -> dict[str, list[tuple[Operation, list[int]]]]:
    """Per queue the pushes that created something, and the ids; of repeats only the first."""
    found: defaultdict[str, list[tuple[Operation, list[int]]]] = defaultdict(list)
    heard = set()
    for push in case.oks(r.Push):
        if id(case.origin(push)) in heard:
            continue
        heard.add(id(case.origin(push)))
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for one in sayings(push):
            if one.id is not None and one.outcome == "created":
                ids[one.queue].append(one.id)
        for queue, created in ids.items():
            found[queue].append((push, created))
    return dict(found)


def _ascend(case: Case, queue: str, made: list[tuple[Operation, list[int]]]) -> Iterator[Finding]:
    by_question = sorted(made, key=lambda one: case.origin(one[0]).asked)
    by_answer = sorted(made, key=lambda one: one[0].told)
    highest, holder, answered = 0, None, 0
    for push, ids in by_question:
        while by_answer[answered][0].told < case.origin(push).asked:
            if by_answer[answered][1][-1] > highest:
                highest, holder = by_answer[answered][1][-1], by_answer[answered][0]
            answered += 1
        if ids[0] <= highest and holder is not None:
            text = f"id {ids[0]} in {queue} is not above {highest} of an earlier push"
            yield Finding(text, (holder, push))


# -- keys ------------------------------------------------------------------------------------------


def a_key_stands_for_one_job(case: Case) -> Iterator[Finding]:
    """No job is created with a key that another job certainly holds."""
    for lives in _by_key(case).values():
        for first in lives:
            for second in lives:
                created = second.birth.push
                if first is second or not first.birth.push.before(case.origin(created)):
                    continue
                if _surely_keeps(case, first, second.birth):
                    key = first.birth.said.key
                    text = f"job {second.id} was created with key {key!r} of job {first.id}"
                    yield Finding(text, (first.birth.push, created))


def _by_key(case: Case) -> dict[tuple[str, str], list[Life]]:
    found: defaultdict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in case.born:
        # In a bulk keys are decided at the commit; those jobs are not looked at here.
        if life.birth.said.key is not None and life.birth.push.call.bulk is None:
            found[life.queue, life.birth.said.key].append(life)
    return dict(found)


def _surely_keeps(case: Case, holder: Life, newcomer: Saying) -> bool:
    if holder.may(r.Redrive):
        return False  # it may have been dead, and taken its key back since
    keeps = {one.said.keep_key for one in case.versions(holder)}
    if keeps <= {"live", "retained"} and case.lived_past(holder, newcomer.push.told):
        return True
    if _replaced_between(case, holder, newcomer) or len(keeps) > 1:
        return False
    (keep,) = keeps
    if keep == "retained":
        return holder.id in case.final.jobs
    if isinstance(keep, int):
        return newcomer.push.told_now < holder.birth.push.asked_now + keep
    return False


def _replaced_between(case: Case, holder: Life, newcomer: Saying) -> bool:
    """Whether a `replace` (perhaps the newcomer's own) may have taken the key of an ended job."""
    return any(
        one.said.key == newcomer.said.key
        and one.queue == newcomer.queue
        and one.said.on_conflict == "replace"
        and one.push.told > holder.birth.push.asked
        and one.push.asked <= newcomer.push.told
        for said in case.sayings.values()
        for one in said
    )


def found_keys_stand_for_their_jobs(case: Case) -> Iterator[Finding]:
    """A job found alive with a key that lasts as long as it lives is the one that the key names;
    and what a push calls known by its key has that key."""
    for seen in case.final.jobs.values():
        if seen.key is None or seen.state not in LIVE or seen.state is State.HELD:
            continue
        life = case.lives.get(seen.id)
        keeps = {one.said.keep_key for one in case.versions(life)} if life is not None else set()
        owner = case.final.owners.get((seen.queue, seen.key))
        if keeps and keeps <= {"live", "retained"} and owner != seen.id:
            yield Finding(f"key {seen.key!r} of the live job {seen.id} names {owner}")
    for push in case.oks(r.Push):
        for one in sayings(push):
            known = case.lives.get(one.id or 0)
            if one.outcome == "created" or known is None or not known.created:
                continue
            if known.birth.said.key != one.said.key:
                text = f"job {one.id} does not have key {one.said.key!r}"
                yield Finding(text, (known.birth.push, push))


# -- repeats ---------------------------------------------------------------------------------------


def repeats_give_the_first_answer(case: Case) -> Iterator[Finding]:
    """A producer that repeats a sequence gets the answer it got, also after a crash."""
    for pushes in case.sequences:
        answered = [push for push in pushes if push.ok]
        if not answered:
            continue
        first = answered[0]
        for push in answered[1:]:
            if push.answer != first.answer:
                yield Finding("a repeat was answered otherwise", (first, push))
        for push in pushes:
            refused = push.status == "failed" and push.code in ("conflict", "invalid")
            repeats = first.before(push) and push.call == first.call
            if refused and repeats and not _many(case, push):
                yield Finding("a repeat was refused", (first, push))


def _many(case: Case, push: Operation) -> bool:
    """Whether the producer said so much that an old answer may be forgotten."""
    sequences = {
        other.call.sequence
        for other in case.of(r.Push)
        if other.call.producer == push.call.producer
    }
    return len(sequences) > ANSWERS_KEPT


# -- together or not at all ------------------------------------------------------------------------


def pushes_are_whole(case: Case) -> Iterator[Finding]:
    """If one job of a push without an answer is met, all of them are there."""
    for push in case.of(r.Push):
        if push.ok:
            continue
        said = [one for one in sayings(push) if one.said.key is None]
        met = [one for one in said if _met_otherwise(case, one)]
        if met or not any(case.sightings.get(one.serial) for one in said):
            continue
        missing = [one for one in said if not case.sightings.get(one.serial)]
        for one in missing:
            if not _may_be_gone_unseen(case, one):
                text = f"{one.serial} is missing from a push of which others are there"
                yield Finding(text, (push,))
                break


def _met_otherwise(case: Case, one: Saying) -> bool:
    """Whether another push of the same job was answered: then that one is held to its word."""
    return any(other.push.ok for other in case.sayings[one.serial])


def _may_be_gone_unseen(case: Case, one: Saying) -> bool:
    said = one.said
    swept = any(sweep.told > one.push.asked for sweep in case.sweeps(one.queue))
    expired = said.ttl_ms is not None and said.retain_ms is not None
    died = said.retain_dead_ms is not None and bool(case.unknown_claims(one.queue))
    return swept or expired or died or _dropped(case, one.push)


def _dropped(case: Case, push: Operation) -> bool:
    if push.call.bulk is None:
        return False
    story = case.bulks[push.call.bulk]
    return bool(story.aborts) or (bool(story.commits) and not story.names(push))


def bulks_appear_whole_or_not_at_all(case: Case) -> Iterator[Finding]:
    """Before its commit nothing of a bulk is met, after an abort nothing ever, after an answered
    commit all of it; and if the commit's answer is missing: all, or nothing."""
    for story in case.bulks.values():
        out = [(one, sighting) for one, sighting in _met(case, story) if _is_out(sighting)]
        yield from _met_too_early(story, out)
        published = story.committed is not None or any(story.names(one.push) for one, _ in out)
        if published:
            yield from _missing(case, story)


def _met(case: Case, story: BulkStory) -> Iterator[tuple[Saying, Sighting]]:
    for push in story.pushes:
        for one in sayings(push):
            for sighting in case.sightings.get(one.serial, ()):
                yield one, sighting


def _is_out(sighting: Sighting) -> bool:
    """A held job can be cancelled; any other state but held is one after the commit."""
    return sighting.state not in (State.HELD, State.CANCELLED, State.DEAD)


def _met_too_early(story: BulkStory, out: list[tuple[Saying, Sighting]]) -> Iterator[Finding]:
    begun = min((commit.asked for commit in story.commits), default=NEVER)
    for one, sighting in out:
        seen_at = NEVER - 1 if sighting.operation is None else sighting.operation.told
        if seen_at < begun:
            text = f"job {sighting.id} of bulk {story.name!r} was met before any commit"
            yield Finding(text, (one.push, *sighting.operations))
        elif story.aborted is not None or not story.names(one.push):
            text = f"job {sighting.id} of bulk {story.name!r} was met, though dropped"
            yield Finding(text, (one.push, *story.commits, *story.aborts, *sighting.operations))


def _missing(case: Case, story: BulkStory) -> Iterator[Finding]:
    """Answered pushes into published parts of which the end shows nothing, or still held jobs."""
    if story.aborts:
        return
    for push in story.pushes:
        if not push.ok or not story.names(push):
            continue
        for one in sayings(push):
            found = case.final.jobs.get(one.id or 0)
            met = any(_is_out(sighting) for sighting in case.sightings.get(one.serial, ()))
            held = found is not None and found.state is State.HELD
            gone = found is None and not met and not _may_be_gone_unseen(case, one)
            touched = bool(case.life(one.id or 0).may(r.Cancel)) or one.said.key is not None
            if held or (gone and not touched):
                text = f"job {one.id} of the committed bulk {story.name!r} did not appear"
                yield Finding(text, (push, *story.commits))


RULES = (
    nothing_is_unexpected,
    ids_are_used_once_and_ascend,
    a_key_stands_for_one_job,
    found_keys_stand_for_their_jobs,
    repeats_give_the_first_answer,
    pushes_are_whole,
    bulks_appear_whole_or_not_at_all,
)
