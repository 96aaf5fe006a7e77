"""Bytes to commands and back, without I/O. See docs/protocol.md."""
