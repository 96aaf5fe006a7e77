"""Logs: a line per event, ids as ranges, nothing where nobody wants it."""

import asyncio
import json
import logging
from typing import Any

import pytest

from penstock.model.event import Event
from penstock.model.job import IdRun, Ids, JobError, JobSpec
from penstock.open import open_store
from penstock.server.logs import JobLog, Observers, job_log, ranges
from penstock.stores.clock import ManualClock
from penstock.telemetry import logs
from penstock.telemetry.logs import JsonLines, TextLines


def test_ids_are_written_as_ranges() -> None:
    assert ranges(Ids()) == ""
    assert ranges(Ids((IdRun(1, 1_000), IdRun(1_003, 1)))) == "1-1000,1003"
    assert ranges(Ids((IdRun(10, 6, b"\1\1\0\1\0\1"), IdRun(3, 2)))) == "10-11,13,15,3-4"
    assert ranges(Ids((IdRun(7, 3, b"\0\1\1"),))) == "8-9"
    mask = b"\1\0" * 2_048
    assert ranges(Ids((IdRun(1, len(mask), mask),))).endswith(",199,…")


def test_what_happens_to_jobs_is_a_line_per_event() -> None:
    written: list[str] = []

    async def run() -> None:
        clock = ManualClock()
        sink = JobLog("json", "info", written.append)
        store = await open_store("memory://", clock=clock, observer=sink)
        await store.push_jobs("acme", "mail", [JobSpec(task="welcome")] * 1_000)
        clock.advance(40)
        lease = await store.claim("acme", ["mail"], 900, worker="w1", lease_ms=500)
        assert lease is not None
        clock.advance(10)
        await store.extend("acme", lease.token)
        await store.fail("acme", lease.token, [2], error=JobError(kind="Boom", message="secret?"))
        await store.ack("acme", lease.token, range(3, 900))
        await store.release("acme", lease.token, [900])
        clock.advance(600)
        await store.tick()
        await store.close()

    asyncio.run(run())
    lines: list[dict[str, Any]] = [json.loads(line) for line in "".join(written).splitlines()]
    told = [(line["event"], line["ids"], line["jobs"]) for line in lines if line["jobs"] > 1]
    assert told[:3] == [
        ("pushed", "1-1000", 1_000),
        ("claimed", "1-900", 900),
        ("extended", "1-900", 900),
    ]
    by_event = {line["event"]: line for line in lines}
    pushed, claimed = by_event["pushed"], by_event["claimed"]
    assert (pushed["tenant"], pushed["queue"], pushed["task"]) == ("acme", "mail", "welcome")
    assert (pushed["level"], pushed["logger"], pushed["bytes"]) == ("info", "penstock.jobs", 4_000)
    assert pushed["time"] == "2023-11-14T22:13:20.000+00:00"
    assert (claimed["wait_ms"], claimed["worker"]) == (40, "w1")
    assert by_event["completed"]["run_ms"] == 10
    assert by_event["released"]["ids"] == "900"
    retried = [line for line in lines if line["event"] == "retried"]
    assert [(line["ids"], line.get("cause"), line["error_kind"]) for line in retried] == [
        ("2", None, "Boom"),
        ("1", "lease_expired", "lease_expired"),
    ]
    assert "secret?" in retried[0]["error_message"]
    assert "payload" not in "".join(written)


def test_text_is_for_people() -> None:
    written: list[str] = []
    event = Event(
        kind="claimed", tenant="acme", queue="q", at=1_000, ready_at=900, ids=Ids((IdRun(1, 3),))
    )
    JobLog("text", "debug", written.append).write([event, event])
    line = "1970-01-01T00:00:01.000+00:00 debug   claimed acme/q 1-3 wait_ms=100\n"
    assert written == [line * 2]


@pytest.mark.parametrize(
    ("form", "level", "wanted"),
    [
        ("json", "info", True),
        ("json", "debug", True),
        ("json", "warning", False),
        ("text", "info", False),
        ("text", "debug", True),
        ("text", "error", False),
    ],
)
def test_nobody_listens_where_no_line_is_wanted(form: Any, level: Any, wanted: bool) -> None:
    assert (job_log(form, level) is not None) == wanted


def test_a_log_that_nobody_takes_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    async def run() -> list[int]:
        store = await open_store("memory://", observer=job_log("json", "info"))
        ids = (await store.push_jobs("acme", "q", [JobSpec()])).ids
        await store.close()
        return ids

    monkeypatch.setattr("sys.stderr", Gone())
    assert asyncio.run(run()) == [1]


def test_several_listen_as_one() -> None:
    heard: list[str] = []

    class Ear:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, events: list[Event]) -> None:
            heard.append(self.name)

    Observers(Ear("a"), Ear("b")).write([])
    assert heard == ["a", "b"]


def record(**more: Any) -> logging.LogRecord:
    return logging.LogRecord("penstock.store", logging.WARNING, "", 1, "it %s", ("is",), **more)


def test_the_programs_own_lines_have_the_same_form() -> None:
    line = json.loads(JsonLines().format(record(exc_info=None)))
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "logger": "penstock.store", "message": "it is"}
    assert TextLines().format(record(exc_info=None)).endswith(" warning it is")
    try:
        raise ValueError("oh\nno")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    assert "\n" not in JsonLines().format(record(exc_info=info))
    assert "oh\\nno" in json.loads(JsonLines().format(record(exc_info=info)))["trace"].replace(
        "\n", "\\n"
    )
    assert TextLines().format(record(exc_info=info)).endswith("no")


def test_what_a_job_says_looks_like_no_line_of_ours() -> None:
    said = "x\n2026-11-16T00:00:00.000+00:00 error   forged\r\x1b[31m\0\u2028\x9b\tend"
    text = TextLines().format(logging.makeLogRecord({"msg": "%s", "args": (said,)}))
    assert text.isprintable() or text.replace("\t", "").isprintable()
    assert r"x\n2026-11-16T" in text
    assert r"\r\x1b[31m\x00\u2028\x9b" in text
    assert text.endswith("\tend")


def test_a_line_tells_of_files_whose_names_are_no_text() -> None:
    said = {"msg": "no %s", "args": ("\udcff.csv",), "path": "\udcff.csv"}
    line = JsonLines().format(logging.makeLogRecord(said))
    assert line.isascii()
    assert json.loads(line)["message"] == "no \udcff.csv"
    assert json.loads(line)["path"] == "\udcff.csv"


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_a_message_is_bounded(form: logging.Formatter) -> None:
    line = form.format(logging.makeLogRecord({"msg": "%s", "args": ("x" * 5_000_000,)}))
    assert len(line) < 17_000
    assert "(5,000,000 characters)" in line


def test_the_log_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.configure("json", "warning")
        logging.getLogger("penstock.test").info("unheard")
        logging.getLogger("penstock.test").warning("heard")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line)["message"] for line in captured.err.splitlines()] == ["heard"]
