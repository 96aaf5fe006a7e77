"""`push`, `claim`, `ack`, `fail`, `release`, `extend`: what producers and workers do, by hand."""

import sys
from typing import Annotated, Any, Literal

import typer

from penstock.cli.job_flags import JobFlags
from penstock.cli.lines import PushedLines, push_lines
from penstock.cli.options import HeldIds, Lease, Queue, duration
from penstock.cli.options import lease as lease_time
from penstock.cli.reading import content
from penstock.cli.session import NOT_SO, Session, note, register
from penstock.cli.show import brief, clock, many, now_ms, plain, table, value_text, when
from penstock.model.checks import MAX_WAIT_MS
from penstock.model.errors import Invalid
from penstock.model.job import MAX_BATCH, Ids, JobError, Run
from penstock.model.payload import check_json
from penstock.protocol.http_shown import (
    AckedShown,
    Claimed,
    ExtendedShown,
    FailedShown,
    PushedJobs,
    ReleasedShown,
)

# -- producing -----------------------------------------------------------------------------------


async def push(
    at: Session,
    queue: Queue,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="JSON, @FILE, or - for standard input. Unsaid: null."
        ),
    ] = None,
    *,
    lines: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Push each line of a file as a job; -: standard input."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=MAX_BATCH, help="Lines pushed at once, all or nothing.")
    ] = 1_000,
    producer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who pushes: what it repeats is not pushed again."),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            min=0, help="The producer's number of this push, or of the first batch of lines."
        ),
    ] = None,
    durability: Annotated[
        Literal["fsync", "os"] | None, typer.Option(help="How safe it is when it is answered.")
    ] = None,
    job: JobFlags,
) -> None:
    """Push a job, or a file of them."""
    said: dict[str, Any] = {"producer": producer, "durability": durability}
    if producer is None and sequence is not None:
        raise Invalid("goes with --producer", "sequence")
    if lines is not None:
        for wrong, given in (("payload", payload), ("key", job.key)):
            if given is not None:
                raise Invalid("does not go with --lines, which are jobs each by itself", wrong)
        done = await push_lines(at, queue, lines, job, batch, sequence or 0, **said)
        at.answer(done, _said(done))
        return
    if producer is not None and sequence is None:
        raise Invalid("needs --sequence, by which a repeat is known", "producer")
    written = b"null" if payload is None else await content(payload)
    run = Run.of(queue, [job.spec(job.payload(written))])
    pushed = await at.store.push(at.tenant, [run], sequence=sequence, **said)
    at.answer(PushedJobs.of(pushed), *(f"{job_id} {outcome}" for job_id, outcome in pushed.jobs))


def _said(done: PushedLines) -> str:
    if not done.lines:
        return "nothing to push"
    others = "".join(
        f", {count:,} {word}"
        for word, count in (("updated", done.updated), ("ignored", done.ignored))
        if count
    )
    return f"{many(done.created, 'job')} created{others}; ids {done.first_id} to {done.last_id}"


# -- working -------------------------------------------------------------------------------------


async def claim(
    at: Session,
    queues: Annotated[
        list[str], typer.Argument(metavar="QUEUE", help="The first that has work gives it.")
    ],
    *,
    n: Annotated[int, typer.Option("-n", min=1, max=MAX_BATCH, help="Jobs at most.")] = 1,
    lease: Annotated[
        int | None, lease_time("How long they are yours. Unsaid: as the jobs say, or 30s.")
    ] = None,
    worker: Annotated[str, typer.Option(metavar="NAME", help="Who claims.")] = "",
    wait: Annotated[
        int | None, duration("For work, if there is none.", high_ms=MAX_WAIT_MS)
    ] = None,
) -> int | None:
    """Take jobs on a lease, and print its token: ack, fail, release and extend want it."""
    claimed = await at.store.claim(
        at.tenant, queues, n, lease_ms=lease, worker=worker, wait_ms=wait or 0
    )
    if claimed is None:
        at.answer(None, "nothing to claim")
        return NOT_SO
    shown = Claimed.of(claimed)
    jobs = table(">id", "~task", ">attempt", "~payload")
    for job in shown.jobs:
        jobs.add_row(
            str(job.id),
            plain(job.task),
            f"{job.attempt}/{job.max_attempts or '∞'}",
            brief(value_text(job.payload, job.payload_base64)),
        )
    until = f"until {clock(shown.expires_at)}, {when(shown.expires_at, now_ms())}"
    try:
        at.answer(shown, f"lease {shown.lease}, {until}", jobs)
        sys.stdout.flush()
    except OSError:
        # Nobody has read the token: whoever claims next gets them, and no attempt is spent.
        await at.store.release(at.tenant, claimed.token)
        raise
    return None


