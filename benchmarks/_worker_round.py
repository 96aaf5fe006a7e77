"""One round of one subject: its broker, its producer and its worker, from nothing to nothing."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from math import nan
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from benchmarks._environments import HERE
from benchmarks._server_client import on_one_core, serving
from benchmarks._worker_adapter import percentiles
from benchmarks._worker_brokers import Postgres, redis, relay
from benchmarks._worker_peers import BULK, RELAY, Entry

BLOCK: Final = 20  # starts of one before some of the other


class Round(NamedTuple):
    """What is found; milliseconds where it is not jobs a second, NaN where nothing is offered."""

    push: float
    push_p50: float
    push_p99: float
    push_many: float
    drain: float
    start_p50: float
    start_p99: float
    relay_p50: float  # of the starts of a bare relay, in turn with these
    roaming_p50: float  # of starts where each process is wherever the scheduler has put it
    roaming_relay_p50: float


class Rounds:
    """Runs subjects, one at a time: nobody else's worker is about when one is measured."""

    def __init__(
        self, directory: Path, pythons: dict[str, str], starts: int, postgres: bool
    ) -> None:
        self._directory = directory
        self._pythons = pythons
        self._starts = starts
        self._postgres = Postgres(directory) if postgres else None
        self._turn = 0
        self.versions: dict[str, dict[str, str]] = {}  # of a subject's packages, once it has run

    def run(self, peer: Entry) -> Round:
        many = {"rate": nan}
        with self._subject(peer) as (producer, working):
            self.versions[peer.name] = producer.versions
            pushed = producer.ask("push", jobs=peer.alone)
            if peer.bulk:
                many = producer.ask("push_many", jobs=peer.bulk, by=BULK)
            with working():
                drained = producer.ask("drained", jobs=peer.jobs)
                starts, bare, roaming, roaming_bare = self._starts_in_turn(producer)
            if peer.spare:
                many = producer.ask("push_many", jobs=peer.spare, by=BULK)
        start = percentiles(starts)
        return Round(
            pushed["rate"],
            pushed["p50"],
            pushed["p99"],
            many["rate"],
            drained["rate"],
            start["p50"],
            start["p99"],
            percentiles(bare)["p50"],
            percentiles(roaming)["p50"],
            percentiles(roaming_bare)["p50"],
        )

    def _starts_in_turn(self, producer: "Producing") -> tuple[list[float], ...]:
        """Starts of a subject and of a relay that is there for that: on one core, then wherever the
        scheduler has put them. To wake another core takes longer than all that a relay does, and who
        was busy before is spread over the cores when the other is not: so it is on one core that
        they can be compared."""
        with self._subject(RELAY) as (other, working):
            other.ask("push", jobs=RELAY.alone)
            with working():
                other.ask("drained", jobs=RELAY.jobs)
                roaming = self._some_of_each(producer, other)
                with on_one_core(*_family()):
                    return *self._some_of_each(producer, other), *roaming

    def _some_of_each(
        self, producer: "Producing", other: "Producing"
    ) -> tuple[list[float], list[float]]:
        """In turn: the machine is not as fast in one second as in the next, and it is their ratio
        that counts."""
        starts: list[float] = []
        bare: list[float] = []
        for first in range(0, self._starts, BLOCK):
            jobs, seed = min(BLOCK, self._starts - first), self._turn + first
            for each, took in ((other, bare), (producer, starts)):
                took.extend(each.ask("starts", jobs=jobs, seed=seed)["took"])
        return starts, bare

    @contextmanager
    def _subject(
        self, peer: Entry
    ) -> Iterator["tuple[Producing, Callable[[], AbstractContextManager[None]]]"]:
        """Its broker and its producer, and what starts its worker."""
        self._turn += 1
        stamps = self._directory / f"stamps-{self._turn}"
        os.mkfifo(stamps)
        python = self._pythons[peer.environment]
        command = [python, "-m", "benchmarks._worker_adapter", peer.module]
        with self._broker(peer) as url, tempfile.TemporaryFile("w+", dir=self._directory) as log:
            producing = [*command, "produce", url, str(stamps)]
            worker = [*command, "work", url, str(stamps), str(peer.jobs)]
            with Producing(producing, peer, log) as producer:
                yield producer, lambda: _working(worker, log)
        stamps.unlink()

    @contextmanager
    def _broker(self, peer: Entry) -> Iterator[str]:
        if peer.broker == "redis":
            with redis() as url:
                yield url
        elif peer.broker == "relay":
            with relay() as url:
                yield url
        elif peer.broker in {"memory", "sqlite"}:
            file = f"sqlite:///{self._directory}/{self._turn}.db"
            url = "memory://" if peer.broker == "memory" else file
            with serving(url, self._directory) as server:
                yield f"penstock://127.0.0.1:{server.tcp}"
        else:
            assert self._postgres is not None
            late = ("synchronous_commit=off",) if peer.broker == "postgres-late" else ()
            with self._postgres.serve(*late) as url:
                yield url


def _family() -> list[int]:
    """The processes that this one has started, and those that they have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            facts = stat.read_text().rpartition(") ")[2].split()
            parents[int(stat.parent.name)] = int(facts[1])
    family = [os.getpid()]
    for pid in family:  # which grows meanwhile
        family += [child for child, parent in parents.items() if parent == pid]
    return family[1:]


@contextmanager
def _working(command: list[str], log: IO[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE.parent) as child:
        try:
            yield
        finally:
            child.kill()


class Producing:
    """The producer of a subject, which does what it is asked and says how long it took."""

    def __init__(self, command: list[str], peer: Entry, log: IO[str]) -> None:
        self._peer = peer
        self._log = log
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE.parent,
        )

    def __enter__(self) -> "Producing":
        self.versions: dict[str, str] = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def ask(self, what: str, **more: int) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"what": what, **more}) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            return json.loads(line)
        self._log.seek(0)
        last = "".join(self._log.readlines()[-40:])
        raise RuntimeError(f"{self._peer.name} failed:\n{last}")
