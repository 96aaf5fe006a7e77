"""Long random histories of kernel commands from a seed: the raw material of the kernel's tests.

A `History` drives a kernel the way a store does: it puts payloads into chunks, makes tokens up and
keeps time. Each command is drawn from what was answered so far, so leases, ids, keys and bulks that
exist are met often and those that do not now and then. Only what passes the door is drawn.

The steps are values. They can be played again on another kernel and compared, answer by answer.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from penstock.kernel import commands as c
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.model.answers import Acked, Extended, Failed, Pushed, PushedInstead, Released
from penstock.model.checks import check_push
from penstock.model.errors import PenstockError
from penstock.model.fingerprint import fingerprint
from penstock.model.job import Ids, JobError, JobSpec, KeyClaim, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.payload import digest
from penstock.model.policy import Backoff, Bounds, Caps, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every, config_hash, instant_key, keep_key_ms, plan
from penstock.stores.loading import digest_of, load_of

START = 1_700_000_000_000
HOUR = 3_600_000
TENANTS = ("acme", "acme", "acme", "acme", "other")
QUEUES = ("a", "a", "a", "b", "c")
FEATURES = (
    "alike",
    "backoff",
    "batches",
    "deep",
    "delays",
    "flows",
    "groups",
    "keys",
    "lifo",
    "leases",
    "own",
    "priorities",
    "retains",
    "ttls",
)
TIGHT = Caps(
    queues=5,
    kept_keys=12,
    producers=2,
    bulks=2,
    bulk_names=5,
    crons=1,
    logs_per_job=3,
    errors_per_job=2,
    answers_per_producer=3,
)
ERRORS = (
    JobError(kind="ValueError", message="bad"),
    JobError(kind="KeyError", message="worse", trace="a\nb"),
)


class Step(NamedTuple):
    command: c.Command
    now: int
    elapsed: int


def play(kernel: Kernel, step: Step) -> Any:
    """One command, and its answer in a form that can be compared."""
    kernel.position += 1
    try:
        return canonical(kernel.apply(*step))
    except PenstockError as error:
        return ("error", error.code, str(error))


def canonical(answer: Any) -> Any:
    """An answer without the way in which its ids were cut into runs.

    What a claim hands out is in its order; what was settled together has none.
    """
    if isinstance(answer, LeaseRecord):
        ids = [run.block.base + offset for run in answer.runs for offset in run.offsets()]
        return ("lease", answer.token, answer.queue.name, answer.expires, ids)
    if isinstance(answer, Pushed):
        removed = answer.removed if isinstance(answer, PushedInstead) else 0
        return ("pushed", answer.jobs, removed)
    if isinstance(answer, Acked):
        return ("acked", sorted(answer.acked), list(answer.lost))
    if isinstance(answer, Released):
        return ("released", sorted(answer.released), list(answer.lost))
    if isinstance(answer, Failed):
        jobs = sorted((job.id, job.state.value, job.run_at) for job in answer.jobs)
        return ("failed", jobs, list(answer.lost))
    if isinstance(answer, Extended):
        return ("extended", answer.expires_at, sorted(answer.lost))
    assert not isinstance(answer, Ids)
    return msgspec.to_builtins(answer)


class History:
    """Draws commands one by one and plays them on its own kernel."""

    def __init__(
        self, seed: int, *, features: Sequence[str] = (), caps: Caps | None = None
    ) -> None:
        self.random = Random(seed)
        tight = self.random.random() < 0.2
        self.caps = caps or (TIGHT if tight else Caps())
        self.kernel = Kernel(seed * 7_919 + 1, self.caps)
        self.now = START
        self.elapsed = 1_000_000
        self.features = features
        self.mood = frozenset(features)
        self.leases: list[tuple[str, str, list[int]]] = []
        self.ids: dict[str, list[int]] = {"acme": [], "other": []}
        self.serial = 0
        self.open_chunk: dict[str, tuple[int, int]] = {}  # sharer → chunk, size
        self.next_chunk = 1
        self.sent: list[c.Push] = []  # by producers

    def steps(self, n: int) -> Iterator[tuple[Step, Any]]:
        """n steps, each already played on `kernel`, and what it answered."""
        for number in range(n):
            if number % 150 == 0 and not self.features:
                count = self.random.randint(1, 6)
                self.mood = frozenset(self.random.sample(FEATURES, count))
            yield self.step()

    def step(self) -> tuple[Step, Any]:
        self.pass_time()
        command = self.command()
        step = Step(command, self.now, self.elapsed)
        answer = play(self.kernel, step)
        self.learn(command, answer)
        for chunk in self.kernel.freed:
            if chunk not in self.kernel.chunks:
                self.seal(chunk)
        self.kernel.freed.clear()
        return step, answer

    def seal(self, chunk: int) -> None:
        for sharer in [s for s, (open_, _) in self.open_chunk.items() if open_ == chunk]:
            del self.open_chunk[sharer]

    def learn(self, command: c.Command, answer: Any) -> None:
        """Remember what later commands may speak of."""
        if not isinstance(answer, tuple):
            return
        if answer[:2] == ("error", "lease_lost") and self.chance(0.7):
            lost = getattr(command, "lease", "")
            self.leases = [lease for lease in self.leases if lease[1] != lost]
        if answer[0] == "lease" and isinstance(command, c.Claim):
            self.leases = [*self.leases[-30:], (command.tenant, answer[1], answer[4])]
        elif answer[0] == "pushed" and isinstance(command, c.Push):
            known = self.ids[command.tenant]
            known += [job_id for job_id, _ in answer[1]][:20]
            del known[:-200]

    # -- dice ------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def pass_time(self) -> None:
        roll = self.random.random()
        if roll < 0.5:
            ms = 0
        elif roll < 0.8:
            ms = self.random.randint(1, 60)
        elif roll < 0.985:
            ms = self.random.randint(1, 600)
        elif roll < 0.997:
            ms = self.random.randint(1, 40_000)
        else:
            ms = self.one_of(HOUR, 24 * HOUR, 8 * 24 * HOUR)
        self.now += ms
        self.elapsed += ms
        if self.chance(0.01):
            self.now += self.one_of(-HOUR, -5_000, -70, 70, 5_000, HOUR)

    def tenant(self) -> str:
        return self.random.choice(TENANTS)

    def queue(self) -> str:
        return self.random.choice(QUEUES)

    def some_ids(self, tenant: str, most: int = 4) -> list[int]:
        known = self.ids[tenant]
        count = self.random.randint(1, most)
        ids = [self.random.choice(known) for _ in range(count)] if known else []
        if self.chance(0.1) or not ids:
            ids.append(self.one_of(1, 4_097, 70_000, *self.ids["other"][-2:]))
        return ids

    def put(self, sharer: str, size: int) -> tuple[int, int]:
        """A place for that many bytes, as a store would find it."""
        chunk, used = self.open_chunk.get(sharer, (0, 0))
        if not chunk or used + size > 2_000 or self.chance(0.05):
            chunk, used = self.next_chunk, 0
            self.next_chunk += 1
        self.open_chunk[sharer] = (chunk, used + size)
        return chunk, used

    # -- what is pushed --------------------------------------------------------------------------

    def backoff(self) -> Backoff:
        kind = self.one_of("none", "fixed", "linear", "exponential", "list")
        return Backoff(
            kind=kind,
            base_ms=self.one_of(10, 200, 1_000),
            cap_ms=self.one_of(300, 5_000),
            jitter=self.one_of("none", "full", "equal"),
            list_ms=(5, 50, 500) if kind == "list" else (),
        )

    def spec(self, tenant: str, place: int, size: int) -> JobSpec:
        """One job; `place` of `size` in its push."""
        mood, chance, one_of = self.mood, self.chance, self.one_of
        said: dict[str, Any] = {"payload": b"%d" % self.random.randint(0, 9)}
        if chance(0.2):
            said["payload"] = b'"' + b"x" * self.random.randint(0, 90) + b'"'
        if "own" in mood and chance(0.3):
            said["headers"] = {"trace": str(self.random.randint(0, 3))}
            said["tags"] = one_of((), ("red",), ("red", "blue"))
            said["task"] = one_of("", "mail")
        if "priorities" in mood:
            said["priority"] = one_of(0, 0, 1, 5, -3)
        if "delays" in mood and chance(0.5):
            if chance(0.5):
                said["delay_ms"] = one_of(0, 20, 20, 1_000, 30_000, HOUR)
            else:
                said["run_at"] = self.now + one_of(-500, 0, 15, 15, 2_000, 30_000, 100 * HOUR)
        if "ttls" in mood and chance(0.4):
            said["ttl_ms"] = one_of(10, 100, 1_500, 40_000)
            if (said.get("delay_ms") or 0) >= said["ttl_ms"]:
                del said["delay_ms"]
        if "backoff" in mood:
            said["backoff"] = self.backoff()
            said["max_attempts"] = one_of(0, 1, 2, 3)
        if "leases" in mood and chance(0.4):
            said["lease_ms"] = one_of(None, 100, 45_000)
            said["timeout_ms"] = one_of(None, 80, 100, 20_000)
        if "retains" in mood and chance(0.5):
            said["retain_ms"] = one_of(None, 0, 60, 10_000)
            said["retain_dead_ms"] = one_of(None, 0, 60, 10_000)
        if "keys" in mood and chance(0.6):
            said["key"] = f"k{self.random.randint(0, 7)}"
            said["on_conflict"] = one_of(
                "return", "return", "match", "replace", "replace", "reject"
            )
            said["keep_key"] = one_of("live", "live", "started", "retained", 40, 3_000)
        if "groups" in mood and chance(0.7):
            said["group"] = f"g{self.random.randint(0, 4)}"
        elif "lifo" in mood and chance(0.5):
            said["lifo"] = True
        if "flows" in mood and chance(0.5):
            refs = self.some_ids(tenant, 2) if chance(0.7) else []
            if size > 1 and chance(0.6):
                refs.append(-one_of(*(n for n in range(1, size + 1) if n != place + 1)))
            said["depends_on"] = tuple(refs)
            said["on_dependency_failure"] = one_of("fail", "ignore")
        return JobSpec(**said)

    def run(self, tenant: str, queue: str, before: int) -> Run:
        """One run; references inside a push count from its first run."""
        mood = self.mood
        roll = self.random.random()
        if "deep" in mood and roll < 0.02:
            return self.deep_run(queue)
        count = 1 if roll < 0.5 else self.random.randint(2, 6)
        if "batches" in mood and roll > 0.6:
            count = self.random.randint(10, 60)
        if "alike" in mood and self.chance(0.7):
            spec = self.spec(tenant, 0, 1)
            return Run.of(queue, [msgspec.structs.replace(spec, key=None, depends_on=())] * count)
        specs = [self.spec(tenant, before + index, before + count) for index in range(count)]
        run = Run.of(queue, specs)
        if run.keys is not None and self.chance(0.15):
            more = tuple(
                (KeyClaim(f"k{self.random.randint(0, 7)}", "return", "retained"),)
                if spec.key is not None and self.chance(0.5)
                else ()
                for spec in specs
            )
            clean = all(
                spec.key not in {k.key for k in keys}
                for spec, keys in zip(specs, more, strict=True)
            )
            run = msgspec.structs.replace(run, more_keys=more) if clean else run
        return run

    def deep_run(self, queue: str) -> Run:
        """More jobs than a block holds, or more option sets than a byte counts."""
        if self.chance(0.7):
            count = self.random.randint(1_500, 5_000)
            more = self.one_of({}, {}, {"delay_ms": 50})
            return Run.pack(queue, [b"0"] * count, **more)
        count = self.random.randint(245, 300)
        return Run.of(queue, [JobSpec(priority=n % 290) for n in range(count)])

    def push(self) -> c.Command:
        if self.sent and self.chance(0.06):
            again = self.random.choice(self.sent)
            if self.chance(0.3):
                again = msgspec.structs.replace(again, content=b"another")
            return again
        tenant = self.tenant()
        runs: list[Run] = []
        for _ in range(self.one_of(1, 1, 1, 1, 2, 3)):
            runs.append(self.run(tenant, self.queue(), sum(map(len, runs))))
        bulk = f"b{self.random.randint(0, 5)}" if self.chance(0.12) else None
        part = self.one_of("", "", "p", "q") if bulk is not None else ""
        producer = f"p{self.random.randint(0, 2)}" if self.chance(0.06) else None
        sequence = self.random.randint(0, 12) if producer is not None else None
        try:
            check_push(tenant, runs, producer, sequence, bulk, part, None)
        except PenstockError:
            return c.Tick(self.one_of(1, 1_000))  # it would not have come in
        loads = [load_of(run, *self.put(f"{tenant}/{run.queue}", len(run.data))) for run in runs]
        command = c.Push(tenant=tenant, loads=loads, bulk=bulk, part=part)
        if producer is not None and sequence is not None:
            command.producer, command.sequence = producer, sequence
            command.content = digest_of(runs, bulk, part)
            self.sent = [*self.sent[-10:], command]
        return command

    # -- what is done to jobs ----------------------------------------------------------------------

    def claim(self) -> c.Command:
        self.serial += 1
        queues = list(dict.fromkeys(self.queue() for _ in range(self.one_of(1, 1, 2))))
        return c.Claim(
            self.tenant(),
            queues,
            self.one_of(1, 1, 1, 2, 3, 5, 20, 300),
            f"t{self.serial}",
            self.one_of(None, None, None, 50, 120, 60_000),
            self.one_of("", "w1", "w2"),
        )

    def held(self) -> tuple[str, str, list[int] | None]:
        """A lease to speak of, and which of its jobs; None: all."""
        if not self.leases or self.chance(0.02):
            return "acme", "nobody", None
        recent = min(len(self.leases), self.one_of(2, 8, 30))
        tenant, token, ids = self.random.choice(self.leases[-recent:])
        if self.chance(0.5):
            return tenant, token, None
        chosen = self.random.sample(ids, self.random.randint(1, min(len(ids), 6)))
        if self.chance(0.2):
            chosen += self.some_ids(tenant, 2)
        return tenant, token, chosen

    def ack(self) -> c.Command:
        tenant, token, ids = self.held()
        command = c.Ack(tenant, token, ids)
        if ids is not None and self.chance(0.5):
            size = self.random.randint(0, 20)
            chunk, start = self.put(f"{tenant}//results", size)
            command.results = {self.random.choice(ids): (chunk, start, start + size)}
        return command

    def fail(self) -> c.Command:
        tenant, token, ids = self.held()
        error = self.random.choice(ERRORS)
        return c.Fail(
            tenant, token, error, ids, self.one_of(None, None, None, 0, 70), self.chance(0.1)
        )

    def release(self) -> c.Command:
        return c.Release(*self.held())

    def extend(self) -> c.Command:
        tenant, token, _ = self.held()
        return c.Extend(tenant, token, self.one_of(None, 50, 2_000, HOUR))

    def report(self) -> c.Command:
        tenant, token, ids = self.held()
        return c.Report(
            tenant=tenant,
            lease=token,
            job_id=(ids or self.some_ids(tenant))[0],
            progress=self.one_of(None, 10, 90),
            message=self.one_of(None, "half"),
            logs=[LogLine(self.one_of(0, 5), "line")] * self.one_of(0, 1, 2),
            partial=self.one_of(None, "part"),
        )

    def cancel(self) -> c.Command:
        tenant = self.tenant()
        return c.Cancel(tenant, self.some_ids(tenant, 8), self.chance(0.3))

    def edit(self) -> c.Command:
        tenant = self.tenant()
        command = c.Edit(tenant=tenant, job_id=self.some_ids(tenant, 1)[0])
        if self.chance(0.4):
            command.priority = self.one_of(0, 1, 2, 5)
        if self.chance(0.4):
            command.run_at = self.now + self.one_of(-10, 0, 30, 5_000)
        elif self.chance(0.4):
            command.delay_ms = self.one_of(0, 30, 5_000)
        if self.chance(0.4):
            payload = b"7" * self.random.randint(1, 30)
            chunk, start = self.put(f"{tenant}/edits", len(payload))
            command.payload = (chunk, start, start + len(payload))
            command.codec = self.one_of("json", "bytes")
            command.digest = digest(command.codec, payload)
        return command

    def redrive(self) -> c.Command:
        tenant = self.tenant()
        return c.Redrive(
            tenant=tenant,
            queue=self.queue(),
            ids=self.one_of(None, None, self.some_ids(tenant, 10)),
            limit=self.one_of(None, 1, 5),
            fingerprint=self.one_of(None, None, fingerprint(ERRORS[0])),
        )

    def purge_dead(self) -> c.Command:
        tenant = self.tenant()
        return c.PurgeDead(tenant, self.queue(), self.one_of(None, self.some_ids(tenant, 10)))

    # -- queues ------------------------------------------------------------------------------------

    def rate(self) -> Rate | None:
        rates = (Rate(tokens=3, per_ms=1_000), Rate(tokens=20, per_ms=100, burst=2))
        return self.random.choice((None, None, None, *rates))

    def bounds(self) -> Bounds:
        return Bounds(
            jobs=self.one_of(None, 10, 1_000),
            bytes=self.one_of(None, 100, 20_000),
            push_rate=self.rate(),
        )

    def configure(self) -> c.Command:
        if self.chance(0.5):
            return c.Configure(self.tenant(), self.queue(), QueueConfig())
        limits = Limits(
            rate=self.rate(),
            concurrency=self.one_of(None, None, 2, 30),
            group_rate=self.rate(),
            group_concurrency=self.one_of(1, 1, 2, 3),
        )
        config = QueueConfig(
            paused=self.chance(0.08),
            limits=limits if self.chance(0.6) else Limits(),
            bounds=self.bounds() if self.chance(0.2) else Bounds(),
            retain_ms=self.one_of(0, 50, 2_000, HOUR, HOUR),
            retain_count=self.one_of(0, 1, 3, 12, 10_000),
            retain_dead_ms=self.one_of(0, 50, HOUR, 30 * 24 * HOUR),
        )
        return c.Configure(self.tenant(), self.queue(), config)

    def configure_tenant(self) -> c.Command:
        bounds = self.bounds() if self.chance(0.3) else Bounds()
        return c.ConfigureTenant(self.tenant(), bounds)

    def drain(self) -> c.Command:
        if self.chance(0.5):
            return c.Drain(self.tenant(), self.queue())
        state = self.one_of(*(each for each in State if each not in (State.ACTIVE, State.HELD)))
        older_ms, limit = self.one_of(0, 0, 40, 1_000), self.one_of(None, 1, 3, 10)
        return c.Drain(self.tenant(), self.queue(), state, older_ms, limit)

    def purge(self) -> c.Command:
        return c.Purge(self.tenant(), self.queue())

    # -- bulks, crons, time --------------------------------------------------------------------------

    def open_bulk(self) -> c.Command:
        name = f"b{self.random.randint(0, 5)}"
        return c.OpenBulk(self.tenant(), name, self.one_of(500, 60_000, HOUR))

    def commit_bulk(self) -> c.Command:
        parts = self.one_of(None, None, [""], ["p"], ["", "q"])
        return c.CommitBulk(self.tenant(), f"b{self.random.randint(0, 5)}", parts)

    def abort_bulk(self) -> c.Command:
        return c.AbortBulk(self.tenant(), f"b{self.random.randint(0, 5)}")

    def put_cron(self) -> c.Command:
        tenant = self.tenant()
        spec = CronSpec(
            name=f"c{self.random.randint(0, 1)}",
            queue=self.queue(),
            schedule=Every(every_ms=self.one_of(50, 1_000, 60_000)),
            payload=self.one_of(b"1", b"22"),
            overlap=self.one_of("allow", "skip"),
            missed=self.one_of("last", "all", "none"),
            limit=self.one_of(None, None, 3),
        )
        marker = config_hash(spec)
        known = self.kernel.crons.get((tenant, spec.name))
        if known is not None and known.config_hash != marker:
            known = None
        until = known.installed_until if known is not None else None
        instants = plan(spec, now_ms=self.now, installed_until_ms=until).instants[-8:]
        load = None
        if instants:
            keys = [instant_key(spec.name, marker, instant) for instant in instants]
            keeps = [max(keep_key_ms(instant, self.now), 1) for instant in instants]
            run = Run(
                queue=spec.queue,
                data=spec.payload * len(instants),
                ends=[len(spec.payload) * (n + 1) for n in range(len(instants))],
                run_at=list(instants),
                more_keys=[
                    (KeyClaim(key, "return", keep),) for key, keep in zip(keys, keeps, strict=True)
                ],
            )
            load = load_of(run, *self.put(f"{tenant}/{spec.queue}", len(run.data)))
        return c.PutCron(tenant=tenant, spec=spec, config_hash=marker, instants=instants, load=load)

    def drop_cron(self) -> c.Command:
        return c.DropCron(self.tenant(), f"c{self.random.randint(0, 1)}")

    def put_instants(self) -> c.Command:
        tenant, queue, name = self.tenant(), self.queue(), f"c{self.random.randint(0, 1)}"
        marker = self.one_of("0" * 16, "f" * 16)
        at = [self.now // 500 * 500 + 500 * self.random.randint(-1, 4) for _ in range(3)]
        at = at[self.random.randint(0, 3) :]
        loads = []
        if at:
            claims = [
                (KeyClaim(instant_key(name, marker, each), "return", keep_key_ms(each, self.now)),)
                for each in at
            ]
            run = Run(
                queue=queue,
                data=b"1" * len(at),
                ends=list(range(1, len(at) + 1)),
                run_at=at,
                more_keys=claims,
            )
            loads = [load_of(run, *self.put(f"{tenant}/{queue}", len(run.data)))]
        refresh = self.one_of(False, False, True)
        instead = c.Instead(queue=queue, name=name, config_hash=marker, refresh=refresh)
        return c.Push(tenant=tenant, loads=loads, instead=instead)

    def drop_instants(self) -> c.Command:
        name, marker = f"c{self.random.randint(0, 1)}", self.one_of(None, "0" * 16, "f" * 16)
        return c.DropCron(self.tenant(), name, self.queue(), marker)

    def tick(self) -> c.Command:
        return c.Tick(self.one_of(1, 2, 10, 1_000))

    def resume(self) -> c.Command:
        block = self.kernel.next_block + self.one_of(0, 0, 1, 5)
        return c.Resume(self.caps, self.one_of(None, block))

    def command(self) -> c.Command:
        (draw,) = self.random.choices(DRAWS, WEIGHTS)
        return draw(self)


WEIGHED: dict[Callable[[History], c.Command], float] = {
    History.push: 30,
    History.claim: 26,
    History.ack: 12,
    History.fail: 7,
    History.release: 3,
    History.extend: 3,
    History.report: 2,
    History.cancel: 3,
    History.edit: 4,
    History.redrive: 2,
    History.purge_dead: 0.5,
    History.configure: 2,
    History.configure_tenant: 0.4,
    History.drain: 0.4,
    History.purge: 0.3,
    History.open_bulk: 2,
    History.commit_bulk: 1.5,
    History.abort_bulk: 0.4,
    History.put_cron: 1.2,
    History.drop_cron: 0.3,
    History.put_instants: 1.2,
    History.drop_instants: 0.3,
    History.tick: 5,
    History.resume: 0.3,
}
DRAWS = list(WEIGHED)
WEIGHTS = list(WEIGHED.values())
