"""Short frames: a single job, pushed or given, in a few bytes of fixed layout.

Single jobs on one connection mostly differ in their payloads alone. What they share is their kind:
it is said once at length, under a number (`kind` of PUSHRUN, and of the answer to CLAIM), and a
short frame names that. Ten fields with their names cost both ends more than all that is done for
such a job between its producer and an idle worker.

A short frame begins with a byte that no MessagePack begins with. Behind it stands what it is, then
numbers with the highest byte first; a payload is the rest. Both ends say with HELLO and its answer
that they understand it; what cannot be said so is said at length.
"""

from collections.abc import Mapping
from struct import Struct, error
from typing import Final

from penstock.model.job import JobOptions
from penstock.protocol.framing import BadFrame, Message
from penstock.protocol.runs import TOKEN, Single

SHORT: Final = 0xC1
KINDS: Final = 64  # that are remembered on one connection, of pushes and of jobs given

_PUSH, _PUSHED, _JOB = b"p+j"
JOB: Final = _JOB  # the second byte of a job that is given

# … is the byte that all begin with, and the one that says what it is.
_push: Final = Struct(">BBBQQ")  # …, kind, request, sequence; then the payload
_pushed: Final = Struct(">BBQQ")  # …, request, id
# …, kind, request, id, created at, expires at, token of the lease; then the payload
_job: Final = Struct(f">BBBQQQQ{TOKEN}s")

PAYLOAD_PUSHED: Final = _push.size  # where it begins
PAYLOAD_GIVEN: Final = _job.size

# With the length before them.
_frame_push: Final = Struct(">I" + _push.format[1:]).pack
_frame_pushed: Final = Struct(">I" + _pushed.format[1:]).pack
_frame_job: Final = Struct(">I" + _job.format[1:]).pack

JobKind = tuple[str, tuple[JobOptions, ...]]  # of jobs given: their queue and options


def push_frame(kind: int, request: int, sequence: int, payload: bytes) -> bytes:
    size = PAYLOAD_PUSHED + len(payload)
    return _frame_push(size, SHORT, _PUSH, kind, request, sequence) + payload


def read_push(message: Message, begin: int = 0) -> tuple[int, int, int]:
    """(kind, request, sequence) of what a client says; the payload is the rest. Raises BadFrame."""
    try:
        _, what, kind, request, sequence = _push.unpack_from(message, begin)
    except error:
        raise _cut() from None
    if what != _PUSH:
        raise _unknown(what)
    return kind, request, sequence


def pushed_frame(request: int, job_id: int) -> bytes:
    return _frame_pushed(_pushed.size, SHORT, _PUSHED, request, job_id)


def read_pushed(message: Message, begin: int = 0) -> tuple[int, int]:
    """(request, id) of an answer to a push. Raises BadFrame."""
    try:
        _, what, request, job_id = _pushed.unpack_from(message, begin)
    except error:
        raise _cut() from None
    if what != _PUSHED:
        raise _unknown(what)
    return request, job_id


def read_job(message: Message, kinds: Mapping[int, JobKind], begin: int = 0) -> tuple[int, Single]:
    """(request, job) of a job that is given. Raises BadFrame."""
    try:
        _, _, kind, request, job_id, created_at, expires_at, said = _job.unpack_from(message, begin)
        token = said.decode("ascii")
    except error:
        raise _cut() from None
    except UnicodeDecodeError:
        raise BadFrame("a lease has a token that is no text") from None
    known = kinds.get(kind)
    if known is None:
        raise BadFrame(f"{kind} is no kind that was said")
    queue, options = known
    payload = bytes(message[begin + PAYLOAD_GIVEN :])
    return request, Single(token, queue, expires_at, job_id, payload, options, created_at)


def _cut() -> BadFrame:
    return BadFrame("a short frame is too short")


def _unknown(what: int) -> BadFrame:
    return BadFrame(f"there is no short frame {chr(what)!r}")


class JobKinds:
    """The kinds of single jobs that one connection was told of."""

    __slots__ = ("_number", "_numbers", "_options", "_queue")

    def __init__(self) -> None:
        self._numbers: dict[JobKind, int] = {}
        # The last of them that was looked for, by the very same options.
        self._number = 0
        self._queue = ""
        self._options: tuple[JobOptions, ...] | None = None

    def frame(self, request: object, job: Single) -> bytes | None:
        """The answer to a claim. None: it has to be said at length."""
        if (job.options is not self._options or job.queue != self._queue) and not self._look_up(
            job.queue, job.options
        ):
            return None
        payload = job.payload
        try:
            head = _frame_job(
                PAYLOAD_GIVEN + len(payload),
                SHORT,
                _JOB,
                self._number,
                request,
                job.job_id,
                job.created_at,
                job.expires_at,
                job.token.encode(),
            )
        except error:  # the request has a number that is none, or too large a one
            return None
        return head + payload

    def _look_up(self, queue: str, options: tuple[JobOptions, ...]) -> bool:
        number = self._numbers.get((queue, options))
        if number is None:
            return False
        self._number, self._queue, self._options = number, queue, options
        return True

    def told(self, queue: str, options: tuple[JobOptions, ...]) -> int | None:
        """The number of this kind from now on, if there is one left: it is being told at length."""
        number = self._numbers.get((queue, options))
        if number is None and len(self._numbers) < KINDS:
            number = self._numbers[queue, options] = len(self._numbers) + 1
        return number
