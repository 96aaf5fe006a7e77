"""Which file system a store lies on, by the machine's own table of mounts; a network's is refused.

The table is what the kernel would say, in its own words (proc(5), mountinfo); everything else is real.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import Invalid
from penstock.model.job import JobSpec
from penstock.open import JOURNALS, open_store
from penstock.stores.journal.space import file_system, is_networked

MOUNTS = Path("/proc/self/mountinfo")
ROOT = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw"
SCHEMES = sorted(JOURNALS)

Mounted = Callable[..., None]


def line(at: str, kind: str, *, tags: str = " shared:7", root: str = "/") -> str:
    return f"91 22 0:45 {root} {at} rw,noatime{tags} - {kind} server:/export rw,vers=4.2"


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Mounted:
    """Have the kernel say that these are mounted, in this order, and nothing else."""
    read = Path.read_bytes

    def say(*lines: str | bytes) -> None:
        table = b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines)

        def answered(self: Path) -> bytes:
            return table if self == MOUNTS else read(self)

        monkeypatch.setattr(Path, "read_bytes", answered)

    return say


# As the kernel names them: its own, and those of programs behind FUSE.
NETWORKED = ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"]
NETWORKED += ["fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"]


@pytest.mark.parametrize("kind", NETWORKED)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_store_on_a_network_file_system_is_refused_and_leaves_nothing(
    scheme: str, kind: str, tmp_path: Path, mounted: Mounted
) -> None:
    mounted(ROOT, line(str(tmp_path), kind))
    for share in (True, False):
        with pytest.raises(Invalid) as refused:
            asyncio.run(opened(f"{scheme}:///{tmp_path}/jobs", share))
        assert str(refused.value) == (
            f"url: {tmp_path}/jobs lies on a network file system, which keeps no locks;"
            " use a local disk"
        )
    assert list(tmp_path.iterdir()) == []


async def opened(url: str, share: bool = True) -> None:
    store = await open_store(url, share=share)
    await store.push_jobs("default", "q", [JobSpec()])
    await store.close()


def test_a_link_to_a_network_file_system_is_no_way_around(tmp_path: Path, mounted: Mounted) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounted(ROOT, line(f"{tmp_path}/far", "nfs4"))
    with pytest.raises(Invalid, match=f"{tmp_path}/far/jobs lies on a network file system"):
        asyncio.run(opened(f"sqlite:///{tmp_path}/near/jobs"))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk"])
def test_a_store_on_a_local_file_system_opens(kind: str, tmp_path: Path, mounted: Mounted) -> None:
    mounted(line("/", "nfs4"), line(str(tmp_path), kind))
    asyncio.run(opened(f"sqlite:///{tmp_path}/jobs"))


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        ("/srv/jobs", "nfs4"),
        ("/srv/jobs/below/it", "nfs4"),  # though nothing is there
        ("/srv/jobs/local/x", "xfs"),  # the innermost counts …
        ("/srv/jobs2", "ext4"),  # … and a name that only begins so does not
        ("/srv", "ext4"),
        ("/", "ext4"),
        ("/covered/x", "cifs"),  # what was mounted last covers what was there
        ("/bound/x", "lustre"),  # a directory of one, mounted elsewhere
        ("/no/tags/x", "ceph"),
        ("/many/tags/x", "gpfs"),
        ("/with a blank/x", "nfs"),
        ("/with\ta tab/x", "9p"),
        ("/with\\a backslash/x", "afs"),
        ("/with\na line break/x", "smb3"),
        ("/with\u3000a wide blank/x", "nfs"),  # which the kernel does not take for one
        ("/with\x0ca form feed/x", "nfs"),
        ("/with\udcffa byte that is no UTF-8/x", "beegfs"),
    ],
)
def test_the_innermost_mount_that_was_made_last_says_what_it_is(
    at: str, kind: str, mounted: Mounted
) -> None:
    mounted(
        ROOT,
        line("/covered", "ext4"),
        line("/srv/jobs/local", "xfs"),
        line("/srv/jobs", "nfs4"),
        line("/covered", "cifs"),
        line("/bound", "lustre", root="/deep/below"),
        line("/no/tags", "ceph", tags=""),
        line("/many/tags", "gpfs", tags=" shared:7 master:3 propagate_from:2 unbindable"),
        line(r"/with\040a\040blank", "nfs"),
        line(r"/with\011a\040tab", "9p"),
        line(r"/with\134a\040backslash", "afs"),
        line(r"/with\012a\040line\040break", "smb3"),
        line("/with\u3000a\\040wide\\040blank", "nfs"),
        line("/with\x0ca\\040form\\040feed", "nfs"),
        line("/with#a\\040byte\\040that\\040is\\040no\\040UTF-8", "beegfs")
        .encode()
        .replace(b"#", b"\xff"),
    )
    assert file_system(Path(at)) == kind
    assert is_networked(Path(at)) is (kind not in ("ext4", "xfs"))


def test_a_machine_that_says_nothing_is_believed_to_be_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "read_bytes", missing)
    assert file_system(tmp_path) == ""
    assert not is_networked(tmp_path)


def test_the_real_table_names_what_the_machine_has() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert MOUNTS.read_bytes()
