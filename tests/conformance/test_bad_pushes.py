"""Bad pushes: whatever is wrong with one job of many, the field is named and nothing is added."""

from typing import Any

import pytest

from penstock.model.errors import BatchTooLarge, Invalid, PayloadTooLarge, PenstockError
from penstock.model.job import JobOptions, JobSpec, KeyClaim, Run
from penstock.model.policy import Backoff
from tests.conformance.harness import Harness
from tests.conformance.test_bad_input import LONG, NAN, SURROGATE, TOO_LARGE, refuses

CENTURY = 100 * 366 * 86_400_000

BAD_SPECS: list[tuple[str, dict[str, Any]]] = [
    ("codec", {"codec": "xml"}),
    ("codec", {"codec": None}),
    ("task", {"task": LONG}),
    ("task", {"task": "ü" * 257}),
    ("task", {"task": SURROGATE}),
    ("task", {"task": None}),
    ("priority", {"priority": 2**31}),
    ("priority", {"priority": -(2**31) - 1}),
    ("priority", {"priority": 1.0}),
    ("priority", {"priority": NAN}),
    ("priority", {"priority": True}),
    ("priority", {"priority": "high"}),
    ("delay_ms", {"delay_ms": -1}),
    ("delay_ms", {"delay_ms": 0.5}),
    ("delay_ms", {"delay_ms": NAN}),
    ("delay_ms", {"delay_ms": CENTURY + 1}),
    ("run_at", {"run_at": -1}),
    ("run_at", {"run_at": "tomorrow"}),
    ("run_at", {"run_at": 2**63}),
    ("run_at|delay_ms", {"delay_ms": 5, "run_at": 1_800_000_000_000}),
    ("run_at|delay_ms", {"delay_ms": 0, "run_at": 0}),
    ("max_attempts", {"max_attempts": -1}),
    ("max_attempts", {"max_attempts": 2**31}),
    ("max_attempts", {"max_attempts": 2.5}),
    ("backoff", {"backoff": "exponential"}),
    ("kind", {"backoff": Backoff(kind="random")}),  # type: ignore[arg-type]
    ("jitter", {"backoff": Backoff(jitter="some")}),  # type: ignore[arg-type]
    ("base_ms", {"backoff": Backoff(base_ms=-1)}),
    ("base_ms", {"backoff": Backoff(base_ms=1.5)}),  # type: ignore[arg-type]
    ("cap_ms", {"backoff": Backoff(cap_ms=-1)}),
    ("list_ms", {"backoff": Backoff(kind="list")}),
    ("list_ms", {"backoff": Backoff(kind="list", list_ms=(1, -1))}),
    ("list_ms", {"backoff": Backoff(kind="list", list_ms=(1, NAN))}),  # type: ignore[arg-type]
    ("lease_ms", {"lease_ms": 49}),
    ("lease_ms", {"lease_ms": 86_400_001}),
    ("timeout_ms", {"timeout_ms": 0}),
    ("timeout_ms", {"timeout_ms": -1}),
    ("ttl_ms", {"ttl_ms": 0}),
    ("ttl_ms", {"ttl_ms": -1}),
    ("ttl_ms", {"ttl_ms": 100, "delay_ms": 100}),
    ("ttl_ms", {"ttl_ms": 100, "delay_ms": 101}),
    ("key", {"key": ""}),
    ("key", {"key": LONG}),
    ("key", {"key": "é" * 257}),
    ("key", {"key": SURROGATE}),
    ("key", {"key": 5}),
    ("key", {"key": b"k"}),
    ("on_conflict", {"on_conflict": "merge"}),
    ("keep_key", {"keep_key": "forever"}),
    ("keep_key", {"keep_key": 0}),
    ("keep_key", {"keep_key": -5}),
    ("keep_key", {"keep_key": 1.5}),
    ("keep_key", {"keep_key": None}),
    ("group", {"group": ""}),
    ("group", {"group": LONG}),
    ("group", {"group": SURROGATE}),
    ("group", {"group": 1}),
    ("lifo|group", {"lifo": True, "group": "g"}),
    ("lifo", {"lifo": 1}),
    ("depends_on", {"depends_on": (0,)}),
    ("depends_on", {"depends_on": (2**53,)}),
    ("depends_on", {"depends_on": (1.0,)}),
    ("depends_on", {"depends_on": ("1",)}),
    ("depends_on", {"depends_on": (True,)}),
    ("depends_on", {"depends_on": (-99,)}),
    ("on_dependency_failure", {"on_dependency_failure": "retry"}),
    ("tags", {"tags": ("t",) * 17}),
    ("tags", {"tags": ("t" * 65,)}),
    ("tags", {"tags": (SURROGATE,)}),
    ("tags", {"tags": (5,)}),
    ("tags", {"tags": "tag"}),
    ("headers", {"headers": {"a": 1}}),
    ("headers", {"headers": {1: "a"}}),
    ("headers", {"headers": {"a": "x" * 4_096}}),
    ("headers", {"headers": {"a": SURROGATE}}),
    ("headers", {"headers": [("a", "b")]}),
    ("retain_ms", {"retain_ms": -1}),
    ("retain_ms", {"retain_ms": 1.5}),
    ("retain_dead_ms", {"retain_dead_ms": -1}),
    ("retain_dead_ms", {"retain_dead_ms": CENTURY + 1}),
]


