"""The kernel: `apply(command, now, elapsed)`, where every change of state enters.

It first lets everything that is due take effect, elapsed clock before wall clock, then the command.
Operations live in modules named for them; this one holds the state, the passing of time, and the
few things that every operation needs.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from penstock.kernel import bulk_ops, claim, crons, manage, push, resume, settle, snapshot, tell
from penstock.kernel import commands as c
from penstock.kernel.blocks import MASK, SHIFT, Block
from penstock.kernel.bulks import Bulk, FinishedBulk
from penstock.kernel.calendar import Calendar, Calls
from penstock.kernel.changes import Changes
from penstock.kernel.checkpoint import Checkpoint
from penstock.kernel.codes import (
    BYTE,
    COUNTER_OF,
    EXPIRED,
    GONE,
    LATE,
    READY,
    SCHEDULED,
    WAITING,
)
from penstock.kernel.ending import end_one, run_cascade
from penstock.kernel.groups import Group
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.producers import Producer
from penstock.kernel.queue import Queue, Tenant
from penstock.kernel.timers import FOREVER, Agenda, Wheel
from penstock.model.errors import Conflict, NotFound
from penstock.model.event import Event
from penstock.model.job import Codec, JobOptions, KeyClaim
from penstock.model.policy import DEFAULT_CAPS, Caps

SWEEP_AT: Final = 1_024  # queues known before empty ones are first looked for

VERSION: Final = 1  # of what the kernel decides; see docs before changing a decision

Handler = Callable[["Kernel", Any], Any]


class Kernel:
    __slots__ = (
        "awaited",
        "blocks",
        "bulks",
        "calendar",
        "calls",
        "caps",
        "cascade",
        "changes",
        "chunks",
        "crons",
        "elapsed",
        "elapsed_due",
        "ends",
        "era",
        "events",
        "expiries",
        "finished_bulks",
        "freed",
        "kept_keys",
        "key_count",
        "leases",
        "next_block",
        "now",
        "position",
        "producers",
        "promotions",
        "queue_count",
        "seed",
        "stirred",
        "sweep_at",
        "tenants",
        "ttls",
        "unborn",
        "unseated",
        "wall_due",
        "watching",
    )

    def __init__(self, seed: int, caps: Caps = DEFAULT_CAPS) -> None:
        self.seed = seed
        self.caps = caps
        self.now = 0
        self.elapsed = 0
        self.position = 0  # of this command in the store's history; told by whoever drives us

        # What changed since the last checkpoint. `era` tells hot paths whether a change is the first
        # since one began; it stays 0 in a kernel that never made any.
        self.era = 0
        self.changes = Changes(self)

        self.next_block = 0
        self.blocks: dict[int, Block] = {}
        self.tenants: dict[str, Tenant] = {}
        self.queue_count: int = 0
        self.sweep_at = SWEEP_AT
        self.leases: dict[str, LeaseRecord] = {}
        self.chunks: dict[int, int] = {}  # payload chunk → places in it that are still needed
        self.bulks: dict[tuple[str, str], Bulk] = {}
        self.finished_bulks: dict[tuple[str, str], FinishedBulk] = {}
        self.producers: dict[tuple[str, str], Producer] = {}
        self.crons: dict[tuple[str, str], crons.CronRecord] = {}
        self.key_count: int = 0
        self.kept_keys = 0  # keys that outlive, or may outlive, their jobs

        # What lies ahead. The two `due` instants are lower bounds: before them, nothing happens.
        self.expiries = Wheel()  # elapsed: leases
        self.calls = Calls(self)  # elapsed: timeouts, group rates, bulk deadlines
        self.promotions = Agenda()  # wall: delays and retries
        self.ttls = Agenda()  # wall
        self.calendar = Calendar(self)  # wall: retention, kept keys, remembered names
        self.elapsed_due = FOREVER
        self.wall_due = FOREVER

        self.cascade: deque[tuple[int, int, int, list[int]]] = deque()  # ends to tell dependants of

        self.unseated: dict[Group, None] = {}  # groups whose seat may have changed
        self.unborn: set[int] = set()  # during a commit: ids of the parts that it drops

        # Outputs, emptied by whoever drives the kernel. They influence no decision.
        self.events: list[Event] | None = None  # None: nobody listens
        self.watching: dict[tuple[str, str], None] = {}  # queues in which somebody waits for a job
        self.stirred: dict[Queue, None] = {}  # watched queues that may have something to give
        self.freed: list[int] = []  # chunks no longer needed
        self.awaited: dict[int, int] = {}  # ids whose end somebody waits for → how many
        self.ends: dict[int, Any] = {}  # of those: how they ended

    # -- the way in ----------------------------------------------------------------------------

    def apply(self, command: c.Command, now: int, elapsed: int) -> Any:
        """Let time pass to that instant, then carry out the command. Errors change nothing more."""
        self.now = now
        if elapsed > self.elapsed:
            self.elapsed = elapsed
        if now >= self.wall_due or elapsed >= self.elapsed_due:
            if isinstance(command, c.Tick):
                return self.advance(command.steps)
            self.advance(FOREVER)
        outcome = HANDLERS[command.__class__](self, command)
        if self.cascade:
            run_cascade(self)
        if self.unseated:
            self.seat_groups()
        return outcome

    def is_due(self, now: int, elapsed: int) -> bool:
        """Whether time alone may change something by that instant."""
        return now >= self.wall_due or elapsed >= self.elapsed_due

    # -- as records --------------------------------------------------------------------------------

    def encode(self) -> list[bytes]:
        """The whole state, one record per object."""
        return snapshot.encode(self)

    @staticmethod
    def decode(
        encoded: Iterable[bytes], caps: Caps = DEFAULT_CAPS, *, clean: bool = False
    ) -> "Kernel":
        """A kernel from its records. `clean`: a checkpoint holds all of them already."""
        kernel = snapshot.decode(encoded, caps)
        if clean:
            kernel.changes.track()
        return kernel

    def checkpoint(self) -> Checkpoint:
        """Begin a checkpoint of this very state; the one before must be over.

        The first one of a kernel finds everything changed, and from then on changes are noted. So
        a store takes one while it is empty.
        """
        return self.changes.begin()

    def digest(self) -> str:
        """Equal for two kernels exactly if they will decide alike."""
        return snapshot.digest(self)

    # -- time ------------------------------------------------------------------------------------

    def advance(self, steps: int) -> bool:
        """Let what is due take effect, about that many jobs; False if something may be left.

        A turn ends between two instants and counts only what had an effect, so that it ends at
        the same place in a kernel that was read back and has its timers cut otherwise.
        """
        steps = self._advance_elapsed(steps)
        if steps > 0:
            steps = self._advance_wall(steps)
        self.elapsed_due = min(self.expiries.due, self.calls.due)
        self.wall_due = min(self.promotions.due, self.ttls.due, self.calendar.due)
        return steps > 0

    def _advance_elapsed(self, steps: int) -> int:
        """Calls and expiries in the order of their instants; of two at once, the call first."""
        elapsed = self.elapsed
        calls, expiries = self.calls, self.expiries
        last = 0
        while True:
            called, expired = calls.head(elapsed), expiries.head(elapsed)
            instant = min(called, expired)
            if instant == FOREVER or (steps <= 0 and instant != last):
                break
            if self.unseated and instant != last:
                self.seat_groups(last)
            last = instant
            if called <= expired:
                steps -= calls.carry_out(*calls.pop())
            else:
                lease = expiries.pop()
                if self.leases.get(lease.token) is lease and lease.expires == instant:
                    steps -= lease.count
                    settle.expire_lease(self, lease, self.now - (elapsed - instant))
            if self.cascade:
                run_cascade(self)
        if self.unseated:
            self.seat_groups(last)
        return steps

    def _advance_wall(self, steps: int) -> int:
        """Promotions, ttls and the calendar in the order of their instants, and in that order."""
        now = self.now
        promotions, ttls, calendar = self.promotions, self.ttls, self.calendar
        last = 0
        while True:
            promoted, expired, noted = promotions.head(now), ttls.head(now), calendar.head(now)
            instant = min(promoted, expired, noted)
            if instant == FOREVER or (steps <= 0 and instant != last):
                break
            last = instant
            if promoted == instant:
                steps -= self._promote(*promotions.pop())
            elif expired == instant:
                steps -= self._expire(*ttls.pop())
            else:
                steps -= calendar.carry_out(*calendar.pop())
            if self.unseated:
                self.seat_groups()
        return steps

    def seat_groups(self, elapsed: int | None = None) -> None:
        """Groups that one command or one instant has changed take their seats by their heads.

        `elapsed`: that instant, if it lies behind: what has room only now takes no seat yet.
        """
        changed = [(group.head() or (0, 0), group) for group in self.unseated]
        self.unseated = {}
        changed.sort(key=lambda entry: entry[0][1])
        for _, group in changed:
            if group.jobs or not group.queue.drop_group(group):
                group.queue.seat(group, self.elapsed if elapsed is None else elapsed)

    def promote_at(self, instant: int, first: int, span: int) -> None:
        self.promotions.add(instant, first, span, self.now)
        if self.promotions.due < self.wall_due:
            self.wall_due = self.promotions.due

    def expire_at(self, instant: int, first: int, span: int) -> None:
        self.ttls.add(instant, first, span, self.now)
        self.wall_due = min(self.wall_due, self.ttls.due)

    def _promote(self, instant: int, first: int, span: int) -> int:
        """Scheduled jobs of one stretch are due at that instant; answers how many were."""
        block = self.blocks.get((first - 1) >> SHIFT)
        if block is None:
            return 0
        queue = block.queue
        lo = (first - 1) & MASK
        hi = lo + span
        if span > 1 and not block.has_sides(lo, hi):
            options = {block.options[number] for number in set(block.opts[lo:hi])}
            stretch = block.codes[lo:hi]
            if len(options) == 1 and not stretch.strip(BYTE[SCHEDULED]):
                only = options.pop()
                if not only.lifo:
                    block.touch()
                    block.codes[lo:hi] = BYTE[LATE] * span
                    queue.counts[SCHEDULED] -= span
                    queue.counts[READY] += span
                    queue.lane(only.priority).put(instant, first, span)
                    queue.stir()
                    return span
        count = 0
        for offset in range(lo, hi):
            if block.codes[offset] == SCHEDULED and block.due_at(offset) == instant:
                self._promote_one(queue, block, offset, instant)
                count += 1
        return count

    def _promote_one(self, queue: Queue, block: Block, offset: int, instant: int) -> None:
        side = block.sides.get(offset)
        if side is not None and side.cron is not None:
            ready = crons.came_due(self, block, offset, instant)
            if self.cascade:
                run_cascade(self)
            if not ready:
                return
        queue.counts[SCHEDULED] -= 1
        queue.counts[READY] += 1
        queue.make_ready(block, offset, instant)

    def _expire(self, instant: int, first: int, span: int) -> int:
        """Jobs of one stretch whose ttl ends at that instant and that were never claimed."""
        block = self.blocks.get((first - 1) >> SHIFT)
        if block is None:
            return 0
        count = 0
        lo = (first - 1) & MASK
        for offset in range(lo, lo + span):
            if COUNTER_OF[block.codes[offset]] not in WAITING:
                continue
            side = block.sides.get(offset)
            if side is not None and (side.claimed or side.no_ttl):
                continue
            ttl = block.options_of(offset).ttl_ms
            if ttl is None or block.created_at(offset) + ttl != instant:
                continue
            if self.events is not None:
                tell.one(self, "expired", block, offset, instant)
            end_one(self, block, offset, EXPIRED, instant)
            count += 1
            if self.cascade:
                run_cascade(self)
        return count

    # -- finding ---------------------------------------------------------------------------------

    def tenant(self, name: str) -> Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            self.changes.tenants.touch(name)
            tenant = self.tenants[name] = Tenant(name)
        return tenant

    def queue(self, tenant: Tenant, name: str) -> Queue:
        queue = tenant.queues.get(name)
        if queue is None:
            if self.queue_count >= self.sweep_at:
                self.sweep_queues()
            self.changes.queues.touch((tenant.name, name))
            queue = tenant.queues[name] = Queue(self, tenant, name)
            self.queue_count += 1
            bounds = tenant.bounds
            queue.bounded = not (
                bounds.jobs is None and bounds.bytes is None and bounds.push_rate is None
            )
        return queue

    def sweep_queues(self) -> None:
        """Let go of queues without jobs, keys or configuration."""
        for tenant in self.tenants.values():
            for name in [
                name for name, queue in tenant.queues.items() if not queue.exists(self.now)
            ]:
                queue = tenant.queues[name]
                queue.keys.clear()
                for number in queue.blocks:
                    self.changes.blocks.drop(number)
                    self.blocks.pop(number, None)
                self.changes.queues.drop((tenant.name, name))
                del tenant.queues[name]
                self.queue_count -= 1
        self.sweep_at = max(SWEEP_AT, 2 * self.queue_count)

    def locate(self, tenant: str, job_id: int) -> tuple[Block, int] | None:
        """The place of a job that this tenant knows."""
        block = self.blocks.get((job_id - 1) >> SHIFT)
        if block is None or block.queue.tenant.name != tenant:
            return None
        offset = (job_id - 1) & MASK
        if offset >= len(block.codes) or block.codes[offset] == GONE:
            return None
        return block, offset

    def locate_any(self, job_id: int) -> tuple[Block, int] | None:
        block = self.blocks.get((job_id - 1) >> SHIFT)
        return None if block is None else self.locate(block.queue.tenant.name, job_id)

    # -- what several operations need ------------------------------------------------------------

    def drop_chunk(self, chunk: int, n: int) -> None:
        left = self.chunks[chunk] - n
        if left:
            self.chunks[chunk] = left
        else:
            del self.chunks[chunk]
            self.freed.append(chunk)

    def take_keys(
        self, queue: Queue, job_id: int, claims: tuple[KeyClaim, ...], digest: bytes, at: int
    ) -> None:
        for wanted in claims:
            record = queue.keys.take(wanted, job_id, digest, at)
            if record.until:
                self.calendar.add(record.until, "key", (queue, wanted.key))

    def note_ends(self, block: Block, lo: int, hi: int, mask: bytes | None) -> None:
        """Some of these jobs, which just ended, may be waited for."""
        from penstock.kernel.read import result_of

        base = block.base
        for job_id in [i for i in self.awaited if base + lo <= i < base + hi]:
            offset = job_id - base
            if mask is None or mask[offset - lo]:
                self.ends[job_id] = result_of(block, offset)

    def with_codec(self, options: JobOptions, codec: Codec) -> JobOptions:
        return msgspec.structs.replace(options, codec=codec)

    # -- bulks and producers -----------------------------------------------------------------------

    def open_bulk(self, tenant: str, name: str) -> Bulk:
        bulk = self.bulks.get((tenant, name))
        if bulk is None:
            if (tenant, name) in self.finished_bulks:
                raise Conflict(f"bulk {name!r} is finished", "bulk")
            raise NotFound(f"no bulk {name!r}", "bulk")
        self.changes.bulks.touch((tenant, name))
        return bulk

    def renew_bulk(self, tenant: str, bulk: Bulk) -> None:
        bulk.expires = self.elapsed + bulk.deadline_ms
        self.calls.add(bulk.expires, 0, ("bulk", tenant, bulk.name))

    def drop_held(self, queue: Queue) -> None:
        """A purge took the queue's held jobs: their bulks go on without them."""
        for (tenant, name), bulk in self.bulks.items():
            if tenant == queue.tenant.name:
                self.changes.bulks.touch((tenant, name))
                for part, helds in bulk.parts.items():
                    bulk.parts[part] = [held for held in helds if held.queue != queue.name]

    def crons_pending_end(self, tenant: str, name: str, job_id: int) -> None:
        """A job of a cron ended."""
        record = self.crons.get((tenant, name))
        if record is not None:
            self.changes.crons.touch((tenant, name))
            record.live.pop(job_id, None)
            record.pending.pop(job_id, None)


HANDLERS: Final[dict[type[c.Command], Handler]] = {
    c.Tick: lambda _kernel, _command: True,  # nothing was due
    c.Push: push.push,
    c.Claim: claim.claim,
    c.Ack: settle.ack,
    c.Fail: settle.fail,
    c.Release: settle.release,
    c.Extend: settle.extend,
    c.Report: settle.report,
    c.Cancel: manage.cancel,
    c.Edit: manage.edit,
    c.Redrive: manage.redrive,
    c.PurgeDead: manage.purge_dead,
    c.Configure: manage.configure,
    c.ConfigureTenant: manage.configure_tenant,
    c.Drain: manage.drain,
    c.Purge: manage.purge,
    c.OpenBulk: bulk_ops.open_bulk,
    c.CommitBulk: bulk_ops.commit_bulk,
    c.AbortBulk: bulk_ops.abort_bulk,
    c.PutCron: crons.put_cron,
    c.DropCron: crons.drop_cron,
    c.Resume: resume.resume,
}
