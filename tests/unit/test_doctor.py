"""`penstock doctor`, `backup`, `restore`, `verify`; and the audit behind `--check`."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import build_app
from penstock.kernel.audit import findings
from penstock.kernel.codes import DEAD, READY
from penstock.kernel.kernel import Kernel
from penstock.model.job import JobSpec
from penstock.open import JOURNALS, open_store
from tests.unit.history import History

SCHEMES = sorted(JOURNALS)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), list(words))
    return result.exit_code, result.stdout, result.stderr


def filled(url: str) -> None:
    async def fill() -> None:
        store = await open_store(url, share=False)
        await store.push_jobs("t", "q", [JobSpec(payload=b"1", key="k", group="g"), JobSpec()])
        assert await store.claim("t", ["q"]) is not None
        await store.close()

    asyncio.run(fill())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_doctor_tells_how_a_store_is_doing(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    filled(url)
    code, said, _ = run("doctor", url, "--check", "--json")
    report = json.loads(said)
    assert (code, report["problems"]) == (0, [])
    assert report["store"]["jobs"] == {"ready": 1, "active": 1}
    assert report["store"]["leases"] == 1
    assert report["store"]["checked"]["jobs"] == 2
    assert report["machine"]["apsw"]
    code, said, _ = run("doctor", url)
    assert code == 0
    assert "nothing is wrong" in said


def test_the_doctor_looks_at_a_store_that_somebody_owns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"

    async def scenario() -> None:
        store = await open_store(url, share=False)
        await store.push_jobs("t", "q", [JobSpec()] * 5)
        code, said, _ = await asyncio.to_thread(run, "doctor", url, "--json")
        await store.close()
        report = json.loads(said)["store"]
        assert (code, report["jobs"]) == (0, {"ready": 5})
        assert report["owner"] > 1
        assert report["closed"] is False

    asyncio.run(scenario())


def test_the_doctor_finds_damage(tmp_path: Path) -> None:
    import apsw

    url = f"sqlite:///{tmp_path}/store"
    filled(url)
    damaged = apsw.Connection(str(tmp_path / "store"))
    damaged.execute("UPDATE chunks SET data = zeroblob(length(data))")
    damaged.close()
    assert run("doctor", url)[0] == 0
    code, _, said = run("doctor", url, "--check")
    assert code == 1
    assert re.search(r"payload chunk 1 is damaged", said)


def test_where_there_is_no_store_the_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said, _ = run("doctor", f"sqlite:///{tmp_path}/none", "--json")
    assert (code, json.loads(said)["store"]["exists"]) == (1, False)
    assert json.loads(said)["problems"] == [
        f"there is no store at {tmp_path}/none: name the url of one"
    ]
    monkeypatch.chdir(tmp_path)
    code, said, _ = run("doctor")  # of the machine: the usual store need not be there
    assert (code, "nothing is wrong" in said) == (0, True)
    code, _, said = run("doctor", "memory://")
    assert (code, "lies nowhere" in said) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_looks_at_the_store_that_other_commands_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filled("sqlite:///penstock.db")

    def looked_at(*words: str) -> tuple[int, str]:
        code, said, _ = run("doctor", "--json", *words)
        return code, json.loads(said)["store"]["url"]

    assert looked_at() == (0, "sqlite:///penstock.db")
    Path("penstock.toml").write_text('url = "sqlite:///settings.db"\n', encoding="utf-8")
    assert looked_at() == (1, "sqlite:///settings.db")
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///environment.db")
    assert looked_at() == (1, "sqlite:///environment.db")
    assert looked_at("--url", "sqlite:///penstock.db") == (0, "sqlite:///penstock.db")
    assert looked_at("sqlite:///penstock.db") == (0, "sqlite:///penstock.db")
    code, _, said = run("doctor", "sqlite:///penstock.db", "--url", "sqlite:///other.db")
    assert (code, "the store is said twice" in said) == (2, True)


def lake_of(place: Path, *segments: str) -> Path:
    """A lake whose step 0 took in the first of these segments, and whose step 1 was cut short."""
    checkpoint = place / "lake" / "_checkpoint"
    for log in ("offsets", "commits", "sources/0"):
        (checkpoint / log).mkdir(parents=True)
    for number, name in enumerate(segments):
        entry = {"path": f"file://{place}/events%20here/{name}", "timestamp": 1, "batchId": number}
        (checkpoint / "sources" / "0" / str(number)).write_text(f"v1\n{json.dumps(entry)}")
        offset = json.dumps({"logOffset": number})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{offset}")
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    steps = [{"at": "2026-11-16T07:08:12+00:00", "step": 0, "lines": 7, "bad": 0}]
    manifest = {"version": 1, "steps": [*steps, {"at": "later", "step": "compact", "days": 1}]}
    (place / "lake" / "manifest.json").write_text(json.dumps(manifest))
    (place / "events here").mkdir()
    return place / "events here"


SEGMENTS = [f"events-{'a' * 32}-{number:012d}.jsonl" for number in (1, 5, 9)]


def test_the_doctor_tells_how_a_lake_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = lake_of(tmp_path, *SEGMENTS[:2])
    for name in SEGMENTS:  # what no step has begun with counts as well
        (events / name).write_text("x" * 10)
    words = ("doctor", "--lake", f"{tmp_path}/lake")
    code, said, _ = run(*words, "--json")
    lake = json.loads(said)["lake"]
    assert (code, lake["version"], lake["days"], lake["bad_lines"]) == (0, 1, 0, 0)
    assert (lake["unread"], lake["cut_short"]) == ({"segments": 2, "bytes": 20}, True)
    assert (lake["behind_s"] < 60, lake["events"]) == (True, [str(events)])
    assert lake["last_step"]["lines"] == 7
    code, said, _ = run(*words)
    assert (code, "unread       segments 2, bytes 20" in said) == (0, True)


def test_the_doctor_misses_segments_that_a_step_needs_again(tmp_path: Path) -> None:
    lake_of(tmp_path, *SEGMENTS[:2])
    code, _, said = run("doctor", f"sqlite:///{tmp_path}/none", "--lake", f"{tmp_path}/lake")
    assert code == 1
    assert "1 of the segments that it would be done again with are gone" in said


@pytest.mark.parametrize(
    ("lake", "says"), [("none", "there is no directory"), ("s3a://lake", "no directory of this")]
)
def test_the_doctor_says_why_a_lake_cannot_be_looked_at(
    lake: str, says: str, tmp_path: Path
) -> None:
    code, _, said = run("doctor", f"sqlite:///{tmp_path}/none", "--lake", lake)
    assert (code, says in said) == (1, True)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_backup_verify_and_restore_from_the_command_line(scheme: str, tmp_path: Path) -> None:
    filled(f"{scheme}:///{tmp_path}/store")
    code, said, _ = run("backup", f"{scheme}:///{tmp_path}/store", str(tmp_path / "b"))
    assert code == 0
    taken = said.strip()
    code, said, _ = run("verify", taken)
    assert (code, said.rstrip().endswith("sound")) == (0, True)
    again = f"{scheme}:///{tmp_path}/again"
    assert run("restore", taken, again)[0] == 0
    code, _, said = run("restore", taken, again)
    assert (code, "overwrites nothing" in said) == (1, True)
    code, said, _ = run("doctor", again, "--check", "--json")
    assert json.loads(said)["store"]["jobs"] == {"ready": 1, "active": 1}
    code, _, said = run("backup", f"{scheme}:///{tmp_path}/none", str(tmp_path / "b"))
    assert (code, "no store" in said) == (1, True)


# -- the audit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(700, 706))
def test_the_audit_finds_nothing_in_sound_kernels(seed: int) -> None:
    history = History(seed)
    for number, _ in enumerate(history.steps(400)):
        if number % 40 == 39:
            assert list(findings(history.kernel)) == []


def miscount(kernel: Kernel) -> None:
    kernel.tenants["t"].queues["q"].counts[READY] += 1


def lose_a_lease(kernel: Kernel) -> None:
    kernel.leases.clear()


def end_a_held_job(kernel: Kernel) -> None:
    kernel.blocks[0].codes[0] = DEAD


def forget_a_block(kernel: Kernel) -> None:
    kernel.blocks.clear()


def keep_a_chunk(kernel: Kernel) -> None:
    kernel.chunks[99] = 1


def leak_a_slot(kernel: Kernel) -> None:
    kernel.tenants["t"].queues["q"].group("g").used += 1


def point_a_key_elsewhere(kernel: Kernel) -> None:
    kernel.tenants["t"].queues["q"].keys.records["k"].id = 4_000


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (miscount, "counts 2 ready jobs and has 1"),
        (lose_a_lease, "job 1 is active, and no lease holds it"),
        (end_a_held_job, "holds job 1, which is not active"),
        (forget_a_block, "block 0 of queue 'q' of tenant 't' is not where ids are looked up"),
        (keep_a_chunk, "payload chunk 99 is kept for 1 jobs, and 0 need it"),
        (leak_a_slot, "group 'g' of queue 'q' of tenant 't' counts 1 jobs and 2 slots"),
        (point_a_key_elsewhere, "stands for job 4000, which is not known"),
    ],
)
def test_the_audit_names_what_is_wrong(damage: Callable[[Kernel], None], said: str) -> None:
    async def scenario() -> list[str]:
        store = await open_store("memory://")
        await store.push_jobs("t", "q", [JobSpec(key="k", group="g"), JobSpec(), JobSpec()])
        lease = await store.claim("t", ["q"], 2)
        assert lease is not None
        assert sorted(lease.ids) == [1, 2]
        kernel = store.kernel  # type: ignore[attr-defined]
        assert list(findings(kernel)) == []
        damage(kernel)
        found = list(findings(kernel))
        await store.close()
        return found

    assert any(said in finding for finding in asyncio.run(scenario()))
