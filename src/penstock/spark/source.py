"""The data source `penstock`: what may be asked of it, checked before anything is done."""

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.model.errors import Invalid
from penstock.spark.options import (
    VIEWS,
    EventsOptions,
    JobsOptions,
    View,
    WriteOptions,
    check_write,
    read_options,
    required,
)


class PenstockSource(DataSource):
    """`spark.read`, `df.write`, `spark.readStream` and `df.writeStream`, by their options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    # -- reading ---------------------------------------------------------------------------------

    def schema(self) -> str:
        from penstock.spark.views import schema_of

        return schema_of(self._view())

    def reader(self, schema: StructType) -> Any:
        from penstock.spark.events import EventsReader
        from penstock.spark.read import JobsReader, QueuesReader

        view = self._view()
        if view == "events":
            return EventsReader(self._events(), schema)
        options = read_options(JobsOptions, self.options)
        required(options.url, "url", "penstock://host:6789")
        if view == "queues":
            return QueuesReader(options, schema)
        required(options.queue, "queue", "emails")
        return JobsReader(options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 # Spark's word
        from penstock.spark.stream import EventsStreamReader

        if self._view() != "events":
            raise Invalid(f"{self._view()} is no stream; events is", "view")
        return EventsStreamReader(self._events(), schema)

    def _view(self) -> View:
        said = self.options.get("view", "jobs").lower()
        for view in VIEWS:
            if said == view:
                return view
        raise Invalid(f"{said!r} is none of {', '.join(VIEWS)}", "view")

    def _events(self) -> EventsOptions:
        options = read_options(EventsOptions, self.options)
        required(options.path, "path", "/var/lib/penstock/events")
        return options

    # -- writing ---------------------------------------------------------------------------------

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from penstock.spark.write import BulkWriter

        options, columns = self._written(schema)
        return BulkWriter(options, columns, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        from penstock.spark.write import StreamBulkWriter

        options, columns = self._written(schema)
        if overwrite:
            raise Invalid("a stream adds jobs; its output mode is append", "outputMode")
        if options.bulk:
            raise Invalid("the micro-batches of a stream have names of their own", "bulk")
        return StreamBulkWriter(options, columns)

    def _written(self, schema: StructType) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.spark.columns import JobColumns

        options = read_options(WriteOptions, self.options)
        check_write(options)
        return options, JobColumns.of(to_arrow_schema(schema, timezone="UTC"), options)
