"""Queues, dead letters, crons, bulks and figures over HTTP."""

import pytest

from penstock.model.fingerprint import fingerprint
from penstock.model.job import JobError, JobSpec
from penstock.protocol.command import Figures
from tests.server.harness import asking
from tests.server.test_http_jobs import NOW, refused

PUSH = "/v1/queues/q/jobs"


# -- queues --------------------------------------------------------------------------------------


async def test_a_queue_shows_its_counts_limits_and_bounds() -> None:
    async with asking() as (up, client):
        await client.post(PUSH, {"jobs": [{}, {}, {"delay_ms": 9_999_999}]})
        await up.advance(250)
        expected = {
            "queue": "q",
            "paused": False,
            "counts": {
                "held": 0,
                "blocked": 0,
                "scheduled": 1,
                "ready": 2,
                "active": 0,
                "completed": 0,
                "dead": 0,
                "cancelled": 0,
                "expired": 0,
            },
            "limits": {
                "rate": None,
                "concurrency": None,
                "group_rate": None,
                "group_concurrency": 1,
            },
            "bounds": {"jobs": None, "bytes": None, "push_rate": None},
            "oldest_ready_ms": 250,
        }
        assert (await client.get("/v1/queues/q")).json == expected
        assert (await client.get("/v1/queues")).json == {"queues": [expected]}
        empty = (await client.get("/v1/queues/none")).json
        assert (empty["queue"], empty["oldest_ready_ms"]) == ("none", None)
        assert refused(await client.get("/v1/queues/a%2Fb"), 400, "invalid", "queue")
        assert refused(await client.get("/v1/queues/a%00b"), 400, "invalid", "queue")


async def test_pause_resume_drain_and_purge() -> None:
    async with asking() as (_, client):
        await client.post(PUSH, {"jobs": [{}] * 4})
        paused = await client.post("/v1/queues/q/pause")
        assert (paused.status, paused.json["paused"]) == (200, True)
        assert (await client.post("/v1/queues/q/claim")).status == 204
        assert (await client.post("/v1/queues/q/resume")).json["paused"] is False
        assert (await client.post("/v1/queues/q/claim")).status == 200
        assert (await client.post("/v1/queues/q/drain")).json == {"count": 3}
        purged = await client.request("DELETE", "/v1/queues/q")
        assert (purged.status, purged.json) == (200, {"count": 1})


async def test_configuration_is_set_whole_and_keeps_the_pause() -> None:
    async with asking() as (_, client):
        await client.post("/v1/queues/q/pause")
        said = {
            "limits": {
                "rate": {"tokens": 5, "per_ms": 1_000, "burst": 2},
                "concurrency": 3,
                "group_rate": {"tokens": 1, "per_ms": 10, "burst": 1},
                "group_concurrency": 2,
            },
            "bounds": {
                "jobs": 10,
                "bytes": 1_000,
                "push_rate": {"tokens": 9, "per_ms": 1_000, "burst": 9},
            },
            "retain_ms": 1,
            "retain_count": 2,
            "retain_dead_ms": 3,
        }
        answer = await client.request("PUT", "/v1/queues/q/config", said)
        assert (answer.status, answer.json) == (200, said)
        shown = (await client.get("/v1/queues/q")).json
        assert (shown["limits"], shown["bounds"]) == (said["limits"], said["bounds"])
        assert shown["paused"]
        assert (await client.request("PUT", "/v1/queues/q/config", {})).json["bounds"] == {
            "jobs": None,
            "bytes": None,
            "push_rate": None,
        }
        for body, field in [
            ({"limits": {"concurrency": 0}}, "limits.concurrency"),
            ({"limits": {"rate": {}}}, "limits.rate.tokens"),
            ({"bounds": {"jobs": -1}}, "bounds.jobs"),
            ({"retain_ms": "1h"}, "retain_ms"),
            ({"paused": True}, "paused"),
        ]:
            answer = await client.request("PUT", "/v1/queues/q/config", body)
            assert refused(answer, 400, "invalid", field)


# -- dead letters --------------------------------------------------------------------------------


