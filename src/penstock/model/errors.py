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
    code = "invalid"


class PayloadTooLarge(PenstockError):
    code = "payload_too_large"


class BatchTooLarge(PenstockError):
    code = "batch_too_large"


class Conflict(PenstockError):
    code = "conflict"


class NotFound(PenstockError):
    code = "not_found"


class LeaseLost(PenstockError):
    code = "lease_lost"


class Unauthenticated(PenstockError):
    code = "unauthenticated"


class Forbidden(PenstockError):
    code = "forbidden"


class RateLimited(PenstockError):
    code = "rate_limited"


class Overloaded(PenstockError):
    code = "overloaded"


class StorageFull(PenstockError):
    code = "storage_full"


class Unavailable(PenstockError):
    code = "unavailable"


class Deadline(PenstockError):
    code = "deadline"


def by_code() -> dict[str, type[PenstockError]]:
    """Every concrete error class by its wire code."""
    return {cls.code: cls for cls in PenstockError.__subclasses__()}
