"""Durations in buckets of at most 3.2 %: small, exact to add up, and good for any percentile.

A histogram is an array of (bucket, count), by bucket. Adding two is adding their counts, so an hour's
is exactly its minutes'. A percentile is the upper end of the bucket that it falls into.

A bucket is the leading bits of a duration in milliseconds: below 64 each has its own, above that an
octave has 32. Whole numbers only, so that Spark, Python and any database agree on every edge.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock.spark.instants import long

SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_BITS: Final = 5  # of an octave's buckets


def bucket(ms: Column) -> Column:
    """The bucket of a duration; one that went back in time counts as none at all."""
    whole = f.greatest(ms, long(0))
    # The length of its binary digits, since logarithms round differently from place to place.
    shift = f.greatest(f.length(f.bin(whole)) - 1 - _BITS, f.lit(0))
    return (shift * (1 << _BITS) + f.call_function("shiftright", whole, shift)).cast("int")


def bucket_of(ms: int) -> int:
    """`bucket`, of one duration."""
    ms = max(ms, 0)
    shift = max(ms.bit_length() - 1 - _BITS, 0)
    return shift * (1 << _BITS) + (ms >> shift)


def end_of(bucket: int) -> int:
    """The longest duration of a bucket, in ms."""
    shift = max(bucket // (1 << _BITS) - 1, 0)
    return ((bucket - shift * (1 << _BITS) + 1) << shift) - 1


def percentiles(name: str) -> dict[str, Column]:
    """Columns `{name}_p50`, … of the histogram in the column `name`: ms, null of an empty one."""
    return {f"{name}_{label}": _percentile(f.col(name), share) for label, share in SHARES.items()}


def _percentile(histogram: Column, share: float) -> Column:
    total = f.aggregate(histogram, long(0), lambda sum_, each: sum_ + each["count"])
    wanted = f.ceil(total * share)
    # (counted so far, the bucket that was reached): the first bucket that reaches what is wanted.
    start = f.struct(long(0).alias("seen"), f.lit(-1).alias("found"))
    reached = f.aggregate(
        histogram,
        start,
        lambda state, each: f.struct(
            (state["seen"] + each["count"]).alias("seen"),
            f.when(state["found"] >= 0, state["found"])
            .when(state["seen"] + each["count"] >= wanted, each["bucket"])
            .otherwise(f.lit(-1))
            .alias("found"),
        ),
    )["found"]
    shift = f.greatest(f.floor(reached / (1 << _BITS)) - 1, long(0)).cast("int")
    end = f.call_function("shiftleft", reached - shift * (1 << _BITS) + long(1), shift) - 1
    return f.when(total > 0, end)


def percentile_of(histogram: dict[int, int], share: float) -> int | None:
    """The same, of one histogram by bucket."""
    wanted = -(-sum(histogram.values()) * share // 1)
    seen = 0
    for each in sorted(histogram):
        seen += histogram[each]
        if seen >= wanted:
            return end_of(each)
    return None
