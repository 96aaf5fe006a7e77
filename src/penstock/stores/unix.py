"""Socket files: private from the moment they exist, replaced only where nobody listens."""

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from penstock.model.errors import Conflict, Invalid

LONGEST: Final = 107  # bytes of a path, by the system's own structure


def bind(path: Path) -> tuple[socket.socket, int]:
    """A socket bound to that path with mode 0600, and its inode. Raises Conflict if it is taken."""
    if len(os.fsencode(path)) > LONGEST:
        raise Invalid(f"{str(path)!r} is too long for a socket: {LONGEST} bytes at most", "unix")
    _make_room(path)
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


def _make_room(path: Path) -> None:
    """Remove a socket file that a dead process left behind."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{str(path)!r} is there and is no socket", "unix")
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
