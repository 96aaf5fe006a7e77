"""A recording has everything that was done to the directory, or there is no recording."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.faults.powerloss import Recording, RecordingFailed, record
from tests.faults.powerloss.calls import read_calls
from tests.faults.powerloss.effects import NEVER, Rename, Sync

# Every way to change a file or a name, by several threads and processes, with offsets and flags
# that are shared and inherited. That the calls add up to what lies there is checked by `record`.
EVERYTHING = """
    import fcntl, os, subprocess, sys, threading
    os.chdir(sys.argv[1])

    def churn(k):
        fd = os.open(f"a{k}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        for i in range(50):
            os.write(fd, b"%d>%d," % (k, i))
            os.fsync(fd)
            os.close(os.open(f"other{k}", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        os.writev(fd, [b"one", b"two"])
        os.pwritev(fd, [b"x", b"y"], 5)
        os.pwrite(fd, b"", 0)
        os.lseek(fd, 2, os.SEEK_SET)
        os.read(fd, 3)
        os.write(fd, b"after the read")
        os.lseek(fd, -4, os.SEEK_END)
        copy = os.dup(fd)
        os.write(copy, b"shared")
        os.write(fd, b"position")
        os.posix_fallocate(fd, 0, 2000)
        os.ftruncate(fd, 1500)
        os.truncate(f"a{k}", 1400)
        os.rename(f"a{k}", f"b <>\\u00e9{k}")
        os.write(fd, b"written under the new name")
        os.close(fd)
        os.close(copy)

    threads = [threading.Thread(target=churn, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    os.makedirs("sub/deeper")
    above = os.open("sub", os.O_RDONLY | os.O_DIRECTORY)
    fd = os.open("in-sub", os.O_CREAT | os.O_RDWR, 0o644, dir_fd=above)
    os.write(fd, b"0123456789" * 100)
    os.link("sub/in-sub", "sub/deeper/linked")
    os.fsync(above)
    target = os.open("copied", os.O_CREAT | os.O_WRONLY)
    os.copy_file_range(fd, target, 100, 50)
    os.sendfile(target, fd, 0, 100)
    os.write(target, b"behind")
    assert fcntl.fcntl(fd, fcntl.F_DUPFD, 9) == 9
    subprocess.run(
        ["/bin/sh", "-c", "echo more >&9; echo sh > sh; echo twice >> sh; rm -r sub/deeper"],
        pass_fds=[9], check=True)
    child = os.fork()
    if child == 0:
        os.write(fd, b"child")
        os._exit(0)
    os.waitpid(child, 0)
    os.write(fd, b"parent")
    os.unlink("sub/in-sub")
    os.write(fd, b"nowhere")
    os.sync()
    with open(os.environ["POWERLOSS_MARKERS"], "w", buffering=1) as markers:
        [markers.write(f"synced {k}\\n") for k in range(100)]
"""


def run(tmp_path: Path, program: str, *, status: int | None = 0) -> Recording:
    directory = tmp_path / "directory"
    directory.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", textwrap.dedent(program), str(directory)]
    return record(argv, directory, tmp_path / "log", status=status)


def test_what_threads_and_children_do_adds_up(tmp_path: Path) -> None:
    recording = run(tmp_path, EVERYTHING)
    effects = recording.timeline.effects
    assert sum(isinstance(effect, Sync) for effect in effects) == 202
    assert Rename in map(type, effects)
    durable = [image for image in recording.images(1, 400) if image.markers]
    assert len(durable) > 20
    directory = tmp_path / "directory"
    left = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert left["sh"] == b"sh\ntwice\n"
    for image in durable:
        assert image.files == left, image
        assert image.directories == ["sub"], image


def test_what_was_there_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "directory" / "sub").mkdir(parents=True)
    (tmp_path / "directory" / "sub" / "old").write_bytes(b"old")
    program = "import sys; open(sys.argv[1] + '/sub/old', 'ab').write(b' and new')"
    found = {image.files["sub/old"] for image in run(tmp_path, program).images(1, 50)}
    assert found == {b"old", b"old and new"} | found & {b"old" + bytes(8)}


def test_a_run_that_is_killed_is_recorded_up_to_there(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        open(sys.argv[1] + "/file", "wb", buffering=0).write(b"before")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    recording = run(tmp_path, program, status=-9)
    assert any(image.files.get("file") == b"before" for image in recording.images(1, 100))


def test_a_loop_that_would_use_a_ring_is_given_none(tmp_path: Path) -> None:
    program = """
        import asyncio, sys, uvloop
        async def main():
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(asyncio.Protocol, sys.argv[1] + "/socket")
            open(sys.argv[1] + "/file", "wb").close()
            server.close()
        uvloop.run(main())
    """
    recording = run(tmp_path, program)
    assert [type(effect) for effect in recording.timeline.effects] == [Rename]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("f = open('f', 'w+b'); f.truncate(9); mmap.mmap(f.fileno(), 9)", "mapped for writing"),
        ("os.open('f', os.O_CREAT | os.O_WRONLY | os.O_DSYNC)", "O_DSYNC is not simulated"),
        ("os.symlink('f', 'g')", "symbolic links"),
        ("open('../f', 'w').close(); os.rename('../f', 'f')", "moves into and out of"),
        ("shutil.copyfile(os.__file__, 'f')", "its data is not seen"),
        (
            "r, w = os.pipe(); os.write(w, b'x'); "
            "os.splice(r, os.open('f', os.O_CREAT | os.O_WRONLY), 1)",
            "splice to",
        ),
        ("sys.exit(3)", "ended with status 3, not 0"),
    ],
)
def test_what_would_go_unseen_is_refused(tmp_path: Path, program: str, reason: str) -> None:
    head = "import mmap, os, shutil, sys; os.chdir(sys.argv[1]); "
    with pytest.raises(RecordingFailed, match=reason):
        run(tmp_path, head + program)


def test_a_change_that_no_call_shows_is_noticed(tmp_path: Path) -> None:
    """Made from outside, here through a link that lies elsewhere, it stands for all such."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "file").write_bytes(b"before")
    (tmp_path / "link").hardlink_to(tmp_path / "directory" / "file")
    program = "import sys; open(sys.argv[1] + '/../link', 'wb').write(b'after')"
    with pytest.raises(RecordingFailed, match="does not hold what the calls add up to"):
        run(tmp_path, program)


def test_a_name_that_is_ignored_is_in_no_image(tmp_path: Path) -> None:
    program = """
        import mmap, os, sys
        for name in ("/file-shm", "/file"):
            file = open(sys.argv[1] + name, "w+b")
            file.truncate(4096)
            if name.endswith("-shm"):
                mmap.mmap(file.fileno(), 4096)[:] = b"x" * 4096
            os.fsync(file.fileno())
    """
    found = [set(image.files) for image in run(tmp_path, program).images(1, 50)]
    assert {"file"} in found
    assert {"file-shm"} not in found


def test_the_log_and_the_markers_lie_outside(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match="which is recorded"):
        record(["true"], tmp_path, tmp_path / "log")


def test_a_call_interrupted_in_the_log_by_others_is_one_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b'7 write(3<\\x2f>, "\\x61", 1 <unfinished ...>\n'
        b"8 fsync(3<\\x2f>(deleted) <unfinished ...>\n"
        b"7 <... write resumed>)               = 1\n"
        b"8 <... fsync resumed>)               = 0\n"
        b"7 read(0x3, 0x1, 0x1)                = ? ERESTARTSYS (To be restarted if so)\n"
        b'9 openat(AT_FDCWD<\\x2f>, "\\x61", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        b'7 write(3<\\x2f>, "\\x62", 1 <unfinished ...>) = ?\n'
        b'8 write(3<\\x2f>, "\\x63", 1 <unfinished ...>\n'
    )
    calls = read_calls(log)
    assert [(c.thread, c.name, c.result, c.entered, c.returned) for c in calls] == [
        (7, "write", 1, 0, 5),
        (8, "fsync", 0, 2, 7),
        (7, "write", None, 12, NEVER),
        (8, "write", None, 14, NEVER),
    ]
    assert [call.arguments[1] for call in calls if call.name == "write"] == [
        b'"\\x61"',
        b'"\\x62"',
        b'"\\x63"',
    ]