async def test_dead_letters_are_listed_grouped_redriven_and_forgotten() -> None:
    async with asking() as (up, client):
        await up.store.push_jobs("default", "q", [JobSpec()] * 60)
        lease = await up.store.claim("default", ["q"], 60)
        assert lease is not None
        for n in range(50):
            kind, message = ("Boom", f"user {n} is gone") if n % 5 else ("Bang", "no disk")
            error = JobError(kind=kind, message=message)
            await up.store.fail("default", lease.token, [n + 1], error=error, dead=True)
        await up.store.cancel("default", [60], discard=True)

        listed = (await client.get("/v1/queues/q/dead?limit=3")).json
        assert [job["id"] for job in listed["jobs"]] == [1, 2, 3]
        assert listed["cursor"] == 4
        boom = fingerprint(JobError(kind="Boom", message="user 1 is gone"))
        bang = fingerprint(JobError(kind="Bang", message="no disk"))
        grouped = (await client.get("/v1/queues/q/dead/groups")).json
        assert grouped == {
            "groups": [
                {
                    "fingerprint": boom,
                    "class": "Boom",
                    "message": "user <number> is gone",
                    "count": 40,
                    "first_id": 2,
                    "last_id": 50,
                    "first_at": NOW,
                    "last_at": NOW,
                },
                {
                    "fingerprint": bang,
                    "class": "Bang",
                    "message": "no disk",
                    "count": 10,
                    "first_id": 1,
                    "last_id": 46,
                    "first_at": NOW,
                    "last_at": NOW,
                },
                {
                    "fingerprint": fingerprint(JobError(kind="")),
                    "class": "",
                    "message": "",
                    "count": 1,
                    "first_id": 60,
                    "last_id": 60,
                    "first_at": 0,
                    "last_at": 0,
                },
            ],
            "cursor": None,
        }
        page = (await client.get("/v1/queues/q/dead/groups?limit=20")).json
        assert sum(group["count"] for group in page["groups"]) == 20
        rest = (await client.get(f"/v1/queues/q/dead/groups?cursor={page['cursor']}")).json
        assert sum(group["count"] for group in rest["groups"]) == 31

        redrive = "/v1/queues/q/dead/redrive"
        assert (await client.post(redrive, {"ids": [1, 2, 99]})).json == {"count": 2}
        assert (await client.post(redrive, {"fingerprint": bang, "limit": 4})).json == {"count": 4}
        assert refused(
            await client.post(redrive, {"fingerprint": "no"}), 400, "invalid", "fingerprint"
        )
        assert (await client.post(redrive)).json == {"count": 45}
        assert (await client.request("DELETE", "/v1/queues/q/dead")).json == {"count": 0}


async def test_a_redrive_names_the_jobs_whose_key_is_taken() -> None:
    async with asking() as (up, client):
        await client.post(PUSH, {"key": "k"})
        lease = await up.store.claim("default", ["q"])
        assert lease is not None
        await up.store.fail("default", lease.token, error=JobError(), dead=True)
        await client.post(PUSH, {"key": "k"})
        answer = await client.post("/v1/queues/q/dead/redrive", {})
        assert answer.json == {"count": 0, "conflicts": [1]}
        assert (await client.request("DELETE", "/v1/queues/q/dead")).json == {"count": 1}


# -- crons ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    [
        {"expression": "0 2 * * *", "tz": "Europe/Berlin"},
        {"every_ms": 900_000},
        {"daily": ["02:00", "14:00"], "tz": "UTC"},
    ],
)
async def test_a_cron_is_put_shown_and_dropped(when: dict[str, object]) -> None:
    async with asking() as (_, client):
        said = {
            "queue": "reports",
            "payload": {"kind": "daily"},
            "task": "report",
            "priority": 2,
            "max_attempts": 7,
            "backoff": {
                "kind": "fixed",
                "base_ms": 5,
                "cap_ms": 6,
                "jitter": "none",
                "list_ms": [],
            },
            "lease_ms": 60_000,
            "timeout_ms": 1,
            "ttl_ms": 2,
            "lifo": True,
            "tags": ["t"],
            "retain_ms": 3,
            "retain_dead_ms": 4,
            "overlap": "skip",
            "missed": "all",
            "limit": 100,
            **when,
        }
        answer = await client.request("PUT", "/v1/crons/a%2Fb%20c", said)
        assert answer.status == 200
        shown = answer.json
        assert {name: shown[name] for name in said} == said
        assert shown["name"] == "a/b c"
        assert shown["next_run"] == min(shown["pending"]) > NOW
        assert len(shown["pending"]) == 4
        assert shown["executions"] == 0
        assert (await client.get("/v1/crons/a%2Fb%20c")).json == shown
        assert (await client.get("/v1/crons")).json == {"crons": [shown]}
        assert (await client.request("DELETE", "/v1/crons/a%2Fb%20c")).status == 204
        for method in ("GET", "DELETE"):
            answer = await client.request(method, "/v1/crons/a%2Fb%20c")
            assert refused(answer, 404, "not_found", "name")


