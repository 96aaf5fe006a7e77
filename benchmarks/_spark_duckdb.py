"""gold.queue_minutes by DuckDB, from the same segments: run by the interpreter of its environment.

    python _spark_duckdb.py EVENTS FILE

Writes the table as Parquet, but for the percentiles, which are read off its histograms; prints how
many seconds that took, reading included.
"""

import sys
import time

import duckdb

THREADS = 2
MEMORY = "4GB"

LINES = """
    SELECT DISTINCT ON (store, position, "index") *
    FROM read_json($lines, format = 'newline_delimited', columns = {
        store: 'VARCHAR', position: 'BIGINT', "index": 'INTEGER', kind: 'VARCHAR',
        tenant: 'VARCHAR', queue: 'VARCHAR', "at": 'BIGINT', count: 'BIGINT', bytes: 'BIGINT',
        ready_at: 'BIGINT', claimed_at: 'BIGINT', held: 'BOOLEAN'
    })
    WHERE queue <> ''
"""

# A bucket is the leading bits of a duration: as `penstock.spark.histogram` has it.
TABLE = f"""
    WITH events AS ({LINES}),
    timed AS (
        SELECT tenant, queue, "at" // 60000 AS minute, kind, claimed_at, coalesce(count, 0) AS jobs,
            coalesce(bytes, 0) AS bytes, kind = 'pushed' AND coalesce(held, false) AS hidden,
            greatest(CASE kind
                WHEN 'claimed' THEN "at" - ready_at WHEN 'completed' THEN "at" - claimed_at
            END, 0) AS ms
        FROM events
    ),
    placed AS (
        SELECT *, CASE WHEN kind IN ('claimed', 'completed') AND ms IS NOT NULL
            THEN greatest(length(bin(ms)) - 6, 0) END AS shift
        FROM timed
    ),
    buckets AS (
        SELECT tenant, queue, minute, kind, (shift * 32 + (ms >> shift))::INTEGER AS bucket,
            sum(jobs)::BIGINT AS count
        FROM placed WHERE shift IS NOT NULL GROUP BY ALL
    ),
    histograms AS (
        SELECT tenant, queue, minute,
            list({{bucket: bucket, count: count}} ORDER BY bucket)
                FILTER (kind = 'claimed') AS wait,
            list({{bucket: bucket, count: count}} ORDER BY bucket)
                FILTER (kind = 'completed') AS run
        FROM buckets GROUP BY ALL
    ),
    counts AS (
        SELECT tenant, queue, minute,
            coalesce(sum(jobs) FILTER (kind IN ('pushed', 'committed') AND NOT hidden), 0)::BIGINT
                AS pushed,
            coalesce(sum(jobs) FILTER (kind = 'claimed'), 0)::BIGINT AS claimed,
            coalesce(sum(jobs) FILTER (kind = 'completed'), 0)::BIGINT AS completed,
            coalesce(sum(jobs) FILTER (kind = 'retried'), 0)::BIGINT AS retried,
            coalesce(sum(jobs) FILTER (kind = 'released'), 0)::BIGINT AS released,
            coalesce(sum(jobs) FILTER (kind = 'dead'), 0)::BIGINT AS dead,
            coalesce(sum(jobs) FILTER (kind = 'cancelled'), 0)::BIGINT AS cancelled,
            coalesce(sum(jobs) FILTER (kind = 'expired'), 0)::BIGINT AS expired,
            coalesce(sum(jobs) FILTER (kind = 'redriven'), 0)::BIGINT AS redriven,
            coalesce(sum(jobs) FILTER (
                kind = 'retried' OR (kind = 'dead' AND claimed_at > 0)), 0)::BIGINT AS failed,
            coalesce(sum(bytes) FILTER (kind = 'pushed'), 0)::BIGINT AS bytes
        FROM placed GROUP BY ALL
    ),
    changes AS (
        SELECT *, pushed + redriven - completed - dead - cancelled - expired AS change FROM counts
    )
    SELECT * REPLACE (make_timestamptz(minute * 60000000) AS minute),
        (sum(change) OVER (PARTITION BY tenant, queue ORDER BY minute))::BIGINT AS backlog
    FROM changes LEFT JOIN histograms USING (tenant, queue, minute)
"""


def main(events: str, file: str) -> None:
    database = duckdb.connect(config={"threads": THREADS, "memory_limit": MEMORY})
    database.execute("SET TimeZone = 'UTC'")
    began = time.perf_counter()
    table = database.sql(TABLE, params={"lines": f"{events}/events-*.jsonl"})
    table.write_parquet(file)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
