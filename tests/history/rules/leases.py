"""Leases: one at a time, honoured while they last, worth nothing afterwards."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.history import record as r
from tests.history.operations import Operation
from tests.history.story import Case, Delivery, Finding, Life


def acked_at_most_once(case: Case) -> Iterator[Finding]:
    """Each version of a job is acked at most once, and only on a lease that held it."""
    for life in case.lives.values():
        acks: defaultdict[r.Serial, list[Operation]] = defaultdict(list)
        for ack in life.acks:
            held = [d for d in case.held_by(ack.call.lease) if d.id == life.id]
            if not held:
                yield Finding(f"job {life.id} was acked on a lease that never held it", (ack,))
            for delivery in held:
                acks[delivery.serial].append(ack)
        for serial, some in acks.items():
            if len(some) > _times_said(case, life, serial):
                yield Finding(f"job {life.id} was acked {len(some)} times", tuple(some))


def _times_said(case: Case, life: Life, serial: r.Serial) -> int:
    """How often this content was, or may have been, given to the job: `replace` may say it again."""
    said = [one for one in case.versions(life) if one.serial == serial]
    return max(1, len({id(case.origin(one.push)) for one in said}))


def nothing_is_acked_after_a_cancel(case: Case) -> Iterator[Finding]:
    """Once a cancel was answered, no ack of the job succeeds."""
    for life in case.lives.values():
        for cancel in life.cancels:
            if cancel.call.discard and life.may(r.Redrive):
                continue  # it was made dead, and may have been given another life
            for ack in life.acks:
                if cancel.before(ack):
                    yield Finding(f"job {life.id} was acked after its cancel", (cancel, ack))


def one_live_lease_per_job(case: Case) -> Iterator[Finding]:
    """No job is on two leases that are both certainly live."""
    for life in case.lives.values():
        held = [(case.surely_held(delivery), delivery) for delivery in life.deliveries]
        certain = [(begin, end, d) for (begin, end), d in held if begin < end]
        certain.sort(key=lambda one: one[0])
        for (_, end, first), (begin, _, second) in pairwise(certain):
            if begin < end:
                text = f"job {life.id} is on two live leases"
                yield Finding(text, (first.claim, second.claim))


def live_leases_are_honoured(case: Case) -> Iterator[Finding]:
    """While a lease is certainly live, its holder is not told that it lost it."""
    for kind in (r.Ack, r.Fail, r.Release, r.Extend):
        for operation in case.by_kind[kind]:
            for delivery in _told_lost(case, operation):
                begin, end = case.surely_held(delivery)
                if begin < operation.asked and operation.told < end:
                    text = f"job {delivery.id} was on a live lease and is called lost"
                    yield Finding(text, (delivery.claim, operation))
                    break


def _told_lost(case: Case, operation: Operation) -> list[Delivery]:
    """The jobs of its lease that this answer calls lost."""
    held = case.held_by(operation.call.lease)
    if operation.status == "failed" and operation.code == "lease_lost":
        named = getattr(operation.call, "ids", None)
        chosen = None if named is None else set(r.each(named))
        return [d for d in held if chosen is None or d.id in chosen]
    if operation.ok:
        lost = set(r.each(operation.answer.lost))
        return [d for d in held if d.id in lost]
    return []


def expired_leases_change_nothing(case: Case) -> Iterator[Finding]:
    """What is asked on a lease that has certainly run out is refused."""
    for kind in (r.Ack, r.Fail, r.Release, r.Extend):
        for operation in case.oks(kind):
            held = case.held_by(operation.call.lease)
            if held and operation.asked_at >= case.expires_latest(held[0].claim, operation):
                text = f"a lease that had run out was good for {type(operation.call).__name__}"
                yield Finding(text, (held[0].claim, operation))


def attempts_are_counted(case: Case) -> Iterator[Finding]:
    """No attempt beyond max_attempts, none that no claim explains, and each higher than the last
    unless it was given back."""
    for life in case.lives.values():
        for delivery in life.deliveries:
            said = case.said(delivery)
            if said is not None and 0 < said.max_attempts < delivery.attempt:
                text = f"job {life.id} has attempt {delivery.attempt} of {said.max_attempts}"
                yield Finding(text, (delivery.claim,))
            if delivery.attempt > _claims_so_far(case, life, delivery):
                text = f"attempt {delivery.attempt} of job {life.id}: more than it was claimed"
                yield Finding(text, (delivery.claim,))
        yield from _attempts_ascend(case, life)


def _claims_so_far(case: Case, life: Life, delivery: Delivery) -> int:
    known = [d.claim for d in life.deliveries]
    possible = known + case.unknown_claims(delivery.queue)
    return case.claims_repeated + sum(1 for one in possible if one.asked < delivery.claim.told)


def _attempts_ascend(case: Case, life: Life) -> Iterator[Finding]:
    if life.may(r.Redrive) or not case.is_one_version(life):
        return  # its attempts may have begun anew
    by_claim = sorted(life.deliveries, key=lambda delivery: delivery.claim.told)
    for first, second in pairwise(by_claim):
        counted = second.attempt > first.attempt or _given_back(case, life, first, second)
        if first.claim.before(second.claim) and not counted:
            text = f"job {life.id} has attempt {second.attempt} after attempt {first.attempt}"
            yield Finding(text, (first.claim, second.claim))


def _given_back(case: Case, life: Life, first: Delivery, second: Delivery) -> bool:
    """Whether the attempt may not count: released, or lost with the claim in a crash."""
    if any(release.call.lease == first.lease for release in life.may(r.Release)):
        return True
    crash = case.history.next_opened(first.claim.told)
    return not case.claims_survive and crash < second.claim.told


RULES = (
    acked_at_most_once,
    nothing_is_acked_after_a_cancel,
    one_live_lease_per_job,
    live_leases_are_honoured,
    expired_leases_change_nothing,
    attempts_are_counted,
)
