"""`DelayedQueue`: messages by key, each delivered at its instant, until somebody acknowledges it.

    payments = DelayedQueue(app, "payments", Payment)
    payments.offer_or_update("order-1", payment, at=tomorrow)
    envelope = payments.poll()
    …
    envelope.acknowledge()

A face of the store with the behaviour of seeds/001, for those who want messages and not tasks. A
message is a keyed job without end of attempts and without backoff: whoever polls one holds it for
`acquire_timeout`, and if it is not acknowledged by then, it is delivered again. An acknowledged one
is forgotten. The codec is part of the queue's name, so that nobody reads what they cannot decode.

Where the seed differs from the contract, the contract holds:
- A message that is updated while somebody holds it is delivered in its new version when they are
  done with the old one, or their time is over, not beside them. Acknowledging drops the version
  that was delivered and no other.
- Redelivery is told by counting deliveries, of single and of batch polls alike; the seed compares
  instants, which an update resets.
- A message has one instant, at which it is due. That of one that comes again is when its holder's
  time was over; the seed keeps the first beside it (`scheduledAtInitially`), to tell redelivery by.
  In a header it would cost each message a third more memory, and the same offer by a client that
  writes none would be another message. Who needs it says it in the payload.
- A batch of offers is one push: up to 10,000 go all or none. The seed falls back to one by one.
- The store's clock decides what is due, not each client's.

Every call blocks; its asynchronous twin begins with `a`. On a bare Store only those can be used.
"""

from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from itertools import accumulate, islice
from typing import Any, Final, Generic, Literal, TypeVar, overload

import msgspec

from penstock.client.app import Penstock
from penstock.client.arguments import Unsendable, encoded
from penstock.client.errors import BadDeclaration
from penstock.client.said import instant_ms, iterable, lease_time
from penstock.model.checks_values import (
    check_bool,
    check_codec,
    check_int,
    check_name,
    check_queue,
    check_tenant,
    show,
)
from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Deadline, Invalid, LeaseLost
from penstock.model.job import (
    MAX_BATCH,
    Codec,
    Job,
    JobOptions,
    KeyClaim,
    Lease,
    Outcome,
    Run,
)
from penstock.model.lifecycle import ENDED, State
from penstock.model.policy import Backoff
from penstock.model.store import Store

M = TypeVar("M")
T = TypeVar("T")

Instant = datetime | int  # an int: milliseconds since the epoch
Delivery = Literal["first", "redelivery"]

ACQUIRE_TIMEOUT: Final = "5m"
WAIT_MS: Final = 30_000  # of one call; a longer wait is several


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One message of `offer_batch`."""

    key: str
    payload: Any
    at: Instant | None = None  # None: at once
    can_update: bool = False  # whether it takes the place of one that is there


class Message(Generic[M]):
    """A message as it is read: nobody holds it by that."""

    def __init__(self, queue: "DelayedQueue[M]", job: Job) -> None:
        self._queue = queue
        self._job = job

    def __repr__(self) -> str:
        return f"<message {self.key!r} of {self._queue.name}, {self.delivery} delivery>"

    @property
    def key(self) -> str:
        return self._job.key or ""

    @property
    def id(self) -> int:
        return self._job.id

    @property
    def at(self) -> int:
        """When it was, or is, due; milliseconds since the epoch. Of a redelivery: when the time of whoever
        held it before was over."""
        return self._job.run_at

    @property
    def delivery(self) -> Delivery:
        """Whether somebody held this version before and did not acknowledge it."""
        job = self._job
        held_now = job.state is State.ACTIVE
        return "redelivery" if job.attempt > held_now else "first"

    @property
    def payload(self) -> M:
        """Raises Invalid if it is not what the queue's messages are."""
        return self._queue.decoded(self._job.payload)


class AckEnvelope(Message[M]):
    """A message that was delivered, and is held for `acquire_timeout`."""

    def __init__(self, queue: "DelayedQueue[M]", job: Job, lease: str) -> None:
        super().__init__(queue, job)
        self._lease = lease

    async def aacknowledge(self) -> bool:
        """Drop the version that was delivered; False if it is held no longer."""
        return bool(await self._queue._ack(self._lease, [self.id]))

    def acknowledge(self) -> bool:
        return self._queue._run(self.aacknowledge(), "acknowledge()", "aacknowledge()")