@pytest.mark.parametrize(
    ("field", "spec"), BAD_SPECS, ids=[str(spec)[:60] for _, spec in BAD_SPECS]
)
async def test_one_bad_job_among_good_ones_refuses_the_push(
    h: Harness, field: str, spec: dict[str, Any]
) -> None:
    known = await h.push("q", key="known")
    before = await h.job(known)
    good: list[dict[str, Any]] = [
        {"key": "new"},
        {"group": "g"},
        {"key": "known", "payload": b"2", "on_conflict": "replace"},
        {"delay_ms": 5},
    ]
    await refuses(h.push_many("q", [*good, spec, {}]), field)
    await refuses(h.push_many("new", [spec]), field)
    assert await h.job(known) == before
    assert await h.store.by_key(h.name, "q", "new") is None
    assert [info.queue for info in await h.store.queues(h.name)] == ["q"]
    assert await h.push("q") == known + 1


GOOD_SPECS: list[dict[str, Any]] = [
    {"task": "ü" * 256},
    {"delay_ms": CENTURY},
    {"run_at": 0},
    {"max_attempts": 0},
    {"backoff": Backoff(base_ms=0, cap_ms=0)},
    {"backoff": Backoff(kind="list", list_ms=(0, 5, 1))},
    {"lease_ms": 50},
    {"lease_ms": 86_400_000},
    {"timeout_ms": 1},
    {"ttl_ms": 101, "delay_ms": 100},
    {"key": "k" * 512},
    {"key": "\0\n\t é😀%_*?"},
    {"keep_key": 1, "key": "k"},
    {"group": "é" * 256},
    {"tags": ("ü" * 64,) * 16},
    {"headers": {"a": "x" * 4_095}},
    {"headers": {}},
    {"retain_ms": 0, "retain_dead_ms": 0},
]


@pytest.mark.parametrize("spec", GOOD_SPECS, ids=[str(spec)[:60] for spec in GOOD_SPECS])
async def test_what_is_just_allowed_is_allowed(h: Harness, spec: dict[str, Any]) -> None:
    job_id = await h.push("q", **spec)
    job = await h.job(job_id)
    assert job.options == JobSpec(**spec).options()
    assert (job.key, job.group) == (spec.get("key"), spec.get("group"))
    assert (job.headers or None) == (spec.get("headers") or None)


# -- payloads --------------------------------------------------------------------------------------

