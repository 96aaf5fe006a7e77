"""What somebody could say to reach what another owns: a row for every command and every route.

A row says it with the names of an estate: ids, lease, bulks, keys, queues, crons. Where the estate
is somebody else's, nothing of it may be told or touched. A command or route without a row fails
`test_every_command_and_every_route_has_a_row`.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.model.policy import Bounds
from tests.server.estate import CONFIG_HASH, HOUR, Estate, cron

Fields = dict[str, Any]
Rows = Callable[[Estate], list[Fields]]

ERROR: Final = {"kind": "Theirs", "message": "not yours"}
CONFIG: Final = {"paused": True}


def once(**fields: Any) -> Rows:
    return lambda _: [fields]


def each(field: str, **fields: Any) -> Rows:
    """Said of every job."""
    return lambda theirs: [{field: job_id, **fields} for job_id in theirs.ids]


def many(**fields: Any) -> Rows:
    """Said of all jobs at once."""
    return lambda theirs: [{"ids": theirs.ids, **fields}]


def under_lease(**fields: Any) -> Rows:
    """Said of all that the lease holds, of what it holds, and of what it does not."""

    def rows(theirs: Estate) -> list[Fields]:
        own: Fields = {"lease": theirs.lease, **fields}
        return [
            own,
            own | {"ids": [theirs.active]},
            own | {"ranges": [[theirs.active, 1]]},
            own | {"ids": [theirs.ready]},
        ]

    return rows


def in_queues(**fields: Any) -> Rows:
    return lambda _: [{"queue": queue, **fields} for queue in ("q", "other", "crons")]


def of_dead(theirs: Estate) -> list[Fields]:
    ids = [theirs.dead, theirs.ready, theirs.done]
    return [{"queue": "q"}, {"queue": "q", "ids": ids}, {"queue": "other", "ids": ids}]


def pushes(theirs: Estate) -> list[Fields]:
    payloads = [b'"mine"']
    packed = {"queue": "q", "data": b'"mine"', "ends": [6]}
    return [
        {"queue": "q", "payloads": payloads, "keys": ["k"]},
        {"queue": "q", "payloads": payloads, "keys": ["kept"]},
        {"queue": "q", "payloads": payloads, "groups": ["g"]},
        {"queue": "other", "payloads": payloads, "producer": "p", "sequence": 1},
        {"queue": "q", "payloads": payloads, "bulk": "open", "part": "p"},
        {"queue": "q", "payloads": payloads, "bulk": "committed"},
        *({"runs": [packed | {"depends_on": [[job_id]]}]} for job_id in theirs.ids),
        {"runs": [packed | {"depends_on": [theirs.ids]}]},
    ]


def put_instants(_: Estate) -> list[Fields]:
    run = {"queue": "q", "data": b'"mine"', "ends": [6], "run_at": [9 * HOUR]}
    empty = {"queue": "q", "data": b"", "ends": []}
    said = {"name": "instants", "config_hash": "f" * 16}
    return [said | {"run": run}, said | {"run": empty}]


def compatible_pushes(theirs: Estate) -> list[Fields]:
    return [
        {"queue": "q", "data": 1, "job_id": "mine"},
        {"queue": "q", "data": 1, "unique_key": "mine"},
        {"queue": "q", "data": 1, "group_id": "g"},
        *({"queue": "q", "data": 1, "depends_on": [job_id]} for job_id in theirs.ids),
    ]


COMMANDS: Final[dict[str, Rows]] = {
    # of the connection
    "HELLO": once(),
    "AUTH": once(token="pst_bob"),  # of nobody: see test_tokens.py
    "PING": once(),
    "ABANDON": once(request=1),
    "TICK": once(),
    "HEALTH": once(),
    # native
    "PUSHRUN": pushes,
    "BULKOPEN": lambda _: [{"name": name} for name in ("open", "committed", "aborted")],
    "BULKCOMMIT": lambda _: [{"bulk": name} for name in ("open", "committed", "aborted")],
    "BULKABORT": lambda _: [{"bulk": name} for name in ("open", "committed", "aborted")],
    "CLAIM": lambda _: [{"queues": ["crons", "q", "other"], "n": 9}, {"queues": ["crons"]}],
    "COMPLETE": under_lease(),
    "FAILED": under_lease(error=ERROR, dead=True),
    "RELEASE": under_lease(),
    "EXTEND": lambda theirs: [{"lease": theirs.lease}, {"lease": theirs.lease, "lease_ms": 50}],
    "REPORT": lambda theirs: [
        {"lease": theirs.lease, "job_id": job_id, "progress": 9, "message": "x"}
        for job_id in (theirs.active, theirs.ready)
    ],
    "GET": many(),
    "STANDING": many(),
    "REACH": lambda theirs: [{"lease": theirs.lease}, {"bulk": "open"}, {"bulk": "committed"}],
    "FIND": lambda _: [
        {"queue": "q"},
        {"queue": "q", "state": "active"},
        {"queue": "q", "newest": True},
        {"queue": "q", "tag": "secret"},
        {"queue": "q", "task": "secret"},
        {"queue": "other"},
        {"queue": "crons"},
    ],
    "BYKEY": lambda _: [{"queue": "q", "key": key} for key in ("k", "kept", "c:mine", "u:mine")],
    "RESULT": each("job_id"),
    "LOGS": each("job_id"),
    "EXPLAIN": each("job_id"),
    "WAITING": lambda _: [{}, {"limit": 1}],
    "WATCH": lambda _: [{}, {"queues": ["q"]}],
    "UNWATCH": lambda _: [{}, {"watch": 1}],
    "CANCELJOBS": lambda theirs: [
        {"ids": theirs.ids},
        {"ids": theirs.ids, "discard": True},
        {"ranges": [[theirs.active, 1]]},
    ],
    "EDIT": each("job_id", priority=9),
    "REDRIVE": of_dead,
    "PURGEDEAD": of_dead,
    "QUEUES": lambda _: [{}, {"names": ["q", "other", "crons"]}],
    "CONFIGURE": in_queues(config=CONFIG),
    "CONFIGURETENANT": once(bounds=Bounds(jobs=1)),
    "DRAINQUEUE": in_queues(),
    "CLEANQUEUE": lambda _: [
        {"queue": "q", "state": state} for state in ("ready", "scheduled", "completed", "dead")
    ],
    "PURGE": in_queues(),
    "PUTCRON": once(spec=cron(2 * HOUR)),
    "REFRESHCRON": once(spec=cron(HOUR)),
    "CRONS": once(),
    "DROPCRON": once(name="cron"),
    "PUTINSTANTS": put_instants,
    "REFRESHINSTANTS": put_instants,
    "DROPINSTANTS": lambda _: [
        {"queue": "q", "name": "instants"},
        {"queue": "q", "name": "instants", "config_hash": CONFIG_HASH},
    ],
    # compatible
    "PUSH": compatible_pushes,
    "PUSHB": lambda theirs: [
        {"queue": "q", "jobs": [{"data": 1, "job_id": "mine"}, {"depends_on": theirs.ids}]}
    ],
    "FLOW": lambda theirs: [
        {"queue": "q", "children": [{"queue": "other"}], "depends_on": theirs.ids},
        {"queue": "q", "children": [{"queue": "q", "depends_on": [theirs.held]}]},
    ],
    "PULL": in_queues(),
    "PULLB": in_queues(count=9),
    "ACK": each("id", result=1),
    "ACKB": many(),
    "FAIL": each("id", error="x"),
    "HEARTBEAT": each("id"),
    "PROGRESS": each("id", progress=9),
    "LOG": each("id", message="x"),
    "PARTIAL": each("id", data=1),
    "GETJOB": each("id"),
    "GETSTATE": each("id"),
    "GETRESULT": each("id"),
    "GETJOBBYCUSTOMID": lambda _: [{"job_id": "mine"}, {"job_id": "mine", "queue": "q"}],
    "GETJOBSBATCH": many(),
    "GETJOBS": lambda _: [{}, {"queue": "q"}, {"queue": "q", "state": "active"}],
    "GETJOBCOUNTS": in_queues(),
    "COUNT": in_queues(),
    "WAITJOB": each("id", timeout=0),
    "GETPROGRESS": each("id"),
    "GETLOGS": each("id"),
    "GETCHILDREN": each("parent_id"),
    "CANCEL": each("id"),
    "DISCARD": each("id"),
    "UPDATEJOB": each("id", data=1),
    "UPDATE": each("id", data=1),
    "CHANGEPRIORITY": each("id", priority=9),
    "PROMOTE": each("id"),
    "MOVETODELAYED": each("id", delay=9),
    "DLQ": in_queues(),
    "RETRYDLQ": lambda theirs: [
        {"queue": "q"},
        *({"queue": "q", "id": job_id} for job_id in theirs.ids),
    ],
    "PURGEDLQ": in_queues(),
    "PAUSE": in_queues(),
    "RESUME": in_queues(),
    "ISPAUSED": in_queues(),
    "RATELIMIT": in_queues(limit=1),
    "RATELIMITCLEAR": in_queues(),
    "SETCONCURRENCY": in_queues(limit=1),
    "CLEARCONCURRENCY": in_queues(),
    "DRAIN": in_queues(),
    "OBLITERATE": in_queues(),
    "CLEAN": lambda _: [
        {"queue": "q", "grace": 0, "state": state} for state in ("waiting", "completed", "failed")
    ],
    "LISTQUEUES": once(),
    "STATS": once(),
    "METRICS": once(),
    "CRON": once(name="cron", queue="crons", repeat_every=2 * HOUR),
    "CRONDELETE": once(name="cron"),
    "CRONLIST": once(),
    "SUBSCRIBE": in_queues(),
    "UNSUBSCRIBE": in_queues(),
}


class Asked:
    """A request for a route: what stands in its path, behind it, and in its body."""

    def __init__(self, body: Any = None, query: str = "", **params: object) -> None:
        self.body = body
        self.query = query
        self.params = params

    def path(self, route: Any) -> str:
        path: str = route.path.format(**self.params)
        return f"{path}?{self.query}" if self.query else path


Asks = Callable[[Estate], list[Asked]]


def asked_each(body: object = None, query: str = "") -> Asks:
    return lambda theirs: [Asked(body, query, id=job_id) for job_id in theirs.ids]


def asked_of_queues(body: object = None, query: str = "") -> Asks:
    return lambda _: [Asked(body, query, queue=queue) for queue in ("q", "other", "crons")]


def asked_under_lease(**body: Any) -> Asks:
    return lambda theirs: [
        Asked(body, lease=theirs.lease),
        Asked(body | {"ids": [theirs.active]}, lease=theirs.lease),
        Asked(body | {"ids": [theirs.ready]}, lease=theirs.lease),
    ]


def asked(body: object = None, query: str = "", **params: object) -> Asks:
    return lambda _: [Asked(body, query, **params)]


def asked_of_bulks(body: object = None) -> Asks:
    return lambda _: [Asked(body, bulk=name) for name in ("open", "committed", "aborted")]


def asked_pushes(theirs: Estate) -> list[Asked]:
    return [
        Asked({"payload": 1, "key": "k"}, queue="q"),
        Asked({"payload": 1, "key": "kept", "on_conflict": "reject"}, queue="q"),
        Asked({"payload": 1, "key": "k", "on_conflict": "replace"}, queue="q"),
        Asked({"payload": 1, "group": "g"}, queue="q"),
        Asked({"jobs": [{}], "producer": "p", "sequence": 1}, queue="other"),
        Asked({"jobs": [{}], "bulk": "open", "part": "p"}, queue="q"),
        Asked({"jobs": [{}], "bulk": "committed"}, queue="q"),
        *(Asked({"depends_on": [job_id]}, queue="q") for job_id in theirs.ids),
        Asked({"depends_on": theirs.ids}, queue="q"),
    ]


# By the name of the action; `run_command` is in the matrix by every command.
ROUTES: Final[dict[str, Asks]] = {
    "push": asked_pushes,
    "push_flow": lambda theirs: [
        Asked(
            {
                "jobs": [
                    {"name": "a", "queue": "q", "depends_on": theirs.ids},
                    {"name": "b", "queue": "other", "after": ["a"], "key": "k"},
                ]
            }
        )
    ],
    "list_jobs": lambda _: [
        Asked(queue="q"),
        Asked(queue="q", query="state=active"),
        Asked(queue="q", query="tag=secret"),
        Asked(queue="q", query="task=secret"),
        Asked(queue="other"),
    ],
    "get_job": asked_each(),
    "edit_job": asked_each({"priority": 9}),
    "cancel_job": asked_each(),
    "retry_job": asked_each(),
    "get_result": asked_each(),
    "get_logs": asked_each(),
    "explain_job": asked_each(),
    "claim": asked_of_queues({"n": 9}),
    "claim_any": asked({"queues": ["crons", "q", "other"], "n": 9}),
    "ack": asked_under_lease(),
    "fail": asked_under_lease(error={"class": "Theirs"}, dead=True),
    "release": asked_under_lease(),
    "extend": lambda theirs: [Asked({"lease_ms": 50}, lease=theirs.lease)],
    "report_progress": lambda theirs: [
        Asked({"id": job_id, "progress": 9}, lease=theirs.lease)
        for job_id in (theirs.active, theirs.ready)
    ],
    "list_queues": asked(),
    "get_queue": asked_of_queues(),
    "purge_queue": asked_of_queues(),
    "pause_queue": asked_of_queues(),
    "resume_queue": asked_of_queues(),
    "drain_queue": asked_of_queues(),
    "configure_queue": asked_of_queues({"retain_count": 7}),
    "list_dead": asked_of_queues(),
    "group_dead": asked_of_queues(),
    "redrive_dead": lambda theirs: [
        Asked({}, queue="q"),
        Asked({"ids": [theirs.dead, theirs.ready]}, queue="q"),
        Asked({"ids": [theirs.dead]}, queue="other"),
    ],
    "purge_dead": asked_of_queues(),
    "list_crons": asked(),
    "get_cron": asked(name="cron"),
    "put_cron": asked({"queue": "crons", "every_ms": 2 * HOUR}, name="cron"),
    "drop_cron": asked(name="cron"),
    "open_bulk": lambda _: [Asked({"name": name}) for name in ("open", "committed", "aborted")],
    "commit_bulk": asked_of_bulks({}),
    "abort_bulk": asked_of_bulks(),
    "get_stats": asked(),
    "get_history": asked(),
    "get_metrics": asked(),
    "check_alive": asked(),
    "check_ready": asked(),
    "get_openapi": asked(),
    "get_docs": asked(),
    "watch_events": lambda _: [Asked(), Asked(query="queue=q")],
}
