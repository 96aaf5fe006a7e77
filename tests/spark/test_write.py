"""Writing: every row a job, once, all at one instant, or none."""

import datetime as dt
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from penstock.model.errors import Invalid, PenstockError, Unauthenticated, Unavailable
from penstock.model.job import JobSpec
from penstock.model.store import Store
from penstock.spark.plainly import plainly
from penstock.spark.source import PenstockSource
from tests.spark.served import Served, served


def write(frame: DataFrame, server: Served, queue: str, mode: str = "append", **said: Any) -> None:
    with plainly():
        (
            frame.write.format("penstock")
            .options(url=server.url, queue=queue, **said)
            .mode(mode)
            .save()
        )


def refused(frame: DataFrame, kind: type[PenstockError], **said: Any) -> str:
    """What somebody is told whose write is refused: one sentence."""
    said = {key: value for key, value in said.items() if value is not None}
    with pytest.raises(kind) as told, plainly():
        frame.write.format("penstock").options(**said).mode("append").save()
    sentence = str(told.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


# -- payloads --------------------------------------------------------------------------------------


def test_columns_become_an_object(spark: SparkSession, server: Served, queue: str) -> None:
    write(spark.range(1_000).selectExpr("id AS user", "'en' AS lang"), server, queue)
    assert server.counts(queue) == {"ready": 1_000}
    expected = [{"user": n, "lang": "en"} for n in range(1_000)]
    assert sorted(server.payloads(queue), key=lambda one: one["user"]) == expected  # type: ignore[index]


def test_every_type_that_json_can_say(spark: SparkSession, server: Served, queue: str) -> None:
    frame = spark.sql(
        """SELECT 'a"b\\\\c\n\u0001é' AS text, 1.0D AS float, CAST(1.5 AS DECIMAL(5, 2)) AS decimal,
        true AS flag, DATE'2026-01-02' AS day, TIMESTAMP'2026-01-02 03:04:05.678Z' AS instant,
        array(1, NULL, 3) AS list, map('k', 1, 'l', NULL) AS map,
        named_struct('x', array('p', 'q'), 'y', NULL) AS struct, CAST(NULL AS STRING) AS nothing"""
    )
    write(frame, server, queue)
    assert server.payloads(queue) == [
        {
            "text": 'a"b\\c\n\x01é',
            "float": 1.0,
            "decimal": 1.5,
            "flag": True,
            "day": "2026-01-02",
            "instant": "2026-01-02T03:04:05.678000Z",
            "list": [1, None, 3],
            "map": {"k": 1, "l": None},
            "struct": {"x": ["p", "q"], "y": None},
            "nothing": None,
        }
    ]


def test_a_payload_of_text_is_taken_as_it_is(
    spark: SparkSession, server: Served, queue: str
) -> None:
    frame = spark.createDataFrame([('{"a":  1}',), ("[2]",), (None,)], "payload string").coalesce(1)
    write(frame, server, queue)
    assert [job.payload for job in server.jobs(queue)] == [b'{"a":  1}', b"[2]", b"null"]


def test_a_payload_of_bytes_is_opaque(spark: SparkSession, server: Served, queue: str) -> None:
    frame = spark.createDataFrame([(b"\x00\xff",), (None,)], "payload binary").coalesce(1)
    write(frame, server, queue)
    found = [(job.payload, job.options.codec) for job in server.jobs(queue)]
    assert found == [(b"\x00\xff", "bytes"), (b"", "bytes")]


def test_a_payload_of_bytes_may_be_messagepack(
    spark: SparkSession, server: Served, queue: str
) -> None:
    said = msgspec.msgpack.encode({"a": 1})
    write(spark.createDataFrame([(said,)], "payload binary"), server, queue, codec="msgpack")
    assert [(job.payload, job.options.codec) for job in server.jobs(queue)] == [(said, "msgpack")]


def test_a_payload_that_is_a_struct(spark: SparkSession, server: Served, queue: str) -> None:
    frame = spark.range(2).select(
        functions.struct(functions.col("id"), functions.lit("x").alias("name")).alias("payload")
    )
    write(frame.coalesce(1), server, queue)
    assert server.payloads(queue) == [{"id": 0, "name": "x"}, {"id": 1, "name": "x"}]


# -- what else rows may say ------------------------------------------------------------------------


def test_every_column_that_says_something_about_a_job(
    spark: SparkSession, server: Served, queue: str
) -> None:
    (known,) = server.ask(lambda store: _pushed(store, f"{queue}.before"))
    now = dt.datetime.now(dt.UTC)
    due = now.replace(microsecond=678_000) + dt.timedelta(hours=1)
    row = {
        "payload": "1",
        "task": "welcome",
        "priority": 7,
        "max_attempts": 5,
        "lease_ms": 60_000,
        "timeout_ms": 5_000,
        "ttl_ms": 36_000_000,
        "on_conflict": "reject",
        "keep_key": "60000",
        "on_dependency_failure": "ignore",
        "lifo": False,
        "tags": ["a", "b"],
        "retain_ms": 1_000,
        "retain_dead_ms": 2_000,
        "run_at": due,
        "key": "k1",
        "group": "g1",
        "headers": {"trace": "t1"},
        "depends_on": [known],
    }
    schema = (
        "payload string, task string, priority int, max_attempts int, lease_ms bigint,"
        " timeout_ms bigint, ttl_ms bigint, on_conflict string, keep_key string,"
        " on_dependency_failure string, lifo boolean, tags array<string>, retain_ms bigint,"
        " retain_dead_ms bigint, run_at timestamp, key string, group string,"
        " headers map<string,string>, depends_on array<bigint>"
    )
    silent = dict.fromkeys(row) | {"payload": "2"}
    rows = [tuple(each.values()) for each in (row, silent)]
    write(spark.createDataFrame(rows, schema).coalesce(1), server, queue, max_attempts=9)
    first, second = server.jobs(queue)
    own = {"payload", "run_at", "key", "group", "headers", "depends_on", "keep_key", "tags"}
    for name in row.keys() - own:
        assert getattr(first.options, name) == row[name], name
    assert (first.options.keep_key, first.options.tags) == (60_000, ("a", "b"))
    assert (first.key, first.group, first.headers) == ("k1", "g1", {"trace": "t1"})
    assert first.run_at == int(due.timestamp() * 1_000)
    assert first.depends_on == (known,)
    assert second.options == JobSpec(max_attempts=9).options()
    assert (second.key, second.group, second.headers, second.depends_on) == (None, None, None, ())


async def _pushed(store: Store, queue: str) -> list[int]:
    return (await store.push_jobs("default", queue, [JobSpec()])).ids


def test_rows_that_differ_in_their_options_share_a_table(
    spark: SparkSession, server: Served, queue: str
) -> None:
    frame = spark.range(3_000).selectExpr(
        "CAST(id AS STRING) AS payload",
        "CAST(id % 300 AS INT) AS priority",
        "array(CAST(id % 2 AS STRING)) AS tags",
        "IF(id % 10 = 0, id, NULL) AS delay_ms",
    )
    write(frame, server, queue)
    jobs = server.jobs(queue)
    assert len(jobs) == 3_000
    for job in jobs:
        number = int(job.payload)
        assert job.options.priority == number % 300
        assert job.options.tags == (str(number % 2),)
        assert (job.run_at > job.created_at) == (number % 10 == 0 and number > 0)


def test_delays_count_from_the_commit(spark: SparkSession, server: Served, queue: str) -> None:
    frame = spark.range(10).selectExpr("id", "CAST(60000 AS BIGINT) AS delay_ms")
    write(frame, server, queue)
    assert server.counts(queue) == {"scheduled": 10}
    assert {job.run_at - job.created_at for job in server.jobs(queue)} == {60_000}


def test_large_payloads_are_pushed_in_several_goes(
    spark: SparkSession, server: Served, queue: str
) -> None:
    frame = spark.range(30).selectExpr("repeat('x', 1000000) AS text", "id").coalesce(1)
    write(frame, server, queue)
    assert [one["id"] for one in server.payloads(queue)] == list(range(30))  # type: ignore[index]


# -- once, at one instant, or not at all -----------------------------------------------------------


def test_an_empty_frame_is_no_error(spark: SparkSession, server: Served, queue: str) -> None:
    write(spark.range(0), server, queue)
    assert server.counts(queue) == {}


def test_all_become_jobs_at_one_instant(spark: SparkSession, server: Served, queue: str) -> None:
    write(spark.range(50_000).repartition(5), server, queue)
    jobs = server.jobs(queue)
    assert len(jobs) == 50_000
    assert len({job.created_at for job in jobs}) == 1


def test_a_write_of_a_name_is_done_once(spark: SparkSession, server: Served, queue: str) -> None:
    for _ in range(2):
        write(spark.range(100), server, queue, bulk=f"{queue}/today")
    assert server.counts(queue) == {"ready": 100}


def test_overwrite_replaces_what_is_not_active(
    spark: SparkSession, server: Served, queue: str
) -> None:
    write(spark.range(10).selectExpr("id", "'old' AS age"), server, queue)

    async def take(store: Store) -> None:
        lease = await store.claim("default", [queue], 2)
        assert lease is not None
        done, _ = lease.ids
        await store.ack("default", lease.token, [done])

    server.ask(take)
    write(spark.range(5).selectExpr("id", "'new' AS age"), server, queue, mode="overwrite")
    assert server.counts(queue) == {"ready": 5, "active": 1}
    ages = sorted(one["age"] for one in server.payloads(queue))  # type: ignore[index]
    assert ages == ["new"] * 5 + ["old"]


def test_a_task_that_fails_half_way_leaves_nothing_twice(
    spark: SparkSession, server: Served, queue: str
) -> None:
    """Its second attempt pushes everything again, under a part of its own."""

    def fail_once(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 2 and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")
            yield batch

    frame = spark.range(0, 60_000, 1, 2).mapInArrow(fail_once, "id bigint")
    write(frame, server, queue)
    found = sorted(one["id"] for one in server.payloads(queue))  # type: ignore[index]
    assert found == list(range(60_000))


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, server: Served, queue: str) -> None:
    frame = spark.range(0, 40_000, 1, 2).selectExpr(
        "IF(id = 39999, raise_error('no more'), id) AS id"
    )
    with pytest.raises(Unavailable), plainly():
        frame.write.format("penstock").options(url=server.url, queue=queue).mode("append").save()
    assert server.counts(queue) == {}


def test_a_row_that_the_store_refuses_ends_the_write_with_nothing_written(
    spark: SparkSession, server: Served, queue: str
) -> None:
    frame = spark.range(1_000).selectExpr("IF(id = 999, '{', '{}') AS payload")
    sentence = refused(frame, Invalid, url=server.url, queue=queue)
    assert "payload: of job" in sentence
    assert server.counts(queue) == {}


# -- bad input ends in a sentence ------------------------------------------------------------------


# Refused when Spark makes the writer, before anything is done.
PLANNED = [
    ("SELECT 1 AS a", {"url": None}, "url: is required"),
    ("SELECT 1 AS a", {"queue": None}, "queue: is required"),
    ("SELECT 1 AS a", {"queue": "two words"}, "queue: "),
    ("SELECT 1 AS a", {"ulr": "x"}, "ulr: there is no such option; did you mean 'url'?"),
    ("SELECT 1 AS a", {"codec": "xml"}, "codec: 'xml' is not one of json, msgpack, bytes"),
    ("SELECT 1 AS a", {"in_flight": "0"}, "in_flight: '0' is not a whole number"),
    ("SELECT 1 AS a", {"backoff": "{"}, "backoff: '{' is no backoff"),
    ("SELECT 1 AS a", {"url": "sqlite:///jobs.db"}, "url: 'sqlite:///jobs.db' is a store of one"),
    ("SELECT 1 AS a", {"url": "memory://"}, "run `penstock serve --url memory://`"),
    ("SELECT 1 AS a", {"codec": "bytes"}, "codec: bytes needs a column `payload`"),
    ("SELECT 1 AS priority", {}, "payload: there is no such column"),
    ("SELECT '1' AS payload, 2 AS b, 3 AS c", {}, "payload: is the payload, so b, c would be"),
    ("SELECT 1 AS a, 'high' AS priority", {}, "priority: is a column of type string; it has to"),
    ("SELECT 1 AS a, 'soon' AS run_at", {}, "run_at: is a column of type string"),
    ("SELECT 1 AS a, 'x' AS tags", {}, "tags: is a column of type string"),
    ("SELECT X'00' AS a", {}, "a: is of type binary, which has no JSON form; base64() gives"),
]
# Seen by a task, when it has the rows.
ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("SELECT double('NaN') AS a", {}, "a: has NaN or an infinity in it"),
    ("SELECT 1 AS a, 9999999999 AS priority", {}, "priority: "),
]


