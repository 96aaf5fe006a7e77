"""The exception tree. Each class has a stable wire code, the same on every transport and store.

    PenstockError
    ├── Invalid            invalid             a value is wrong; `field` says which
    ├── PayloadTooLarge    payload_too_large
    ├── BatchTooLarge      batch_too_large
    ├── Conflict           conflict            the state of things forbids it (a taken key, an active job)
    ├── NotFound           not_found
    ├── LeaseLost          lease_lost          the lease expired, or never held what was named
    ├── Unauthenticated    unauthenticated
    ├── Forbidden          forbidden
    ├── RateLimited        rate_limited        a push rate bound
    ├── Overloaded         overloaded          a bound on a collection
    ├── StorageFull        storage_full
    ├── Unavailable        unavailable         the store cannot answer; the outcome may be unknown
    └── Deadline           deadline            the time given was not enough

An error changes nothing: whoever raises one has left the state as it was.
"""

from typing import ClassVar


class PenstockError(Exception):
    """Base of everything that Penstock raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field  # dotted path of the wrong input, "" where no single one is to blame

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class Invalid(PenstockError):
    """A value is wrong; `field` says which."""

    code = "invalid"


class PayloadTooLarge(PenstockError):
    """A payload has more bytes than one may have."""

    code = "payload_too_large"


class BatchTooLarge(PenstockError):
    """More was said in one call than it takes."""

    code = "batch_too_large"


class Conflict(PenstockError):
    """The state of things forbids it: a taken key, an active job."""

    code = "conflict"


class NotFound(PenstockError):
    """Nothing of that name or id is known, or not any more."""

    code = "not_found"


class LeaseLost(PenstockError):
    """The lease expired, or never held what was named."""

    code = "lease_lost"


class Unauthenticated(PenstockError):
    """The server does not know who asks."""

    code = "unauthenticated"


class Forbidden(PenstockError):
    """Whoever asks may not do this."""

    code = "forbidden"


class RateLimited(PenstockError):
    """More was pushed than the push rate of a queue or tenant allows."""

    code = "rate_limited"


class Overloaded(PenstockError):
    """A bound on a collection is reached: jobs or bytes of a queue, waiters, keys."""

    code = "overloaded"


class StorageFull(PenstockError):
    """The disk has no room for more; what is there can still be claimed and acked."""

    code = "storage_full"


class Unavailable(PenstockError):
    """The store cannot answer; whether the call took effect may be unknown."""

    code = "unavailable"


class Deadline(PenstockError):
    """The time given was not enough."""

    code = "deadline"


def by_code() -> dict[str, type[PenstockError]]:
    """Every concrete error class by its wire code."""
    return {cls.code: cls for cls in PenstockError.__subclasses__()}