async def ack(
    at: Session,
    lease: Lease,
    ids: HeldIds = None,
    *,
    result: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=JSON", help="What came of a job; several times."),
    ] = None,
) -> int | None:
    """Complete jobs of a lease."""
    results = dict(_result(each) for each in result or ())
    answer = await at.store.ack(at.tenant, lease, ids or None, results=results or None)
    return _ended(at, AckedShown.of(answer), f"{many(len(answer.acked), 'job')} done", answer.lost)


def _result(said: str) -> tuple[int, bytes]:
    job_id, equals, value = said.partition("=")
    if not equals or not job_id.isdecimal() or len(job_id) > 16:
        raise Invalid(f"""{brief(said)!r} is no result like 17='{{"ok": true}}'""", "result")
    written = value.encode("utf-8", "surrogateescape")
    check_json(written)
    return int(job_id), written


async def fail(
    at: Session,
    lease: Lease,
    ids: HeldIds = None,
    *,
    message: Annotated[str, typer.Option("--message", "-m", help="What went wrong.")] = "",
    kind: Annotated[
        str, typer.Option("--class", metavar="NAME", help="Of the error; it groups dead letters.")
    ] = "Error",
    trace: Annotated[
        str, typer.Option(metavar="TEXT", help="Where it went wrong; @FILE, or - to read it.")
    ] = "",
    retry_in: Annotated[int | None, duration("Instead of the backoff of the job.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Do not try again.")] = False,
) -> int | None:
    """End the attempt of jobs in failure: they are tried again, or dead."""
    read = (await content(trace)).decode("utf-8", "replace")
    error = JobError(kind=kind, message=message, trace=read)
    answer = await at.store.fail(
        at.tenant, lease, ids or None, error=error, retry_in_ms=retry_in, dead=dead
    )
    now = now_ms()
    told = [
        f"{job.id} {job.state}" + (f", due {when(job.run_at, now)}" if job.run_at else "")
        for job in answer.jobs
    ]
    return _ended(at, FailedShown.of(answer), "\n".join(told), answer.lost)


async def release(at: Session, lease: Lease, ids: HeldIds = None) -> int | None:
    """Give jobs back unspent: the attempt does not count."""
    answer = await at.store.release(at.tenant, lease, ids or None)
    said = f"{many(len(answer.released), 'job')} released"
    return _ended(at, ReleasedShown.of(answer), said, answer.lost)


async def extend(
    at: Session,
    lease: Lease,
    *,
    for_: Annotated[
        int | None, lease_time("From now. Unsaid: as long as at first.", "--lease")
    ] = None,
) -> int | None:
    """Keep a lease for longer."""
    answer = await at.store.extend(at.tenant, lease, for_)
    shown = ExtendedShown.of(answer)
    said = f"until {clock(answer.expires_at)}, {when(answer.expires_at, now_ms())}"
    return _ended(at, shown, said, answer.lost)


def _ended(at: Session, shown: object, said: str, lost: Ids) -> int | None:
    """What was done; and where jobs were no longer held, that this is not all."""
    at.answer(shown, said)
    if lost:
        some = ", ".join(map(str, list(lost)[:20])) + (" …" if len(lost) > 20 else "")
        note(f"{many(len(lost), 'job')} not held by this lease (any more): {some}")
        return NOT_SO
    return None


def add(app: typer.Typer) -> None:
    register(app, push, creates=True)
    for each in (claim, ack, fail, release, extend):
        register(app, each)
