"""Opening: the kernel as it was, from the last checkpoint and the log behind it.

Every record is applied by the same kernel and its decision compared with the one in the log. The
first difference, and anything that is whole but not what was written, refuses to open and names
the record. Only a log that simply ends early is cut at its last whole record, and says so.
"""

import logging
import os
import threading
from contextlib import closing
from time import perf_counter
from typing import Any, Final

import msgspec

from penstock.kernel.kernel import VERSION, Kernel
from penstock.model.errors import Invalid, PenstockError
from penstock.model.event import EventKeeper
from penstock.model.policy import Caps
from penstock.stores.journal import frames
from penstock.stores.journal.base import Batch, Group, Journal, JournalError
from penstock.stores.journal.checkpointer import CheckpointFact
from penstock.stores.journal.replaying import Replaying
from penstock.stores.journal.retelling import Retelling

log: Final = logging.getLogger("penstock.store")


# Written with the first record, and never gone since.
FACTS: Final = frozenset(["format", "kernel", "seed", "caps", "head", "boot", "offset", "closed"])
ANY: Final = 2**62  # beyond every checkpoint


class Recovered(msgspec.Struct, kw_only=True):
    kernel: Kernel
    checkpoint: CheckpointFact
    new: bool = False  # there was nothing
    clean: bool = True  # it had been closed
    replayed: int = 0
    # Of the log behind the last checkpoint: one may have been written on the way.
    records: int = 0
    log_bytes: int = 0
    replay_s: float = 0.0
    torn: Group | None = None  # the last group if it ends early, until it is cut
    cut: int = 0  # bytes of a torn record at its end
    seconds: float = 0.0
    reserved: int = 0
    orphans: list[int] = []  # chunks that nobody needs
    next_chunk: int = 1
    boot: str = ""
    offset: int = 0  # of the elapsed clock to the machine's
    store: str = ""  # names this store among all
    retelling: Retelling | None = None  # of events, to be ended

    @property
    def reached(self) -> int:
        """The last position that the log knows of, though its record may be torn."""
        return self.kernel.position if self.torn is None else self.torn.last


def recover(
    journal: Journal,
    facts: dict[str, Any],
    seed: int,
    caps: Caps,
    *,
    read_only: bool = False,
    events: EventKeeper | None = None,
    name: str = "the store",
    stop: threading.Event | None = None,
) -> Recovered:
    """`events` gets what it has not got yet of the events of the records behind the checkpoint.

    `stop`, once set, ends it by Interrupted.
    """
    began = perf_counter()
    replaying = Replaying(name, stop, keeps=not read_only)
    store = facts.get("store", "") or os.urandom(16).hex()
    if not facts:
        _check_empty(journal)
        if events is not None:
            events.begin(store)
        kernel = Kernel(seed, caps)
        return Recovered(kernel=kernel, checkpoint=CheckpointFact(), new=True, store=store)
    _check_versions(facts)
    checkpoint = msgspec.convert(facts.get("checkpoint", {}), CheckpointFact)
    made_with = checkpoint.caps or msgspec.convert(facts["caps"], Caps)
    head = facts.get("head", checkpoint.position)
    replaying.of = head - checkpoint.position
    kernel = _restore(journal, checkpoint, facts["seed"], made_with, replaying)
    found = Recovered(
        kernel=kernel,
        checkpoint=checkpoint,
        clean=facts.get("closed", False),
        reserved=facts.get("reserved", 0),
        boot=facts.get("boot", ""),
        offset=facts.get("offset", 0),
        store=store,
    )
    if events is not None:
        found.retelling = Retelling(kernel, events, store, whole=facts.get("events", False))
    replaying.begin()
    found.torn = torn = _replay(journal, found, replaying)
    if torn is not None:
        found.cut = len(torn.data) - frames.whole_length(torn.data) or 1
        found.clean = False  # ids were given that nobody here knows of
    if found.reached < head:
        raise JournalError(
            f"records {found.reached + 1} to {head} of the log are missing: it is damaged"
        )
    if kernel.next_block > found.reserved:
        raise JournalError("ids were given beyond those reserved: the facts are damaged")
    _check_chunks(journal, found)
    kernel.freed.clear()
    found.seconds = perf_counter() - began
    return found


def _check_empty(journal: Journal) -> None:
    """A journal without facts has just been made, and holds nothing else either."""
    if any(journal.groups(0)) or any(journal.chunk_ids(0)) or any(journal.rows(ANY)):
        raise JournalError("there is content and no facts about it: the store is damaged")


def _check_versions(facts: dict[str, Any]) -> None:
    missing = sorted(FACTS - facts.keys())
    if missing:
        raise JournalError(f"the facts {', '.join(missing)} are missing: the store is damaged")
    if facts["format"] != frames.FORMAT:
        raise JournalError(
            f"the store is of format {facts['format']}; this release reads {frames.FORMAT}"
        )
    if facts["kernel"] != VERSION:
        raise JournalError(
            f"the log was written by kernel version {facts['kernel']}; this release has {VERSION},"
            " and replays no other: use the release that wrote it"
        )


