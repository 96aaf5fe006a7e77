"""Logs and checkpoints as earlier releases wrote them: this one has to read them all.

`make.py` writes those of the present format and kernel; those of former ones are never made again.
"""
