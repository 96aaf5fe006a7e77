"""The audit log: a line per action, and nothing in it that does not belong there."""

import json
import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.model.policy import QueueConfig
from penstock.protocol.access import Principal
from penstock.server.audit import AuditLog

OPS = Principal("ops", None)
NOW = datetime(2030, 1, 1, 12, 30, 0, 125_000, tzinfo=UTC)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_action_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path, now=lambda: NOW)
    audit(OPS, "acme", "pause", {"queue": "emails"})
    audit(OPS, "acme", "purge", {"queue": "a\nb", "refused": "no scope admin"})
    assert lines(path) == [
        {
            "time": "2030-01-01T12:30:00.125+00:00",
            "principal": "ops",
            "tenant": "acme",
            "action": "pause",
            "details": {"queue": "emails"},
            "outcome": "done",
        },
        {
            "time": "2030-01-01T12:30:00.125+00:00",
            "principal": "ops",
            "tenant": "acme",
            "action": "purge",
            "details": {"queue": "a\nb", "refused": "no scope admin"},
            "outcome": "refused",
        },
    ]


def test_the_file_is_its_owners_and_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    audit(OPS, "acme", "pause", {})
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(tmp_path / "audit.log.1")
    audit(OPS, "acme", "resume", {})
    assert [line["action"] for line in lines(path)] == ["resume"]


def test_neither_secrets_nor_payloads_are_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    details: dict[str, object] = {
        "queue": "q",
        "token": "pst_secret",
        "Payload": "secret",
        "data": {"a": "secret"},
        "spec": {"name": "nightly", "payload": b"secret", "headers": {"x": "secret"}},
        "raw": b"secret",
        "jobs": [{"payload_base64": "secret", "id": 1}],
    }
    AuditLog(path)(OPS, "acme", "put_cron", details)
    (line,) = lines(path)
    assert "secret" not in path.read_text()
    assert line["details"] == {
        "queue": "q",
        "spec": {"name": "nightly"},
        "raw": "<bytes>",
        "jobs": [{"id": 1}],
    }


def test_a_line_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    details = {"ids": list(range(100_000)), "name": "n" * 100_000, "deep": deep}
    AuditLog(path)(OPS, "acme", "cancel", details)
    assert path.stat().st_size < 2_000
    (line,) = lines(path)
    assert line["details"]["ids"][:3] == [0, 1, 2]
    assert line["details"]["ids"][-1] == "… 100000 in all"


def test_a_structure_is_written_by_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    AuditLog(path)(OPS, "acme", "configure", {"config": QueueConfig(paused=True)})
    assert lines(path)[0]["details"]["config"]["paused"] is True


def test_without_a_file_it_is_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        AuditLog()(OPS, "acme", "drain", {"queue": "q"})
    (record,) = caplog.records
    assert record.name == "penstock.audit"
    assert json.loads(record.getMessage())["action"] == "drain"


def test_a_file_that_cannot_be_written_does_not_undo_the_action(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "there").mkdir()
    audit = AuditLog(tmp_path / "there" / "audit.log")
    shutil.rmtree(tmp_path / "there")
    audit(OPS, "acme", "drain", {"queue": "q"})
    assert any('"action":"drain"' in each for each in caplog.messages)


def test_a_file_that_can_never_be_written_is_told_of_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be written: No such file") as caught:
        AuditLog(tmp_path / "nowhere" / "audit.log")
    assert caught.value.field == "audit_file"