@pytest.mark.parametrize(("query", "said", "sentence"), [*PLANNED[3::5], *ROWS])
def test_bad_input_is_told_in_one_sentence(
    spark: SparkSession, server: Served, query: str, said: dict[str, Any], sentence: str
) -> None:
    """All the way through Spark: of what is refused early, some."""
    options = {"url": server.url, "queue": "q"} | said
    assert sentence in refused(spark.sql(query), Invalid, **options)


@pytest.mark.parametrize(("query", "said", "sentence"), PLANNED)
def test_bad_input_is_refused_before_anything_is_done(
    spark: SparkSession, query: str, said: dict[str, Any], sentence: str
) -> None:
    """Where Spark calls us, which costs a second or two when it does so itself."""
    options = {"url": "penstock://127.0.0.1:9", "queue": "q"} | said
    source = PenstockSource({key: value for key, value in options.items() if value is not None})
    with pytest.raises(Invalid) as told:
        source.writer(spark.sql(query).schema, False)
    assert sentence in str(told.value)


def test_a_server_that_is_not_there_is_told_in_one_sentence(spark: SparkSession) -> None:
    sentence = refused(spark.range(1), Unavailable, url="penstock://127.0.0.1:9", queue="q")
    assert sentence.startswith("penstock://127.0.0.1:9 cannot be reached")


def test_a_wrong_token_is_told_in_one_sentence(spark: SparkSession, tmp_path: Any) -> None:
    from penstock.server.auth import hash_of

    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "spark"\nhash = "{hash_of("right")}"\ntenant = "acme"\n')
    tokens.chmod(0o600)
    with served("--tokens-file", str(tokens)) as server:
        said = {"url": server.url, "queue": "q"}
        refused(spark.range(1), Unauthenticated, token="wrong", **said)
        write(spark.range(3), server, "q", token="right")
        read = spark.read.format("penstock").options(token="right", **said).load()
        assert read.count() == 3
