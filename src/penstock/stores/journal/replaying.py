"""A replay that takes long: it says how far it has come, ends when it is told to, and is not lost.

Whoever is killed in the middle of a replay would begin it anew, and be killed again: a supervisor
that loses patience never gets its store back. So what has been replayed becomes a checkpoint now and
then, and the next process begins there. Nothing is lost if that cannot be written; only a log that
is read but never changed, and one that is over soon, have none.
"""

import logging
import threading
from time import perf_counter
from typing import Final

from penstock.kernel.kernel import Kernel
from penstock.stores.journal.base import Batch, Full, Journal
from penstock.stores.journal.checkpointer import SHARE, Checkpointer, CheckpointFact
from penstock.stores.journal.retelling import Retelling

log: Final = logging.getLogger("penstock.store")

LOOK_S: Final = 0.05  # within which it ends when it is told to
SILENT_S: Final = 1.0  # after which it says how far it is …
SAY_S: Final = 5.0  # … and then so often
SLICE: Final = 1 << 20  # bytes of rows, and …
CLEANED: Final = 10_000  # … objects at a time: nobody waits for an answer in between
KEEP_S: Final = 5.0  # of replay that are worth a checkpoint before anything is served


class Interrupted(Exception):
    """Nobody wants the store any more that was being opened."""


class Replaying:
    def __init__(self, name: str, stop: threading.Event | None, *, keeps: bool) -> None:
        """`keeps`: it may write."""
        self._name = name
        self._stop = stop
        self.of = 0  # records that are to be replayed
        self._began = self.at = perf_counter()  # at: when to look again
        self._say_at = self._began + SILENT_S
        self._since = self._began  # of what no checkpoint has
        self._keep_s = KEEP_S if keeps else float("inf")

    def begin(self) -> None:
        """The last checkpoint has been read."""
        self._since = perf_counter()

    @property
    def since_s(self) -> float:
        """How long the replay took since the last checkpoint."""
        return perf_counter() - self._since

    @property
    def worth(self) -> bool:
        """Whether what has been replayed is worth a checkpoint."""
        return self.since_s >= self._keep_s

    def look(self, replayed: int) -> None:
        """Called when the time `at` has come. Raises Interrupted when told to end."""
        now = perf_counter()
        self.at = now + LOOK_S
        if self._stop is not None and self._stop.is_set():
            log.info("%s: not opened: told to end, %s", self._name, self._so_far(replayed, now))
            raise Interrupted
        if now >= self._say_at:
            self._say_at = now + SAY_S
            log.info("%s: %s", self._name, self._so_far(replayed, now))

    def _so_far(self, replayed: int, now: float) -> str:
        return f"{replayed} of {self.of} records replayed in {now - self._began:.1f} s"

    def keep(
        self,
        journal: Journal,
        kernel: Kernel,
        last: CheckpointFact,
        store: str,
        retelling: Retelling | None,
    ) -> CheckpointFact:
        """Write a checkpoint of what has been replayed; answers the last one that there is."""
        began = perf_counter()
        journal.forget_after(last.number)
        checkpointer = Checkpointer(kernel, last)
        checkpointer.slice, checkpointer.cleaned = SLICE, CLEANED
        whole = retelling is not None and retelling.synced()
        try:
            # Chunks that the log let go of may still be there, down to the floor of the last one.
            checkpointer.begin(last.chunk_floor)
            while checkpointer.working:
                batch = Batch()
                checkpointer.feed(batch)
                if "checkpoint" in batch.facts:
                    batch.facts |= {"store": store, "events": whole}
                checkpointer.written(batch, journal.write(batch), 0.0)
        except Full as error:
            checkpointer.give_up()
            self._keep_s = float("inf")
            log.warning("%s: no checkpoint of what has been replayed: %s", self._name, error)
            return checkpointer.last
        self._since = perf_counter()
        self._keep_s = max(KEEP_S, (self._since - began) * (1 / SHARE - 1))
        return checkpointer.last