class AckBatch(Sequence[AckEnvelope[M]]):
    """Messages that were delivered together; each may be acknowledged by itself."""

    def __init__(self, queue: "DelayedQueue[M]", lease: Lease | None) -> None:
        self._queue = queue
        self._lease = None if lease is None else lease.token
        self._jobs = [] if lease is None else lease.jobs

    def __repr__(self) -> str:
        return f"<{len(self)} messages of {self._queue.name}>"

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> AckEnvelope[M]: ...
    @overload
    def __getitem__(self, index: slice) -> list[AckEnvelope[M]]: ...
    def __getitem__(self, index: int | slice) -> AckEnvelope[M] | list[AckEnvelope[M]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return AckEnvelope(self._queue, self._jobs[index], self._lease or "")

    async def aacknowledge(self) -> int:
        """Drop those that are still held; answers how many."""
        return 0 if self._lease is None else await self._queue._ack(self._lease, None)

    def acknowledge(self) -> int:
        return self._queue._run(self.aacknowledge(), "acknowledge()", "aacknowledge()")


class DelayedQueue(Generic[M]):
    """Every call blocks; its asynchronous twin begins with `a`. On a bare Store only those are."""

    @overload
    def __init__(
        self: "DelayedQueue[Any]",
        where: Penstock | Store,
        name: str,
        *,
        codec: Codec = ...,
        acquire_timeout: Duration = ...,
        tenant: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        where: Penstock | Store,
        name: str,
        kind: type[M],
        *,
        codec: Codec = ...,
        acquire_timeout: Duration = ...,
        tenant: str = ...,
    ) -> None: ...
    def __init__(
        self,
        where: Penstock | Store,
        name: str,
        kind: Any = Any,
        *,
        codec: Codec = "json",
        acquire_timeout: Duration = ACQUIRE_TIMEOUT,
        tenant: str = "default",
    ) -> None:
        """`kind` is what messages are decoded to. An app brings its own tenant."""
        if not isinstance(where, Penstock | Store):
            raise BadDeclaration(f"is {show(where)}, not an app or a store", "where")
        check_codec(codec)
        check_queue(name, "name")
        check_tenant(tenant)
        self.name = name
        self.queue = f"{name}.{codec}"  # what it is called in the store
        check_queue(self.queue, "name")
        self.codec = codec
        self.lease_ms = lease_time(acquire_timeout, "acquire_timeout")
        self.options = JobOptions(
            codec=codec,
            max_attempts=0,
            backoff=Backoff(kind="none"),
            lease_ms=self.lease_ms,
            retain_ms=0,
        )
        self._where = where
        self._tenant = tenant
        self._kind = _decodable(kind)

    def __repr__(self) -> str:
        return f"<delayed queue {self.queue}>"

    # -- offering --------------------------------------------------------------------------------

    async def aoffer_or_update(self, key: str, payload: M, at: Instant | None = None) -> Outcome:
        """Take the place of the message of that key, if there is one.

        Answers created, updated, or ignored: what is there is the same, its instant included.
        """
        (outcome,) = await self.aoffer_batch(
            [Offer(key=key, payload=payload, at=at, can_update=True)]
        )
        return outcome

    def offer_or_update(self, key: str, payload: M, at: Instant | None = None) -> Outcome:
        call = self.aoffer_or_update(key, payload, at)
        return self._run(call, "offer_or_update()", "aoffer_or_update()")

    async def aoffer_if_not_exists(
        self, key: str, payload: M, at: Instant | None = None
    ) -> Outcome:
        """Answers created, or ignored: there is one of that key."""
        (outcome,) = await self.aoffer_batch([Offer(key=key, payload=payload, at=at)])
        return outcome

    def offer_if_not_exists(self, key: str, payload: M, at: Instant | None = None) -> Outcome:
        call = self.aoffer_if_not_exists(key, payload, at)
        return self._run(call, "offer_if_not_exists()", "aoffer_if_not_exists()")

    async def aoffer_batch(self, offers: Iterable[Offer]) -> list[Outcome]:
        """Many at once; answers their outcomes, in order. Each 10,000 go all or none."""
        outcomes: list[Outcome] = []
        rest = iter(iterable(offers, "offers", "several Offer(…)"))
        while some := list(islice(rest, MAX_BATCH)):
            for each in some:
                _check_offer(each)
            claims = [
                KeyClaim(each.key, "replace" if each.can_update else "return") for each in some
            ]
            pushed = await self._push(
                [self.encoded(each.payload) for each in some],
                [instant_ms(each.at, "at") for each in some],
                claims,
            )
            outcomes += [outcome for _, outcome in pushed]
        return outcomes

    def offer_batch(self, offers: Iterable[Offer]) -> list[Outcome]:
        return self._run(self.aoffer_batch(offers), "offer_batch()", "aoffer_batch()")

    async def _push(
        self,
        payloads: Sequence[bytes],
        run_at: Sequence[int | None],
        claims: Sequence[KeyClaim],
    ) -> list[tuple[int, Outcome]]:
        """(id, outcome) of each. What happens to a taken key is said by its claim and not by the
        options, so that the same message offered both ways is the same."""
        run = Run(
            queue=self.queue,
            data=b"".join(payloads),
            ends=list(accumulate(map(len, payloads))),
            options=(self.options,),
            run_at=list(run_at) if any(at is not None for at in run_at) else None,
            more_keys=[(claim,) for claim in claims],
        )
        store = await self.store()
        return (await store.push(self.tenant, [run])).jobs

    # -- polling ---------------------------------------------------------------------------------

    async def atry_poll(self) -> AckEnvelope[M] | None:
        """The message that is due the longest, if one is."""
        found = await self._claim(1, 0)
        return found[0] if found else None

    def try_poll(self) -> AckEnvelope[M] | None:
        return self._run(self.atry_poll(), "try_poll()", "atry_poll()")

    async def atry_poll_many(self, n: int) -> AckBatch[M]:
        """Up to `n` messages that are due, in order; none if none is."""
        check_int(n, "n", 1, MAX_BATCH)
        return await self._claim(n, 0)

    def try_poll_many(self, n: int) -> AckBatch[M]:
        return self._run(self.atry_poll_many(n), "try_poll_many()", "atry_poll_many()")

    async def apoll(self, timeout: Duration | None = None) -> AckEnvelope[M]:  # noqa: ASYNC109
        """Wait for the next message; without a timeout as long as it takes, with one Deadline."""
        left = None if timeout is None else duration_ms(timeout, "timeout")
        while True:
            wait = WAIT_MS if left is None else min(left, WAIT_MS)
            found = await self._claim(1, wait)
            if found:
                return found[0]
            if left is not None:
                left -= wait
                if left <= 0:
                    raise Deadline(f"no message of {self.name!r} was due in time")

    def poll(self, timeout: Duration | None = None) -> AckEnvelope[M]:
        return self._run(self.apoll(timeout), "poll()", "apoll()")

    async def _claim(self, n: int, wait_ms: int) -> AckBatch[M]:
        store = await self.store()
        lease = await store.claim(
            self.tenant, [self.queue], n, lease_ms=self.lease_ms, wait_ms=wait_ms
        )
        return AckBatch(self, lease)

    async def _ack(self, lease: str, ids: Sequence[int] | None) -> int:
        store = await self.store()
        try:
            return len((await store.ack(self.tenant, lease, ids)).acked)
        except LeaseLost:
            return 0

    # -- looking and dropping --------------------------------------------------------------------

    async def aread(self, key: str) -> Message[M] | None:
        """The message of that key, held by nobody through this; None if there is none."""
        job = await self._known(key)
        return None if job is None else Message(self, job)

    def read(self, key: str) -> Message[M] | None:
        return self._run(self.aread(key), "read()", "aread()")

    async def acontains(self, key: str) -> bool:
        return await self._known(key) is not None

    def contains(self, key: str) -> bool:
        return self._run(self.acontains(key), "contains()", "acontains()")

    async def adrop(self, key: str) -> bool:
        """Drop the message of that key, even while somebody holds it; False if there is none."""
        check_name(key, "key")
        store = await self.store()
        job_id = await store.by_key(self.tenant, self.queue, key)
        if job_id is None:
            return False
        return bool((await store.cancel(self.tenant, [job_id])).acked)

    def drop(self, key: str) -> bool:
        return self._run(self.adrop(key), "drop()", "adrop()")

    async def adrop_all(self, confirm: str) -> int:
        """Drop every message, held ones too; answers how many. `confirm` is the queue's name."""
        if confirm != self.name:
            raise Invalid(f"say the name of the queue, {self.name!r}, to empty it", "confirm")
        store = await self.store()
        return await store.purge(self.tenant, self.queue)

    def drop_all(self, confirm: str) -> int:
        return self._run(self.adrop_all(confirm), "drop_all()", "adrop_all()")

    async def _known(self, key: str) -> Job | None:
        check_name(key, "key")
        store = await self.store()
        job_id = await store.by_key(self.tenant, self.queue, key)
        if job_id is None:
            return None
        (job,) = await store.get(self.tenant, [job_id])
        # A key may be kept longer than its message: those of crons are.
        return None if job is None or job.state in ENDED else job

    # -- what it stands on -----------------------------------------------------------------------

    @property
    def tenant(self) -> str:
        return self._where.tenant if isinstance(self._where, Penstock) else self._tenant

    async def store(self) -> Store:
        return await self._where.home.store() if isinstance(self._where, Penstock) else self._where

    def encoded(self, payload: M) -> bytes:
        try:
            sent = encoded(self.codec, payload)
        except Unsendable as error:
            raise Invalid(f"cannot be sent: {error}", "payload") from error
        self.decoded(sent)  # or whoever polls it cannot
        return sent

    def decoded(self, payload: bytes) -> M:
        if self.codec == "bytes":
            return payload  # type: ignore[return-value]
        decode: Any = msgspec.json.decode if self.codec == "json" else msgspec.msgpack.decode
        try:
            return decode(payload, type=self._kind)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(
                f"is not what {self.name!r} has messages of: {error}", "payload"
            ) from None

    def _run(self, call: Coroutine[Any, Any, T], said: str, instead: str) -> T:
        if isinstance(self._where, Penstock):
            return self._where.home.run(call, said, instead)
        call.close()
        raise BadDeclaration(f"{said} needs an app, not a store: use `await {instead}`")


def _check_offer(offer: Offer) -> None:
    if not isinstance(offer, Offer):
        raise BadDeclaration(f"has {show(offer)} in it, not an Offer(key=…, payload=…)", "offers")
    check_name(offer.key, "key")
    check_bool(offer.can_update, "can_update")


def _decodable(kind: Any) -> Any:
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError) as error:
        raise BadDeclaration(
            f"{show(kind)} is nothing that messages can be decoded to: {error}", "kind"
        ) from None
    return kind
