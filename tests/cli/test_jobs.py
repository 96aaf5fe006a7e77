"""`penstock jobs`."""

import re

import pytest

from penstock.model.job import JobError, JobSpec, LogLine
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from tests.cli.cli import Cli, beforehand


@pytest.fixture
def filled(cli: Cli) -> Cli:
    """Two queues whose ids lie apart, with jobs of several kinds."""

    async def fill(store: Store) -> None:
        for queue, numbers, said in (
            ("a", (1, 2, 3), {"task": "t"}),
            ("b", (4, 5), {"tags": ("x",)}),
            ("a", (6,), {"delay_ms": 3_600_000}),
        ):
            jobs = [JobSpec(payload=b"%d" % number, **said) for number in numbers]
            await store.push_jobs("default", queue, jobs)

    beforehand(fill)
    return cli


def ids(page: dict[str, list[dict[str, int]]]) -> list[int]:
    return [job["id"] for job in page["jobs"]]


def test_jobs_of_all_queues_are_listed_by_id(filled: Cli) -> None:
    page = filled.json("jobs", "ls")
    assert ids(page) == sorted(ids(page))
    assert [job["payload"] for job in page["jobs"]] == [1, 2, 3, 6, 4, 5]
    assert page["cursor"] is None
    assert [job["payload"] for job in filled.json("jobs", "ls", "--queue", "b")["jobs"]] == [4, 5]
    assert [job["payload"] for job in filled.json("jobs", "ls", "--tag", "x")["jobs"]] == [4, 5]
    assert ids(filled.json("jobs", "ls", "--task", "t")) == [1, 2, 3]
    assert ids(filled.json("jobs", "ls", "--state", "scheduled")) == [4]


def test_a_queue_is_named_as_other_commands_have_it_or_by_an_option(filled: Cli) -> None:
    (queue, *_) = {job["queue"] for job in filled.json("jobs", "ls")["jobs"]}
    named = filled.json("jobs", "ls", queue)
    assert named == filled.json("jobs", "ls", "-q", queue)
    assert {job["queue"] for job in named["jobs"]} == {queue}
    filled("jobs", "ls", queue, "-q", queue, code=2)
    assert filled.told == "--queue: is said twice\n"


def test_a_listing_is_taken_up_at_its_cursor(filled: Cli) -> None:
    whole = ids(filled.json("jobs", "ls"))
    found: list[int] = []
    cursor: int | None = 0
    while cursor is not None:
        page = filled.json("jobs", "ls", "--limit", 2, "--cursor", cursor)
        assert len(page["jobs"]) <= 2
        found += ids(page)
        cursor = page["cursor"]
    assert found == whole
    filled("jobs", "ls", "-n", 5)
    assert filled.told == f"there are more: --cursor {whole[5]}\n"


def test_the_newest_jobs_come_first_where_that_is_asked_for(filled: Cli) -> None:
    whole = filled.json("jobs", "ls", "a", "--newest")
    assert [job["payload"] for job in whole["jobs"]] == [6, 3, 2, 1]
    newest = filled.json("jobs", "ls", "a", "--newest", "-n", 2, "--task", "t")
    assert [job["payload"] for job in newest["jobs"]] == [3, 2]
    rest = filled.json("jobs", "ls", "a", "--newest", "--cursor", newest["cursor"])
    assert [job["payload"] for job in rest["jobs"]] == [1]
    filled("jobs", "ls", "a", "--newest", "-n", 1)
    assert filled.told == "there are more: --cursor 3\n"
    ready = filled.json("jobs", "ls", "a", "--newest", "--state", "ready", "--limit", 1)
    assert [job["payload"] for job in ready["jobs"]] == [3]


def test_the_newest_jobs_of_all_queues_come_by_the_instant_of_their_push(cli: Cli) -> None:
    """Ids ascend within a queue alone."""
    clock = ManualClock()

    async def fill(store: Store) -> None:
        for number, queue in enumerate("aabbac"):
            clock.advance(1_000)
            await store.push_jobs("default", queue, [JobSpec(payload=b"%d" % number)])

    beforehand(fill, clock)
    for limit in range(1, 8):
        found: list[int] = []
        cursor: int | None = 0
        while cursor is not None:
            page = cli.json("jobs", "ls", "--newest", "--limit", limit, "--cursor", cursor)
            assert cli.told == ""
            found += [job["payload"] for job in page["jobs"]]
            cursor = page["cursor"]
        assert found == [5, 4, 3, 2, 1, 0]
    cli("jobs", "ls", "--newest", "--limit", 3)
    assert cli.told == "there are more: --cursor 4097\n"
    cli("jobs", "ls", "--newest", "--cursor", 999, code=2)
    assert cli.told == "--cursor: job 999 is not known, or no longer: begin without it\n"


