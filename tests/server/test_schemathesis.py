"""The server against its own OpenAPI document: whatever that allows is answered as it says.

Every check of schemathesis is on. A document cannot say everything, though: what it allows and the
server refuses has to be about one of the `RULES`.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.generation import GenerationMode

from penstock.server.openapi import document
from penstock.server.routes import ROUTES
from penstock.stores.clock import SystemClock
from tests.server.test_http_access import TOKENS
from tests.server.test_http_command import COMMANDS
from tests.server.thread import Impatient, served

# Between fields, or between a request and what the store knows: by the field that is named.
RULES: Final = {
    "Last-Event-ID",  # whose pattern the generator does not keep to
    "after",  # names a job of the flow
    "cmd",  # one of the commands that the server was given
    "codec",  # of bytes, which are no JSON value
    "depends_on",  # an id that was given out already
    "durability",  # a store in memory keeps nothing
    "expression",  # that is one, and fires some day
    "key",  # counted in bytes
    "lifo",  # not with a group
    "logs.level",  # counted in bytes
    "name",  # once in a flow
    "part",  # only with a bulk
    "parts",  # that were pushed
    "payload",  # of a codec that is more than its bytes
    "producer",  # with a sequence
    "results",  # of jobs that are named, in a codec that is more than its bytes
    "results_base64",  # not with results
    "run_at",  # not with a delay
    "sequence",  # with a producer
    "ttl_ms",  # longer than the delay
    "tz",  # that exists, and not with every_ms
    "wait_ms",  # over before the job's end
    "priority",  # or something else that is to be edited
    "backoff.list_ms",  # of the kind list
}

CHECKS: Final = {
    # 400: see RULES. 408: a result that is not there yet.
    "positive_data_acceptance": {
        "expected-statuses": ["2xx", "400", "401", "403", "404", "408", "409", "429"]
    },
    # 413: a batch, which is refused for being large rather than for being wrong.
    "negative_data_rejection": {
        "expected-statuses": ["400", "401", "403", "404", "405", "408", "409", "413", "415"]
    },
}

# DELETE cancels a job and empties a queue; both are known afterwards.
STILL_THERE: Final = {
    "include-path-regex": "^/v1/(jobs|queues)/",
    "checks": {"use_after_free": {"enabled": False}},
}


@schemathesis.check
def valid_data_is_refused_by_a_rule(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if positive and response.status_code == 400:
        assert response.json().get("field") in RULES, response.text


def integers(value: Any) -> Any:
    """JSON Schema counts 5.0 among the integers; on this interface an integer is spelled as one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [integers(each) for each in value]
    if isinstance(value, dict):
        return {name: integers(each) for name, each in value.items()}
    return value


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    store = Impatient.in_memory(clock=SystemClock())
    with served(store=store, tokens=TOKENS, commands=COMMANDS) as base:
        yield base


def complaints(url: str, examples: int, *, stateful: bool) -> list[str]:
    """Whatever schemathesis has to say against the routes."""
    config = SchemathesisConfig.from_dict(
        {
            "base-url": url,
            "headers": {"Authorization": "Bearer operator"},
            "checks": CHECKS,
            "operations": [STILL_THERE],
            "generation": {"max-examples": examples},
            "phases": {"stateful": {"enabled": stateful}},
        }
    )
    schema = schemathesis.openapi.from_dict(document(ROUTES), config=config)

    @schema.hook
    def map_body(context: schemathesis.HookContext, body: Any) -> Any:
        return integers(body)

    found, asked = [], 0
    for event in from_schema(schema).execute():
        if isinstance(event, (events.NonFatalError, events.FatalError)):
            found.append(str(event))
        elif isinstance(event, events.ScenarioFinished):
            asked += len(event.recorder.cases)
            found += [
                f"{event.label}: {check.name}: {check.failure_info.failure}"
                f"\n{check.failure_info.code_sample}"
                for checks in event.recorder.checks.values()
                for check in checks
                if check.failure_info is not None
            ]
    assert asked > 100
    return found


def test_the_interface_is_as_documented(url: str) -> None:
    assert complaints(url, 5, stateful=False) == []


@pytest.mark.long
def test_the_interface_is_as_documented_at_length(url: str) -> None:
    assert complaints(url, 50, stateful=True) == []