BAD_JSON: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b"  \n",
    "no value": b"{",
    "two values": b"1 2",
    "a comma too many": b"[1,]",
    "single quotes": b"{'a': 1}",
    "a word": b"hello",
    "True": b"True",
    "NaN": b"NaN",
    "Infinity": b'{"a": [Infinity]}',
    "-Infinity": b"-Infinity",
    "a byte order mark": b"\xef\xbb\xbf1",
    "utf-16": '"a"'.encode("utf-16"),
    "not utf-8": b'"\xff"',
    "an overlong NUL": b'"\xc0\x80"',
    "an encoded surrogate": b'"\xed\xa0\x80"',
    "cut utf-8": b'"\xc3"',
    "a lone high surrogate": rb'"\ud800"',
    "a lone low surrogate": rb'["x\udc00y"]',
    "surrogates the wrong way round": rb'"\udc00\ud800"',
    "a lone surrogate in a key": rb'{"\ud83d": 1}',
    "a raw newline in a text": b'"a\nb"',
    "a raw NUL in a text": b'"\0"',
    "a bad escape": rb'"\x41"',
    "a leading zero": b"01",
    "a bare point": b"1.",
    "a plus": b"+1",
    "hexadecimal": b"0x10",
    "a comment": b"1 // one",
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice by an escape": rb'{"a": 1, "\u0061": 2}',
    "a key twice, colons about": rb'{"a": ":", "b": "\u003a", "a": 1}',
    "a key twice deep down": b'[{"x": [{"b": {"c": 1, "d": 2, "c": 3}}]}]',
    "an empty key twice": b'{"": 1, "": 2}',
    "101 deep": b"[" * 101 + b"]" * 101,
    "101 deep, mixed": b'[{"a":' * 50 + b"[1]" + b"}]" * 50,
    "a bomb of lists": b"[" * 1_000_000,
    "a bomb of objects": b'{"a":' * 200_000,
    "a closed bomb": b"[" * 200_000 + b"]" * 200_000,
    "deep behind a text of brackets": b'["]]]]]]]]]]' + b'",' + b"[" * 100 + b"]" * 100 + b"]",
}


@pytest.mark.parametrize("payload", BAD_JSON.values(), ids=BAD_JSON.keys())
async def test_what_is_not_json_is_refused(h: Harness, payload: bytes) -> None:
    good = JobSpec(payload=b'{"a": 1}')
    bad = JobSpec(payload=payload)
    as_bytes = JobSpec(payload=payload, codec="bytes")
    for batch in ([bad], [good, bad], [bad, good], [as_bytes, bad, good]):
        await refuses(h.push_many("q", batch), "payload")
    assert await h.counts("q") == {}
    job_id = (await h.push_many("q", [good, as_bytes])).ids[1]
    assert (await h.job(job_id)).payload == payload


GOOD_JSON: dict[str, bytes] = {
    "null": b"null",
    "blanks about": b" \t\r\n{ } ",
    "100 deep": b"[" * 100 + b"]" * 100,
    "many siblings": b"[" + b"[]," * 5_000 + b"{}]",
    "brackets in a text": b'"' + b"[{" * 5_000 + b'"',
    "a surrogate pair": rb'"\ud83d\ude00"',
    "an escaped NUL": rb'"\u0000"',
    "an escaped backslash before ud800": rb'"\\ud800"',
    "the same key in two objects": b'[{"a": 1}, {"a": 2}, {"b": {"a": {"a": 1}}}]',
    "keys that differ in case": b'{"a": 1, "A": 2}',
    "a number of 5,000 digits": b"9" * 5_000,
    "a fraction of 5,000 digits": b"0." + b"1" * 5_000,
    "a huge exponent": b"1e400",
    "colons and escapes": rb'{"a:b": ":", "c": "\u003a\""}',
    "all of unicode's planes": '"é ☃ 😀 \U0010ffff"'.encode(),
    "NaN as a text": b'["NaN", "Infinity"]',
}


