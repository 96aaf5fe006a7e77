"""Two stores side by side: the same call on both, at the same instant, must answer the same.

Calls are said in the oracle's ids and tokens. Ids and tokens of the other store are found out from
its answers; where jobs appear without an answer (the instants of a cron), from their place in their
queue. Every disagreement is an AssertionError that shows the last calls.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.model.answers import Acked, Pushed
from penstock.model.errors import PenstockError
from penstock.model.job import MAX_ID, Ids, Job, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from tests.durable import settled
from tests.oracle.plain import View, difference, plain, shown
from tests.oracle.store import OracleStore

NOBODY = MAX_ID  # an id that no job has
SHOWN = 40  # last calls shown with a disagreement
CLOSELY = 12  # jobs of each queue that are asked for one by one


class Disagreement(AssertionError):
    """The two stores differ."""


@dataclass
class Waiting:
    """A call that waits on both sides."""

    name: str
    oracle: "asyncio.Task[Any]"
    store: "asyncio.Task[Any]"


class Pair:
    def __init__(self, oracle: OracleStore, store: Store, clock: ManualClock) -> None:
        self.oracle = oracle
        self.store = store
        self.clock = clock
        self.to_store: dict[int, int] = {}
        self.to_oracle: dict[int, int] = {}
        self.tokens: dict[str, str] = {}  # the oracle's → the store's
        self.newest: dict[tuple[str, str], int] = {}  # the store's highest id of each queue
        self.waiting: list[Waiting] = []
        self.latest = clock.now
        self.went_back = False
        self.history: deque[str] = deque(maxlen=SHOWN)
        oracle.world.jitter_id = lambda job_id: self.to_store.get(job_id, job_id)

    # -- calls -----------------------------------------------------------------------------------

    async def call(self, name: str, tenant: str, *args: Any, **options: Any) -> Any:
        """Make the call on both; gives the oracle's answer, or the error that it raised."""
        self.history.append(shown(name, tenant, args, options))
        theirs = await _answer(self._ask_store(name, tenant, args, options))
        ours = await _answer(getattr(self.oracle, name)(tenant, *args, **options))
        await self.turn()
        self.learn(tenant, name, ours, theirs, args)
        if name == "by_key":
            self.agree(name, _as_ids(ours), _as_ids(theirs))
        elif name == "push" and _refused_for_any_of_several(args[0], options, ours, theirs):
            pass
        else:
            self.agree(name, ours, theirs)
        self.look_after_waiting()
        return ours

    def _ask_store(
        self, name: str, tenant: str, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        translated = [self.translate(arg) for arg in args]
        more = {key: self.translate(value) for key, value in options.items()}
        return getattr(self.store, name)(tenant, *translated, **more)

    def translate(self, value: Any) -> Any:
        """The oracle's ids and tokens as the store's; anything else as it is."""
        match value:
            case bool():
                return value
            case int():
                return self.to_store.get(value, value)
            case str():
                return self.tokens.get(value, value)
            case Run():
                return self.translate_run(value)
            case list():
                return [self.translate(each) for each in value]
            case dict():
                return {self.translate(key): each for key, each in value.items()}
            case _:
                return value

    def translate_run(self, run: Run) -> Run:
        if run.depends_on is None:
            return run
        renamed = [tuple(self.translate(dep) for dep in deps) for deps in run.depends_on]
        return msgspec.structs.replace(run, depends_on=renamed)

    async def tick(self) -> None:
        self.history.append("tick()")
        await self.store.tick()
        await self.oracle.tick()
        await self.turn()
        self.look_after_waiting()

    async def turn(self) -> None:
        await settled(self.store)

    # -- agreeing --------------------------------------------------------------------------------

    def agree(self, what: str, ours: Any, theirs: Any) -> None:
        self.went_back = self.went_back or self.clock.now < self.latest
        self.latest = self.clock.now
        left = plain(ours, View(int, self.clock.now, self.went_back))
        right = plain(theirs, View(self.rename, self.clock.now, self.went_back))
        if left != right:
            self.disagree(what, difference(left, right))

    def rename(self, job_id: int) -> int:
        """The oracle's name for an id; one that it cannot know becomes negative."""
        return NOBODY if job_id == NOBODY else self.to_oracle.get(job_id, -job_id)

    def disagree(self, what: str, differences: Sequence[str]) -> None:
        calls = "\n  ".join(self.history)
        places = "\n  ".join(differences)
        instant = f"now {self.clock.now}, elapsed {self.clock.elapsed}"
        raise Disagreement(f"{what} at {instant}\n  {places}\nafter\n  {calls}")

    def learn(self, tenant: str, name: str, ours: Any, theirs: Any, args: Sequence[Any]) -> None:
        """Which new id, and which token, is which."""
        if isinstance(ours, Pushed) and isinstance(theirs, Pushed):
            runs = args[0] if name == "push" else [args[2]]
            self.learn_pushed(tenant, runs, ours, theirs)
        elif isinstance(ours, Lease) and isinstance(theirs, Lease):
            self.tokens[ours.token] = theirs.token

    def learn_pushed(self, tenant: str, runs: Sequence[Run], ours: Pushed, theirs: Pushed) -> None:
        if len(ours.jobs) != len(theirs.jobs):
            self.disagree("push", [f"{len(ours.jobs)} jobs answered, {len(theirs.jobs)}"])
        queues = [run.queue for run in runs for _ in run.ends]
        created: dict[str, list[int]] = {}
        for queue, our, their in zip(queues, ours.jobs, theirs.jobs, strict=True):
            if our[1] == their[1] == "created" and our[0] not in self.to_store:
                self.pair(tenant, queue, our[0], their[0])
                created.setdefault(queue, []).append(their[0])
        for queue, ids in created.items():
            if ids != list(range(ids[0], ids[0] + len(ids))):
                self.disagree("push", [f"the ids of {queue} are not contiguous: {ids}"])

    def pair(self, tenant: str, queue: str, our_id: int, their_id: int) -> None:
        if their_id in self.to_oracle:
            self.disagree("ids", [f"{their_id} is used a second time"])
        if not 0 < their_id < 2**53 or their_id <= self.newest.get((tenant, queue), 0):
            self.disagree("ids", [f"{their_id} does not ascend in {queue}"])
        self.newest[tenant, queue] = their_id
        self.to_store[our_id] = their_id
        self.to_oracle[their_id] = our_id

    # -- looking ---------------------------------------------------------------------------------

    async def look(self, tenant: str, queues: Sequence[str]) -> None:
        """Compare everything that can be seen of a tenant: queues, and every job of them."""
        their_infos = await self.store.queues(tenant)
        our_infos = await self.oracle.queues(tenant)
        names = {info.queue for info in (*their_infos, *our_infos)} | set(queues)
        for queue in sorted(names):
            their_jobs = await scan(self.store, tenant, queue)
            our_jobs = await scan(self.oracle, tenant, queue)
            if len(our_jobs) == len(their_jobs):
                for our, their in zip(our_jobs, their_jobs, strict=True):
                    if our.id not in self.to_store:
                        self.pair(tenant, queue, our.id, their.id)
            self.agree(f"jobs of {tenant}/{queue}", our_jobs, their_jobs)
            await self.look_at_standings(tenant, [job.id for job in our_jobs])
            (counted,) = [i.counts for i in their_infos if i.queue == queue] or [{}]
            found = Counter(job.state for job in their_jobs)
            if any(counted.get(state, 0) != found[state] for state in State):
                self.disagree(f"counters of {tenant}/{queue}", [f"{counted} against {found}"])
        self.agree(f"queues of {tenant}", our_infos, their_infos)

    async def look_at_standings(self, tenant: str, ids: Sequence[int]) -> None:
        """Both must name the same lease for a job: the one that both gave out for it."""
        ours = await self.oracle.standing(tenant, ids)
        theirs = await self.store.standing(tenant, [self.translate(job_id) for job_id in ids])
        named = [
            each and msgspec.structs.replace(each, lease=self.tokens.get(each.lease or ""))
            for each in ours
        ]
        if named != theirs:
            self.disagree(f"standing in {tenant}", [f"oracle {named}, store {theirs}"])

    async def look_at_details(
        self, tenant: str, queues: Sequence[str], keys: Sequence[str]
    ) -> None:
        """Compare what only single calls tell: keys, results, explanations, logs, crons, who waits."""
        for queue in queues:
            for key in keys:
                await self.call("by_key", tenant, queue, key)
            for job in (await scan(self.oracle, tenant, queue))[:CLOSELY]:
                await self.call("explain", tenant, job.id)
                await self.call("result", tenant, job.id)
                await self.call("logs", tenant, job.id)
            for state in State:
                theirs = await scan(self.store, tenant, queue, state=state)
                ours = await scan(self.oracle, tenant, queue, state=state)
                self.agree(f"{state} jobs of {tenant}/{queue}", ours, theirs)
            newest = await scan(self.store, tenant, queue, newest=True)
            ours = await scan(self.oracle, tenant, queue, newest=True)
            self.agree(f"jobs of {tenant}/{queue}, the newest first", ours, newest)
        await self.call("crons", tenant)
        await self.call("waiting", tenant)

    # -- waiting ---------------------------------------------------------------------------------

    async def begin(self, name: str, tenant: str, *args: Any, **options: Any) -> None:
        """Make a call that may wait; its answers are compared when they come."""
        self.history.append("begin " + shown(name, tenant, args, options))
        theirs = asyncio.ensure_future(_answer(self._ask_store(name, tenant, args, options)))
        ours = asyncio.ensure_future(_answer(getattr(self.oracle, name)(tenant, *args, **options)))
        self.waiting.append(Waiting(name, ours, theirs))
        await self.turn()
        self.look_after_waiting()

    def look_after_waiting(self) -> list[Any]:
        """Compare the calls that have been answered; whoever waits must wait on both sides."""
        answers = []
        for waiting in list(self.waiting):
            if waiting.oracle.done() != waiting.store.done():
                done = [_told(waiting.oracle), _told(waiting.store)]
                self.disagree(f"a waiting {waiting.name}", [f"oracle {done[0]}, store {done[1]}"])
            if waiting.oracle.done():
                self.waiting.remove(waiting)
                ours, theirs = waiting.oracle.result(), waiting.store.result()
                self.learn("", waiting.name, ours, theirs, ())
                self.agree(f"a waiting {waiting.name}", ours, theirs)
                answers.append(ours)
                self.answered(ours)
        return answers

    answered: Callable[[Any], None] = staticmethod(lambda answer: None)

    async def give_up(self, index: int) -> None:
        """The caller of a waiting call goes away."""
        waiting = self.waiting.pop(index)
        self.history.append(f"give up waiting {waiting.name} {index}")
        for task in (waiting.store, waiting.oracle):
            task.cancel()
        await asyncio.gather(waiting.store, waiting.oracle, return_exceptions=True)
        await self.turn()
        self.look_after_waiting()

    async def close(self) -> None:
        while self.waiting:
            waiting = self.waiting.pop()
            for task in (waiting.store, waiting.oracle):
                task.cancel()
            await asyncio.gather(waiting.store, waiting.oracle, return_exceptions=True)
        await self.store.close()
        await self.oracle.close()


async def scan(
    store: Store, tenant: str, queue: str, state: State | None = None, *, newest: bool = False
) -> list[Job]:
    """Every known job of a queue, page after page."""
    jobs: list[Job] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await store.find(tenant, queue, state=state, cursor=cursor, limit=50, newest=newest)
        jobs += page.jobs
        if page.cursor is not None and cursor:
            assert page.cursor < cursor if newest else page.cursor > cursor, "a cursor moves on"
        cursor = page.cursor
    return jobs


def _refused_for_any_of_several(
    runs: Sequence[Run], options: dict[str, Any], ours: Any, theirs: Any
) -> bool:
    """Both refuse a push with which several things may be wrong: either may be named."""
    if not isinstance(ours, PenstockError) or not isinstance(theirs, PenstockError):
        return False
    keyed = any(run.keys is not None or run.more_keys is not None for run in runs)
    dependent = any(run.depends_on is not None for run in runs)
    return sum(map(len, runs)) > 1 or (keyed and dependent) or "bulk" in options


def _as_ids(job_id: Any) -> Any:
    return Acked(Ids.of([job_id])) if isinstance(job_id, int) else job_id


async def _answer(call: Any) -> Any:
    try:
        return await call
    except PenstockError as error:
        return error


def _told(task: "asyncio.Task[Any]") -> str:
    return repr(task.result()) if task.done() else "waits"
