"""Opening an embedded store that keeps what it is told: ownership, recovery, and going on."""

import logging
import os
import threading
from pathlib import Path
from typing import Final

import msgspec

from penstock.kernel import commands as c
from penstock.kernel.kernel import VERSION
from penstock.kernel.read import totals
from penstock.model.duration import about_ms
from penstock.model.errors import Invalid, NotFound, Unavailable
from penstock.model.event import EventKeeper, EventSink
from penstock.model.policy import Caps
from penstock.stores.clock import Clock, ManualClock, SteadyClock
from penstock.stores.engine import Engine
from penstock.stores.finishing import in_a_thread, until_cancelled
from penstock.stores.forking import stays_with_the_parent
from penstock.stores.journal import frames
from penstock.stores.journal.base import Journal, JournalError
from penstock.stores.journal.ownership import Ownership, witnessed
from penstock.stores.journal.recovery import Recovered, cut, recover
from penstock.stores.journal.replaying import Interrupted
from penstock.stores.journal.settings import Settings
from penstock.stores.journal.space import Ballast, is_networked
from penstock.stores.journal.there import check_kind, check_ours, hindrance, is_there
from penstock.stores.keeper import Keeper
from penstock.stores.stored_payloads import StoredPayloads

log: Final = logging.getLogger("penstock.store")


async def open_durable(
    journal: Journal,
    path: Path,
    settings: Settings,
    *,
    clock: Clock,
    caps: Caps,
    events: EventSink | None,
    observer: EventSink | None,
    seed: int | None,
) -> Engine:
    """The engine of the store at that path, recovered and ready; its journal is not open yet."""
    if settings.durability == "memory":
        raise Invalid("a store on a disk keeps at least what the system does: os", "durability")
    if settings.backup_every_s and not settings.backup_dir:
        raise Invalid("backups on an interval need a backup_dir", "backup_dir")
    draw = int.from_bytes(os.urandom(8)) if seed is None else seed
    if settings.mode == "ro":
        return await _open_read_only(journal, path, clock, caps, draw)
    if is_networked(path.parent):
        raise Invalid(
            f"{path} lies on a network file system, which keeps no locks; use a local disk", "url"
        )
    ownership = Ownership(path)
    ownership.take()
    kept = events if isinstance(events, EventKeeper) else None
    try:
        recovered = await until_cancelled(_recover, journal, path, draw, caps, False, kept)
        return _go_on(journal, path, settings, recovered, clock, caps, events, observer, ownership)
    except BaseException:
        if kept is not None:
            await in_a_thread(kept.close)
        journal.close()
        ownership.undo()
        raise


def _recover(
    journal: Journal,
    path: Path,
    seed: int,
    caps: Caps,
    read_only: bool,
    events: EventKeeper | None,
    stop: threading.Event,
) -> Recovered:
    if read_only and not is_there(journal.scheme, path):
        raise NotFound(f"there is no store at {path}", "url")
    store, position = witnessed(path)  # before we look: its owner may go on meanwhile
    known = position > 0
    if not path.exists():
        if position:
            log.warning("the store that was at %s is gone: an empty one begins there", path)
        position = 0
    try:
        check_kind(journal.scheme, path)
        if not read_only and not known:
            check_ours(journal.scheme, path)
        facts = journal.open(read_only=read_only)
        found = recover(
            journal,
            facts,
            seed,
            caps,
            read_only=read_only,
            events=events,
            name=str(path),
            stop=stop,
        )
        _check_witness(path, store, position, found)
        cut(journal, found, read_only=read_only)
        if found.retelling is not None:
            found.store = found.retelling.end()
        if not read_only:
            journal.forget_after(found.checkpoint.number)
    except (Interrupted, Unavailable):  # of us, or of the event log
        raise
    except JournalError as error:
        why = (hindrance(journal.scheme, path) if read_only else None) or error
        raise Unavailable(f"the store cannot be opened: {why}") from error
    except OSError as error:
        raise Unavailable(f"the store cannot be opened: {path}: {error.strerror}") from error
    except Exception as error:  # there is no end to what damage makes of values
        raise Unavailable(f"the store cannot be opened: it is damaged: {error!r}") from error
    return found


def _check_witness(path: Path, store: str, position: int, found: Recovered) -> None:
    """What was synced must be there."""
    ours = found.new or store == found.store
    if ours and position > found.reached:
        raise JournalError(
            f"position {position} was on stable storage, and what is there ends at"
            f" {found.reached}: it is damaged, or an older copy. If you put an older copy"
            f" there on purpose, delete {path.name}.lock"
        )


def _go_on(
    journal: Journal,
    path: Path,
    settings: Settings,
    found: Recovered,
    clock: Clock,
    caps: Caps,
    events: EventSink | None,
    observer: EventSink | None,
    ownership: Ownership,
) -> Engine:
    kernel = found.kernel
    steady = SteadyClock.going_on(clock, kernel.elapsed, found.boot, found.offset)
    payloads = StoredPayloads(journal.chunk, found.next_chunk, settings.cache_bytes)
    for chunk in found.orphans:
        payloads.drop(chunk)
    paced = not isinstance(clock, ManualClock)
    engine = Engine(steady, kernel, payloads, events, paced=paced, observer=observer)
    stays_with_the_parent(engine)
    ballast = Ballast(path.with_name(path.name + ".ballast"), settings.reserve_bytes)
    ballast.fill()
    keeper = engine.keeper = Keeper(
        journal,
        found,
        payloads,
        ballast,
        settings,
        ownership,
        lambda error: engine.end(f"the store has ended: {error}"),
        events if isinstance(events, EventKeeper) else None,
    )
    facts = {"closed": False, "boot": steady.boot, "offset": steady.offset}
    facts |= {"store": found.store, "events": isinstance(events, EventKeeper)}
    if found.new:
        facts |= {
            "format": frames.FORMAT,
            "kernel": VERSION,
            "seed": kernel.seed,
            "caps": msgspec.to_builtins(caps),
        }
    keeper.put(**facts)
    engine.apply(c.Resume(caps, None if found.clean else found.reserved))
    _report(path, found)
    return engine


def _report(path: Path, found: Recovered) -> None:
    if found.new:
        return
    log.info(
        "%s: %s; %d crons; %d records replayed in %s%s",
        path,
        ", ".join(f"{n} {state}" for state, n in sorted(totals(found.kernel).items())) or "no jobs",
        len(found.kernel.crons),
        found.replayed,
        about_ms(found.seconds * 1_000),
        "" if found.clean else "; it had not been closed",
    )


async def _open_read_only(
    journal: Journal, path: Path, clock: Clock, caps: Caps, seed: int
) -> Engine:
    try:
        found = await until_cancelled(_recover, journal, path, seed, caps, True, None)
    except BaseException:
        journal.close()
        raise
    steady = SteadyClock.going_on(clock, found.kernel.elapsed, found.boot, found.offset)
    payloads = StoredPayloads(journal.chunk, found.next_chunk)
    engine = Engine(steady, found.kernel, payloads, None, paced=False)
    engine.read_only = journal
    return engine
