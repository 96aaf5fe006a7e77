"""Blobs with a checksum of their own, because neither a file nor a page of one is to be trusted."""

from typing import Final
from zlib import crc32

from penstock.stores.journal.base import JournalError

_SIZE: Final = 4


def sealed(data: bytes) -> bytes:
    return crc32(data).to_bytes(_SIZE, "little") + data


def unsealed(data: bytes, what: str) -> bytes:
    body = data[_SIZE:]
    if crc32(body) != int.from_bytes(data[:_SIZE], "little"):
        raise JournalError(f"{what} is damaged: its checksum does not match")
    return body
