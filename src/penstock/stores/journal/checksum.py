"""CRC-32, as fast as it can be had.

Every payload is summed once on its way to the disk. zlib-ng does that with the processor's own
instructions, at five times the speed of most builds of zlib; the numbers are the same.
"""

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # where there is no build of it
    from zlib import crc32

__all__ = ["crc32"]
