"""Words that the shapes of the HTTP interface are made of: numbers, names and instants.

Ranges stand here for the reader of the OpenAPI document; the store's own checks hold them, with
better words. Only what no store would refuse is refused here: a NUL in a name, which several
databases and languages cannot hold.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Raw

from penstock.model.checks import MAX_WORD_BYTES
from penstock.model.checks_push import MAX_BACKOFF_STEPS, MAX_HEADER_BYTES, MAX_TAGS
from penstock.model.checks_values import (
    MAX_INT32,
    MAX_NAME_BYTES,
    MAX_TAG_CHARACTERS,
    MIN_INT32,
)
from penstock.model.job import MAX_BATCH, MAX_DEPENDENCIES, MAX_ID
from penstock.model.policy import MAX_DURATION_MS, MAX_LEASE_MS, MIN_LEASE_MS
from penstock.model.schedule import MAX_INSTANT_MS

NO_NUL: Final = r"^[^\x00]*$"
QUEUE_PATTERN: Final = "^[A-Za-z0-9_.-]{1,256}$"
BASE64_PATTERN: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _range(low: int, high: int, about: str | None = None) -> Meta:
    return Meta(extra_json_schema={"minimum": low, "maximum": high}, description=about)


def _sized(low: int, high: int, about: str | None = None, **more: Any) -> Meta:
    sizes = {"minLength": low, "maxLength": high, **more}
    return Meta(pattern=NO_NUL, extra_json_schema=sizes, description=about)


Id = Annotated[int, _range(1, MAX_ID)]
Count = Annotated[int, _range(1, MAX_ID)]
Small = Annotated[int, _range(1, MAX_INT32)]
Number = Annotated[int, _range(0, MAX_INT32)]
Many = Annotated[int, _range(0, MAX_ID)]
Priority = Annotated[int, _range(MIN_INT32, MAX_INT32, "higher first")]
Duration = Annotated[int, _range(0, MAX_DURATION_MS, "milliseconds")]
Span = Annotated[int, _range(1, MAX_DURATION_MS, "milliseconds")]
Instant = Annotated[int, _range(0, MAX_INSTANT_MS, "milliseconds since the epoch")]
LeaseMs = Annotated[int, _range(MIN_LEASE_MS, MAX_LEASE_MS, "milliseconds")]
WaitMs = Annotated[int, _range(0, 86_400_000, "milliseconds")]
Percent = Annotated[int, _range(0, 100)]

Name = Annotated[str, _sized(1, MAX_NAME_BYTES, "at most 512 bytes of UTF-8")]
NameOrNone = Annotated[str, _sized(0, MAX_NAME_BYTES, "at most 512 bytes of UTF-8")]
Word = Annotated[
    str,
    Meta(
        extra_json_schema={"minLength": 1, "maxLength": MAX_WORD_BYTES},
        description="at most 64 bytes of UTF-8",
    ),
]
Tag = Annotated[str, _sized(1, MAX_TAG_CHARACTERS)]
QueueName = Annotated[str, Meta(extra_json_schema={"pattern": QUEUE_PATTERN})]
Fingerprint = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{16}$"})]
Base64 = Annotated[bytes, Meta(extra_json_schema={"pattern": BASE64_PATTERN})]

Ids = Annotated[tuple[Id, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_BATCH})]
Tags = Annotated[tuple[Tag, ...], Meta(extra_json_schema={"maxItems": MAX_TAGS})]
Dependencies = Annotated[tuple[Id, ...], Meta(extra_json_schema={"maxItems": MAX_DEPENDENCIES})]
Waits = Annotated[tuple[Duration, ...], Meta(extra_json_schema={"maxItems": MAX_BACKOFF_STEPS})]
Headers = Annotated[
    dict[str, str],
    Meta(description=f"names and values, together at most {MAX_HEADER_BYTES} bytes of UTF-8"),
]

_BY_ID: Final = {"propertyNames": {"pattern": "^[1-9][0-9]{0,14}$"}}

Results = Annotated[
    dict[Id, Raw], Meta(description="JSON values by job id", extra_json_schema=_BY_ID)
]
ResultsBase64 = Annotated[
    dict[Id, Base64], Meta(description="bytes by job id", extra_json_schema=_BY_ID)
]
Hour = Annotated[
    str, Meta(extra_json_schema={"pattern": "^(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?$"})
]
