"""Blobs with a checksum of their own, because neither a file nor a page of one is to be trusted.

sealed blob   = crc32 of the data · data
payload chunk = crc32 of kind and data · kind · data;  kind 0: as it is, 1: deflated
"""

import zlib
from typing import Final

from penstock.stores.journal.base import JournalError
from penstock.stores.journal.checksum import crc32

_SIZE: Final = 4
_PLAIN, _DEFLATED = b"\x00", b"\x01"


def sealed(data: bytes) -> bytes:
    return crc32(data).to_bytes(_SIZE, "little") + data


def _blob(data: object, what: str) -> bytes:
    if not isinstance(data, bytes):  # the value's type is not under the checksum
        raise JournalError(f"{what} is damaged: it is no blob")
    return data


def unsealed(data: object, what: str) -> bytes:
    data = _blob(data, what)
    body = data[_SIZE:]
    if crc32(body) != int.from_bytes(data[:_SIZE], "little"):
        raise JournalError(f"{what} is damaged: its checksum does not match")
    return body


def sealed_chunk(data: bytes) -> bytes:
    return crc32(data, crc32(_PLAIN)).to_bytes(_SIZE, "little") + _PLAIN + data


def hollow_chunk(data: bytes) -> bytes:
    """One that is mostly nothing."""
    packed = zlib.compress(data, 1)
    return crc32(packed, crc32(_DEFLATED)).to_bytes(_SIZE, "little") + _DEFLATED + packed


def unsealed_chunk(row: object, what: str) -> bytes:
    row = _blob(row, what)
    kind, body = row[_SIZE : _SIZE + 1], row[_SIZE + 1 :]
    if crc32(body, crc32(kind)) != int.from_bytes(row[:_SIZE], "little"):
        raise JournalError(f"{what} is damaged: its checksum does not match")
    return zlib.decompress(body) if kind == _DEFLATED else body