def _nothing(seed: int, caps: Caps) -> Kernel:
    """An empty kernel that has begun to note what changes, so that its first checkpoint is small."""
    kernel = Kernel(seed, caps)
    checkpoint = kernel.checkpoint()
    while checkpoint.rows(1):
        pass  # the few facts about nothing; every checkpoint writes them anew
    checkpoint.finish()
    return kernel


def _restore(
    journal: Journal, checkpoint: CheckpointFact, seed: int, caps: Caps, replaying: Replaying
) -> Kernel:
    if not checkpoint.number:
        return _nothing(seed, caps)
    counts: dict[str, int] = {}
    blobs = []
    for row in journal.rows(checkpoint.number):
        if row.data is not None:
            counts[row.kind] = counts.get(row.kind, 0) + 1
            blobs.append(row.data)
        if perf_counter() >= replaying.at:
            replaying.look(0)
    for kind, n in checkpoint.counts.items():
        if counts.get(kind, 0) != n:
            raise JournalError(
                f"checkpoint {checkpoint.number} has {n} {kind}, of which"
                f" {counts.get(kind, 0)} are there: it is damaged"
            )
    try:
        kernel = Kernel.decode(blobs, caps, clean=True)
    except (Invalid, msgspec.MsgspecError) as error:
        raise JournalError(f"checkpoint {checkpoint.number} cannot be read: {error}") from error
    if kernel.position != checkpoint.position:
        raise JournalError(
            f"checkpoint {checkpoint.number} is of position {kernel.position},"
            f" not {checkpoint.position}: it is damaged"
        )
    return kernel


def _replay(journal: Journal, found: Recovered, replaying: Replaying) -> Group | None:
    """Answers the last group if it ends early."""
    while True:
        torn = _replay_on(journal, found, replaying)
        found.replay_s = replaying.since_s
        if torn is not None or not replaying.worth:
            return torn
        found.checkpoint = replaying.keep(
            journal, found.kernel, found.checkpoint, found.store, found.retelling
        )
        if found.checkpoint.position == found.kernel.position:
            found.records = found.log_bytes = 0


def _replay_on(journal: Journal, found: Recovered, replaying: Replaying) -> Group | None:
    """To the end, or until it is time to keep what has been replayed."""
    kernel, retelling = found.kernel, found.retelling
    torn: Group | None = None
    with closing(journal.groups(kernel.position)) as groups:
        for group in groups:
            if torn is not None:
                raise JournalError(
                    f"the group of records {torn.first} to {torn.last} ends early and is not the"
                    " last: the log is damaged"
                )
            last = group.first - 1
            try:
                for record in frames.decode(group.data):
                    if record.position != last + 1:
                        raise frames.Corrupt(f"position {record.position} follows {last}")
                    last = record.position
                    if last > kernel.position:
                        _apply(kernel, record)
                        found.replayed += 1
                        found.records += 1
                        if retelling is not None:
                            retelling.applied()
                        if perf_counter() >= replaying.at:
                            replaying.look(found.replayed)
            except frames.Corrupt as error:
                raise JournalError(f"the log is damaged: {error}") from None
            found.log_bytes += len(group.data)
            if last < group.last:
                torn = group
            elif replaying.worth:
                break
    return torn


def _apply(kernel: Kernel, record: frames.Record) -> None:
    if record.position != kernel.position + 1:
        raise frames.Corrupt(f"position {record.position} follows {kernel.position}")
    kernel.position = record.position
    name = type(record.command).__name__
    try:
        outcome = kernel.apply(record.command, record.now, record.elapsed)
    except PenstockError as error:
        raise JournalError(
            f"the {name} of position {record.position} was carried out when it was written,"
            f" and is refused at the replay: {error}"
        ) from error
    decided = frames.decision(outcome)
    if decided != record.decision:
        raise JournalError(
            f"the {name} of position {record.position} decided"
            f" {msgspec.msgpack.decode(record.decision)!r} when it was written,"
            f" and {msgspec.msgpack.decode(decided)!r} at the replay"
        )


def cut(journal: Journal, found: Recovered, *, read_only: bool = False) -> None:
    """A log that ends within a record ends behind the last whole one from now on, and says so. Not
    before everything else that was found has been believed: it cannot be undone."""
    torn = found.torn
    if torn is None:
        return
    log.warning(
        "the log ends within a record: cut after position %d of %d (%d bytes)",
        found.kernel.position,
        torn.last,
        found.cut,
    )
    found.torn = None
    if read_only:
        return
    whole = torn.data[: frames.whole_length(torn.data)]
    journal.write(
        Batch(
            group=Group(torn.first, found.kernel.position, whole),
            facts={"head": found.kernel.position},
            sync=True,
        )
    )


def _check_chunks(journal: Journal, found: Recovered) -> None:
    missing = dict(found.kernel.chunks)
    highest = max(missing, default=0)
    for chunk in journal.chunk_ids(found.checkpoint.chunk_floor):
        highest = max(highest, chunk)
        if missing.pop(chunk, None) is None:
            found.orphans.append(chunk)
    if missing:
        raise JournalError(f"payload chunk {min(missing)} is missing (of {len(missing)})")
    found.next_chunk = highest + 1
