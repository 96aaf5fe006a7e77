"""`CronService`: messages of a `DelayedQueue` that come again and again.

    reports = CronService(DelayedQueue(app, "reports"))
    with reports.install_daily("nightly", ["02:00"], "Europe/Berlin", lambda at: at.isoformat()):
        ...

Beside `app.cron` and its kin, which run tasks, this is for messages that code makes up: a generator
is asked for the next ones, and each is offered under `{prefix}/{config hash}/{instant}`. The key is
kept until a day after the instant, so that any number of processes may install the same, and each
instant is delivered once.

Where seeds/001 differs from the contract, the contract holds:
- Instants are functions of the config, not of when somebody was started: those of a period are its
  multiples since the epoch. The seed's move with every tick (T0 + 1h, T0 + 1h15m …).
- A prefix is literal. In the seed `_` and `%` match anything, and a hash also the longer ones.
- An instant that was offered is never offered again in another form: the first tick of the seed
  updates, and so brings back what was delivered and acknowledged. What changes the messages belongs
  into the config, and so into its hash.
- Two processes with different configs do not take each other's instants away for ever: whoever
  finds that another config was installed after its own ends.
- Times that a change of the clocks skips or repeats: as everywhere, see `model/schedule.py`.

The instants of a config come, and those of the one before it leave, in one step of the store
(`Store.put_instants`): nobody sees both or neither, and a process that is killed leaves no halves.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, Generic, Self, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from penstock.client.delayed import DelayedQueue, Instant
from penstock.client.errors import BadDeclaration
from penstock.client.said import function, instant_ms, iterable, some_time
from penstock.model.checks_values import show
from penstock.model.duration import Duration
from penstock.model.errors import Invalid, NotFound, PenstockError
from penstock.model.job import Run
from penstock.model.schedule import (
    CronSpec,
    Daily,
    Every,
    check_hash,
    check_name,
    check_schedule,
    config_hash,
    plan,
)
from penstock.stores.clock import Clock, SystemClock

M = TypeVar("M")

TAG: Final = "cron"  # of every message that is offered here, so that they are found

log: Final = logging.getLogger("penstock.cron")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CronMessage(msgspec.Struct, frozen=True):
    """A message for one instant."""

    payload: Any
    at: Instant


Generator = Callable[[datetime], Iterable[CronMessage]]


def hash_of(config: Any) -> str:
    """16 hex digits over whatever decides the messages; anything that msgspec can encode."""
    encoded = msgspec.msgpack.encode(config, order="deterministic")
    return blake2b(encoded, digest_size=8).hexdigest()


class CronService(Generic[M]):
    """Every call blocks; its asynchronous twin begins with `a`."""

    def __init__(self, queue: DelayedQueue[M], *, clock: Clock | None = None) -> None:
        if not isinstance(queue, DelayedQueue):
            raise BadDeclaration(f"is {show(queue)}, not a DelayedQueue", "queue")
        self.queue = queue
        self._clock = clock or SystemClock()

    # -- by hand ---------------------------------------------------------------------------------

    async def ainstall_tick(
        self, config_hash: str, prefix: str, messages: Iterable[CronMessage]
    ) -> int:
        """Offer these messages, and remove those of other configs under the prefix that nobody
        has been given yet, at one instant. Answers how many are new."""
        run = self._run_of(config_hash, prefix, messages)
        try:
            # Mostly no other config is there, and nothing to remove: who may push may do that.
            return await self._put(config_hash, prefix, run, refresh=True)
        except NotFound:
            return await self._put(config_hash, prefix, run, refresh=False)

    def install_tick(self, config_hash: str, prefix: str, messages: Iterable[CronMessage]) -> int:
        call = self.ainstall_tick(config_hash, prefix, messages)
        return self.queue._run(call, "install_tick()", "ainstall_tick()")

    async def auninstall_tick(self, prefix: str, config_hash: str | None = None) -> int:
        """Remove the messages of a config, or of all under the prefix, that nobody has been given
        yet; answers how many."""
        _check_prefix(prefix)
        if config_hash is not None:
            _check_hash(config_hash)
        store = await self.queue.store()
        return await store.drop_instants(self.queue.tenant, self.queue.queue, prefix, config_hash)

    def uninstall_tick(self, prefix: str, config_hash: str | None = None) -> int:
        call = self.auninstall_tick(prefix, config_hash)
        return self.queue._run(call, "uninstall_tick()", "auninstall_tick()")

    async def _put(self, config_hash: str, prefix: str, run: Run, *, refresh: bool) -> int:
        store = await self.queue.store()
        tenant = self.queue.tenant
        pushed = await store.put_instants(tenant, prefix, config_hash, run, refresh=refresh)
        return pushed.created

    def _run_of(self, config_hash: str, prefix: str, messages: Iterable[CronMessage]) -> Run:
        _check_prefix(prefix)
        _check_hash(config_hash)
        instants: list[int] = []
        payloads: list[bytes] = []
        for message in iterable(messages, "messages", "several CronMessage(…)"):
            if not isinstance(message, CronMessage):
                raise BadDeclaration(
                    f"has {show(message)} in it, not a CronMessage(payload, at)", "messages"
                )
            at = instant_ms(message.at, "at")
            if at is None:
                raise Invalid("is None: a message that comes by the clock has its instant", "at")
            instants.append(at)
            payloads.append(self.queue.encoded(message.payload))
        return Run(
            queue=self.queue.queue,
            data=b"".join(payloads),
            ends=list(accumulate(map(len, payloads))),
            options=(replace(self.queue.options, tags=(TAG,)),),
            run_at=instants,
        )

    # -- again and again -------------------------------------------------------------------------

    async def ainstall(
        self, config_hash: str, prefix: str, interval: Duration, generate: Generator
    ) -> "Installed":
        """Offer what `generate(now)` answers, now and at every interval until it is closed.

        It answers after the first time; the rest goes on in this loop, and `Installed` owns it.
        """
        interval_ms = some_time(interval, "interval")
        function(generate, "generate", "of an instant that answers messages")
        messages = generate(self._now())
        await self.ainstall_tick(config_hash, prefix, messages)
        going_on = self._go_on(config_hash, prefix, interval_ms, generate)
        return Installed(self, asyncio.create_task(going_on))

    def install(
        self, config_hash: str, prefix: str, interval: Duration, generate: Generator
    ) -> "Installed":
        call = self.ainstall(config_hash, prefix, interval, generate)
        return self.queue._run(call, "install()", "ainstall()")

    async def ainstall_daily(
        self, prefix: str, at: Sequence[str], tz: str, message: Callable[[datetime], M]
    ) -> "Installed":
        """A message for each day and hour (`"02:00"`), local time in `tz`, four ahead."""
        if isinstance(at, str):
            raise Invalid(f"is one hour and not several: [{at!r}]", "at")
        hours = tuple(iterable(at, "at", 'a list of hours like "02:00"'))
        return await self._ainstall_schedule(prefix, Daily(at=hours, tz=tz), message)

    def install_daily(
        self, prefix: str, at: Sequence[str], tz: str, message: Callable[[datetime], M]
    ) -> "Installed":
        call = self.ainstall_daily(prefix, at, tz, message)
        return self.queue._run(call, "install_daily()", "ainstall_daily()")

    async def ainstall_periodic(
        self, prefix: str, period: Duration, message: Callable[[datetime], M]
    ) -> "Installed":
        """A message for each multiple of the period since the epoch, four ahead."""
        schedule = Every(every_ms=some_time(period, "period"))
        return await self._ainstall_schedule(prefix, schedule, message)

    def install_periodic(
        self, prefix: str, period: Duration, message: Callable[[datetime], M]
    ) -> "Installed":
        call = self.ainstall_periodic(prefix, period, message)
        return self.queue._run(call, "install_periodic()", "ainstall_periodic()")

    async def _ainstall_schedule(
        self, prefix: str, schedule: Daily | Every, message: Callable[[datetime], M]
    ) -> "Installed":
        check_schedule(schedule)
        function(message, "message", "of an instant that answers a payload")
        _check_prefix(prefix)
        spec = CronSpec(name=prefix, queue=self.queue.queue, schedule=schedule)
        zone = UTC if isinstance(schedule, Every) else ZoneInfo(schedule.tz)

        def generate(now: datetime) -> list[CronMessage]:
            ahead = plan(spec, now_ms=_ms(now), installed_until_ms=None).instants
            return [CronMessage(message(_moment(at).astimezone(zone)), at) for at in ahead]

        refresh_ms = plan(spec, now_ms=self._clock.now_ms(), installed_until_ms=None).refresh_ms
        interval = timedelta(milliseconds=refresh_ms)
        return await self.ainstall(config_hash(spec), prefix, interval, generate)

    async def _go_on(
        self, config_hash: str, prefix: str, interval_ms: int, generate: Generator
    ) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            try:
                if not await self.atick(config_hash, prefix, generate):
                    log.info("cron %r: another config was installed after this one", prefix)
                    return
            except (PenstockError, OSError) as error:
                log.warning("cron %r cannot be installed, trying again: %s", prefix, error)

    async def atick(self, config_hash: str, prefix: str, generate: Generator) -> bool:
        """What `install` does at every interval; False if another config took its place."""
        run = self._run_of(config_hash, prefix, generate(self._now()))
        try:
            await self._put(config_hash, prefix, run, refresh=True)
        except NotFound:
            return False
        return True

    def _now(self) -> datetime:
        return _moment(self._clock.now_ms())


class Installed:
    """Messages that come again and again until this is closed; what was offered stays."""

    def __init__(self, service: CronService[Any], task: "asyncio.Task[None]") -> None:
        self._service = service
        self._task = task

    @property
    def running(self) -> bool:
        """False once it was closed, or another config took its place."""
        return not self._task.done()

    async def aclose(self) -> None:
        await _there(self._task, self._ended())

    async def _ended(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def close(self) -> None:
        self._service.queue._run(self.aclose(), "close()", "aclose()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _there(task: "asyncio.Task[None]", call: Coroutine[Any, Any, None]) -> None:
    """Make a call in the loop of the task, be it another thread's."""
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        await call
    elif loop.is_closed():
        call.close()
    else:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


def _check_prefix(prefix: str) -> None:
    try:
        check_name(prefix)
    except Invalid as error:
        raise Invalid(error.message, "prefix") from None


def _check_hash(config_hash: str) -> None:
    try:
        check_hash(config_hash)
    except Invalid as error:
        raise Invalid(f"{error.message}: hash_of(config) makes them", "config_hash") from None


def _moment(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
