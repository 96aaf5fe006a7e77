"""Compatible commands about repeated jobs: CRON, CRONDELETE, CRONLIST."""

from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from penstock.model.answers import CronInfo
from penstock.model.errors import Invalid, NotFound
from penstock.model.schedule import Cron as Expression
from penstock.model.schedule import CronSpec, Every, Schedule
from penstock.protocol.command import Answer, Encoding, Request, Session
from penstock.protocol.compatible_push import options_of
from penstock.protocol.compatible_reach import Caller, Done, in_their_words
from penstock.protocol.transcode import NOTHING, shown, written


class Cron(Request, tag="CRON", kw_only=True):
    """Push a job again and again. A cron of that name is replaced."""

    audited: ClassVar[bool] = True
    name: str
    queue: str
    data: Raw = NOTHING
    schedule: str | None = None  # five fields, or six with seconds first; UTC
    repeat_every: int | None = None  # ms; either this or `schedule`
    priority: int | None = None  # 0
    limit: int | None = None  # jobs in all; null: without end

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        if (self.schedule is None) == (self.repeat_every is None):
            raise Invalid("give either a schedule or repeat_every", "schedule")
        schedule: Schedule
        if self.schedule is not None:
            schedule = Expression(expression=self.schedule)
        else:
            schedule = Every(every_ms=self.repeat_every or 0)
        known = await _known(who, self.name)
        if known is not None:
            who.principal.require("admin", known.spec.queue)
        spec = CronSpec(
            name=self.name,
            queue=self.queue,
            schedule=schedule,
            payload=written(self.data, who.encoding),
            codec=who.encoding,
            options=options_of(who.encoding, self.priority),
            limit=self.limit,
        )
        with in_their_words():
            await who.store.put_cron(who.tenant, spec)
        return Done()


class CronDelete(Request, tag="CRONDELETE", kw_only=True):
    """End a cron; its jobs that have not started go with it."""

    audited: ClassVar[bool] = True
    name: str

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        principal = who.principal
        principal.require("admin")
        known = await _known(who, self.name)
        if known is None or not principal.sees(known.spec.queue):
            raise NotFound(f"there is no cron {self.name[:60]!r}", "name")
        principal.require("admin", known.spec.queue)
        await who.store.drop_cron(who.tenant, self.name)
        return Done()


async def _known(who: Caller, name: str) -> CronInfo | None:
    for cron in await who.store.crons(who.tenant):
        if cron.spec.name == name:
            return cron
    return None


class WireCron(msgspec.Struct, kw_only=True):
    name: str
    queue: str
    data: Raw
    schedule: str | None
    repeat_every: int | None  # ms
    priority: int
    next_run: int  # 0: never again
    executions: int  # instants that came due
    limit: int | None


class WireCrons(Done, kw_only=True):
    crons: list[WireCron]  # by name


class CronList(Request, tag="CRONLIST", kw_only=True):
    """Every cron whose queue is in sight."""

    answer: ClassVar[type[Answer]] = WireCrons

    async def call(self, session: Session) -> WireCrons:
        who = Caller.of(session)
        principal = who.principal
        principal.require_sight()
        crons = await who.store.crons(who.tenant)
        seen = [cron for cron in crons if principal.sees(cron.spec.queue)]
        return WireCrons(crons=[_wire_cron(cron, who.encoding) for cron in seen])


def _wire_cron(cron: CronInfo, encoding: Encoding) -> WireCron:
    spec = cron.spec
    schedule: str | None = None
    if isinstance(spec.schedule, Expression):
        schedule = spec.schedule.expression
    elif not isinstance(spec.schedule, Every):
        schedule = f"daily {', '.join(spec.schedule.at)}"  # which this wire cannot say
    return WireCron(
        name=spec.name,
        queue=spec.queue,
        data=shown(spec.payload, spec.codec, encoding),
        schedule=schedule,
        repeat_every=spec.schedule.every_ms if isinstance(spec.schedule, Every) else None,
        priority=spec.options.priority,
        next_run=min(cron.pending, default=0),
        executions=cron.executions,
        limit=spec.limit,
    )


CRONS: Final = (Cron, CronDelete, CronList)
