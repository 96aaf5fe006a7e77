"""System calls of a command, recorded by strace and read back.

strace and not a preloaded library: it also sees what libc does inside itself (stdio) and what goes
round libc, it follows children, and it stops a thread at the entry and at the return of each call,
so that the recorded interval always contains the real one. It costs about 0.2 ms a call.

Every string is recorded in hexadecimal, so no byte of a file can be taken for syntax, and every
descriptor with the path behind it (`-y`), which tells the calls of interest from the rest.
"""

import os
import re
import shutil
import signal
import subprocess
from binascii import unhexlify
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.powerloss.effects import NEVER

# A question mark: older architectures have the call, newer ones do not. Not among them: msync, of
# use only after what is refused, and sync_file_range, which promises neither metadata nor that the
# disk has emptied its cache.
TRACED: Final = (
    "?open,?openat,?openat2,?creat,close,close_range,dup,?dup2,dup3,fcntl,ioctl,"
    "write,writev,pwrite64,pwritev,pwritev2,read,readv,lseek,"
    "truncate,ftruncate,fallocate,copy_file_range,sendfile,splice,"
    "?rename,?renameat,renameat2,?unlink,unlinkat,?link,linkat,?symlink,symlinkat,"
    "?mkdir,mkdirat,?rmdir,fsync,fdatasync,sync,syncfs,mmap,"
    "chdir,fchdir,clone,?clone3,?fork,?vfork,execve,execveat,?io_uring_setup,io_submit"
)

# What goes through a ring is no call, so there is none to be had: libuv and RocksDB can do without.
DENIED: Final = "?io_uring_setup:error=ENOSYS"

# Of these only the count matters. Undecoded, their data stays out of the log.
RAW: Final = "read,readv"

LINE: Final = re.compile(rb"(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)", re.DOTALL)
CALL: Final = re.compile(rb"(\w+)\((.*)", re.DOTALL)
RESULT: Final = re.compile(rb"\) +=  *(0x[0-9a-f]+|-?\d+|\?)( ERESTART)?")
ARGUMENT: Final = re.compile(rb"(?:\[[^]]*\]|\{[^}]*\}|[^,[{]+)+")
UNFINISHED: Final = b" <unfinished ...>"


class RecordingFailed(Exception):
    """The run cannot be recorded, or did something that the images would not show."""


@dataclass(frozen=True, slots=True)
class Call:
    thread: int
    name: str
    text: bytes  # the arguments and the result, as strace writes them
    result: int | None  # unset if the process was killed inside the call
    entered: int
    returned: int

    @property
    def arguments(self) -> list[bytes]:
        inside = self.text[: self.text.rfind(b") ")].rstrip()
        if b"[" in inside or b"{" in inside:
            return [found.strip() for found in ARGUMENT.findall(inside)]
        return inside.split(b", ")

    @property
    def answer(self) -> bytes:
        """The result as text; for a descriptor it ends with the path behind it."""
        return self.text[self.text.rfind(b") ") :].rpartition(b"= ")[2]


def strace(
    argv: Sequence[str],
    log: Path,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float,
) -> int:
    """Run the command to its end, children included; its exit status."""
    found = shutil.which("strace")
    if found is None:
        raise RecordingFailed("strace is not installed: tools/system.sh installs it")
    output = log.with_suffix(".output")
    options = f"-f -y -xx -s 268435456 --seccomp-bpf -qq -e signal=none -o {log}".split()
    options += ["-e", f"raw={RAW}", "-e", f"trace={TRACED}", "-e", f"inject={DENIED}"]
    with output.open("wb") as said:
        # A session of its own: when strace dies the traced processes live on, so all are ended.
        running = subprocess.Popen(
            [found, *options, "--", *argv],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return running.wait(timeout_s)
        except BaseException as error:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RecordingFailed(f"{argv[0]} ran for more than {timeout_s} s") from error
            raise


def read_calls(log: Path) -> list[Call]:
    """Every call of the log in the order of entry; those that failed are left out."""
    calls: list[Call] = []
    open_calls: dict[int, tuple[int, str, bytes]] = {}
    with log.open("rb") as lines:
        for number, line in enumerate(lines):
            matched = LINE.match(line.rstrip(b"\n"))
            if matched is None:
                raise RecordingFailed(f"{log}:{number + 1}: not a line of strace")
            thread, resumed, rest = int(matched[1]), matched[2], matched[3]
            entered = 2 * number
            if resumed is not None:
                entered, name, begun = open_calls.pop(thread)
                if name != resumed.decode():
                    raise RecordingFailed(f"{log}:{number + 1}: {name} was under way")
                text = begun + rest
            else:
                opening = CALL.match(rest)
                if opening is None:
                    continue  # the end of a thread, or a signal
                name, text = opening[1].decode(), opening[2]
                if text.endswith(UNFINISHED):
                    open_calls[thread] = (entered, name, text.removesuffix(UNFINISHED))
                    continue
            whole = text.replace(UNFINISHED, b"").removesuffix(b" (INJECTED)")
            call = finished(thread, name, whole, entered, 2 * number + 1)
            if call is not None:
                calls.append(call)
    for thread, (entered, name, text) in open_calls.items():
        calls.append(Call(thread, name, text + b") = ?", None, entered, NEVER))
    calls.sort(key=lambda call: call.entered)
    return calls


def finished(thread: int, name: str, text: bytes, entered: int, returned: int) -> Call | None:
    found = RESULT.match(text, text.rfind(b") "))
    if found is None:
        raise RecordingFailed(f"{name} without a result: {text[-200:]!r}")
    if found[1] == b"?":
        # Interrupted calls are begun again by the kernel, and seen again; the rest was killed.
        return None if found[2] else Call(thread, name, text, None, entered, NEVER)
    result = int(found[1], 0)
    return Call(thread, name, text, result, entered, returned) if result >= 0 else None


def string(argument: bytes) -> bytes:
    """The bytes of a quoted string."""
    if not (argument.startswith(b'"') and argument.endswith(b'"')):
        raise RecordingFailed(f"not a whole string: {argument[:80]!r}…{argument[-20:]!r}")
    return unhexlify(argument[1:-1].replace(b"\\x", b""))


def path_behind(descriptor: bytes) -> str | None:
    """The path in `3<path>`; unset for what is not a file."""
    begin, end = descriptor.find(b"<"), descriptor.find(b">")
    if begin < 0 or end < 0:
        return None
    return os.fsdecode(unhexlify(descriptor[begin + 1 : end].replace(b"\\x", b"")))


def hexadecimal(path: Path) -> bytes:
    """The path as it stands in the log."""
    return b"".join(b"\\x%02x" % byte for byte in os.fsencode(path))
