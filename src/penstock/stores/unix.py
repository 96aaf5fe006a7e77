"""Socket files: private from the moment they exist, replaced only where nobody listens."""

import errno
import os
import socket
import stat
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from penstock.model.errors import Conflict, Invalid

LONGEST: Final = 107  # bytes of a path, by the system's own structure
LONGEST_NAME: Final = 80  # …of a file's name, so that it fits behind that of an open directory


def short(path: Path) -> str:
    """A name of that path that a socket can have, however long its directory's is."""
    if len(os.fsencode(path.absolute())) <= LONGEST:
        return str(path.absolute())
    name = path.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = f"{sha256(os.fsencode(name)).hexdigest()[:32]}.sock"
    return f"/proc/self/fd/{_directory(path.absolute().parent)}/{name}"


@cache
def _directory(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def bind(path: Path, *, replace: bool = False) -> tuple[socket.socket, int]:
    """A socket bound to that path with mode 0600, and its inode. Raises Conflict if it is taken."""
    if len(os.fsencode(path)) > LONGEST:
        raise Invalid(f"{str(path)!r} is too long for a socket: {LONGEST} bytes at most", "unix")
    _make_room(path, replace)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask is the process's: whatever else is created in this instant is private, too.
    mask = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"{str(path)!r} is taken", "unix") from error
        raise
    finally:
        os.umask(mask)
    sock.setblocking(False)
    return sock, path.stat().st_ino


def _make_room(path: Path, replace: bool) -> None:
    """Remove a socket file that a dead process left behind; with `replace`, any."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{str(path)!r} is there and is no socket", "unix")
    if replace:
        path.unlink(missing_ok=True)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise Conflict(f"somebody listens at {str(path)!r}", "unix")


def unlink(path: Path, inode: int) -> None:
    """Remove the file if it is still the one that was bound."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        return
