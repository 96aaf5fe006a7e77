"""The `penstock` command, which says how many tasks it has whenever it hears SIGUSR1.

    python -m tests.faults.counted serve --url …

Nothing of the product shows that from outside. They are those of every loop in every thread, counted
where the collector keeps them: asyncio would have to be asked loop by loop, each in its own thread.
"""

import asyncio
import gc
import os
import signal
from types import FrameType

from penstock.cli.main import main


def tell(number: int, frame: FrameType | None) -> None:
    """A line on standard output, past whatever the interrupted code may be writing there."""
    found = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Task)]
    os.write(1, f"{sum(not task.done() for task in found)}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    main()
