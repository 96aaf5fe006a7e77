"""Room on the disk: how much is left, and a ballast that is thrown out when there is none.

Pushes stop while less than the reserve is free, so that acks and reads go on. Should the disk be
filled by somebody else all the same, the ballast is deleted to make room for them.
"""

import os
import re
from pathlib import Path
from typing import Final

RESERVE: Final = 64 << 20
BALLAST: Final = 8 << 20

_ESCAPED: Final = re.compile(rb"\\([0-3][0-7]{2})")  # \040 for a blank

# A file system that other machines share keeps neither our locks nor SQLite's.
_NETWORKED: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.cephfs",
        "fuse.s3fs",
        "fuse.rclone",
    ]
)


def file_system(path: Path) -> str:
    """The type of the file system that holds a path; "" where the machine does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return ""
    best, kind = b"", b""
    where = os.fsencode(path.resolve())
    # In bytes: anybody's mount stands there, and a name need not be text, or has blanks and line
    # breaks of its own, of which the kernel only replaces those of ASCII.
    for line in mounts.split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        mount = _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), left.split(b" ")[4])
        inside = where == mount or where.startswith(mount.rstrip(b"/") + b"/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split(b" ")[0]
    return kind.decode("ascii", "replace")


def is_networked(path: Path) -> bool:
    return file_system(path) in _NETWORKED


class Ballast:
    """A file that only takes up room, and how much room there is besides."""

    def __init__(self, path: Path, reserve: int = RESERVE, size: int = BALLAST) -> None:
        self._path = path
        self._reserve = reserve
        self._size = min(size, reserve)

    def free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

    @property
    def spare(self) -> int:
        """How many bytes of jobs there is room for; below zero, none at all."""
        return self.free() - self._reserve

    def fill(self) -> None:
        """Put the ballast there, if it is not and there is room for it beyond the reserve."""
        if self._path.exists() or not self._size or self.free() < self._reserve + self._size:
            return
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(handle, 0, self._size)
            finally:
                os.close(handle)
        except OSError:
            self._path.unlink(missing_ok=True)

    def drop(self) -> bool:
        """Make room; False if there was no ballast left."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True