def test_jobs_of_one_instant_are_listed_once_each_the_newest_first(cli: Cli) -> None:
    async def fill(store: Store) -> None:
        for queue in "abcab":
            await store.push_jobs("default", queue, [JobSpec()] * 2)

    beforehand(fill, ManualClock())
    whole = ids(cli.json("jobs", "ls", "--newest"))
    assert sorted(whole) == ids(cli.json("jobs", "ls"))
    found: list[int] = []
    cursor: int | None = 0
    while cursor is not None:
        page = cli.json("jobs", "ls", "--newest", "--limit", 3, "--cursor", cursor)
        found += ids(page)
        cursor = page["cursor"]
    assert found == whole


def test_a_listing_for_people_has_no_colour_and_cuts_nothing_where_it_is_piped(cli: Cli) -> None:
    cli("push", "q" * 200, '"[red]\\u001b[31m"', "--task", "t" * 25)
    said = cli("jobs", "ls")
    assert "\x1b" not in said
    assert "[red]" in said
    assert "q" * 200 in said
    assert re.search(r"^ *1 .* ready .* (now|[0-9]s ago) ", said, re.MULTILINE)


def test_what_a_terminal_would_obey_is_not_printed(cli: Cli) -> None:
    cli("push", "q", "--task", "\x1b[2Jboo", "--key", "\x07", "--header", "a=\x9b")
    for words in (("jobs", "ls"), ("jobs", "show", 1)):
        said = cli(*words)
        assert not {"\x1b", "\x07", "\x9b"} & set(said)
        assert "\\x1b[2Jboo" in said


def test_no_jobs_is_told_by_the_exit_code(filled: Cli) -> None:
    assert filled("jobs", "ls", "--state", "dead", code=1) == "no jobs\n"
    assert filled.json("jobs", "ls", "--task", "nope", code=1) == {"jobs": [], "cursor": None}
    filled("jobs", "ls", "--queue", "nope", code=1)
    assert filled.told == "there is no queue nope; penstock queues ls names them\n"


def test_a_job_is_shown_with_what_is_known_of_it(filled: Cli) -> None:
    lease = filled.lease("a", "--worker", "w1")
    filled("fail", lease, "-m", "no such user", "--class", "LookupError", "--retry-in", "1h")
    said = filled("jobs", "show", 1)
    for line in (r"state +scheduled", r"task +t", r"attempts +1 of 3", r"due .*\(in \d+m\)"):
        assert re.search(line, said), line
    assert "attempt 1, " in said
    assert "w1: LookupError: no such user" in said
    filled("jobs", "show", 999, code=1)
    assert filled.told.startswith("job 999 is not known")


def test_only_a_job_that_completed_is_shown_with_a_result(cli: Cli) -> None:
    for _ in range(3):
        cli("push", "q", "1")
    cli("ack", cli.lease("q"), "--result", "1=5")
    cli("ack", cli.lease("q"))
    cli("jobs", "cancel", 3, "--discard")
    shown = [cli("jobs", "show", job_id) for job_id in (1, 2, 3)]
    assert [re.findall(r"^result +(.*?) *$", said, re.MULTILINE) for said in shown] == [
        *(["5"], ["null"], [])
    ]


def test_jobs_are_cancelled_discarded_and_retried(filled: Cli) -> None:
    assert filled("jobs", "cancel", 1) == "1 job cancelled\n"
    assert filled.json("jobs", "cancel", 1, 2, 999, "--discard", code=1) == {
        "acked": [2],
        "lost": [1, 999],
    }
    assert filled.told == "job 1 has ended: it is cancelled\njob 999 is not known\n"
    assert filled.json("jobs", "retry", 2) == {"count": 1}
    assert filled("jobs", "retry", 2, 999, code=1) == "0 jobs ready again\n"
    assert filled.told == "job 2 is not dead: it is ready\njob 999 is not known\n"


def test_a_retry_whose_key_is_taken_stays_dead(cli: Cli) -> None:
    cli("push", "q", "1", "--key", "k")
    cli("jobs", "cancel", 1, "--discard")
    cli("push", "q", "2", "--key", "k")
    assert cli.json("jobs", "retry", 1, code=1) == {"count": 0, "conflicts": [1]}
    assert cli.told == "job 1 stays dead: another job has its key\n"


def test_the_lines_that_workers_wrote_are_printed(cli: Cli) -> None:
    async def write(store: Store) -> None:
        await store.push_jobs("default", "q", [JobSpec()])
        lease = await store.claim("default", ["q"], worker="w")
        assert lease is not None
        lines = [LogLine(0, "begun"), LogLine(0, "odd \x1b[31m", "warning")]
        await store.report("default", lease.token, 1, progress=50, message="half", logs=lines)

    beforehand(write)
    first, second = cli("jobs", "logs", 1).splitlines()
    assert first.endswith(" info    begun")
    assert second.endswith(" warning odd \\x1b[31m")
    lines = cli.json("jobs", "logs", 1)["logs"]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "begun"),
        ("warning", "odd \x1b[31m"),
    ]
    assert "50 % half" in cli("jobs", "show", 1)


