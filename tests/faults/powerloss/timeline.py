"""From system calls to effects: whose data each write is, and which name means which file.

Descriptors, offsets and names are followed as the kernel keeps them. At the end every file must
hold what the calls add up to; that check is what makes a recording trustworthy, because it finds
whatever was not seen. What cannot be followed at all is refused by name.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests.faults.powerloss.calls import (
    Call,
    RecordingFailed,
    hexadecimal,
    path_behind,
    string,
)
from tests.faults.powerloss.effects import (
    ROOT,
    Effect,
    Entry,
    Inode,
    Mark,
    Rename,
    Resize,
    Sync,
    Timeline,
    Tree,
    Write,
)
from tests.faults.powerloss.processes import Description, Descriptor, Process

# Calls on descriptors alone: of interest only when a path of interest is behind one.
ON_DESCRIPTORS: Final = re.compile(
    "close|dup[23]?|fcntl|ioctl|p?writev?|pwrite64|pwritev2|lseek|ftruncate|fallocate"
    "|copy_file_range|sendfile|splice|fsync|fdatasync|syncfs|mmap"
)
# Where they are entered, not where they return: see `effects`. Nor does a child wait for the return
# of the call that started it, or another thread, to get a number again, for that of a close.
AT_ENTRY: Final = re.compile(
    "p?writev?|pwrite64|pwritev2|f?truncate|fallocate|copy_file_range|sendfile"
    "|readv?|lseek|close|close_range|clone3?|v?fork"
)
BUFFER: Final = re.compile(rb'iov_base=("[^"]*")')
NUMBER: Final = re.compile(rb"-?\d+")


class Reader:
    """Reads calls into a timeline; one for each recording."""

    def __init__(self, directory: Path, markers: Path, cwd: Path, ignored: Sequence[str]) -> None:
        self.root = str(directory)
        self.markers = str(markers)
        self.cwd = str(cwd)
        self.ignored = ignored
        self.effects: list[Effect] = []
        self.names: dict[tuple[Inode, str], Inode] = {}
        self.contents: dict[Inode, bytearray] = {}
        self.directories = {ROOT}
        self.unseen: set[Inode] = set()  # files whose contents are ignored
        self.unsure: set[Inode] = set()  # files in the middle of whose change a process was killed
        self.next_inode = 1
        self.processes: dict[int, Process] = {}
        self.half_line = b""
        self.scan(directory, ROOT)
        files = {inode: bytes(data) for inode, data in self.contents.items()}
        self.begin = Tree(files, dict(self.names))

    def scan(self, directory: Path, inode: Inode) -> None:
        for path in sorted(directory.iterdir()):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                self.scan(path, self.appear(inode, path.name, is_directory=True))
            elif stat.S_ISREG(mode):
                self.contents[self.appear(inode, path.name)][:] = path.read_bytes()
            elif stat.S_ISLNK(mode):
                raise RecordingFailed(f"{path}: symbolic links are not simulated")

    def appear(self, directory: Inode, name: str, *, is_directory: bool = False) -> Inode:
        inode = Inode(self.next_inode)
        self.next_inode += 1
        self.names[directory, name] = inode
        if is_directory:
            self.directories.add(inode)
        else:
            self.contents[inode] = bytearray()
            if self.is_ignored(name):
                self.unseen.add(inode)
        return inode

    def is_ignored(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)

    def timeline(self, calls: Sequence[Call]) -> Timeline:
        if calls:
            self.processes[calls[0].thread] = Process(self.cwd)
        of_interest = re.compile(
            b"|".join(re.escape(hexadecimal(Path(path))) for path in (self.root, self.markers))
        )
        steps: list[tuple[int, Call, Callable[[Call], None]]] = []
        for call in calls:
            if ON_DESCRIPTORS.fullmatch(call.name) and not of_interest.search(call.text):
                continue
            handler = getattr(self, f"on_{call.name}")
            if AT_ENTRY.fullmatch(call.name):
                steps.append((call.entered, call, handler))
            elif call.result is not None:
                steps.append((call.returned, call, handler))
        steps.sort(key=lambda step: step[0])
        for _, call, handler in steps:
            handler(call)
        return Timeline(self.begin, self.effects, frozenset(self.directories))

    def check(self) -> None:
        """The calls must add up to what lies in the directory now."""
        seen: set[tuple[Inode, str]] = set()
        self.check_directory(Path(self.root), ROOT, seen)
        gone = [name for place in self.names.keys() - seen if not self.is_ignored(name := place[1])]
        if gone:
            raise RecordingFailed(f"the calls leave {gone}, which are not there")

    def check_directory(self, path: Path, inode: Inode, seen: set[tuple[Inode, str]]) -> None:
        for entry in path.iterdir():
            mode = entry.lstat().st_mode
            if self.is_ignored(entry.name) or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                continue
            known = self.names.get((inode, entry.name))
            if known is None:
                raise RecordingFailed(f"{entry} is there, but no call made it")
            seen.add((inode, entry.name))
            if known in self.directories:
                self.check_directory(entry, known, seen)
            elif known not in self.unsure and entry.read_bytes() != self.contents[known]:
                raise RecordingFailed(f"{entry} does not hold what the calls add up to")

    # Who calls, and on what.

    def process(self, call: Call) -> Process:
        found = self.processes.get(call.thread)
        if found is None:
            raise RecordingFailed(f"nothing started thread {call.thread}")
        return found

    def descriptor(self, call: Call, argument: bytes) -> Descriptor | None:
        """Unset if neither the directory nor the markers are behind it."""
        number = int(NUMBER.match(argument)[0])  # type: ignore[index]
        path = path_behind(argument)
        if path is None or not (path == self.markers or self.is_inside(path)):
            return None
        found = self.process(call).descriptors.get(number)
        if found is None:
            raise RecordingFailed(f"{call.name} on {path}: nothing opened descriptor {number}")
        return found

    def file(self, call: Call, argument: bytes) -> Inode | None:
        found = self.descriptor(call, argument)
        return None if found is None else found.of.inode

    def is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def whole_path(self, call: Call, argument: bytes, base: bytes | None = None) -> str:
        path = os.fsdecode(string(argument))
        start = None if base is None else path_behind(base)
        if start is None:
            start = self.process(call).cwd
        return os.path.normpath(os.path.join(start, path))  # noqa: PTH118

    def place(self, path: str) -> tuple[Inode, str] | None:
        """The directory and the name in it; unset outside."""
        if not self.is_inside(path):
            return None
        if path == self.root:
            raise RecordingFailed(f"{path} itself may not be made, renamed or removed")
        *above, name = path[len(self.root) + 1 :].split("/")
        directory = ROOT
        for part in above:
            if (directory, part) not in self.names:
                raise RecordingFailed(f"{path}: nothing made {part}")
            directory = self.names[directory, part]
        return directory, name

    # Opening and closing.

    def on_openat(self, call: Call) -> None:
        base, path, flags = call.arguments[:3]
        self.opened(call, self.whole_path(call, path, base), flags)

    def on_open(self, call: Call) -> None:
        self.opened(call, self.whole_path(call, call.arguments[0]), call.arguments[1])

    def on_creat(self, call: Call) -> None:
        path = self.whole_path(call, call.arguments[0])
        self.opened(call, path, b"O_WRONLY|O_CREAT|O_TRUNC")

    def on_openat2(self, call: Call) -> None:
        self.on_openat(call)

    def opened(self, call: Call, path: str, flags: bytes) -> None:
        process, number = self.process(call), call.result
        assert number is not None
        process.descriptors.pop(number, None)
        cloexec = b"O_CLOEXEC" in flags
        if path == self.markers:
            process.descriptors[number] = Descriptor(Description(None, append=True), cloexec)
            return
        behind = path_behind(call.answer)
        if self.is_inside(path) != (behind is not None and self.is_inside(behind)):
            raise RecordingFailed(f"{path} is {behind}: links into and out of {self.root}")
        if not self.is_inside(path):
            return
        for refused in (b"O_TMPFILE", b"O_SYNC", b"O_DSYNC"):
            if refused in flags and b"O_RDONLY" not in flags:
                raise RecordingFailed(f"{path}: {refused.decode()} is not simulated")
        inode = ROOT if path == self.root else self.opened_inode(call, path, flags)
        if b"O_TRUNC" in flags and self.contents[inode]:
            self.resize(call, inode, 0)
        description = Description(inode, append=b"O_APPEND" in flags)
        process.descriptors[number] = Descriptor(description, cloexec)

    def opened_inode(self, call: Call, path: str, flags: bytes) -> Inode:
        place = self.place(path)
        assert place is not None
        inode = self.names.get(place)
        if inode is not None:
            return inode
        if b"O_CREAT" not in flags:
            raise RecordingFailed(f"{path} was opened, but nothing made it")
        inode = self.appear(*place)
        self.effects.append(Rename((Entry(*place, inode),), inode, call.returned))
        return inode

    def on_close(self, call: Call) -> None:
        found = NUMBER.match(call.text)
        if found is not None:
            self.process(call).descriptors.pop(int(found[0]), None)

    def on_close_range(self, call: Call) -> None:
        first, last, flags = call.arguments
        descriptors = self.process(call).descriptors
        for number in [n for n in descriptors if int(first) <= n <= int(last)]:
            if b"CLOSE_RANGE_CLOEXEC" in flags:
                descriptors[number].closed_by_exec = True
            else:
                del descriptors[number]

    def on_dup(self, call: Call) -> None:
        descriptors, new = self.process(call).descriptors, call.result
        assert new is not None
        old = self.descriptor(call, call.arguments[0])
        if old is None:
            descriptors.pop(new, None)
        elif descriptors.get(new) is not old:
            cloexec = b"O_CLOEXEC" in call.text or b"F_DUPFD_CLOEXEC" in call.text
            descriptors[new] = Descriptor(old.of, cloexec)

    on_dup2 = on_dup
    on_dup3 = on_dup

    def on_fcntl(self, call: Call) -> None:
        command = call.arguments[1]
        if command.startswith(b"F_DUPFD"):
            self.on_dup(call)
        elif command == b"F_SETFD":
            self.set_closed_by_exec(call, closed=b"FD_CLOEXEC" in call.arguments[2])
        elif command == b"F_SETFL":
            found = self.descriptor(call, call.arguments[0])
            if found is not None:
                found.of.append = b"O_APPEND" in call.arguments[2]

    def on_ioctl(self, call: Call) -> None:
        command = call.arguments[1]
        if command in {b"FIOCLEX", b"FIONCLEX"}:
            self.set_closed_by_exec(call, closed=command == b"FIOCLEX")
        elif command.startswith((b"FICLONE", b"FIDEDUPE")):
            raise RecordingFailed(f"{command.decode()} is not simulated")

    def set_closed_by_exec(self, call: Call, *, closed: bool) -> None:
        found = self.descriptor(call, call.arguments[0])
        if found is not None:
            found.closed_by_exec = closed

    # Processes and threads.

    def on_clone(self, call: Call) -> None:
        if call.result:
            process = self.process(call)
            shared = b"CLONE_FILES" in call.text
            self.processes[call.result] = process if shared else process.forked()

    on_clone3 = on_clone
    on_fork = on_clone
    on_vfork = on_clone

    def on_execve(self, call: Call) -> None:
        after = self.process(call).forked()
        after.descriptors = {n: d for n, d in after.descriptors.items() if not d.closed_by_exec}
        self.processes[call.thread] = after

    on_execveat = on_execve

    def on_chdir(self, call: Call) -> None:
        self.process(call).cwd = self.whole_path(call, call.arguments[0])

    def on_fchdir(self, call: Call) -> None:
        path = path_behind(call.arguments[0])
        assert path is not None
        self.process(call).cwd = path

    # Contents.

    def on_write(self, call: Call) -> None:
        arguments = call.arguments
        self.written(call, arguments[0], string(arguments[1]), None)

    def on_pwrite64(self, call: Call) -> None:
        arguments = call.arguments
        self.written(call, arguments[0], string(arguments[1]), int(arguments[3]))

    def on_writev(self, call: Call) -> None:
        self.written(call, call.arguments[0], buffers(call), None)

    def on_pwritev(self, call: Call) -> None:
        self.written(call, call.arguments[0], buffers(call), int(call.arguments[3]))

    def on_pwritev2(self, call: Call) -> None:
        if b"RWF_" in call.arguments[4]:
            raise RecordingFailed(f"{call.arguments[4].decode()} is not simulated")
        offset = int(call.arguments[3])
        self.written(call, call.arguments[0], buffers(call), None if offset == -1 else offset)

    def written(self, call: Call, argument: bytes, data: bytes, offset: int | None) -> None:
        found = self.descriptor(call, argument)
        if found is None:
            return
        description, data = found.of, data[: call.result]
        if description.inode is None:
            self.marked(call, data)
            return
        if description.append:
            begin = len(self.contents[description.inode])  # pwrite appends too: see open(2)
        else:
            begin = description.position if offset is None else offset
        if offset is None:
            description.position = begin + len(data)
        self.change(call, description.inode, begin, data)

    def marked(self, call: Call, data: bytes) -> None:
        if call.result is None:
            return
        *lines, self.half_line = (self.half_line + data).split(b"\n")
        self.effects.extend(Mark(os.fsdecode(line)) for line in lines)

    def change(self, call: Call, inode: Inode, offset: int, data: bytes) -> None:
        contents = self.contents[inode]
        if offset > len(contents):
            contents.extend(bytes(offset - len(contents)))
        contents[offset : offset + len(data)] = data
        if call.result is None:
            self.unsure.add(inode)
        if data and inode not in self.unseen:
            self.effects.append(Write(inode, offset, data, call.returned))

    def resize(self, call: Call, inode: Inode, size: int) -> None:
        contents = self.contents[inode]
        if size == len(contents):
            return
        if size < len(contents):
            del contents[size:]
        else:
            contents.extend(bytes(size - len(contents)))
        if call.result is None:
            self.unsure.add(inode)
        if inode not in self.unseen:
            self.effects.append(Resize(inode, size, call.returned))

    def on_ftruncate(self, call: Call) -> None:
        inode = self.file(call, call.arguments[0])
        if inode is not None:
            self.resize(call, inode, int(call.arguments[1]))

    def on_truncate(self, call: Call) -> None:
        place = self.place(self.whole_path(call, call.arguments[0]))
        if place is not None:
            self.resize(call, self.names[place], int(call.arguments[1]))

    def on_fallocate(self, call: Call) -> None:
        inode = self.file(call, call.arguments[0])
        if inode is None:
            return
        modes = set(call.arguments[1].split(b"|"))
        offset, length = int(call.arguments[2]), int(call.arguments[3])
        size = len(self.contents[inode])
        zeroed = modes & {b"FALLOC_FL_PUNCH_HOLE", b"FALLOC_FL_ZERO_RANGE"}
        if modes - zeroed - {b"0", b"FALLOC_FL_KEEP_SIZE"}:
            raise RecordingFailed(f"{call.arguments[1].decode()} is not simulated")
        if zeroed and offset < size:
            self.change(call, inode, offset, bytes(min(length, size - offset)))
        if b"FALLOC_FL_KEEP_SIZE" not in modes and offset + length > size:
            self.resize(call, inode, offset + length)

    def on_copy_file_range(self, call: Call) -> None:
        source, source_at, target, target_at = call.arguments[:4]
        self.copied(call, source, number_in(source_at), target, number_in(target_at))

    def on_sendfile(self, call: Call) -> None:
        target, source, source_at = call.arguments[:3]
        self.copied(call, source, number_in(source_at), target, None)

    def copied(
        self, call: Call, source: bytes, source_at: int | None, target: bytes, target_at: int | None
    ) -> None:
        origin = self.descriptor(call, source)
        if self.descriptor(call, target) is None:
            if origin is not None and source_at is None:
                origin.of.position += call.result or 0
            return
        if origin is None or origin.of.inode is None or origin.of.inode in self.unseen:
            raise RecordingFailed(f"{call.name} from {path_behind(source)}: its data is not seen")
        begin = origin.of.position if source_at is None else source_at
        if call.result is None:
            raise RecordingFailed(f"killed inside {call.name}: what it copied is not known")
        data = bytes(self.contents[origin.of.inode][begin : begin + call.result])
        if source_at is None:
            origin.of.position += call.result
        self.written(call, target, data, target_at)

    def on_splice(self, call: Call) -> None:
        if self.descriptor(call, call.arguments[2]) is not None:
            raise RecordingFailed(f"{call.name} to {path_behind(call.arguments[2])}: not seen")

    def on_mmap(self, call: Call) -> None:
        inode = self.file(call, call.arguments[4])
        if inode is None or inode in self.unseen:
            return
        if b"PROT_WRITE" in call.arguments[2] and b"MAP_SHARED" in call.arguments[3]:
            path = path_behind(call.arguments[4])
            raise RecordingFailed(f"{path} is mapped for writing: such writes are not seen")

    def on_io_submit(self, call: Call) -> None:
        raise RecordingFailed(f"{call.name}: asynchronous writes are not seen")

    on_io_uring_setup = on_io_submit

    # Positions.

    def on_read(self, call: Call) -> None:
        number = int(call.arguments[0], 0)
        found = self.process(call).descriptors.get(number)
        if found is not None and call.result is not None:
            found.of.position += call.result

    on_readv = on_read

    def on_lseek(self, call: Call) -> None:
        found = self.descriptor(call, call.arguments[0])
        if found is not None and call.result is not None:
            found.of.position = call.result

    # Names.

    def renamed(self, call: Call, *entries: Entry, created: Inode | None = None) -> None:
        for entry in entries:
            place = (entry.directory, entry.name)
            if entry.inode is None:
                self.names.pop(place, None)
            else:
                self.names[place] = entry.inode
        self.effects.append(Rename(entries, created, call.returned))

    def on_rename(self, call: Call) -> None:
        old, new = call.arguments[:2]
        self.moved(call, self.whole_path(call, old), self.whole_path(call, new))

    def on_renameat(self, call: Call) -> None:
        base, old, new_base, new = call.arguments[:4]
        self.moved(call, self.whole_path(call, old, base), self.whole_path(call, new, new_base))

    on_renameat2 = on_renameat

    def moved(self, call: Call, old: str, new: str) -> None:
        if not self.is_inside(old) and not self.is_inside(new):
            return
        source, target = self.place(old), self.place(new)
        if source is None or target is None:
            raise RecordingFailed(f"{old} → {new}: moves into and out of {self.root}")
        inode, exchanged = self.names[source], None
        if b"RENAME_EXCHANGE" in call.text:
            exchanged = self.names[target]
        self.renamed(call, Entry(*source, exchanged), Entry(*target, inode))

    def on_unlink(self, call: Call) -> None:
        self.removed(call, self.whole_path(call, call.arguments[0]))

    on_rmdir = on_unlink

    def on_unlinkat(self, call: Call) -> None:
        self.removed(call, self.whole_path(call, call.arguments[1], call.arguments[0]))

    def removed(self, call: Call, path: str) -> None:
        place = self.place(path)
        # What no call made is a socket or the like, which images do not have.
        if place is not None and place in self.names:
            self.renamed(call, Entry(*place, None))

    def on_link(self, call: Call) -> None:
        old, new = call.arguments[:2]
        self.linked(call, self.whole_path(call, old), self.whole_path(call, new))

    def on_linkat(self, call: Call) -> None:
        base, old, new_base, new = call.arguments[:4]
        self.linked(call, self.whole_path(call, old, base), self.whole_path(call, new, new_base))

    def linked(self, call: Call, old: str, new: str) -> None:
        target = self.place(new)
        if target is None:
            if self.is_inside(old):
                raise RecordingFailed(f"{old} → {new}: a link out of {self.root}")
            return
        source = self.place(old)
        if source is None or source not in self.names:
            raise RecordingFailed(f"{old} → {new}: a link to what is not in {self.root}")
        self.renamed(call, Entry(*target, self.names[source]))

    def on_mkdir(self, call: Call) -> None:
        self.made(call, self.whole_path(call, call.arguments[0]))

    def on_mkdirat(self, call: Call) -> None:
        self.made(call, self.whole_path(call, call.arguments[1], call.arguments[0]))

    def made(self, call: Call, path: str) -> None:
        place = self.place(path)
        if place is not None:
            inode = self.appear(*place, is_directory=True)
            self.renamed(call, Entry(*place, inode), created=inode)

    def on_symlink(self, call: Call) -> None:
        self.refuse_link(self.whole_path(call, call.arguments[1]))

    def on_symlinkat(self, call: Call) -> None:
        self.refuse_link(self.whole_path(call, call.arguments[2], call.arguments[1]))

    def refuse_link(self, path: str) -> None:
        if self.is_inside(path):
            raise RecordingFailed(f"{path}: symbolic links are not simulated")

    # Syncs.

    def on_fsync(self, call: Call) -> None:
        inode = self.file(call, call.arguments[0])
        if inode is not None:
            self.effects.append(Sync(inode, call.entered))

    on_fdatasync = on_fsync

    def on_sync(self, call: Call) -> None:
        self.effects.append(Sync(None, call.entered))

    def on_syncfs(self, call: Call) -> None:
        if self.descriptor(call, call.arguments[0]) is not None:
            self.on_sync(call)


def buffers(call: Call) -> bytes:
    return b"".join(string(found) for found in BUFFER.findall(call.text))


def number_in(argument: bytes) -> int | None:
    """The number in `[5]` or `[5] => [9]`; unset for NULL."""
    found = NUMBER.search(argument)
    return None if found is None else int(found[0])
