"""`penstock jobs`: which there are, what is known of one, why it is not running; cancel and retry."""

from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.explaining import explained
from penstock.cli.listing import first_jobs, queues_with
from penstock.cli.options import Cursor, JobId, JobIds, Newest
from penstock.cli.session import NOT_SO, Session, note, register
from penstock.cli.show import (
    brief,
    clock,
    facts,
    many,
    now_ms,
    plain,
    state_text,
    table,
    value_text,
    when,
)
from penstock.model.answers import Redriven
from penstock.model.errors import Invalid, NotFound
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.protocol.http_shown import (
    AckedShown,
    ExplanationShown,
    JobPage,
    JobRead,
    Logs,
)
from penstock.protocol.http_shown_queues import RedrivenShown


async def ls(
    at: Session,
    where: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Unsaid: all queues.")
    ] = None,
    *,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="The same.")
    ] = None,
    state: Annotated[State | None, typer.Option(help="Unsaid: any.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Jobs of this task.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Jobs with this tag.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Jobs at most.")] = 50,
    cursor: Cursor = 0,
    newest: Newest = False,
) -> int | None:
    """List jobs by ascending id, or the newest first."""
    if where is not None and queue is not None:
        raise Invalid("is said twice", "queue")
    queues = await queues_with(at, state, where or queue)
    jobs, behind = await first_jobs(
        at, queues, cursor, limit, newest=newest, state=state, task=task, tag=tag
    )
    following = None if behind is None else behind.id
    page = JobPage(jobs=tuple(map(JobRead.of, jobs)), cursor=following)
    now = now_ms()
    rows = table(">id", "queue", "state", "~task", ">attempt", ">pushed", "~payload")
    for job in page.jobs:
        rows.add_row(
            str(job.id),
            job.queue,
            state_text(job.state),
            brief(job.task, 30),
            f"{job.attempts}/{job.max_attempts or '∞'}",
            when(job.created_at, now),
            brief(value_text(job.payload, job.payload_base64), 40),
        )
    at.answer(page, rows if page.jobs else "no jobs")
    if following is not None and not at.as_json:
        note(f"there are more: --cursor {following}")
    return None if page.jobs else NOT_SO


async def show(at: Session, job_id: JobId) -> None:
    """Tell everything that is known of a job."""
    job = JobRead.of(await _job(at, job_id))
    at.answer(job, facts(_facts(job)), *_errors(job))


def _facts(job: JobRead) -> list[tuple[str | Text, str | Text]]:
    now = now_ms()

    def instant(at: int | None) -> str:
        return f"{clock(at)} ({when(at, now)})" if at else ""

    attempts = f"{job.attempts} of {job.max_attempts or 'any number'}"
    completed = job.state is State.COMPLETED
    progress = "" if job.progress is None else f"{job.progress} % {job.progress_message or ''}"
    said: list[tuple[str, Any]] = [
        ("id", str(job.id)),
        ("queue", job.queue),
        ("state", state_text(job.state)),
        ("dead because", job.dead_reason or ""),
        ("task", job.task),
        ("attempts", attempts),
        ("priority", str(job.priority or "")),
        ("key", job.key or ""),
        ("group", job.group or ""),
        ("tags", ", ".join(job.tags)),
        ("headers", ", ".join(f"{name}={value}" for name, value in (job.headers or {}).items())),
        ("waits for", ", ".join(map(str, job.children))),
        ("awaited by", str(job.parent or "")),
        ("pushed", instant(job.created_at)),
        ("due", instant(job.run_at if job.run_at != job.created_at else None)),
        ("started", instant(job.started_at)),
        ("heartbeat", instant(job.last_heartbeat)),
        ("lease until", instant(job.lease_expires_at)),
        ("finished", instant(job.finished_at)),
        ("worker", job.worker or ""),
        ("progress", progress),
        ("payload", value_text(job.payload, job.payload_base64)),
        ("result", value_text(job.result, job.result_base64) if completed else ""),
    ]
    return [
        (name, value if isinstance(value, Text) else plain(value)) for name, value in said if value
    ]


def _errors(job: JobRead) -> list[str]:
    now = now_ms()
    shown = []
    for error in job.errors:
        head = f"\nattempt {error.attempt}, {when(error.at, now)}, {error.worker or 'unnamed'}: "
        trace = f"\n{error.trace.rstrip()}" if error.trace else ""
        shown.append(plain(f"{head}{error.kind}: {error.message}{trace}"))
    return shown


async def cancel(
    at: Session,
    job_ids: JobIds,
    *,
    discard: Annotated[
        bool, typer.Option("--discard", help="Make them dead, to be looked at and retried.")
    ] = False,
) -> int | None:
    """Cancel jobs, running ones too: their worker is told at its next heartbeat."""
    answer = await at.store.cancel(at.tenant, job_ids, discard=discard)
    word = "discarded" if discard else "cancelled"
    at.answer(AckedShown.of(answer), f"{many(len(answer.acked), 'job')} {word}")
    if not answer.lost:
        return None
    for job_id, job in zip(
        answer.lost, await at.store.get(at.tenant, list(answer.lost)), strict=True
    ):
        note(
            f"job {job_id} " + ("is not known" if job is None else f"has ended: it is {job.state}")
        )
    return NOT_SO


async def retry(at: Session, job_ids: JobIds) -> int | None:
    """Make dead jobs ready again, with all their attempts."""
    jobs = await at.store.get(at.tenant, job_ids)
    by_queue: dict[str, list[int]] = {}
    missed = False
    for job_id, job in zip(job_ids, jobs, strict=True):
        if job is not None and job.state is State.DEAD:
            by_queue.setdefault(job.queue, []).append(job_id)
            continue
        missed = True
        note(f"job {job_id} is " + ("not known" if job is None else f"not dead: it is {job.state}"))
    done = [await at.store.redrive(at.tenant, queue, ids=ids) for queue, ids in by_queue.items()]
    ids = tuple(job_id for each in done for job_id in each.ids)
    taken = tuple(job_id for each in done for job_id in each.conflicts)
    at.answer(RedrivenShown.of(Redriven(ids, taken)), f"{many(len(ids), 'job')} ready again")
    for job_id in taken:
        note(f"job {job_id} stays dead: another job has its key")
    return NOT_SO if missed or taken else None


async def logs(at: Session, job_id: JobId) -> int | None:
    """Print the last lines that workers wrote about a job."""
    await _job(at, job_id)
    lines = await at.store.logs(at.tenant, job_id)
    said = [plain(f"{clock(line.at)} {line.level:<7} {line.message}") for line in lines]
    at.answer(Logs.of(lines), *(said or ["no lines"]))
    return None if lines else NOT_SO


async def explain(at: Session, job_id: JobId) -> None:
    """Say why a job is not running: what holds it, its place in line, when it may start."""
    job = await _job(at, job_id)
    said = await at.store.explain(at.tenant, job_id)
    at.answer(ExplanationShown.of(said), *explained(said, job, now_ms()))


async def _job(at: Session, job_id: int) -> Job:
    (job,) = await at.store.get(at.tenant, [job_id])
    if job is None:
        raise NotFound(
            f"job {job_id} is not known: it never was, or it ended and is forgotten;"
            " penstock jobs ls lists those that are"
        )
    return job


def add(app: typer.Typer) -> None:
    for each in (ls, show, cancel, retry, logs, explain):
        register(app, each)
