"""A server on the network beside a raw echo of the same bytes: pushes, claims, latency, connections.

    python -m benchmarks.server [--quick]

A full run writes `server.md`, `server.json` and `server.svg` into `results/`; a quick one only
prints. Server, echo and client are three processes. Where one request is in flight they share a
core: waking a core that sleeps costs more than a command does, on a virtual machine above all, and
would be most of what is measured. Everywhere else they have the machine's cores to themselves.
"""

import argparse
import asyncio
import os
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import uvloop
from msgspec.structs import replace

from benchmarks._journal_raw import BareSqlite
from benchmarks._measure import (
    RESULTS,
    TARGET_HEADINGS,
    Figure,
    Report,
    Target,
    interleave,
    machine,
    ratio,
    shown,
    spread,
    table,
    write_json,
)
from benchmarks._plot import Chart, Line, svg
from benchmarks._server_client import (
    Address,
    Crowd,
    Echo,
    Frames,
    Http,
    Lines,
    crowding,
    echoing,
    frame,
    line,
    on_one_core,
    post,
    serving,
    sized,
)
from benchmarks._server_crowd import VANISH_S
from penstock.model.job import Codec, JobOptions, Run
from penstock.protocol.native_push import PushRun, RunPushed
from penstock.protocol.runs import packed_run
from penstock.stores.remote import RemoteStore
from penstock.stores.target import Target as Server
from tests.server.hostile.storm import BAITS, HALF_CLOSED, IDLE, PATIENT, PIPELINED, SLOW

ROUNDS: Final = 5
BATCHES: Final = (1, 10, 100, 1_000, 10_000)
WANTED: Final = {1: 8_500, 10: 75_000, 100: 450_000, 1_000: 1_200_000, 10_000: 1_900_000}
FREE: Final = (1, 10, 100)  # batches that are pushed on one core and on all
CONNECTIONS: Final = (1, 16, 128)
SIZE: Final = 44  # bytes of a payload
FLIGHT: Final = 256  # single pushes that are pipelined
DISK_FLIGHT: Final = 4  # batches of 10,000, likewise: what the target is for
DISK_FLIGHTS: Final = (1, 2, 4, 8, 16)
CALM_S: Final = 0.3  # before a sample beside the crowd, for what came or went to be over
TENANT: Final = "default"

NATIVE, NATIVE_JSON, UNIX = "native", "native, json", "native, unix"
BARE, NUMBERED = "native, bare", "native, bare, numbered"
PUSHB, PUSHB_JSON, HTTP, ECHO = "PUSHB", "PUSHB, JSON", "HTTP", "echo"
ALONE = "alone"

Once = Callable[[], Awaitable[object]]


def run_of(batch: int, codec: Codec = "bytes") -> Run:
    payload = b'{"to":"somebody","text":"some words or so"}.'[:SIZE]
    if codec == "json":
        payload = payload[:-1] + b" "
    ends = array("I", range(SIZE, SIZE * batch + 1, SIZE))
    return Run(queue="work", data=payload * batch, ends=ends, options=(JobOptions(codec=codec),))


