"""The options of a job as options of the command line: of `push`, and of the jobs of a cron."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from penstock.cli.options import Flags, duration, instant, read
from penstock.cli.options import lease as lease_time
from penstock.client.options import PRIORITIES
from penstock.model.duration import duration_ms
from penstock.model.errors import Invalid
from penstock.model.job import MAX_ID, Codec, JobOptions, JobSpec, OnDependencyFailure
from penstock.model.payload import check_payload
from penstock.model.policy import Backoff, BackoffKind, Jitter, KeepKey, OnConflict
from penstock.protocol.json_values import to_msgpack

_OPTIONS: Final = JobOptions()
_BACKOFF: Final = Backoff()


def kept_key(said: str) -> KeepKey:
    kept: dict[str, KeepKey] = {"live": "live", "started": "started", "retained": "retained"}
    if said in kept:
        return kept[said]
    try:
        return duration_ms(said, low_ms=1)
    except Invalid:
        raise Invalid(f"{said!r} is neither one of {', '.join(kept)} nor a duration") from None


def _priority(said: str) -> int:
    if said in PRIORITIES:
        return PRIORITIES[said]
    try:
        return int(said)
    except ValueError:
        raise Invalid(f"{said!r} is neither a number nor one of {', '.join(PRIORITIES)}") from None


@dataclass(frozen=True, kw_only=True)
class WorkFlags(Flags):
    """What jobs and the jobs of crons have in common."""

    task: Annotated[str, typer.Option(metavar="NAME", help="The task that the job is for.")] = ""
    priority: Annotated[
        int,
        typer.Option(
            parser=read(_priority),
            metavar="N|high|normal|low",
            help="Higher ones are served first.",
        ),
    ] = 0
    max_attempts: Annotated[int, typer.Option(min=0, help="0: without end.")] = 3
    backoff: Annotated[
        BackoffKind, typer.Option(help="How the wait grows from attempt to attempt.")
    ] = _BACKOFF.kind
    backoff_base: Annotated[int | None, duration("The first wait. Unsaid: 1s.")] = None
    backoff_cap: Annotated[int | None, duration("The longest wait. Unsaid: 15m.")] = None
    backoff_list: Annotated[
        list[int] | None, duration("For the kind list: the waits in order; several times.")
    ] = None
    jitter: Annotated[Jitter, typer.Option(help="How waits are spread.")] = _BACKOFF.jitter
    lease: Annotated[int | None, lease_time("Of claims that do not say. Unsaid: 30s.")] = None
    timeout: Annotated[
        int | None, duration("Of one attempt, however alive its worker.", low_ms=1)
    ] = None
    ttl: Annotated[int | None, duration("Expires unless claimed within it.", low_ms=1)] = None
    lifo: Annotated[bool, typer.Option("--lifo", help="The last one first.")] = False
    tag: Annotated[list[str] | None, typer.Option(help="A tag; several times.")] = None
    retain: Annotated[
        int | None, duration("How long it is known when it has ended. Unsaid: by queue.")
    ] = None
    retain_dead: Annotated[int | None, duration("The same, if it is dead.")] = None
    codec: Annotated[
        Codec,
        typer.Option(help="How the payload is kept; bytes: as it is, the others from JSON."),
    ] = "json"

    def shared(self) -> dict[str, Any]:
        """By the names of the model."""
        return {
            "task": self.task,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "backoff": Backoff(
                kind=self.backoff,
                base_ms=_BACKOFF.base_ms if self.backoff_base is None else self.backoff_base,
                cap_ms=_BACKOFF.cap_ms if self.backoff_cap is None else self.backoff_cap,
                jitter=self.jitter,
                list_ms=tuple(self.backoff_list or ()),
            ),
            "lease_ms": self.lease,
            "timeout_ms": self.timeout,
            "ttl_ms": self.ttl,
            "lifo": self.lifo,
            "tags": tuple(self.tag or ()),
            "retain_ms": self.retain,
            "retain_dead_ms": self.retain_dead,
        }

    def payload(self, written: bytes) -> bytes:
        """What was said, as it is kept. Refused here, where it can be told how it is meant."""
        if self.codec == "bytes":
            return written
        try:
            if self.codec == "msgpack":
                return to_msgpack(written)
            check_payload(self.codec, stripped := written.strip())
        except Invalid as error:
            raise Invalid(
                f"{error.message}; a payload is JSON, and a text in it has quotes:"
                """ '{"user": 1}', '"hello"'""",
                "payload",
            ) from None
        return stripped


@dataclass(frozen=True, kw_only=True)
class JobFlags(WorkFlags):
    """Everything that can be said of a job."""

    delay: Annotated[int | None, duration("Not before that long from now.")] = None
    run_at: Annotated[int | None, instant("Not before that instant.")] = None
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="At most one job of the queue has it.")
    ] = None
    on_conflict: Annotated[OnConflict, typer.Option(help="If another job has the key.")] = "return"
    keep_key: Annotated[
        str,
        typer.Option(
            parser=read(kept_key),
            metavar="live|started|retained|DURATION",
            help="How long the key is taken.",
        ),
    ] = "live"
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Jobs of a group run one at a time, in order."),
    ] = None
    depends_on: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", min=1, max=MAX_ID, help="A job to wait for; several times."),
    ] = None
    on_dependency_failure: Annotated[
        OnDependencyFailure, typer.Option(help="If such a job fails.")
    ] = _OPTIONS.on_dependency_failure
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; several times.")
    ] = None

    def spec(self, payload: bytes) -> JobSpec:
        if self.delay is not None and self.run_at is not None:
            raise Invalid("cannot go with --delay: give one of them", "run_at")
        kept: Any = self.keep_key  # as its parser has read it
        return JobSpec(
            payload=payload,
            codec=self.codec,
            delay_ms=self.delay,
            run_at=self.run_at,
            key=self.key,
            on_conflict=self.on_conflict,
            keep_key=kept,
            group=self.group,
            depends_on=tuple(self.depends_on or ()),
            on_dependency_failure=self.on_dependency_failure,
            headers=self._headers(),
            **self.shared(),
        )

    def _headers(self) -> dict[str, str] | None:
        if not self.header:
            return None
        pairs = [each.partition("=") for each in self.header]
        for name, equals, _ in pairs:
            if not equals:
                raise Invalid(f"{name!r} is no header like NAME=VALUE", "header")
        return {name: value for name, _, value in pairs}