def test_a_job_without_lines_has_none(filled: Cli) -> None:
    assert filled("jobs", "logs", 1, code=1) == "no lines\n"
    assert filled.json("jobs", "logs", 1, code=1) == {"logs": []}
    filled("jobs", "logs", 999, code=1)


# -- explain ---------------------------------------------------------------------------------------


def test_explain_says_what_holds_a_job(filled: Cli) -> None:
    assert "the next claim takes it" in filled("jobs", "explain", 1)
    said = filled("jobs", "explain", 3)
    assert "others are served first" in said
    assert "2 ready jobs of the queue are served before it" in said
    said = filled("jobs", "explain", 4)
    assert "is scheduled" in said
    assert re.search(r"it can start in (59m|1h), at ", said)
    explained = filled.json("jobs", "explain", 3)
    assert (explained["reasons"], explained["ahead"]) == (["line"], 2)


def test_explain_tells_of_the_rate_that_a_delayed_job_will_wait_for(cli: Cli) -> None:
    for _ in range(2):
        cli("push", "q", "1", "--delay", "1h")
    cli("queues", "limit", "q", "--rate", "1/d")
    assert cli("jobs", "explain", 1).endswith(", if a worker is free\n")
    said = cli("jobs", "explain", 2)
    assert "it can start in 1d" in said
    assert "at the earliest: before that the rate of its queue has no token for it" in said


def test_explain_speaks_of_nobody_before_a_delayed_job_that_only_waits_for_a_token(
    cli: Cli,
) -> None:
    cli("push", "q", "1")
    cli("queues", "limit", "q", "--rate", "1/d")
    cli.lease("q")
    cli("push", "q", "2", "--delay", "1h")
    said = cli("jobs", "explain", 2)
    assert "at the earliest: before that the rate of its queue has no token for it" in said


def test_explain_says_that_a_job_was_put_off_by_whoever_had_it(cli: Cli) -> None:
    async def put_off(store: Store) -> None:
        """As a worker does that does not know its task."""
        await store.push_jobs("default", "q", [JobSpec(), JobSpec(delay_ms=60_000)])
        lease = await store.claim("default", ["q"])
        assert lease is not None
        await store.release("default", lease.token)
        await store.edit("default", 1, delay_ms=60_000)

    beforehand(put_off)
    line = "  its run_at lies ahead"
    said = f"{line}; it was claimed and came back: penstock jobs logs 1 may say why\n"
    assert said in cli("jobs", "explain", 1)
    assert f"{line}\n" in cli("jobs", "explain", 2)


def test_explain_says_that_a_job_failed_and_was_redriven(cli: Cli) -> None:
    async def redriven(store: Store) -> None:
        await store.push_jobs("default", "q", [JobSpec(max_attempts=1)])
        lease = await store.claim("default", ["q"])
        assert lease is not None
        await store.fail("default", lease.token, error=JobError(kind="Boom", message="it broke"))
        await store.redrive("default", "q")
        await store.edit("default", 1, delay_ms=60_000)

    beforehand(redriven)
    assert "  its run_at lies ahead; it failed with Boom and was redriven\n" in cli(
        "jobs", "explain", 1
    )


def test_explain_names_the_limit_the_group_and_the_dependency(cli: Cli) -> None:
    cli("push", "q", "1", "--group", "g")
    cli("push", "q", "2", "--group", "g")
    cli("push", "q", "3", "--depends-on", 1)
    cli("queues", "limit", "q", "--concurrency", 1, "--rate", "1/1h")
    lease = cli.lease("q", "--worker", "w")
    said = cli("jobs", "explain", 2)
    assert "its queue runs as many jobs as it may: 1 job at most" in said
    assert "its group runs as many jobs as it may: group g" in said
    assert re.search(r"has no token left: the next one comes in (59m|1h)", said)
    assert "1 job still to end: 1" in cli("jobs", "explain", 3)
    assert "it is running since" in cli("jobs", "explain", 1)
    cli("queues", "pause", "q")
    assert "penstock queues resume q" in cli("jobs", "explain", 2)
    cli("fail", lease, "--retry-in", "1h", "--class", "Boom")
    assert "attempt 1 ended in Boom" in cli("jobs", "explain", 1)
    cli("jobs", "cancel", 1, "--discard")
    assert "it has ended now (discarded)" in cli("jobs", "explain", 1)
    cli("jobs", "explain", 999, code=1)
