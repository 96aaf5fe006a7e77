"""Power cuts, simulated: a run is recorded once and then cut as often as one likes.

    recording = record([sys.executable, "-m", "writer", str(path)], path, tmp_path / "log")
    for image in recording.images(seed=1, count=100):
        image.materialise(tmp_path / "image")
        ...  # open it there; every line of image.markers was acknowledged before the cut

`record` runs a command under strace and keeps every change of the files below one directory. The
command says what it has acknowledged by lines in a file outside of the directory (`Marker`). An
`Image` is that directory as it may be found after the power was cut at some place of the run.

What an image has:
- Data and size of a file as of the last fsync, fdatasync, sync or syncfs that had returned before
  the cut. A sync covers a write only if the write had returned before the sync was entered.
- Of later writes, any subset of their 512-byte sectors. A sector is never torn in itself, and it is
  found as it was at one moment: never with a later write but without an earlier one.
- Of later sizes, any one. A file that is longer than the data that reached it shows zeros there.
  If the cut of a file is lost, so is all that was written behind it and not synced.
- Of created, renamed, linked and removed names, those followed by a sync of their directory. Of the
  others any subset, in any order; each is there as a whole or not at all. A sync of a new file
  makes its name durable too, and the new directories above it, as ext4 does; `strict` takes that
  away, and has a rename between directories wait for a sync of everything.
- Some images keep the order: everything up to one moment, the last write torn. Some have all, as
  after a kill, and some only what is durable.

What is not simulated: sectors that are damaged, hold older or foreign data, or are torn in
themselves; disks that lie about a sync; a sync that fails; effects of a call that changes names
before it has returned; permissions, times and attributes; sockets and other special files.

What would go unseen is an error (`RecordingFailed`), not a gap: shared writable mappings, kernel AIO,
O_SYNC, splices, clones, symbolic links, links and moves over the directory's edge, copies from
outside. And after the run the directory must hold exactly what the recorded calls add up to.
io_uring is denied to the command. SQLite's -shm, a mapping that recovery builds anew, is left out
of recordings and images.
"""

from tests.faults.powerloss.calls import RecordingFailed
from tests.faults.powerloss.images import Image
from tests.faults.powerloss.marker import Marker
from tests.faults.powerloss.recording import Recording, record

__all__ = ["Image", "Marker", "Recording", "RecordingFailed", "record"]
