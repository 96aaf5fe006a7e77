"""Checks of single values: a number in its range, a name, a text, one word of several.

The ground under `checks.py` and `checks_push.py`, which say what which call needs. Types are
compared exactly: `True` and `1.0` equal 1, but encode and print as something else.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from penstock.model.errors import Invalid, PayloadTooLarge
from penstock.model.job import MAX_PAYLOAD
from penstock.model.policy import MAX_LEASE_MS, MIN_LEASE_MS

MAX_NAME_BYTES: Final = 512  # key, group, task, worker, producer, bulk, part
MAX_TAG_CHARACTERS: Final = 64
MAX_INT32: Final = 2**31 - 1
MIN_INT32: Final = -(2**31)

_CODECS: Final = ("json", "msgpack", "bytes")
_TENANT: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_QUEUE: Final = re.compile("[A-Za-z0-9_.-]{1,256}")


def show(value: object) -> str:
    """The value for an error message: short, and never itself the cause of an error."""
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        bits = value.bit_length()
        # Python refuses to print integers of more than some thousand digits.
        return str(value) if bits <= 128 else f"an integer of {bits} bits"
    if type(value) in (str, bytes):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}…"  # type: ignore[arg-type, index]
    return f"a {type(value).__name__[:60]}"


def check_int(value: object, field: str, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise Invalid(f"{show(value)} is not an integer from {low} to {high}", field)


def check_optional_int(value: object, field: str, low: int, high: int) -> None:
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise Invalid(f"{show(value)} is neither None nor an integer from {low} to {high}", field)


def check_bool(value: object, field: str) -> None:
    if type(value) is not bool:
        raise Invalid(f"{show(value)} is neither True nor False", field)


def check_one_of(value: object, field: str, words: Iterable[str]) -> None:
    if type(value) is not str or value not in words:
        raise Invalid(f"{show(value)} is not one of {', '.join(words)}", field)


def check_codec(codec: object, field: str = "codec") -> None:
    check_one_of(codec, field, _CODECS)


def check_listed(value: object, field: str) -> None:
    """A list or a tuple: what has a length, a fixed order, and is not a text."""
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"is {show(value)}, not a list or tuple", field)


def check_struct(value: object, field: str, kind: type[Any]) -> None:
    if type(value) is not kind:
        raise Invalid(f"is {show(value)}, not a {kind.__name__}", field)


def check_text(value: object, field: str, max_bytes: int, *, empty_ok: bool = True) -> None:
    """A plain text with a UTF-8 form of at most so many bytes."""
    if type(value) is not str:
        raise Invalid(f"is {show(value)}, not a plain str", field)
    if not value:
        if not empty_ok:
            raise Invalid(f"is empty; give 1 to {max_bytes} bytes", field)
    elif not value.isascii() or len(value) > max_bytes:
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise Invalid(f"{show(value)} has a lone surrogate", field) from error
        if size > max_bytes:
            raise Invalid(f"has {size} bytes as UTF-8; at most {max_bytes} are allowed", field)


def check_name(
    value: object, field: str, max_bytes: int = MAX_NAME_BYTES, empty_ok: bool = False
) -> None:
    """A key, group, task, worker, producer, bulk or part."""
    check_text(value, field, max_bytes, empty_ok=empty_ok)


def check_tenant(tenant: object) -> None:
    if type(tenant) is not str or not is_tenant(tenant):
        raise Invalid(
            f"{show(tenant)} is not 1 to 63 of A-Z a-z 0-9 _ -, beginning with a letter or digit",
            "tenant",
        )


def check_queue(queue: object, field: str = "queue") -> None:
    if type(queue) is not str or not is_queue(queue):
        raise Invalid(f"{show(queue)} is not 1 to 256 of A-Z a-z 0-9 _ . -", field)


# Remembered, because each call names them and the same few come again and again.
@lru_cache(maxsize=1024)
def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


@lru_cache(maxsize=1024)
def is_queue(name: str) -> bool:
    return _QUEUE.fullmatch(name) is not None


def check_tag(tag: object, field: str) -> None:
    if type(tag) is not str or not 1 <= len(tag) <= MAX_TAG_CHARACTERS:
        raise Invalid(f"{show(tag)} is not a text of 1 to {MAX_TAG_CHARACTERS} characters", field)
    check_text(tag, field, 4 * MAX_TAG_CHARACTERS)


def check_bytes(value: object, field: str) -> None:
    """A payload, a result or a partial: bytes of at most 10 MiB."""
    if type(value) is not bytes:
        raise Invalid(f"is {show(value)}, not plain bytes", field)
    if len(value) > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"has {len(value)} bytes; at most {MAX_PAYLOAD} (10 MiB) are allowed", field
        )


def check_lease_ms(lease_ms: object) -> None:
    check_optional_int(lease_ms, "lease_ms", MIN_LEASE_MS, MAX_LEASE_MS)