class Clients:
    """One connection of each kind, and what each says to push so many jobs."""

    def __init__(self, stack: AsyncExitStack, server: Address, echo: Echo) -> None:
        self._stack = stack
        self._server = server
        self._echo = echo
        self._sequence = 0  # of the pushes that are numbered here
        self.tcp = RemoteStore(Server(host="127.0.0.1", port=server.tcp))
        self.unix = RemoteStore(Server(path=server.unix))

    async def open(self) -> None:
        for store in (self.tcp, self.unix):
            await store.connect()
            self._stack.push_async_callback(store.close)
        self.frames = await self.connect(Frames, self._server.tcp)
        self.lines = await self.connect(Lines, self._server.tcp)
        self.http = await self.connect(Http, self._server.http)
        self.echo = await self.connect(Frames, self._echo.tcp)

    async def connect(self, kind: type[Frames], port: int) -> Frames:
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(kind, "127.0.0.1", port)
        self._stack.callback(transport.close)
        return client

    def _next(self, push: PushRun) -> bytes:
        """The push again, with the next number of its producer."""
        self._sequence += 1
        push.sequence = push.req_id = self._sequence
        return frame(push)

    def pushes(self, batch: int) -> dict[str, Once]:
        plain, checked = run_of(batch), run_of(batch, "json")
        request = PushRun(tenant=TENANT, runs=(packed_run(plain),), producer="p" * 31, sequence=1)
        answer = frame(RunPushed(first=1, count=batch, req_id=1))
        bytes_there = frame(request)
        data = {"to": "somebody", "text": "some words"}
        jobs = {"cmd": "PUSHB", "queue": "work", "jobs": [{"data": data}] * batch, "reqId": 1}
        one = {"cmd": "PUSH", "queue": "work", "data": data, "reqId": 1}
        said = one if batch == 1 else jobs
        framed, lined = frame(said), line(said)
        posted = post("/v1/queues/work/jobs", {"jobs": [{"payload": data}] * batch})
        sent = sized(len(bytes_there), len(answer))
        unnumbered = frame(PushRun(tenant=TENANT, runs=request.runs, req_id=1))
        return {
            NATIVE: lambda: self.tcp.push(TENANT, [plain]),
            NATIVE_JSON: lambda: self.tcp.push(TENANT, [checked]),
            UNIX: lambda: self.unix.push(TENANT, [plain]),
            BARE: lambda: self.frames.ask(unnumbered),
            NUMBERED: lambda: self.frames.ask(self._next(request)),
            PUSHB: lambda: self.frames.ask(framed),
            PUSHB_JSON: lambda: self.lines.ask(lined),
            HTTP: lambda: self.http.ask(posted),
            ECHO: lambda: self.echo.ask(sent),
        }


class Sampler:
    """Takes samples: jobs a second, and the times of single calls."""

    def __init__(self, runner: asyncio.Runner, seconds: float) -> None:
        self.run = runner.run
        self._seconds = seconds

    def of(
        self, once: Once, jobs: int, after: Once | None = None, flight: int = 1
    ) -> Callable[[], Sequence[float]]:
        return lambda: self.run(self._sample([once] * flight, jobs, after))

    def side_by_side(
        self, each: Sequence[Once], jobs: int, after: Once
    ) -> Callable[[], Sequence[float]]:
        return lambda: self.run(self._sample(each, jobs, after))

    async def _sample(
        self, callers: Sequence[Once], jobs: int, after: Once | None
    ) -> Sequence[float]:
        took: list[float] = []
        began = time.perf_counter()
        until = began + self._seconds

        async def caller(once: Once) -> None:
            now = time.perf_counter()
            while now < until:
                await once()
                then, now = now, time.perf_counter()
                took.append(now - then)

        await asyncio.gather(*map(caller, callers))
        spent = time.perf_counter() - began
        if after is not None:
            await after()
        return len(took) * jobs / spent, *percentiles(took)


