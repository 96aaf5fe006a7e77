"""The queue itself: a deterministic state machine in memory.

No I/O, no clock, no randomness, no asyncio, no threads. `Kernel.apply(command, now, elapsed)` is
the only way in for a change; everything it decides follows from its state and its arguments.
"""
