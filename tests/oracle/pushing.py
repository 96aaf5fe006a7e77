"""Pushes: jobs come in, all or nothing, one after the other."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from penstock.model.answers import Pushed, PushedRun
from penstock.model.errors import Conflict, Invalid, NotFound, Overloaded, RateLimited
from penstock.model.job import CREATED, IGNORED, UPDATED, KeyClaim, Outcome, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Caps
from tests.oracle import groups, keys, life
from tests.oracle.world import OracleJob, Producer, Version, World

CODES = {"created": CREATED, "updated": UPDATED, "ignored": IGNORED}
Answers = list[list[tuple[int, Outcome]]]  # by run


def versions(run: Run) -> list[Version]:
    """A run, taken apart into what it says of each job."""
    found = []
    for index, payload in enumerate(run.payloads()):
        options = run.options[run.option_of[index] if run.option_of is not None else 0]
        delay_ms, run_at = run.delay_ms, run.run_at
        key = run.keys[index] if run.keys is not None else None
        claims = [] if key is None else [KeyClaim(key, options.on_conflict, options.keep_key)]
        if run.more_keys is not None:
            claims += run.more_keys[index]
        found.append(
            Version(
                payload=payload,
                options=options,
                key=key,
                keys=tuple(claims),
                group=run.groups[index] if run.groups is not None else None,
                headers=run.headers[index] if run.headers is not None else None,
                depends_on=tuple(run.depends_on[index]) if run.depends_on is not None else (),
                delay_ms=delay_ms if isinstance(delay_ms, int | None) else delay_ms[index],
                run_at=run_at if isinstance(run_at, int | None) else run_at[index],
            )
        )
    return found


# -- the idempotent producer ---------------------------------------------------------------------


def push_once(
    world: World,
    caps: Caps,
    tenant: str,
    runs: Sequence[Run],
    *,
    producer: str | None,
    sequence: int | None,
    content: bytes | None,
    bulk: str | None,
    part: str,
) -> Pushed:
    if producer is None or sequence is None:
        return push(world, caps, tenant, runs, bulk=bulk, part=part)
    said = content or ([(run.queue, versions(run)) for run in runs], bulk, part)
    known = world.producers.get((tenant, producer), Producer())
    for earlier, what, answer in known.answers:
        if earlier == sequence:
            if what != said:
                raise Invalid("another push carried this sequence", "sequence")
            known.used_at = world.now
            return answer
    if sequence <= known.highest_dropped:
        raise Conflict("older than the answers that are kept", "sequence")
    if (tenant, producer) not in world.producers and len(world.producers) >= caps.producers:
        raise Overloaded("too many producers", "producer")
    pushed = push(world, caps, tenant, runs, bulk=bulk, part=part)
    answers = sorted([*known.answers, (sequence, said, pushed)], key=lambda each: each[0])
    surplus = max(len(answers) - caps.answers_per_producer, 0)
    dropped = [known.highest_dropped, *(each[0] for each in answers[:surplus])]
    world.producers[tenant, producer] = Producer(
        answers=tuple(answers[surplus:]), highest_dropped=max(dropped), used_at=world.now
    )
    return pushed


# -- one push ------------------------------------------------------------------------------------


def push(
    world: World, caps: Caps, tenant: str, runs: Sequence[Run], *, bulk: str | None, part: str
) -> Pushed:
    with world.all_or_nothing() if may_be_refused(world, tenant, runs) else nullcontext():
        check_room_for_queues(world, caps, tenant, [run.queue for run in runs])
        check_ttl(world, runs)
        check_dependencies(world, tenant, runs, bulk)
        before = sizes(world, tenant)
        for run in runs:
            total = sum(len(each) for each in runs if each.queue == run.queue)
            world.reserve(tenant, run.queue, total)
        if bulk is not None:
            answers = push_held(world, tenant, runs, bulk, part)
        else:
            answers = push_now(world, tenant, runs)
        created = [job_id for run in answers for job_id, what in run if what == "created"]
        if has_cycle(
            world, {job_id for run in answers for job_id, what in run if what != "ignored"}
        ):
            raise Invalid("the dependencies form a cycle", "depends_on")
        check_bounds(world, tenant, before, [world.jobs[job_id] for job_id in created])
        if any(run.keys is not None or run.more_keys is not None for run in runs):
            keys.check_room(world, caps)
        groups.take_seats(world)
        return Pushed(tuple(map(answer, runs, answers, [bulk is not None] * len(runs))))


def may_be_refused(world: World, tenant: str, runs: Sequence[Run]) -> bool:
    """Saving the world takes long; a push of plain jobs into unbounded queues needs no way back."""
    bounds = [world.config(tenant, run.queue).bounds for run in runs]
    bounds.append(world.bounds.get(tenant, Bounds()))
    return any(bound != Bounds() for bound in bounds) or any(
        (run.keys, run.more_keys, run.depends_on) != (None, None, None) for run in runs
    )


def answer(run: Run, jobs: list[tuple[int, Outcome]], held: bool) -> PushedRun:
    created = [job_id for job_id, what in jobs if what == "created"]
    first = created[0] if created else 0
    if (run.keys is None and run.more_keys is None) or held:
        return PushedRun(first, len(created))
    return PushedRun(
        first,
        len(created),
        tuple(job_id for job_id, _ in jobs),
        bytes(CODES[what] for _, what in jobs),
    )


def push_now(world: World, tenant: str, runs: Sequence[Run]) -> Answers:
    """Decide and begin the jobs in order; names of later jobs get their ids at the end."""
    ids: list[int] = []  # by place in the push
    answers: Answers = []
    for run in runs:
        answers.append([])
        for version in versions(run):
            known = [ids[-dep - 1] if -len(ids) <= dep < 0 else dep for dep in version.depends_on]
            job_id, what = push_one(
                world, tenant, run.queue, replace(version, depends_on=tuple(dict.fromkeys(known)))
            )
            ids.append(job_id)
            answers[-1].append((job_id, what))
    for job in [world.jobs[job_id] for job_id in dict.fromkeys(ids) if job_id in world.jobs]:
        for dep in job.last_said.depends_on:
            if dep < 0:
                rename_dependency(world, job, dep, ids[-dep - 1])
        for dep in [dep for dep in job.waited_for if dep < 0]:  # of versions replaced since, too
            job.waited_for = job.waited_for - {dep} | {ids[-dep - 1]}
            world.dependants[ids[-dep - 1]] = (*world.dependants.get(ids[-dep - 1], ()), job.id)
    return answers


def push_one(world: World, tenant: str, queue: str, version: Version) -> tuple[int, Outcome]:
    decided = keys.decide(world, tenant, queue, version)
    if decided is None:
        job = create(world, tenant, queue, version)
        version = keys.take(world, job, version, world.now, new=True)
        run_at = life.run_at_of(version, world.now, world.now)
        world.tell(
            "pushed",
            job,
            world.now,
            bytes=len(version.payload),
            run_at=run_at if run_at > world.now else 0,
        )
        life.begin(world, job, version, at=world.now, said_at=world.now)
        return job.id, "created"
    what, job_id = decided
    if what == "updated" and not replace_job(world, world.jobs[job_id], version):
        what = "ignored"
    return job_id, what


def create(world: World, tenant: str, queue: str, version: Version) -> OracleJob:
    job = OracleJob(
        id=world.next_id(tenant, queue),
        tenant=tenant,
        queue=queue,
        said=version,
        state=State.HELD,
        created_at=world.now,
        priority=version.options.priority,
    )
    world.jobs[job.id] = job
    return job


def replace_job(world: World, job: OracleJob, version: Version) -> bool:
    """Give a live job a new version; False if it has that one already."""
    if keys.identical(job, version):
        return False
    version = keys.take(world, job, version, world.now)
    version = keys.joined(job.last_said, version)
    world.tell("replaced", job, world.now)
    if job.state is State.ACTIVE:
        job.waiting = version
        job.waiting_since = world.now
        for dep in version.depends_on:
            world.dependants[dep] = (*world.dependants.get(dep, ()), job.id)
    else:
        job.created_at = world.now
        life.begin(world, job, version, at=world.now, said_at=world.now)
    return True


def rename_dependency(world: World, job: OracleJob, old: int, new: int) -> None:
    """What the job called `old` is the job `new`."""
    names = tuple(dict.fromkeys(new if dep == old else dep for dep in job.last_said.depends_on))
    world.dependants[new] = (*world.dependants.get(new, ()), job.id)
    if job.waiting is not None:
        job.waiting = replace(job.waiting, depends_on=names)
        return
    job.said = replace(job.said, depends_on=names)
    if job.waited_for:
        job.waited_for |= {new}
    if old not in job.unmet:
        return
    job.unmet -= {old}
    known = world.known(job.tenant, new)
    if known is not None and not known.ended:
        job.unmet |= {new}
    elif life.has_failed(world, job.tenant, new) and (
        job.said.options.on_dependency_failure == "fail"
    ):
        life.fail_dependant(world, job, new, world.now)
    elif not job.unmet and job.state is State.BLOCKED:
        life.wait_or_ready(world, job, world.now)


# -- what may be pushed --------------------------------------------------------------------------


def check_room_for_queues(world: World, caps: Caps, tenant: str, queues: list[str]) -> None:
    known = {(job.tenant, job.queue) for job in world.jobs.values()}
    known |= {(owner, queue) for owner, queue, _ in world.keys}
    known |= set(world.configs)
    new = {(tenant, queue) for queue in queues} - known
    if new and len(known) + len(new) > caps.queues:
        raise Overloaded(f"there are {len(known)} queues", "queue")


def check_ttl(world: World, runs: Sequence[Run]) -> None:
    for run in runs:
        for version in versions(run):
            if version.options.ttl_ms is None or version.run_at is None:
                continue
            if world.now + version.options.ttl_ms <= version.run_at:
                raise Invalid("it is over before run_at", "ttl_ms")


def check_dependencies(world: World, tenant: str, runs: Sequence[Run], bulk: str | None) -> None:
    total = sum(map(len, runs))
    for run in runs:
        for version in versions(run):
            for dep in version.depends_on:
                known = world.known(tenant, dep)
                if dep < 0 and -dep > total:
                    raise Invalid(f"{dep} names no job of this push", "depends_on")
                if known is None and dep > world.highest_reserved:
                    raise Invalid(f"no job has the id {dep}", "depends_on")
                if known is not None and known.state is State.HELD and known.bulk != bulk:
                    raise Invalid(f"job {dep} is held in another bulk", "depends_on")


def waits_for(world: World, job: OracleJob, new: set[int]) -> list[int]:
    """The jobs that must end before this one, or its next version, can run.

    Jobs of the push in question wait for all that they name, even if one is dead already.
    """
    if job.waiting is not None or job.state is State.HELD or job.id in new:
        named = job.last_said.depends_on
    else:
        named = tuple(job.unmet)
    return [i for i in named if i in world.jobs and (i in new or not world.jobs[i].ended)]


def has_cycle(world: World, new: set[int]) -> bool:
    """Can one of the jobs that were just pushed be reached from itself?"""
    for start in new:
        seen: set[int] = set()
        ahead = waits_for(world, world.jobs[start], new)
        while ahead:
            job_id = ahead.pop()
            if job_id == start:
                return True
            if job_id not in seen:
                seen.add(job_id)
                ahead += waits_for(world, world.jobs[job_id], new)
    return False


def sizes(world: World, tenant: str) -> dict[int, int]:
    """The payload bytes of each job that has not ended, as was said last."""
    jobs = [job for job in world.jobs.values() if job.tenant == tenant and not job.ended]
    return {job.id: len(job.last_said.payload) for job in jobs}


def check_bounds(
    world: World, tenant: str, before: dict[int, int], created: list[OracleJob]
) -> None:
    """May the tenant have grown from `before`, with these new jobs?

    Every new one counts, and what lived before, though some be dead already.
    """
    jobs = [world.jobs[job_id] for job_id in before] + created
    places: list[tuple[str | None, Bounds]] = [(None, world.bounds.get(tenant, Bounds()))]
    queues = sorted({job.queue for job in jobs})
    places += [(queue, world.config(tenant, queue).bounds) for queue in queues]
    for queue, bounds in places:
        here = [job for job in jobs if queue in (None, job.queue)]
        any_new = any(job in created for job in here)
        if bounds.jobs is not None and any_new and len(here) > bounds.jobs:
            raise Overloaded(f"{len(here)} jobs, {bounds.jobs} may be")
        size = sum(len(job.last_said.payload) for job in here)
        grows = size > sum(before.get(job.id, 0) for job in here)
        if bounds.bytes is not None and (any_new or grows) and size > bounds.bytes:
            raise Overloaded(f"{size} bytes, {bounds.bytes} may be")
    for queue, bounds in places:
        new = [job for job in created if queue in (None, job.queue)]
        bucket = ("push", tenant) if queue is None else ("push", tenant, queue)
        if bounds.push_rate is not None and new:
            if world.tokens(bucket, bounds.push_rate) < len(new):
                raise RateLimited("pushed faster than is allowed")
            world.spend(bucket, bounds.push_rate, len(new))


# -- into a bulk ---------------------------------------------------------------------------------


def push_held(world: World, tenant: str, runs: Sequence[Run], bulk: str, part: str) -> Answers:
    known = world.bulks.get((tenant, bulk))
    if known is None:
        raise NotFound(f"there is no bulk {bulk!r}", "bulk")
    if known.state != "open":
        raise Conflict(f"the bulk {bulk!r} is {known.state}", "bulk")
    jobs = [
        [create(world, tenant, run.queue, version) for version in versions(run)] for run in runs
    ]
    ids = [job.id for run in jobs for job in run]
    for run in jobs:
        for job in run:
            named = [ids[-dep - 1] if dep < 0 else dep for dep in job.said.depends_on]
            job.said = replace(job.said, depends_on=tuple(dict.fromkeys(named)))
            job.bulk = bulk
            job.run_at = max(world.now, job.said.run_at or 0)  # a delay counts from the commit
            for dep in job.said.depends_on:
                world.dependants[dep] = (*world.dependants.get(dep, ()), job.id)
            world.tell("pushed", job, world.now, bytes=len(job.said.payload), held=True)
    known.ends = world.elapsed + known.deadline_ms
    known.parts = tuple(dict.fromkeys((*known.parts, part)))
    known.part_of += tuple((job_id, part) for job_id in ids)
    return [[(job.id, "created") for job in run] for run in jobs]
