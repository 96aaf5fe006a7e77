"""The machine: random histories, each call made on the oracle and on a store."""

import asyncio
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.model.answers import Pushed
from penstock.model.job import JobError, JobSpec, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import DEFAULT_CAPS
from penstock.stores.clock import ManualClock
from tests.oracle import strategies as say
from tests.oracle.compare import NOBODY, Pair
from tests.oracle.harness import Subject, open_oracle

HOUR = 3_600_000
BOOM = JobError(kind="Boom", message="it broke", trace="here")
CHANGES: tuple[dict[str, Any], ...] = (
    {"priority": 1},
    {"priority": -2},
    {"delay_ms": 0},
    {"delay_ms": 80},
    {"payload": b"5"},
    {"payload": b"\x01", "codec": "msgpack"},
    {"priority": 1, "delay_ms": 30},
)
STALE = 3  # leases that have ended and are still tried
RARELY = 13  # places from here on pick something unlikely

Picks = list[tuple[int, int]]


class Machine(RuleBasedStateMachine):
    """A subclass names the `subject`, the kind of store that is held against the oracle."""

    subject: Subject

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.failed = False
        self.ids: dict[str, list[int]] = {tenant: [] for tenant in say.TENANTS}  # newest first
        self.leases: list[tuple[str, Lease]] = []  # with their tenants, oldest first
        self.pushed: list[tuple[str, list[Run], dict[str, Any]]] = []  # by producers

    @initialize(features=say.features)
    def open(self, features: list[str]) -> None:
        self.features = features
        self.run(self._open())

    async def _open(self) -> None:
        oracle = await open_oracle(self.clock)
        store = await self.subject.open(self.clock, DEFAULT_CAPS)
        self.pair = Pair(oracle, store, self.clock)
        self.pair.answered = self.remember

    def run(self, call: Any) -> Any:
        self.failed = True
        answer = self.runner.run(call)
        self.failed = False
        return answer

    def teardown(self) -> None:
        try:
            if hasattr(self, "pair"):
                self.run(self._finish(look=not self.failed))
        finally:
            self.runner.close()

    async def _finish(self, look: bool) -> None:
        try:
            if not look:
                return
            await self.pair.tick()
            for tenant in say.TENANTS:
                await self.pair.look(tenant, say.QUEUES)
                await self.pair.look_at_details(tenant, say.QUEUES, say.KEYS)
        finally:
            await self.pair.close()

    # -- steps -----------------------------------------------------------------------------------

    def step(self, name: str, tenant: str, *args: Any, **options: Any) -> Any:
        """One call on both, then a look at everything."""
        return self.run(self._step(name, tenant, args, options))

    async def _step(self, name: str, tenant: str, args: Any, options: Any) -> Any:
        answer = await self.pair.call(name, tenant, *args, **options)
        for each in say.TENANTS:
            await self.pair.look(each, say.QUEUES)
        self.take_stock()
        return answer

    def take_stock(self) -> None:
        world = self.pair.oracle.world
        for tenant in say.TENANTS:
            seen = set(self.ids[tenant])
            new = [j.id for j in world.jobs.values() if j.tenant == tenant and j.id not in seen]
            self.ids[tenant] = sorted(new, reverse=True) + self.ids[tenant]
        live = [each for each in self.leases if each[1].token in world.leases]
        stale = [each for each in self.leases if each[1].token not in world.leases]
        self.leases = stale[-STALE:] + live

    def remember(self, lease: Any) -> None:
        if isinstance(lease, Lease):
            tenant = self.pair.oracle.world.leases[lease.token].tenant
            self.leases.append((tenant, lease))

    def some_id(self, tenant: str, place: int) -> int:
        """Mostly one of the tenant's, the newest first."""
        owner = tenant if place < RARELY else say.TENANTS[tenant == say.TENANTS[0]]
        ids = self.ids[owner] or self.ids[tenant]
        return ids[place % len(ids)] if ids else NOBODY

    def some_ids(self, tenant: str, places: list[int]) -> list[int]:
        return [self.some_id(tenant, place) for place in places]

    def some_lease(self, place: int) -> tuple[str, Lease]:
        """Mostly one that is alive, the newest first."""
        world = self.pair.oracle.world
        live = [each for each in self.leases if each[1].token in world.leases]
        chosen = live if live and place < RARELY else self.leases
        return chosen[-1 - place % len(chosen)]

    def some_of(self, tenant: str, lease: Lease, places: list[int] | None) -> list[int] | None:
        """Ids most of which are, or were, of the lease."""
        if places is None:
            return None
        ids = lease.ids
        return [
            ids[place % len(ids)] if place < RARELY else self.some_id(tenant, place)
            for place in places
        ]

    # -- producing -------------------------------------------------------------------------------

    def specs(self, tenant: str, jobs: list[Picks]) -> list[JobSpec]:
        specs: list[JobSpec] = []
        for picks in jobs:
            said = say.options_of(self.features, picks)
            places = [p for p in said.get("depends_on", ()) if p not in (-len(specs) - 1,)]
            named = [p for p in places if -len(jobs) <= p < 0]
            if self.ids[tenant]:
                named += [self.some_id(tenant, place) for place in places if place >= 0]
            specs.append(say.spec(said, now=self.clock.now, named=tuple(dict.fromkeys(named))))
        return specs

    @rule(tenant=say.tenant, queue=say.queue, jobs=say.jobs)
    def push(self, tenant: str, queue: str, jobs: list[Picks]) -> None:
        self.step("push", tenant, [Run.of(queue, self.specs(tenant, jobs))])

    @rule(tenant=say.tenant, queue=say.queue, picks=say.picks)
    def push_one(self, tenant: str, queue: str, picks: Picks) -> None:
        self.step("push", tenant, [Run.of(queue, self.specs(tenant, [picks]))])

    @rule(tenant=say.tenant, jobs=say.jobs, cut=st.integers(0, 4))
    def push_into_two_queues(self, tenant: str, jobs: list[Picks], cut: int) -> None:
        specs = self.specs(tenant, jobs)
        parts = [("a", specs[:cut]), ("b", specs[cut:])]
        self.step("push", tenant, [Run.of(queue, part) for queue, part in parts if part])

    @rule(
        tenant=say.tenant,
        queue=say.queue,
        count=st.integers(1, 5),
        picks=say.picks,
        delay_ms=st.sampled_from((None, None, 50)),
    )
    def push_alike(
        self, tenant: str, queue: str, count: int, picks: Picks, delay_ms: int | None
    ) -> None:
        (spec,) = self.specs(tenant, [picks])
        payloads = [b"%d" % n for n in range(count)]
        run = Run.pack(queue, payloads, spec.options(), delay_ms=delay_ms)
        self.step("push", tenant, [run])

    @precondition(lambda self: "keys" in self.features)
    @rule(tenant=say.tenant, queue=say.queue, keys=st.lists(say.more_keys, min_size=1, max_size=3))
    def push_with_several_keys(self, tenant: str, queue: str, keys: list[Any]) -> None:
        run = Run.pack(queue, [b"%d" % n for n in range(len(keys))], more_keys=keys)
        self.step("push", tenant, [run])

    @rule(
        tenant=say.tenant,
        queue=say.queue,
        picks=say.picks,
        sequence=st.integers(0, 3),
        content=st.sampled_from((None, None, b"sixteen bytes: A", b"sixteen bytes: B")),
        again=st.booleans(),
    )
    def push_as_producer(
        self,
        tenant: str,
        queue: str,
        picks: Picks,
        sequence: int,
        content: bytes | None,
        again: bool,
    ) -> None:
        if again and self.pushed:
            tenant, runs, numbered = self.pushed[-1 - sequence % len(self.pushed)]
            self.step("push", tenant, runs, **numbered)
            return
        runs = [Run.of(queue, self.specs(tenant, [picks]))]
        numbered = {"producer": "p", "sequence": sequence, "content": content}
        if isinstance(self.step("push", tenant, runs, **numbered), Pushed):
            self.pushed.append((tenant, runs, numbered))

    # -- bulks -----------------------------------------------------------------------------------

    bulk = st.sampled_from(("x", "x", "y"))
    part = st.sampled_from(("", "1"))

    @rule(
        tenant=say.tenant,
        queue=say.queue,
        jobs=say.jobs,
        bulk=bulk,
        part=part,
        deadline_ms=st.sampled_from((None, HOUR, 1_000)),
    )
    def push_held(
        self,
        tenant: str,
        queue: str,
        jobs: list[Picks],
        bulk: str,
        part: str,
        deadline_ms: int | None,
    ) -> None:
        """Into a bulk that is opened first, unless the deadline is None."""
        if deadline_ms is not None:
            self.step("open_bulk", tenant, bulk, deadline_ms=deadline_ms)
        runs = [Run.of(queue, self.specs(tenant, jobs))]
        self.step("push", tenant, runs, bulk=bulk, part=part)

    @precondition(lambda self: self.pair.oracle.world.bulks)
    @rule(
        tenant=say.tenant,
        bulk=bulk,
        parts=st.sampled_from((None, None, [""], ["1"], ["2"], "abort")),
    )
    def end_bulk(self, tenant: str, bulk: str, parts: Any) -> None:
        if parts == "abort":
            self.step("abort_bulk", tenant, bulk)
        else:
            self.step("commit_bulk", tenant, bulk, parts)

    # -- working ---------------------------------------------------------------------------------

    lease_ms = st.sampled_from((None, 50, 120, 10_000))
    places = st.one_of(st.none(), st.lists(say.place, min_size=1, max_size=4))

    @rule(
        tenant=say.tenant,
        queues=st.sampled_from((["a"], ["b"], ["a", "b"], ["b", "a"])),
        n=st.sampled_from((1, 2, 5)),
        lease_ms=lease_ms,
        worker=st.sampled_from(("", "w")),
    )
    def claim(
        self, tenant: str, queues: list[str], n: int, lease_ms: int | None, worker: str
    ) -> None:
        lease = self.step("claim", tenant, queues, n, lease_ms=lease_ms, worker=worker)
        self.remember(lease)

    @rule(tenant=say.tenant, n=st.sampled_from((1, 3)), how=st.sampled_from(("ack", "fail", "")))
    def work(self, tenant: str, n: int, how: str) -> None:
        """Claim whatever there is, and end the attempts at once, or let them run."""
        lease = self.step("claim", tenant, ["a", "b"], n)
        self.remember(lease)
        if isinstance(lease, Lease) and how == "ack":
            self.step("ack", tenant, lease.token)
        elif isinstance(lease, Lease) and how == "fail":
            self.step("fail", tenant, lease.token, error=BOOM)

    @rule(
        tenant=say.tenant,
        queue=say.queue,
        n=st.sampled_from((1, 3)),
        lease_ms=lease_ms,
        job=st.one_of(st.none(), say.place),
    )
    def wait(self, tenant: str, queue: str, n: int, lease_ms: int | None, job: int | None) -> None:
        """For jobs, or for the end of one."""
        if job is None:
            options = {"lease_ms": lease_ms, "wait_ms": 200}
            self.run(self.pair.begin("claim", tenant, [queue], n, **options))
        else:
            job_id = self.some_id(tenant, job)
            self.run(self.pair.begin("result", tenant, job_id, wait_ms=200))

    @precondition(lambda self: self.pair.waiting)
    @rule(place=say.place)
    def give_up_waiting(self, place: int) -> None:
        self.run(self.pair.give_up(place % len(self.pair.waiting)))

    @precondition(lambda self: self.leases)
    @rule(lease=say.place, places=places, results=st.booleans())
    def ack(self, lease: int, places: list[int] | None, results: bool) -> None:
        tenant, held = self.some_lease(lease)
        ids = self.some_of(tenant, held, places)
        told = ids[:1] if ids else held.ids[:2]
        values = dict.fromkeys(told, b"7") if results else None
        self.step("ack", tenant, held.token, ids, results=values)

    @precondition(lambda self: self.leases)
    @rule(
        lease=say.place,
        places=places,
        retry_in_ms=st.sampled_from((None, None, 0, 45)),
        dead=st.sampled_from((False, False, True)),
    )
    def fail(
        self, lease: int, places: list[int] | None, retry_in_ms: int | None, dead: bool
    ) -> None:
        tenant, held = self.some_lease(lease)
        ids = self.some_of(tenant, held, places)
        options = {"retry_in_ms": retry_in_ms, "dead": dead}
        self.step("fail", tenant, held.token, ids, error=BOOM, **options)

    @precondition(lambda self: self.leases)
    @rule(lease=say.place, places=places)
    def release(self, lease: int, places: list[int] | None) -> None:
        tenant, held = self.some_lease(lease)
        self.step("release", tenant, held.token, self.some_of(tenant, held, places))

    @precondition(lambda self: self.leases)
    @rule(
        lease=say.place,
        lease_ms=lease_ms,
        job=st.one_of(st.none(), say.place),
        progress=st.sampled_from((None, 5)),
    )
    def keep(self, lease: int, lease_ms: int | None, job: int | None, progress: int | None) -> None:
        """A heartbeat, or a word about one job."""
        tenant, held = self.some_lease(lease)
        if job is None:
            self.step("extend", tenant, held.token, lease_ms)
            return
        (job_id,) = self.some_of(tenant, held, [job]) or [NOBODY]
        said = {"progress": progress, "message": "so", "logs": [LogLine(0, "hello")]}
        self.step("report", tenant, held.token, job_id, **said)

    # -- operators -------------------------------------------------------------------------------

    @precondition(lambda self: any(self.ids.values()))
    @rule(
        tenant=say.tenant,
        places=st.lists(say.place, min_size=1, max_size=3),
        discard=st.booleans(),
    )
    def cancel(self, tenant: str, places: list[int], discard: bool) -> None:
        self.step("cancel", tenant, self.some_ids(tenant, places), discard=discard)

    @precondition(lambda self: any(self.ids.values()))
    @rule(
        tenant=say.tenant,
        place=say.place,
        change=st.sampled_from(CHANGES),
    )
    def edit(self, tenant: str, place: int, change: dict[str, Any]) -> None:
        job = self.pair.oracle.world.jobs.get(self.some_id(tenant, place))
        if job is not None and job.cron is not None:
            change = {"priority": 1}  # an instant that is moved is no instant any more
        self.step("edit", tenant, self.some_id(tenant, place), **change)

    @precondition(lambda self: any(self.ids.values()))
    @rule(tenant=say.tenant, queue=say.queue, places=places, limit=st.sampled_from((None, 1)))
    def redrive(self, tenant: str, queue: str, places: list[int] | None, limit: int | None) -> None:
        ids = None if places is None else self.some_ids(tenant, places)
        self.step("redrive", tenant, queue, ids=ids, limit=limit)

    @rule(tenant=say.tenant, queue=say.queue, config=say.configs)
    def configure(self, tenant: str, queue: str, config: Any) -> None:
        self.step("configure", tenant, queue, config)

    @rule(tenant=say.tenant, queue=st.sampled_from(("a", "b", None)), bounds=say.bounds)
    def bound(self, tenant: str, queue: str | None, bounds: Any) -> None:
        if queue is None:
            self.step("configure_tenant", tenant, bounds)
        else:
            config = self.pair.oracle.world.config(tenant, queue)
            self.step("configure", tenant, queue, msgspec.structs.replace(config, bounds=bounds))

    @precondition(lambda self: any(self.ids.values()))
    @rule(tenant=say.tenant, queue=say.queue, how=st.sampled_from(("purge_dead", "drain", "purge")))
    def clear(self, tenant: str, queue: str, how: str) -> None:
        self.step(how, tenant, queue)

    @precondition(lambda self: any(self.ids.values()))
    @rule(
        tenant=say.tenant,
        queue=say.queue,
        state=st.sampled_from(sorted(set(State) - {State.ACTIVE, State.HELD})),
        older_ms=st.sampled_from((0, 0, 40)),
        limit=st.sampled_from((None, 1, 2)),
    )
    def clean(
        self, tenant: str, queue: str, state: State, older_ms: int, limit: int | None
    ) -> None:
        self.step("clean", tenant, queue, state, older_ms=older_ms, limit=limit)

    @rule(tenant=say.tenant, spec=say.crons, how=st.sampled_from(("put", "put", "refresh", "drop")))
    def cron(self, tenant: str, spec: Any, how: str) -> None:
        if how == "drop":
            self.step("drop_cron", tenant, spec.name)
        else:
            self.step("put_cron", tenant, spec, refresh=how == "refresh")

    @rule(
        tenant=say.tenant,
        queue=say.queue,
        name=st.sampled_from(say.CRONS),
        config=st.sampled_from((*say.CONFIGS, None)),
        ahead=st.lists(st.integers(-1, 4), max_size=3),
        payload=st.sampled_from(say.PAYLOADS),
        how=st.sampled_from(("put", "put", "refresh", "drop")),
    )
    def instants(
        self,
        tenant: str,
        queue: str,
        name: str,
        config: str | None,
        ahead: list[int],
        payload: bytes,
        how: str,
    ) -> None:
        if how == "drop":
            self.step("drop_instants", tenant, queue, name, config)
            return
        run = say.instants(queue, self.pair.clock.now, ahead, payload)
        config = config or say.CONFIGS[0]
        self.step("put_instants", tenant, name, config, run, refresh=how == "refresh")

    # -- time ------------------------------------------------------------------------------------

    # Nobody looks between the passing of time and the next call, so that the call has to notice.

    def pass_time(self, said: str) -> None:
        self.pair.history.append(said)
        if self.pair.waiting:
            self.run(self.pair.tick())

    @rule(ms=st.sampled_from((1, 10, 25, 50, 100, 300, 1_000, 90_000)))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.pass_time(f"clock.advance({ms})")

    @rule(ms=st.sampled_from((-HOUR, HOUR, -100, 100)))
    def jump(self, ms: int) -> None:
        self.clock.jump(ms)
        self.pass_time(f"clock.jump({ms})")

    @rule(what=st.sampled_from(("tick", "look", "restart")))
    def meanwhile(self, what: str) -> None:
        if what == "tick":
            self.run(self.pair.tick())
        elif what == "look":
            for tenant in say.TENANTS:
                self.run(self.pair.look_at_details(tenant, say.QUEUES, say.KEYS))
        else:
            while self.subject.forgets_callers and self.pair.waiting:
                self.run(self.pair.give_up(0))
            self.pair.history.append("restart")
            self.pair.store = self.run(self.subject.restart(self.pair.store))
