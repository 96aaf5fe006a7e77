"""What a power cut leaves of RocksDB's MANIFEST, and RocksDB refuses.

**A torn end.**

RocksDB appends to its MANIFEST and syncs; a power cut in between may leave the last record with
sectors that never reached the disk. RocksDB takes that for corruption and refuses to open. Nothing
rests on a record that was not synced: files that it makes superfluous go only afterwards. So it may
be cut off; but only if it is the last one and looks torn, with zeros where a sector begins or the
record does. Any other damage stays what it is.

**Files that never got their names.** An opening that replays the WAL writes files, a MANIFEST that
names them, and has CURRENT name that one; only then it syncs the directory. Where that keeps no order,
CURRENT may be there and one of the files not. What the opening began with is all there as well, for
it goes only after that sync, and so does whatever is written later: the older MANIFEST is as good.

The format: blocks of 32 KiB; records of crc u32 (CRC-32C, masked) · length u16 · type u8 · data.
"""

import os
import struct
from pathlib import Path
from typing import Final

BLOCK: Final = 32 << 10
SECTOR: Final = 512
_HEADER: Final = struct.Struct("<IHB")


def cut_torn_end(directory: Path) -> int:
    """Cut the MANIFEST behind its last whole record; the bytes cut, 0 if it is not torn."""
    try:
        path = directory / (directory / "CURRENT").read_text("ascii").strip()
        data = path.read_bytes()
    except (OSError, ValueError):
        return 0
    end = _whole(data)
    if not _torn(data, end):
        return 0
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    return len(data) - end


def go_back(directory: Path) -> str | None:
    """Have CURRENT name the MANIFEST before the present one, if that is still there. Its name."""
    try:
        current = (directory / "CURRENT").read_text("ascii").strip()
        older = [each.name for each in directory.glob("MANIFEST-*") if each.name < current]
    except (OSError, ValueError):
        return None
    if not older:
        return None
    name, made = max(older), directory / "CURRENT.dbtmp"
    with made.open("w", encoding="ascii") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
    made.replace(directory / "CURRENT")
    sync_names(directory)
    return name


def sync_names(directory: Path) -> None:
    """What is in the directory by now is found there after a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _whole(data: bytes) -> int:
    """Where the records end that match their checksums."""
    at = 0
    while at < len(data):
        if BLOCK - at % BLOCK < _HEADER.size:
            at += BLOCK - at % BLOCK  # no room for a header: the block ends in zeros
            continue
        if len(data) - at < _HEADER.size:
            break
        crc, length, kind = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(body) < length or not kind or crc != _masked(_crc32c(bytes([kind]) + body)):
            break
        at += _HEADER.size + length
    return min(at, len(data))


def _torn(data: bytes, at: int) -> bool:
    """Whether the record that begins there lacks a sector, and nothing follows it."""
    if len(data) - at < _HEADER.size:
        return False
    end = at + _HEADER.size + _HEADER.unpack_from(data, at)[1]
    if any(data[end:]):
        return False
    starts = [at, *range(at - at % SECTOR + SECTOR, end, SECTOR)]
    return any(not any(data[start : start - start % SECTOR + SECTOR]) for start in starts)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # noqa: PLW2901
        table.append(crc)
    return table


_TABLE: Final = _table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
