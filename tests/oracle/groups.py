"""Who is served next: rank, groups, and the ring of seats of each priority."""

from penstock.model.lifecycle import State
from tests.oracle.world import OracleJob, World

UNGROUPED = None  # the seat of the jobs without a group


def rank(job: OracleJob) -> tuple[int, ...]:
    """The place in line among ungrouped jobs."""
    if job.said.options.lifo:
        return (-job.priority, 0, -job.ready_at, -job.id)
    return (-job.priority, 1, job.ready_at, job.id)


def ungrouped_ready(world: World, tenant: str, queue: str) -> list[OracleJob]:
    return sorted(
        (
            job
            for job in world.jobs.values()
            if job.queue == queue
            and job.tenant == tenant
            and job.state is State.READY
            and job.said.group is None
        ),
        key=rank,
    )


def groups_of(world: World, tenant: str, queue: str) -> dict[str, list[OracleJob]]:
    """The jobs of each group that are ready, active, or keep a slot."""
    found: dict[str, list[OracleJob]] = {}
    for job in world.jobs.values():
        if job.queue != queue or job.tenant != tenant or job.said.group is None:
            continue
        if job.state in (State.READY, State.ACTIVE) or job.owns_slot:
            found.setdefault(job.said.group, []).append(job)
    return found


def free_slots(world: World, jobs: list[OracleJob], tenant: str, queue: str) -> int:
    taken = sum(job.state is State.ACTIVE or job.owns_slot for job in jobs)
    return world.config(tenant, queue).limits.group_concurrency - taken


def head(world: World, jobs: list[OracleJob], tenant: str, queue: str) -> OracleJob | None:
    """The next job of a group, if it may run one."""
    free = free_slots(world, jobs, tenant, queue) > 0
    may = [job for job in jobs if job.state is State.READY and (job.owns_slot or free)]
    return min(may, key=lambda job: (job.ready_at, job.id), default=None)


def has_token(world: World, tenant: str, queue: str, group: str) -> bool:
    rate = world.config(tenant, queue).limits.group_rate
    return rate is None or world.tokens(("group", tenant, queue, group), rate) >= 1


def heads(world: World, tenant: str, queue: str) -> dict[str, OracleJob]:
    """The head of every servable group."""
    found = {}
    for group, jobs in groups_of(world, tenant, queue).items():
        first = head(world, jobs, tenant, queue)
        if first is not None and has_token(world, tenant, queue, group):
            found[group] = first
    return found


def take_seats(world: World) -> None:
    """Who is no longer servable loses the seat; who has become so takes one at the back."""
    places = {(j.tenant, j.queue) for j in world.jobs.values() if j.said.group is not None}
    places |= {(tenant, queue) for tenant, queue, _ in world.rings}
    for tenant, queue in sorted(places):
        take_seats_in(world, tenant, queue)


def take_seats_in(world: World, tenant: str, queue: str) -> None:
    seated = lose_seats(world, tenant, queue)
    servable = heads(world, tenant, queue)
    for first in sorted(servable.values(), key=lambda job: job.id):
        if first.said.group not in seated:
            place = (tenant, queue, first.priority)
            world.rings[place] = (*world.rings.get(place, (UNGROUPED,)), first.said.group)


def lose_seats(world: World, tenant: str, queue: str) -> set[str | None]:
    """Groups that are not servable, or at another priority, leave; those that stay are answered."""
    servable = heads(world, tenant, queue)
    seated = set()
    for place, ring in list(world.rings.items()):
        if place[:2] != (tenant, queue):
            continue
        stay = tuple(
            seat
            for seat in ring
            if seat is UNGROUPED or (seat in servable and servable[seat].priority == place[2])
        )
        seated |= set(stay)
        if stay == (UNGROUPED,):
            del world.rings[place]
        else:
            world.rings[place] = stay
    return seated


def pick(world: World, tenant: str, queue: str) -> OracleJob | None:
    """The job to serve next; turns the ring."""
    alone = ungrouped_ready(world, tenant, queue)
    servable = heads(world, tenant, queue)
    priorities = [job.priority for job in (*alone[:1], *servable.values())]
    if not priorities:
        return None
    place = (tenant, queue, max(priorities))
    while True:
        front, *others = world.rings.get(place, (UNGROUPED,))
        if others:
            world.rings[place] = (*others, front)
        if front is not UNGROUPED:
            return servable[front]
        if alone and alone[0].priority == place[2]:
            return alone[0]
