"""Order and limits: groups in line, nothing early, never more at once or faster than allowed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from penstock.model.policy import Rate
from tests.history import record as r
from tests.history.operations import NEVER
from tests.history.story import Case, Delivery, Finding, Life, Saying


def groups_go_in_order(case: Case) -> Iterator[Finding]:
    """While as many jobs of a group live as may run at once, none behind them is handed out.

    Looked at are jobs whose place in line is plain: pushed without delay, never replaced or
    redriven, without dependencies, and not released from a later attempt than the first (such a
    job lines up anew by its retry's instant).
    """
    for (queue, _), lives in _groups(case).items():
        most = _group_concurrency(case, queue)
        for index, life in enumerate(lives):
            for delivery in life.deliveries:
                ahead = _alive_ahead(case, lives[:index], life, delivery)
                if len(ahead) >= most:
                    others = ", ".join(str(other.id) for other in ahead)
                    text = f"job {life.id} was handed out while {others} ahead of it lived"
                    pushes = tuple(other.birth.push for other in ahead)
                    yield Finding(text, (*pushes, delivery.claim))


def _groups(case: Case) -> dict[tuple[str, str], list[Life]]:
    """The plain jobs of each group, by id."""
    found: defaultdict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in case.born:
        said = life.birth.said
        if said.group is not None and _is_plain(case, life):
            found[life.queue, said.group].append(life)
    return dict(found)


def _is_plain(case: Case, life: Life) -> bool:
    said = life.birth.said
    if said.delay_ms is not None or said.run_at is not None or said.depends:
        return False
    moved = life.may(r.Redrive) or _released_late(case, life)
    return case.is_one_version(life) and not moved


def _released_late(case: Case, life: Life) -> bool:
    """Whether it may have been given back after it had failed before."""
    later = {delivery.lease for delivery in life.deliveries if delivery.attempt > 1}
    if any(release.call.lease in later for release in life.may(r.Release)):
        return True
    # A claim whose caller is gone gives back what it got.
    return bool(later) and bool(case.unknown_claims(life.queue))


def _alive_ahead(case: Case, lower: list[Life], life: Life, delivery: Delivery) -> list[Life]:
    """Those of `lower` that stood in line before this job and were certainly alive when it went."""
    mine = case.available(life)
    if mine is None:
        return []
    ahead = []
    for other in lower:
        theirs = case.available(other)
        if theirs is None or theirs[1] > delivery.claim.asked:
            continue
        earlier = theirs[1] < mine[0] or theirs == mine
        if earlier and case.lived_past(other, delivery.claim.told):
            ahead.append(other)
    return ahead


def _group_concurrency(case: Case, queue: str) -> int:
    return max(config.limits.group_concurrency for config in case.configs(queue))


def groups_keep_to_their_concurrency(case: Case) -> Iterator[Finding]:
    """No group has more jobs certainly active than may be."""
    held: defaultdict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for delivery in case.deliveries:
        said = case.said(delivery)
        if said is not None and said.group is not None:
            held[delivery.queue, said.group].append(delivery)
    for (queue, group), some in held.items():
        most = _group_concurrency(case, queue)
        yield from _too_many(case, some, most, f"group {group!r} of {queue}")


def queues_keep_to_their_concurrency(case: Case) -> Iterator[Finding]:
    """No queue has more jobs certainly active than may be."""
    for queue, some in _by_queue(case.deliveries).items():
        limits = [config.limits.concurrency for config in case.configs(queue)]
        known = [limit for limit in limits if limit is not None]
        if len(known) == len(limits):
            yield from _too_many(case, some, max(known), f"queue {queue}")


def _too_many(case: Case, some: Iterable[Delivery], most: int, where: str) -> Iterator[Finding]:
    held = [(*case.surely_held(delivery), delivery) for delivery in some]
    active: list[tuple[int, int, Delivery]] = []
    for one in sorted(held, key=lambda one: one[0]):
        if one[0] >= one[1]:
            continue
        active = [other for other in active if other[1] > one[0]]
        active.append(one)
        if len(active) > most:
            claims = tuple({id(o[2].claim): o[2].claim for o in active}.values())
            yield Finding(f"{where} has {len(active)} active jobs, {most} may be", claims)
            return


def rates_are_kept(case: Case) -> Iterator[Finding]:
    """Between any two instants no more jobs are handed out than the rate lets through."""
    for queue, some in _by_queue(case.deliveries).items():
        rates = {config.limits.rate for config in case.configs(queue)}
        if len(rates) == 1 and (rate := rates.pop()) is not None:
            yield from _too_fast(case, some, rate, f"queue {queue}")
        rates = {config.limits.group_rate for config in case.configs(queue)}
        if len(rates) == 1 and (rate := rates.pop()) is not None:
            groups: defaultdict[str, list[Delivery]] = defaultdict(list)
            for delivery in some:
                said = case.said(delivery)
                if said is not None and said.group is not None:
                    groups[said.group].append(delivery)
            for group, members in groups.items():
                yield from _too_fast(case, members, rate, f"group {group!r} of {queue}")


def _too_fast(case: Case, some: list[Delivery], rate: Rate, where: str) -> Iterator[Finding]:
    burst = rate.burst or rate.tokens
    by_answer = sorted((delivery.claim for delivery in some), key=lambda claim: claim.told)
    for begin in {claim.asked_at for claim in by_answer}:
        inside = [claim for claim in by_answer if claim.asked_at >= begin]
        for count, claim in enumerate(inside, 1):
            if not case.claims_survive and case.history.next_opened(inside[0].asked) < claim.told:
                break  # the tokens of lost claims are there again
            # Exact: count <= burst + tokens × time / period.
            if (count - burst) * rate.per_ms > rate.tokens * (claim.told_at - begin):
                span = claim.told_at - begin
                text = f"{where} handed out {count} jobs within {span} ms"
                yield Finding(text, (inside[0], claim))
                return


def _by_queue(some: Iterable[Delivery]) -> dict[str, list[Delivery]]:
    found: defaultdict[str, list[Delivery]] = defaultdict(list)
    for delivery in some:
        found[delivery.queue].append(delivery)
    return dict(found)


def nothing_is_early(case: Case) -> Iterator[Finding]:
    """No job is handed out before its run_at, nor a retry before the failure's."""
    for delivery in case.deliveries:
        if case.lives[delivery.id].may(r.Redrive):
            continue  # ready at once, whatever was said
        said = case.sayings.get(delivery.serial, [])
        due = min((_due_earliest(case, one) for one in said), default=0)
        if delivery.claim.told_now < due:
            text = f"job {delivery.id} was handed out {due - delivery.claim.told_now} ms early"
            yield Finding(text, (*(one.push for one in said), delivery.claim))
    for life in case.lives.values():
        yield from _early_retries(case, life)


def _due_earliest(case: Case, one: Saying) -> int:
    """The earliest instant (wall clock) at which the job may be handed out."""
    if one.said.run_at is not None:
        return one.said.run_at
    bulk = one.push.call.bulk
    begun = [case.origin(one.push)] if bulk is None else case.bulks[bulk].commits
    base = min((operation.asked_now for operation in begun), default=NEVER)
    return base + (one.said.delay_ms or 0)


def _early_retries(case: Case, life: Life) -> Iterator[Finding]:
    if not life.fails or not case.is_one_version(life):
        return  # a new version has a run_at of its own
    for fail, failed in life.fails:
        asked = fail.call.retry_in_ms
        if failed.run_at is None or any(op.told > fail.asked for op in life.may(r.Redrive)):
            continue
        if asked is not None and failed.run_at < fail.asked_now + asked:
            yield Finding(f"job {life.id} is to be retried earlier than asked", (fail,))
        for delivery in life.deliveries:
            if fail.before(delivery.claim) and delivery.claim.told_now < failed.run_at:
                text = (
                    f"job {life.id} was retried {failed.run_at - delivery.claim.told_now} ms early"
                )
                yield Finding(text, (fail, delivery.claim))


RULES = (
    groups_go_in_order,
    groups_keep_to_their_concurrency,
    queues_keep_to_their_concurrency,
    rates_are_kept,
    nothing_is_early,
)
