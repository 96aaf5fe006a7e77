"""Journals: where an embedded store keeps its history. See `base.py` for the interface."""
