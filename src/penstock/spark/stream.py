"""The event log as a stream: `spark.readStream` with `view` = `events`.

An offset says for each store how far its segments were read: the sequence of one and a byte of it.
It names what is sealed and nothing else, so that whatever lies between two offsets is the same however
often Spark asks for it. `commit` frees nothing: retention is the log's own business.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from penstock.spark.events import Lines, batches, together
from penstock.spark.options import EventsOptions
from penstock.spark.segments import Segment, Stretch, cut, line_end, path_of, segments
from penstock.spark.views import arrow_schema, columns_of

Offset = dict[str, dict[str, int]]  # by store: the segment, and the position in it


class EventsStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: EventsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema, columns_of("events"))
        self._all: Offset | None = None  # of a run that ends when it has what there is now

    def initialOffset(self) -> Offset:  # noqa: N802
        if self._options.starting == "earliest":
            return {}
        return self._end(segments(self._options.path))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        found = segments(self._options.path)
        if isinstance(limit, ReadAllAvailable):
            return {**start, **self._end(found)}
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._most
        end = dict(start)
        # Of several stores that share a directory each gets its part, however much another has.
        unread = {store: [] for store in {segment.store for segment in found}}
        for segment in found:
            if _begin(start, segment) < segment.size:
                unread[segment.store].append(segment)
        waiting = {store: left for store, left in sorted(unread.items()) if left}
        for turn, (store, left) in enumerate(waiting.items()):
            share = max(1, room // (len(waiting) - turn))
            room -= self._advance(end, store, left, share)
        return end

    @property
    def _most(self) -> int:
        return self._options.max_bytes_per_batch

    def _advance(self, end: Offset, store: str, left: list[Segment], share: int) -> int:
        """Move one store's offset on by about so much, at least by a line; answers by how much."""
        taken = 0
        for segment in left:
            begin = _begin(end, segment)
            rest = segment.size - begin
            if rest <= share - taken:
                until = segment.size
            elif taken < share:
                path = path_of(self._options.path, store, segment.sequence)
                until = line_end(path, begin + share - taken, segment.size)
            else:
                break
            end[store] = {"segment": segment.sequence, "position": until}
            taken += until - begin
        return taken

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._end(segments(self._options.path))

    def partitions(self, start: Offset, end: Offset) -> list[Lines]:
        return together(list(self._between(start, end)), self._options.split_bytes)

    def _between(self, start: Offset, end: Offset) -> Iterator[Stretch]:
        """What lies between two offsets. A segment that is gone is found to be so when it is read."""
        sizes = {(each.store, each.sequence): each for each in segments(self._options.path)}
        for store, reached in sorted(end.items()):
            began = start.get(store)
            first = min(
                (sequence for of, sequence in sizes if of == store), default=reached["segment"]
            )
            if began is not None:
                first = began["segment"]
            for sequence in range(first, reached["segment"] + 1):
                segment = sizes.get((store, sequence))
                begin = began["position"] if began and sequence == began["segment"] else 0
                until = reached["position"] if sequence == reached["segment"] else None
                if segment is None:
                    if until == begin:  # read to its end before: it may well be gone
                        continue
                    if until is None and began and sequence == began["segment"]:
                        continue
                    path = path_of(self._options.path, store, sequence)
                    yield Stretch(path, begin, begin + 1 if until is None else until)
                    continue
                until = segment.size if until is None else until
                yield from cut(self._options.path, segment, begin, until, self._options.split_bytes)

    def read(self, partition: Lines) -> Iterator[Any]:
        for stretch in partition.stretches:
            yield from batches(stretch, self._schema)

    def commit(self, end: Offset) -> None:
        """Nothing to do."""

    @staticmethod
    def _end(found: list[Segment]) -> Offset:
        """Behind everything that is sealed; the segments come in order."""
        return {each.store: {"segment": each.sequence, "position": each.size} for each in found}


def _begin(offset: Offset, segment: Segment) -> int:
    """From which byte on a segment is unread."""
    reached = offset.get(segment.store)
    if reached is None or segment.sequence > reached["segment"]:
        return 0
    return reached["position"] if segment.sequence == reached["segment"] else segment.size