@pytest.mark.parametrize("payload", GOOD_JSON.values(), ids=GOOD_JSON.keys())
async def test_json_is_kept_byte_for_byte(h: Harness, payload: bytes) -> None:
    alone = await h.push("q", payload)
    among = (await h.push_many("q", [{"payload": p} for p in (b"1", payload, b"[2]")])).ids[1]
    for job_id in (alone, among):
        assert (await h.job(job_id)).payload == payload


async def test_payloads_are_judged_one_by_one_not_end_to_end(h: Harness) -> None:
    """Each is no JSON alone, though their bytes put together would be."""
    for first, second in ((b"[1", b"]"), (b'"a', b'b"'), (b"1", b""), (b"", b"1"), (b"-", b"1")):
        await refuses(h.push_many("q", [{"payload": first}, {"payload": second}]), "payload")
    assert await h.counts("q") == {}


async def test_a_payload_beyond_ten_mebibytes_is_too_large(h: Harness) -> None:
    for codec in ("bytes", "json"):
        payload = TOO_LARGE if codec == "bytes" else b'"' + TOO_LARGE + b'"'
        bad = {"payload": payload, "codec": codec}
        await refuses(h.push_many("q", [{}, bad]), "payload", PayloadTooLarge)
    assert await h.counts("q") == {}


# -- whole calls -----------------------------------------------------------------------------------


async def test_a_batch_beyond_ten_thousand_is_too_large(h: Harness) -> None:
    with pytest.raises(BatchTooLarge):
        await h.push_alike("q", 10_001)
    with pytest.raises(BatchTooLarge):
        await h.store.push(h.name, [Run.pack(f"q{n}", [b"1"] * 101) for n in range(100)])
    assert await h.store.queues(h.name) == []


BAD_RUNS: list[tuple[str, Any]] = [
    ("runs", []),
    ("runs", None),
    ("runs", "runs"),
    ("runs", ["run"]),
    ("runs", [JobSpec()]),
    ("runs", [Run.pack("q", [])]),
    ("runs", [Run.pack("q", [b"1"]), Run.pack("q", [])]),
    ("data|payload", [Run(queue="q", data="1", ends=[1])]),  # type: ignore[arg-type]
    ("ends", [Run(queue="q", data=b"12", ends=[1])]),
    ("ends", [Run(queue="q", data=b"12", ends=[1, 3])]),
    ("ends", [Run(queue="q", data=b"123", ends=[2, 1, 3])]),
    ("ends", [Run(queue="q", data=b"1", ends=[-1, 1])]),
    ("ends", [Run(queue="q", data=b"1", ends=[1.0])]),  # type: ignore[list-item]
    ("ends", [Run(queue="q", data=b"1", ends=[True])]),
    ("options", [Run(queue="q", data=b"1", ends=[1], options=())]),
    ("options", [Run(queue="q", data=b"1", ends=[1], options=({},))]),  # type: ignore[arg-type]
    ("option_of", [Run(queue="q", data=b"1", ends=[1], option_of=[1])]),
    ("option_of", [Run(queue="q", data=b"1", ends=[1], option_of=[-1])]),
    ("option_of", [Run(queue="q", data=b"1", ends=[1], option_of=[0, 0])]),
    ("delay_ms", [Run(queue="q", data=b"1", ends=[1], delay_ms=[5, 5])]),
    ("run_at", [Run(queue="q", data=b"1", ends=[1], run_at=[])]),
    ("keys|key", [Run(queue="q", data=b"1", ends=[1], keys=["a", "b"])]),
    ("keys|key", [Run(queue="q", data=b"1", ends=[1], keys="a")]),
    ("groups|group", [Run(queue="q", data=b"12", ends=[1, 2], groups=["a"])]),
    ("headers", [Run(queue="q", data=b"12", ends=[1, 2], headers=[None])]),
    ("depends_on", [Run(queue="q", data=b"12", ends=[1, 2], depends_on=[()])]),
    ("more_keys", [Run(queue="q", data=b"1", ends=[1], more_keys=[])]),
    ("more_keys", [Run(queue="q", data=b"1", ends=[1], more_keys=[("k",)])]),  # type: ignore[list-item]
    ("key|more_keys", [Run(queue="q", data=b"1", ends=[1], more_keys=[(KeyClaim(""),)])]),
]


