"""url → Store: the one place that knows which stores there are.

A store is imported when it is opened: the client of a server needs no kernel.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.events.log import EventLog, event_log
from penstock.model.errors import Invalid, Unavailable
from penstock.model.event import EventSink
from penstock.model.policy import DEFAULT_CAPS, Caps
from penstock.model.store import Store
from penstock.stores.clock import Clock, SystemClock
from penstock.stores.finishing import in_a_thread
from penstock.stores.urls import ON_A_DISK, path_of, settings_of, shown, split

if TYPE_CHECKING:
    from penstock.stores.embedded import EmbeddedStore
    from penstock.stores.journal.base import Journal


IS_IT_RUNNING: Final = "is penstock serve running there?"  # of a server that does not answer


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    caps: Caps = DEFAULT_CAPS,
    events: EventSink | str | Path | None = None,
    observer: EventSink | None = None,
    seed: int | None = None,
    share: bool = True,
    token: str | None = None,
) -> Store:
    """Open the store that `url` names, ready for use. Close it when done.

    - `memory://` keeps nothing beyond its process.
    - `sqlite:///jobs.db` (relative), `sqlite:////var/lib/jobs.db` (absolute): one file.
    - `rocksdb:///jobs` likewise: a directory.
    - `penstock://host:6789` and `penstock+unix:///path`: a server; `penstock://:token@host` says
      who we are, or `token` does where the url does not. Its clock, caps, events and seed are
      its own.

    A durable store takes settings behind a `?`: see `penstock.stores.journal.settings.Settings`.
    `events` keeps what happened, `observer` counts it: see `EventSink`. Both are told by a store that
    is this process's (`owned`); `penstock.telemetry.following` hears of others. A path is the
    directory of an event log (`EventLog`); a durable store's url can name it as well.
    `seed` fixes the jitter of backoffs (tests); None draws one for a new store. Several processes
    may open one path: the first owns it and serves the others, unless it is not to `share` it.
    """
    parts = split(url)
    if isinstance(events, str | Path):
        events = EventLog(events)
    if parts.scheme == "memory":
        from penstock.stores.embedded import EmbeddedStore

        if isinstance(events, EventLog):
            await in_a_thread(events.begin, os.urandom(16).hex())
        return EmbeddedStore.in_memory(
            clock=clock, caps=caps, events=events, observer=observer, seed=seed
        )
    if parts.scheme in ("penstock", "penstock+unix"):
        from penstock.stores.remote import RemoteStore
        from penstock.stores.target import target_of

        if isinstance(events, EventLog):
            raise Invalid("a server keeps its own events: penstock serve --events DIR", "events")
        store = RemoteStore(target_of(url, None if "@" in parts.netloc else token))
        try:
            await store.connect()
        except Unavailable as error:
            raise Unavailable(f"{error.message}; {IS_IT_RUNNING}") from error
        return store
    path, settings = path_of(url, parts), settings_of(parts.query)
    journal = JOURNALS[parts.scheme]
    journal(path)  # or say what it needs
    if settings.events:
        if events is not None:
            raise Invalid("the url has an event log already", "events")
        events = event_log(
            settings.events,
            seal_s=settings.events_seal_s,
            keep_s=settings.events_keep_s,
            keep_bytes=settings.events_keep_bytes,
        )
    sink = events

    async def own() -> "EmbeddedStore":
        from penstock.stores.durable import open_durable
        from penstock.stores.embedded import EmbeddedStore

        engine = await open_durable(
            journal(path),
            path,
            settings,
            clock=clock or SystemClock(),
            caps=caps,
            events=sink,
            observer=observer,
            seed=seed,
        )
        return EmbeddedStore(engine, parts.scheme)

    if not share or settings.mode == "ro":
        return await own()
    from penstock.stores.shared import SharedStore

    shared = SharedStore(path, own)
    await shared.open()
    return shared


def journal_at(url: str) -> "tuple[Journal, Path]":
    """The journal of a durable store, not open, and where it lies."""
    parts = split(url)
    if parts.scheme == "memory":
        raise Invalid(
            f"a store in memory lies nowhere; this needs one on a disk: {ON_A_DISK}", "url"
        )
    if parts.scheme not in JOURNALS:
        raise Invalid(
            f"{shown(url)} is a server; this needs the store itself, on the server's machine:"
            f" {ON_A_DISK}",
            "url",
        )
    path = path_of(url, parts)
    settings_of(parts.query)  # or say what is wrong with them
    return JOURNALS[parts.scheme](path), path


def _sqlite(path: Path) -> "Journal":
    from penstock.stores.journal.sqlite import SqliteJournal

    return SqliteJournal(path)


def _rocksdb(path: Path) -> "Journal":
    try:
        from penstock.stores.journal.rocksdb import RocksJournal
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        raise Invalid(
            "rocksdb:// needs rocksdict: pip install 'penstock[rocksdb]'", "url"
        ) from None
    return RocksJournal(path)


JOURNALS: Final[dict[str, Callable[[Path], "Journal"]]] = {"sqlite": _sqlite, "rocksdb": _rocksdb}
