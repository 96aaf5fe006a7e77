"""Jobs out of a file, one per line: pushed in batches, each all or nothing.

With a producer each batch has a number, so that a file that is pushed again after an interruption
is not pushed twice, as long as its lines, the size of a batch and the first number are the same
and the store remembers that far back: a day, and a thousand batches.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec

from penstock.cli.job_flags import JobFlags
from penstock.cli.progress import progress
from penstock.cli.reading import beside, standard_input
from penstock.cli.session import Session
from penstock.model.answers import Pushed
from penstock.model.errors import Invalid, PenstockError
from penstock.model.job import JobSpec, Run


class PushedLines(msgspec.Struct, kw_only=True):
    """What became of a file of jobs."""

    created: int = 0
    updated: int = 0
    ignored: int = 0
    batches: int = 0
    first_id: int | None = None
    last_id: int | None = None

    @property
    def lines(self) -> int:
        return self.created + self.updated + self.ignored

    def count(self, pushed: Pushed) -> None:
        self.batches += 1
        for run in pushed.runs:
            if run.outcomes is None:
                self.created += run.count
                self._meet(run.first, run.first + run.count - 1)
                continue
            for job_id, outcome in run:
                setattr(self, outcome, getattr(self, outcome) + 1)
                self._meet(job_id, job_id)

    def _meet(self, low: int, high: int) -> None:
        self.first_id = low if self.first_id is None else min(self.first_id, low)
        self.last_id = high if self.last_id is None else max(self.last_id, high)


async def push_lines(
    at: Session,
    queue: str,
    source: str,
    job: JobFlags,
    batch: int,
    sequence: int,
    **more: Any,
) -> PushedLines:
    """Push every line of a file. What was pushed before an error stays pushed, and is told."""
    spec = job.spec(b"")
    done = PushedLines()
    lines = _lines(source)
    with progress(_size(source), in_bytes=True) as advance:
        while said := await beside(lambda: list(islice(lines, batch))):
            try:
                payloads = [_payload(job, line, n) for n, line in said]
                number = None if more["producer"] is None else sequence + done.batches
                run = _run(queue, spec, payloads)
                done.count(await at.store.push(at.tenant, [run], sequence=number, **more))
            except PenstockError as error:
                pushed = f"{done.lines:,} jobs had been pushed" if done.lines else "none was pushed"
                raise type(error)(f"{error.message} ({pushed})", error.field) from error
            advance(sum(len(line) for _, line in said))
    return done


def _payload(job: JobFlags, line: bytes, number: int) -> bytes:
    try:
        return job.payload(line.removesuffix(b"\n").removesuffix(b"\r"))
    except Invalid as error:
        raise Invalid(error.message, f"line {number}") from None


def _run(queue: str, spec: JobSpec, payloads: list[bytes]) -> Run:
    """Jobs that share everything but their payload."""
    many = len(payloads)
    return Run.pack(
        queue,
        payloads,
        spec.options(),
        delay_ms=spec.delay_ms,
        run_at=spec.run_at,
        groups=None if spec.group is None else [spec.group] * many,
        headers=None if spec.headers is None else [spec.headers] * many,
        depends_on=[spec.depends_on] * many if spec.depends_on else None,
    )


def _lines(source: str) -> Iterator[tuple[int, bytes]]:
    """With their numbers. Opened and closed by whoever reads them: either may wait for a writer."""
    with _opened(source) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, line


def _opened(source: str) -> AbstractContextManager[IO[bytes]]:
    if source == "-":
        return nullcontext(standard_input())
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise Invalid(f"{source} cannot be read: {error.strerror}", "lines") from None


def _size(source: str) -> int | None:
    """Of a pipe nobody knows how much comes."""
    return Path(source).stat().st_size if source != "-" and Path(source).is_file() else None