@pytest.mark.parametrize(("field", "runs"), BAD_RUNS, ids=[str(runs)[:70] for _, runs in BAD_RUNS])
async def test_a_run_that_does_not_add_up_is_refused(h: Harness, field: str, runs: Any) -> None:
    await refuses(h.store.push(h.name, runs), field)
    assert await h.store.queues(h.name) == []


BAD_MORE: list[tuple[str, dict[str, Any]]] = [
    ("sequence", {"producer": "p"}),
    ("producer", {"sequence": 1}),
    ("sequence", {"producer": "p", "sequence": -1}),
    ("sequence", {"producer": "p", "sequence": 1.0}),
    ("sequence", {"producer": "p", "sequence": True}),
    ("sequence", {"producer": "p", "sequence": 2**64}),
    ("content", {"producer": "p", "sequence": 1, "content": b"fifteen bytes.."}),
    ("content", {"producer": "p", "sequence": 1, "content": "sixteen letters."}),
    ("content", {"producer": "p", "sequence": 1, "content": bytearray(16)}),
    ("content", {"content": bytes(16)}),
    ("producer", {"producer": "", "sequence": 1}),
    ("producer", {"producer": LONG, "sequence": 1}),
    ("producer", {"producer": 5, "sequence": 1}),
    ("producer", {"producer": SURROGATE, "sequence": 1}),
    ("bulk", {"bulk": 5}),
    ("bulk", {"bulk": LONG}),
    ("part", {"bulk": "b", "part": 5}),
    ("part", {"bulk": "b", "part": LONG}),
    ("part", {"bulk": "b", "part": None}),
    ("part", {"part": "a"}),
    ("durability", {"durability": "never"}),
    ("durability", {"durability": 1}),
]


@pytest.mark.parametrize(("field", "more"), BAD_MORE, ids=[str(more)[:60] for _, more in BAD_MORE])
async def test_what_goes_with_a_push_is_checked_too(
    h: Harness, field: str, more: dict[str, Any]
) -> None:
    await h.store.open_bulk(h.name, "b")
    await refuses(h.push_many("q", [{}], **more), field)
    assert await h.counts("q") == {}


async def test_options_that_several_jobs_share_are_checked_for_all(h: Harness) -> None:
    run = Run.pack("q", [b"1"] * 5, JobOptions(priority=2**40))
    await refuses(h.store.push(h.name, [Run.pack("r", [b"1"]), run]), "priority")
    run = Run.pack("q", [b"1"] * 5, JobOptions(ttl_ms=50), delay_ms=50)
    await refuses(h.store.push(h.name, [run]), "ttl_ms")
    run = Run.pack("q", [b"1"] * 2, JobOptions(lifo=True), groups=[None, "g"])
    await refuses(h.store.push(h.name, [run]), "lifo|group")
    assert await h.store.queues(h.name) == []


async def test_a_ttl_that_ends_by_the_run_at_is_refused(h: Harness) -> None:
    for late in (1_000, 1_001):
        await refuses(h.push("q", ttl_ms=1_000, run_at=h.now + late), "ttl_ms")
    assert await h.counts("q") == {}
    await h.push("q", ttl_ms=1_000, run_at=h.now + 999)
    await h.push("q", ttl_ms=1_000, run_at=h.now - 5_000)


async def test_a_refusal_says_what_was_wrong(h: Harness) -> None:
    with pytest.raises(Invalid) as caught:
        await h.push("q", priority=2**31)
    assert isinstance(caught.value, PenstockError)
    assert "2147483648" in str(caught.value)
    assert str(caught.value).startswith(caught.value.field)
