"""Spark looks for modules of this name's beginning and registers their `DefaultSource`.

So `spark.read.format("penstock")` works wherever Penstock is installed, without a call.
"""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