def percentiles(took: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    if len(took) < 2:
        return took[0] * 1000, took[0] * 1000
    cut = quantiles(took, n=100, method="inclusive")
    return cut[49] * 1000, cut[98] * 1000


WHATS: Final = (("rate", "jobs/s"), ("p50", "ms"), ("p99", "ms"))


def figures_of(
    case: str, taken: dict[str, list[tuple[float, ...]]], **settings: Any
) -> list[Figure]:
    return [
        Figure(
            f"{case} · {subject} · {what}",
            unit,
            tuple(sample[at] for sample in samples),
            {"case": case, "subject": subject, "what": what, **settings},
        )
        for subject, samples in taken.items()
        for at, (what, unit) in enumerate(WHATS)
    ]


# -- pushes ----------------------------------------------------------------------------------------


def report_pushes(report: Report, sampler: Sampler, clients: Clients, rounds: int) -> None:
    for batch in BATCHES:
        subjects = {
            name: sampler.of(once, batch, _empty(clients))
            for name, once in clients.pushes(batch).items()
        }
        taken = interleave(subjects, rounds)
        report.figures += figures_of("push", taken, batch=batch)
    names = (NATIVE, NATIVE_JSON, UNIX, BARE, NUMBERED, PUSHB, PUSHB_JSON, HTTP, ECHO)
    report.say("## Pushes by batch, one connection, one in flight, on one core: jobs a second")
    rows = []
    for batch in BATCHES:
        found = [_pick(report, "push", name, "rate", batch=batch) for name in names]
        rows.append(
            [f"{batch:,}", *(shown(one.median, "jobs/s") for one in found), spread(found[0])]
        )
        for name, share in ((BARE, 1.0), (NATIVE, 1.0), (PUSHB, 0.5)):
            what = f"{name} push by {batch:,}, one core"
            rate = found[names.index(name)]
            report.targets.append(Target(what, rate, share * WANTED[batch], at_least=True))
    report.say(table(["batch", *names, "spread of native"], rows))
    report.say("## One push, waiting for its answer, on one core")
    rows = []
    for name in names:
        half, most = (_pick(report, "push", name, what, batch=1) for what in ("p50", "p99"))
        rows.append([name, _us(half.median), _us(most.median)])
    report.say(table(["", "p50", "p99"], rows))
    for name in (BARE, NATIVE):
        for what, bound in (("p50", 3.0), ("p99", 5.0)):
            over, under = (_pick(report, "push", each, what, batch=1) for each in (name, ECHO))
            times = ratio(f"{name} ÷ echo, {what}", over, under)
            report.targets.append(
                Target(f"one push ({name}) ÷ echo, {what}, one core", times, bound, at_least=False)
            )


def report_free(report: Report, sampler: Sampler, clients: Clients, rounds: int) -> None:
    """The same pushes with every process free to run where it likes, for whoever would compare."""
    rows = []
    for batch in FREE:
        pushes = clients.pushes(batch)
        subjects = {
            name: sampler.of(pushes[name], batch, _empty(clients)) for name in (NATIVE, BARE, ECHO)
        }
        report.figures += figures_of("push, free", interleave(subjects, rounds), batch=batch)
        row = [f"{batch:,}"]
        for name in (NATIVE, BARE, ECHO):
            for case in ("push", "push, free"):
                rate, half = (
                    _pick(report, case, name, what, batch=batch) for what in ("rate", "p50")
                )
                row += [shown(rate.median, "jobs/s"), _us(half.median)]
        rows.append(row)
    report.say("## The same pushes on one core, and with the processes free to roam")
    headings = ["batch"]
    for name in (NATIVE, BARE, ECHO):
        headings += [f"{name}, one core", "p50", f"{name}, free", "p50"]
    report.say(table(headings, rows))


def _us(ms: float) -> str:
    return f"{ms * 1000:.0f} µs"


def _pick(report: Report, case: str, subject: str, what: str, **more: Any) -> Figure:
    return report.pick(case=case, subject=subject, what=what, **more)


def _empty(clients: Clients) -> Once:
    return lambda: clients.tcp.purge(TENANT, "work")


def report_pipelined(report: Report, sampler: Sampler, clients: Clients, rounds: int) -> None:
    subjects = {
        name: sampler.of(once, 1, _empty(clients), flight=FLIGHT)
        for name, once in clients.pushes(1).items()
        if name != HTTP
    }
    report.figures += figures_of("pipelined", interleave(subjects, rounds))
    report.say(f"## Single pushes, {FLIGHT} in flight on one connection: jobs a second")
    rows = []
    for name in subjects:
        rate = _pick(report, "pipelined", name, "rate")
        rows.append([name, shown(rate.median, "jobs/s"), spread(rate)])
    report.say(table(["", "rate", "spread"], rows))
    native = _pick(report, "pipelined", NATIVE, "rate")
    report.targets.append(Target("single pushes, pipelined", native, 40_000, at_least=True))


def report_connections(
    report: Report, sampler: Sampler, clients: Clients, server: Address, echo: Echo, rounds: int
) -> None:
    rows = []
    plain = run_of(1)
    request = PushRun(tenant=TENANT, runs=(packed_run(plain),), producer="p" * 31, sequence=1)
    sent = sized(len(frame(request)), len(frame(RunPushed(first=1, count=1, req_id=1))))
    for count in CONNECTIONS:
        stores = [RemoteStore(Server(host="127.0.0.1", port=server.tcp)) for _ in range(count)]
        raw = [sampler.run(clients.connect(Frames, echo.tcp)) for _ in range(count)]
        for store in stores:
            sampler.run(store.connect())
        subjects = {
            NATIVE: sampler.side_by_side(
                [lambda store=store: store.push(TENANT, [plain]) for store in stores],  # type: ignore[misc]
                1,
                _empty(clients),
            ),
            ECHO: sampler.side_by_side(
                [lambda one=one: one.ask(sent) for one in raw],  # type: ignore[misc]
                1,
                _empty(clients),
            ),
        }
        report.figures += figures_of("connections", interleave(subjects, rounds), connections=count)
        for store in stores:
            sampler.run(store.close())
        for one in raw:
            one.transport.close()
        row = [f"{count}"]
        for name in (NATIVE, ECHO):
            rate, half, most = (
                _pick(report, "connections", name, what, connections=count)
                for what in ("rate", "p50", "p99")
            )
            row += [shown(rate.median, "jobs/s"), _us(half.median), _us(most.median)]
        rows.append(row)
    report.say("## Connections that each push one job at a time")
    headings = ["connections"]
    for name in (NATIVE, ECHO):
        headings += [name, "p50", "p99"]
    report.say(table(headings, rows))


# -- claims ----------------------------------------------------------------------------------------


def report_claims(report: Report, sampler: Sampler, clients: Clients, rounds: int) -> None:
    rows = []
    for batch in BATCHES:
        filled = run_of(10_000)

        async def fill(filled: Run = filled) -> None:
            for _ in range(100):
                await clients.tcp.push(TENANT, [filled])

        async def claim_and_ack(batch: int = batch) -> None:
            lease = await clients.tcp.claim(TENANT, ["work"], batch)
            if lease is None:
                await fill()
                return
            await clients.tcp.ack(TENANT, lease.token)

        answer = SIZE * batch + 4 * batch + 150
        there, back = sized(120, answer), sized(90, 90)

        async def echoed(there: bytes = there, back: bytes = back) -> None:
            await clients.echo.ask(there)
            await clients.echo.ask(back)

        sampler.run(fill())
        subjects = {
            NATIVE: sampler.of(claim_and_ack, batch),
            ECHO: sampler.of(echoed, batch),
        }
        report.figures += figures_of("claim", interleave(subjects, rounds), batch=batch)
        sampler.run(clients.tcp.purge(TENANT, "work"))
        row = [f"{batch:,}"]
        for name in (NATIVE, ECHO):
            rate, half, most = (
                _pick(report, "claim", name, what, batch=batch) for what in ("rate", "p50", "p99")
            )
            row += [shown(rate.median, "jobs/s"), _us(half.median), _us(most.median)]
        rows.append(row)
    report.say(
        "## Claim and ack by batch, one connection, one core: jobs a second; a claim with its ack"
    )
    report.say(table(["batch", NATIVE, "p50", "p99", ECHO, "p50", "p99"], rows))


# -- on a disk -------------------------------------------------------------------------------------


def report_disk(report: Report, sampler: Sampler, directory: Path, rounds: int) -> None:
    batch = 10_000
    run = run_of(batch)
    one = run.data + array("I", run.ends).tobytes() + bytes(154)
    with ExitStack() as stack:
        server = stack.enter_context(serving(f"sqlite:///{directory}/served.db", directory))
        raws = {
            f"bare SQLite, {page} KiB": BareSqlite(directory / f"raw-{page}.db", page << 10)
            for page in (4, 32, 64)
        }
        for raw in raws.values():
            stack.callback(raw.close)
        store = RemoteStore(Server(host="127.0.0.1", port=server.tcp))
        sampler.run(store.connect())
        stack.callback(lambda: sampler.run(store.close()))

        async def commit(raw: BareSqlite, data: bytes) -> None:
            raw.commit(data)

        for flight in DISK_FLIGHTS:
            subjects = {
                NATIVE: sampler.of(lambda: store.push(TENANT, [run]), batch, flight=flight),
                **{
                    name: sampler.of(
                        lambda raw=raw, data=one * flight: commit(raw, data),  # type: ignore[misc]
                        batch * flight,
                    )
                    for name, raw in raws.items()
                },
            }
            taken = interleave(subjects, rounds)
            report.figures += figures_of("disk", taken, in_flight=flight)
    report.say(f"## SQLite, fsync: {batch:,} jobs a push, by how many are in flight: jobs a second")
    rows = []
    for flight in DISK_FLIGHTS:
        rates = {
            name: _pick(report, "disk", name, "rate", in_flight=flight) for name in (NATIVE, *raws)
        }
        bare = max((rates[name] for name in raws), key=lambda figure: figure.median)
        share = ratio(f"served ÷ bare SQLite, {flight} in flight", rates[NATIVE], bare)
        rows.append(
            [
                f"{flight}",
                *(shown(rate.median, "jobs/s") for rate in rates.values()),
                shown(share.median, "×"),
                spread(share),
            ]
        )
        if flight == DISK_FLIGHT:
            what = f"served SQLite ÷ bare SQLite, by 10,000, {flight} in flight"
            report.targets.append(Target(what, share, 0.5, at_least=True))
    report.say(table(["in flight", NATIVE, *raws, "native ÷ the best bare", "spread"], rows))


# -- while others are a burden ---------------------------------------------------------------------


def report_storm(report: Report, sampler: Sampler, directory: Path, rounds: int) -> None:
    rows = []
    for scheme, url in (("memory", "memory://"), ("SQLite", f"sqlite:///{directory}/storm.db")):
        with ExitStack() as stack:
            server = stack.enter_context(serving(url, directory, **PATIENT))
            store = RemoteStore(Server(host="127.0.0.1", port=server.tcp))
            sampler.run(store.connect())
            stack.callback(lambda store=store: sampler.run(store.close()))  # type: ignore[misc]
            crowd = stack.enter_context(crowding(server))
            with on_one_core(server.pid):
                taken = interleave(_beside(sampler, store, crowd), rounds)
                crowd.go()
        report.figures += figures_of("storm", taken, store=scheme)
        for name in taken:
            row = [scheme, name]
            for what in ("p50", "p99"):
                took, alone = (
                    _pick(report, "storm", each, what, store=scheme) for each in (name, ALONE)
                )
                times = ratio(f"{name} ÷ {ALONE}, {what}, {scheme}", took, alone)
                row += [_us(took.median), shown(times.median, "×"), spread(times)]
            rows.append(row)
    report.say("## Others, while a storm is on: one push at a time by a client that means well")
    report.say(
        f"crowd: {SLOW} connections that say a byte of a message each second, {IDLE:,} that wait "
        f"for jobs, {HALF_CLOSED} that are half closed, a client that claims {BAITS} jobs of 20 kB "
        "and one that watches queues, neither of which ever reads. Watched: the pushes go to a "
        "queue that it watches, so that each of them is told to it, after its answer; on a core "
        "that server and client share the next push waits for that. Others vanish: beside the "
        f"crowd, {1 / VANISH_S:.0f} times a second, somebody pipelines {PIPELINED:,} commands and "
        "is gone. Server and client share a core, the crowd has another. In each round the same "
        "server is measured in each state, for twice as long as elsewhere; its deadlines for a "
        "first and for a whole message are ten minutes, so that the slow ones stay."
    )
    beside = "÷ alone"
    report.say(table(["", "", "p50", beside, "spread", "p99", beside, "spread"], rows))


def _beside(
    sampler: Sampler, store: RemoteStore, crowd: Crowd
) -> dict[str, Callable[[], Sequence[float]]]:
    run = run_of(1)
    watched = replace(run, queue="good")  # by one of the crowd

    async def empty() -> None:
        for queue in ("work", "good", "piped"):
            await store.purge(TENANT, queue)

    def pushing(run: Run) -> Sequence[float]:
        time.sleep(CALM_S)
        return sampler.of(lambda: store.push(TENANT, [run]), 1, empty)()

    def alone() -> Sequence[float]:
        crowd.go()
        sampler.run(store.purge(TENANT, "bait"))
        return pushing(run)

    def crowded(run: Run) -> Sequence[float]:
        crowd.come()
        return pushing(run)

    def vanishing() -> Sequence[float]:
        crowd.come()
        with crowd.vanishing():
            return pushing(run)

    return {
        ALONE: alone,
        "crowd": lambda: crowded(run),
        "crowd, watched": lambda: crowded(watched),
        "crowd, others vanish": vanishing,
    }


# -- the whole -------------------------------------------------------------------------------------


def plot(report: Report) -> str:
    def lines(case: str, names: Sequence[str]) -> list[Line]:
        return [
            Line(
                name,
                [
                    (batch, rate.median, rate.low, rate.high)
                    for batch in BATCHES
                    for rate in [_pick(report, case, name, "rate", batch=batch)]
                ],
                dashed=name == ECHO,
            )
            for name in names
        ]

    pushes = (NATIVE, NATIVE_JSON, PUSHB, PUSHB_JSON, HTTP, ECHO)
    return svg(
        [
            Chart("pushes", "jobs per push", "jobs per second", lines("push", pushes)),
            Chart(
                "claims with their acks",
                "jobs per claim",
                "jobs per second",
                lines("claim", (NATIVE, ECHO)),
            ),
        ]
    )


async def _opened(stack: AsyncExitStack, server: Address, echo: Echo) -> Clients:
    clients = Clients(stack, server, echo)
    await clients.open()
    return clients


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter samples, nothing written")
    parser.add_argument("--directory", type=Path, help="where the SQLite stores lie")
    chosen = parser.parse_args()
    rounds, seconds = (3, 0.15) if chosen.quick else (ROUNDS, 0.4)
    began, report = time.monotonic(), Report()
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        tempfile.TemporaryDirectory(prefix="penstock-", dir=chosen.directory) as name,
        echoing() as echo,
    ):
        directory = Path(name)
        facts = ", ".join(f"{key} {value}" for key, value in machine().items())
        report.say("# The server")
        report.say(
            f"{facts}, uvloop {version('uvloop')}, {os.cpu_count()} cores with a load of "
            f"{os.getloadavg()[0]:.1f} before the run; server, echo and client are processes of "
            f"their own. Medians of {rounds} rounds of {seconds:g} s, interleaved, spread = lowest "
            "– highest; ratios are medians of each round's ratio. Wall time. Payloads of "
            f"{SIZE} bytes. `penstock serve` as it comes, telemetry included; memory:// where "
            "nothing else is said. native: `penstock://` as a Store, codec bytes (json: checked at "
            "the door). bare, PUSHB, HTTP: a bare socket that says the same bytes again, as for the "
            "echo, so that what is left is the server; numbered: each push with the next number of "
            "its producer, as `penstock://` does. echo: frames of the same lengths as native ones, "
            "there and back, with nothing done. On one core: where "
            "one request is in flight, one process sleeps while the other works, and to wake a core "
            "that sleeps takes a virtual machine longer than the command; so server, echo and "
            "client share a core there, and a table says how the same pushes fare without that. "
            "Everything else runs on all cores."
        )
        sampler = Sampler(runner, seconds)
        with serving("memory://", directory) as server:
            stack = AsyncExitStack()
            clients = runner.run(_opened(stack, server, echo))
            with on_one_core(server.pid, echo.pid):
                report_pushes(report, sampler, clients, rounds)
            report_free(report, sampler, clients, rounds)
            report_pipelined(report, sampler, clients, rounds)
            report_connections(report, sampler, clients, server, echo, rounds)
            with on_one_core(server.pid, echo.pid):
                report_claims(report, sampler, clients, rounds)
            runner.run(stack.aclose())
        report_disk(report, sampler, directory, rounds)
        report_storm(report, Sampler(runner, 2 * seconds), directory, rounds)
    report.say("## Targets")
    report.say(table(TARGET_HEADINGS, [target.row() for target in report.targets]))
    report.say(f"{'Quick run' if chosen.quick else 'Run'} of {time.monotonic() - began:.0f} s.")
    if chosen.quick:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "server.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "server.svg").write_text(plot(report), encoding="utf-8")
    write_json("server", report.figures, report.targets, rounds=rounds)


if __name__ == "__main__":
    main()
