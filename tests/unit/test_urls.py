"""A url that names no store says what is wrong with it, and how a right one looks."""

import asyncio
from pathlib import Path

import pytest

from penstock.model.errors import Invalid
from penstock.model.urls import without_password
from penstock.open import journal_at, open_store


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SLASHES = (
    "three slashes begin a path from here, sqlite:///{0}, four one from the root, sqlite:////{0}"
)
KNOWN = "memory://, sqlite:///path, rocksdb:///path and penstock://host are"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "is empty: a store is a url, like sqlite:///jobs.db or penstock://host"),
        ("jobs.db", "'jobs.db' is no url; if it is a path, sqlite:///jobs.db is"),
        ("./jobs.db", "'./jobs.db' is no url; if it is a path, sqlite:///./jobs.db is"),
        ("/a/jobs.db", "'/a/jobs.db' is no url; if it is a path, sqlite:////a/jobs.db is"),
        ("memory", "'memory' is no url; memory:// is"),
        ("penstock", "'penstock' is no url; penstock://host is"),
        ("memory://x", "'memory://x' names more than memory:// does"),
        ("memory:", "'memory:' lacks its slashes: memory://"),
        ("redis://x", f"'redis://x' is no store that this release knows; {KNOWN}"),
        ("redis://:pw@x", f"'redis://:***@x' is no store that this release knows; {KNOWN}"),
        ("rockdb:///x", "'rockdb:///x' is no store that this release knows; rocksdb:///path is"),
        ("penstok://h", "'penstok://h' is no store that this release knows; penstock://host is"),
        (
            "http://h:6790",
            "'http://h:6790' is where a server speaks HTTP; as a store it is penstock://h,"
            " with the port of TCP unless that is 6789",
        ),
        ("sqlite://", f"'sqlite://' names no path: {SLASHES.format('jobs.db')}"),
        ("sqlite:///", f"'sqlite:///' names no path: {SLASHES.format('jobs.db')}"),
        ("sqlite://jobs.db", f"'sqlite://jobs.db' names no path: {SLASHES.format('jobs.db')}"),
        ("sqlite:jobs.db", f"'sqlite:jobs.db' names no path: {SLASHES.format('jobs.db')}"),
        ("sqlite:/a/b.db", f"'sqlite:/a/b.db' names no path: {SLASHES.format('a/b.db')}"),
        ("sqlite:///d/", "'sqlite:///d/' names no path: it ends with a slash; sqlite:///d is"),
        (
            "sqlite:////srv/d/",
            "'sqlite:////srv/d/' names no path: it ends with a slash; sqlite:////srv/d is",
        ),
        (
            "sqlite://:pw@jobs.db",
            f"'sqlite://:***@jobs.db' names no path: {SLASHES.format('jobs.db')}",
        ),
        (
            "penstock://[::1]:x",
            "'penstock://[::1]:x' has no port from 1 to 65535: penstock://[::1]:6789",
        ),
        (
            "sqlite:///jobs#1.db",
            "'sqlite:///jobs#1.db' names no path: a # in one is said %23, sqlite:///jobs%231.db",
        ),
        ("sqlite:///a%00b", "'sqlite:///a%00b' names no path: it has a NUL character in it"),
        ("penstock://", "'penstock://' names no host: penstock://host:6789"),
        (
            "penstock:///run/x.sock",
            "'penstock:///run/x.sock' names no host: penstock://host:6789;"
            " a socket is penstock+unix:///run/x.sock",
        ),
        ("penstock:h", "'penstock:h' names no host: penstock://host:6789"),
        ("penstock://h:x", "'penstock://h:x' has no port from 1 to 65535: penstock://h:6789"),
        ("penstock://h:0", "'penstock://h:0' has no port from 1 to 65535: penstock://h:6789"),
        (
            "penstock://h:99999",
            "'penstock://h:99999' has no port from 1 to 65535: penstock://h:6789",
        ),
        (
            "penstock://h/emails",
            "'penstock://h/emails' names more than a server: penstock://h is one",
        ),
        (
            "penstock://:pst_1@h/emails",
            "'penstock://:***@h/emails' names more than a server: penstock://:***@h is one",
        ),
        (
            "penstock://h?mode=ro",
            "'penstock://h?mode=ro' has settings, and a server has its own: penstock://h",
        ),
        (
            "penstock://[::1",
            "'penstock://[::1' is no url: an IPv6 address stands in brackets,"
            " penstock://[::1]:6789",
        ),
        ("penstock+unix://", "'penstock+unix://' names no socket: penstock+unix:///path"),
        (
            "penstock+unix://run/x.sock",
            "'penstock+unix://run/x.sock' names no socket: penstock+unix:///path",
        ),
        (
            "penstock+unix:///run/x.sock?y=1",
            "'penstock+unix:///run/x.sock?y=1' has settings, and a server has its own:"
            " penstock+unix:///run/x.sock",
        ),
        ("sqlite:///x?mod=ro", "there is no setting 'mod'; did you mean 'mode'?"),
        (
            "sqlite:///x?zzz=1",
            "there is no setting 'zzz'; there are durability, mode, commit_interval_ms,"
            " commit_max, cache_bytes, reserve_bytes, checkpoint_bytes, checkpoint_records,"
            " checkpoint_replay_s, backup_dir, backup_every_s, backup_keep, events,"
            " events_seal_s, events_keep_s, events_keep_bytes",
        ),
        ("sqlite:///x?mode=r", "mode: 'r' is not one of rw, ro"),
        ("sqlite:///x?mode=ro&mode=rw", "mode: is said twice"),
        ("sqlite:///x?commit_max=x", "commit_max: 'x' is not a whole number of at least 1"),
        ("sqlite:///x?commit_max=0", "commit_max: '0' is not a whole number of at least 1"),
        ("sqlite:///x?commit_max", "'commit_max' is no setting like mode=ro"),
        ("sqlite:///x?backup_every_s=-1", "backup_every_s: '-1' is not a number of at least 0"),
        ("sqlite:///x?checkpoint_replay_s=0", "checkpoint_replay_s: '0' is not a number above 0"),
    ],
)
def test_a_url_that_names_no_store_says_what_would(url: str, told: str, place: Path) -> None:
    with pytest.raises(Invalid) as refused:
        asyncio.run(open_store(url))
    assert str(refused.value) == f"url: {told}"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "penstock://:pst_1@h",
            "'penstock://:***@h' is a server; this needs the store itself, on the server's"
            " machine: sqlite:///path or rocksdb:///path",
        ),
        (
            "penstock+unix:///run/x.sock",
            "'penstock+unix:///run/x.sock' is a server; this needs the store itself, on the"
            " server's machine: sqlite:///path or rocksdb:///path",
        ),
        (
            "memory://",
            "a store in memory lies nowhere; this needs one on a disk:"
            " sqlite:///path or rocksdb:///path",
        ),
        ("redis://x", f"'redis://x' is no store that this release knows; {KNOWN}"),
    ],
)
def test_what_does_not_lie_on_a_disk_says_so(url: str, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        journal_at(url)
    assert str(refused.value) == f"url: {told}"


@pytest.mark.parametrize("url", ["sqlite:///x?mode=r", "sqlite:///x?mod=ro"])
def test_settings_are_read_also_where_only_the_path_is_wanted(url: str) -> None:
    with pytest.raises(Invalid, match="mod"):
        journal_at(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("penstock://:pst_1@h:1", "penstock://:***@h:1"),
        ("penstock://pst_1@h", "penstock://***@h"),
        ("postgres://me:pw@db/jobs", "postgres://me:***@db/jobs"),
        ("postgres://me@db/jobs", "postgres://me@db/jobs"),
        ("penstock://pst_1@[h", "penstock://***@[h"),
        ("sqlite:////srv/a@b.db", "sqlite:////srv/a@b.db"),
    ],
)
def test_a_token_in_a_url_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
