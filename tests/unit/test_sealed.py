"""Blobs are trusted only as far as their checksum goes."""

import pytest

from penstock.stores.journal.base import JournalError
from penstock.stores.journal.sealed import (
    hollow_chunk,
    sealed,
    sealed_chunk,
    unsealed,
    unsealed_chunk,
)

DATA = b"some payloads, end to end"


def test_what_was_sealed_comes_back() -> None:
    assert unsealed(sealed(DATA), "a row") == DATA
    assert unsealed_chunk(sealed_chunk(DATA), "a chunk") == DATA
    assert unsealed_chunk(hollow_chunk(DATA), "a chunk") == DATA


@pytest.mark.parametrize("pack", [sealed_chunk, hollow_chunk])
def test_any_flipped_bit_is_found_out(pack: object) -> None:
    assert callable(pack)
    whole = pack(DATA)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(JournalError, match="the chunk is damaged"):
            unsealed_chunk(bytes(damaged), "the chunk")


@pytest.mark.parametrize("value", [None, 7, 1.5, "text"])
def test_what_is_no_blob_is_damaged(value: object) -> None:
    """A flipped bit may change the type of a value in SQLite's file."""
    for unseal in (unsealed, unsealed_chunk):
        with pytest.raises(JournalError, match="the row is damaged: it is no blob"):
            unseal(value, "the row")
