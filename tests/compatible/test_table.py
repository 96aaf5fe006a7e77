"""The table of compatible commands: that all of them are there, and how they are spoken of."""

from typing import Any

import msgspec

from penstock.protocol.compatible import COMPATIBLE
from penstock.protocol.compatible_reach import Done
from tests.compatible.wire import Connection, World, words

NAMES = words("""
AUTH PUSH PUSHB PULL PULLB ACK ACKB FAIL
GETJOB GETSTATE GETRESULT GETJOBBYCUSTOMID GETJOBSBATCH GETJOBS GETJOBCOUNTS COUNT WAITJOB
CANCEL PROGRESS GETPROGRESS UPDATEJOB UPDATE CHANGEPRIORITY MOVETODELAYED PROMOTE DISCARD LOG
GETLOGS HEARTBEAT PARTIAL
FLOW GETCHILDREN
PAUSE RESUME ISPAUSED DRAIN OBLITERATE CLEAN LISTQUEUES RATELIMIT RATELIMITCLEAR SETCONCURRENCY
CLEARCONCURRENCY
DLQ RETRYDLQ PURGEDLQ
CRON CRONDELETE CRONLIST
SUBSCRIBE UNSUBSCRIBE METRICS STATS
""")

AUDITED = words("""
CANCEL UPDATEJOB UPDATE CHANGEPRIORITY MOVETODELAYED PROMOTE DISCARD
PAUSE RESUME DRAIN OBLITERATE CLEAN RATELIMIT RATELIMITCLEAR SETCONCURRENCY CLEARCONCURRENCY
RETRYDLQ PURGEDLQ CRON CRONDELETE
""")


def test_every_command_of_the_table_is_there_and_no_other() -> None:
    names = [command.__struct_config__.tag for command in COMPATIBLE]
    assert sorted(names, key=str) == sorted(NAMES)


def test_the_commands_of_administrators_are_audited() -> None:
    audited = [c.__struct_config__.tag for c in COMPATIBLE if c.audited]
    assert sorted(audited, key=str) == sorted(AUDITED)


def test_every_command_says_what_it_does() -> None:
    for command in COMPATIBLE:
        assert "__doc__" in vars(command), command
        assert command.__struct_config__.tag_field == "cmd"


def test_every_answer_says_ok_and_success_first_and_has_no_error_by_default() -> None:
    for command in COMPATIBLE:
        answer = command.answer
        if issubclass(answer, Done):
            names = [field.encode_name for field in msgspec.structs.fields(answer)]
            assert names[:1] == ["ok"]
            assert "success" in names
            errors = [f for f in msgspec.structs.fields(answer) if f.name == "error"]
            assert all(field.default is msgspec.UNSET for field in errors)


async def test_fields_that_a_command_does_not_have_are_ignored(w: World) -> None:
    c = w.connect()
    answer = await c.say("PUSH", queue="q", data=1, colour="red", nested={"a": [1]})
    batch = await c.say("PUSHB", queue="q", jobs=[{"data": 2, "colour": "red"}])
    assert [answer["id"], *batch["ids"]] == [answer["id"], answer["id"] + 1]


async def test_null_is_as_good_as_nothing_said(w: World) -> None:
    c = w.connect()
    nothing: dict[str, Any] = dict.fromkeys(
        words(
            "priority delay ttl timeout max_attempts backoff unique_key depends_on tags lifo "
            "remove_on_complete remove_on_fail stall_timeout debounce_id debounce_ttl job_id "
            "keep_completed_age keep_completed_count group_id jobId customId"
        )
    )
    said, unsaid = await c.push(**nothing), await c.push()
    assert (await c.known(said)).options == (await c.known(unsaid)).options


async def test_requests_keep_their_number_for_the_connection_to_answer_with(w: World) -> None:
    c: Connection = w.connect()
    assert c.decode({"cmd": "STATS", "reqId": "r-1"}).req_id == "r-1"
    assert c.decode({"cmd": "STATS"}).req_id is msgspec.UNSET
