"""The event log as a stream: `spark.readStream` with `view` = `events`.

An offset says for each store how far its segments were read: from which segment on, and from which
byte of it. It names what is sealed and nothing else, so that what lies between two offsets is the
same however often Spark asks. It counts the segments that were left behind, too: their numbers have
gaps, and one that retention has deleted since would not be missed.

`commit` frees nothing: Spark calls it late and never for the last batch, and how long events are kept
is said to the log.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.events import Lines, batches, together
from penstock.spark.options import EventsOptions
from penstock.spark.segments import Segment, Stretch, cut, gone, line_end, path_of, segments
from penstock.spark.views import arrow_schema

# By store: `segment` and `position` of the first byte that is unread, and how many segments were
# `passed`. A store that it does not name was not there yet.
Offset = dict[str, dict[str, int]]


class EventsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: EventsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema, "events")
        self._last: list[Segment] | None = None  # a run for what there is now ends with these

    def initialOffset(self) -> Offset:  # noqa: N802 # Spark's words, here and below
        return self._end({}) if self._options.starting == "latest" else {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = segments(self._options.path)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes_per_batch)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._end({})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        if isinstance(limit, ReadAllAvailable):
            return self._end(start)
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        return self._end(start, room or self._options.max_bytes_per_batch)

    def _end(self, start: Offset, room: int | None = None) -> Offset:
        """Behind what is sealed now, or before, after about that many bytes.

        Of several stores in one directory each gets its share, however much another has to read.
        """
        unread: list[tuple[str, list[Segment]]] = []
        sealed = segments(self._options.path) if self._last is None else self._last
        for store, found in groupby(sealed, attrgetter("store")):
            left = [each for each in found if _begin(start, each) < each.size]
            if left:
                unread.append((store, left))
        end = dict(start)
        for turn, (store, left) in enumerate(unread):
            share = None if room is None else max(1, room // (len(unread) - turn))
            taken = _advance(end, store, left, share)
            room = None if room is None else max(0, room - taken)
        return end

    def partitions(self, start: Offset, end: Offset) -> list[Lines]:
        return together(list(self._between(start, end)), self._options.split_bytes)

    def _between(self, start: Offset, end: Offset) -> Iterator[Stretch]:
        found = segments(self._options.path)
        for store, until in sorted(end.items()):
            since = start.get(store, {"segment": 0, "position": 0, "passed": 0})
            passed = [
                each
                for each in found
                if each.store == store and since["segment"] <= each.sequence < until["segment"]
            ]
            missing = until["passed"] - since["passed"] - len(passed)
            if missing:
                raise gone(f"{missing} of the segments of store {store} that a batch was made of")
            for each in passed:
                begin = since["position"] if each.sequence == since["segment"] else 0
                yield from cut(each.path, begin, each.size, self._options.split_bytes)
            if until["position"]:
                path = path_of(self._options.path, store, until["segment"])
                begin = since["position"] if until["segment"] == since["segment"] else 0
                yield from cut(path, begin, until["position"], self._options.split_bytes)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Lines)
        for stretch in partition.stretches:
            yield from batches(stretch, self._schema)


def _begin(offset: Offset, segment: Segment) -> int:
    """From which byte on a segment is unread."""
    reached = offset.get(segment.store)
    if reached is None or segment.sequence > reached["segment"]:
        return 0
    return reached["position"] if segment.sequence == reached["segment"] else segment.size


def _advance(end: Offset, store: str, left: list[Segment], share: int | None) -> int:
    """Move a store's offset on over its unread segments; answers by how many bytes."""
    taken = 0
    passed = end[store]["passed"] if store in end else 0
    for segment in left:
        begin = _begin(end, segment)
        if share is None or segment.size - begin <= share - taken:
            taken += segment.size - begin
            passed += 1
            reached = {"segment": segment.sequence + 1, "position": 0}
        elif taken < share:
            # At least a line, however small the share is.
            until = line_end(segment.path, begin + share - taken, segment.size)
            taken += until - begin
            reached = {"segment": segment.sequence, "position": until}
            if until == segment.size:
                passed += 1
                reached = {"segment": segment.sequence + 1, "position": 0}
        else:
            break
        end[store] = reached | {"passed": passed}
    return taken