async def test_bad_crons_say_what_is_wrong() -> None:
    async with asking() as (_, client):
        for body, field in [
            ({"every_ms": 1}, "queue"),
            ({"queue": "q"}, "expression"),
            ({"queue": "q", "every_ms": 1, "daily": ["02:00"]}, "expression"),
            ({"queue": "q", "every_ms": 0}, "every_ms"),
            ({"queue": "q", "every_ms": 1_000, "tz": "UTC"}, "tz"),
            ({"queue": "q", "expression": "every day"}, "expression"),
            ({"queue": "q", "expression": "0 0 30 2 *"}, "expression"),
            ({"queue": "q", "expression": "0 2 * * *", "tz": "Mars"}, "tz"),
            ({"queue": "q", "daily": ["25:00"]}, "daily"),
            ({"queue": "q", "daily": []}, "daily"),
            ({"queue": "q", "every_ms": 1_000, "key": "k"}, "key"),
            ({"queue": "q", "every_ms": 1_000, "overlap": "maybe"}, "overlap"),
        ]:
            answer = await client.request("PUT", "/v1/crons/c", body)
            assert refused(answer, 400, "invalid", field), body
        long = {"queue": "q", "every_ms": 1_000}
        answer = await client.request("PUT", "/v1/crons/" + "n" * 201, long)
        assert refused(answer, 400, "invalid", "name")


# -- bulks ---------------------------------------------------------------------------------------


async def test_a_bulk_is_opened_filled_and_committed() -> None:
    async with asking() as (_, client):
        answer = await client.post("/v1/bulks", {"name": "load", "deadline_ms": 60_000})
        assert answer.status == 201
        assert answer.json == {"bulk": "load", "state": "open", "expires_at": NOW + 60_000}
        for part in ("a", "b"):
            said = {"jobs": [{"payload": part}] * 3, "bulk": "load", "part": part}
            assert (await client.post(PUSH, said)).status == 201
        assert (await client.get("/v1/queues/q")).json["counts"]["held"] == 6
        answer = await client.post("/v1/bulks/load/commit", {"parts": ["a"]})
        ended = {"bulk": "load", "state": "committed", "jobs": 3, "dropped": 3}
        assert (answer.status, answer.json) == (200, ended)
        assert (await client.post("/v1/bulks/load/commit", {"parts": ["a"]})).json == ended
        assert (await client.get("/v1/queues/q")).json["counts"]["ready"] == 3
        again = await client.post("/v1/bulks", {"name": "load"})
        assert (again.status, again.json["state"]) == (200, "committed")
        answer = await client.post("/v1/bulks/load/abort")
        assert (answer.status, answer.json["code"]) == (409, "conflict")
        said = {"jobs": [{}], "bulk": "load"}
        answer = await client.post(PUSH, said)
        assert (answer.status, answer.json["code"]) == (409, "conflict")


async def test_a_bulk_without_a_name_is_given_one_and_can_be_aborted() -> None:
    async with asking() as (_, client):
        bulk = (await client.post("/v1/bulks")).json["bulk"]
        await client.post(PUSH, {"jobs": [{}], "bulk": bulk})
        answer = await client.post(f"/v1/bulks/{bulk}/abort")
        assert answer.json == {"bulk": bulk, "state": "aborted", "jobs": 0, "dropped": 1}
        for verb in ("commit", "abort"):
            answer = await client.post(f"/v1/bulks/unknown/{verb}")
            assert (answer.status, answer.json["code"]) == (404, "not_found")
        answer = await client.post(PUSH, {"jobs": [{}], "bulk": "unknown"})
        assert (answer.status, answer.json["code"]) == (404, "not_found")
        assert refused(
            await client.post("/v1/bulks", {"deadline_ms": 1}), 400, "invalid", "deadline_ms"
        )


# -- figures -------------------------------------------------------------------------------------


async def test_figures_history_and_metrics_come_from_their_sources() -> None:
    async def metrics() -> str:
        return "penstock_up 1\n"

    points = [{"at": 1, "pushed": 2}, {"at": 5_001, "pushed": 3}]
    async with asking(
        figures=lambda tenant: Figures(pushed=5, jobs_per_second=1.5),
        history=lambda tenant: points,
        metrics=metrics,
    ) as (_, client):
        await client.post(PUSH, {"jobs": [{}, {}]})
        stats = (await client.get("/v1/stats")).json
        assert (stats["queues"], stats["counts"]["ready"]) == (1, 2)
        assert (stats["pushed"], stats["jobs_per_second"]) == (5, 1.5)
        history = (await client.get("/v1/stats/history")).json
        assert history == {"interval_ms": 5_000, "points": points}
        scraped = await client.get("/metrics")
        assert scraped.body == b"penstock_up 1\n"
        assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_store_that_has_ended_is_not_ready() -> None:
    async with asking() as (up, client):
        await up.store.close()
        assert (await client.get("/healthz")).json == {"ok": True}
        assert refused(await client.get("/readyz"), 503, "unavailable")
        assert refused(await client.post(PUSH, {}), 503, "unavailable")
