"""A lease that came over the wire is one like any other, though its runs are as they came."""

from array import array

import msgspec
import pytest

from penstock.model.job import ClaimedRun, IdRun, Individual, JobOptions, Lease
from penstock.protocol.native_work import Claimed

OPTIONS = (JobOptions(task="mail"), JobOptions(priority=9))


def of(ids: IdRun, payloads: list[bytes], **said: object) -> ClaimedRun:
    ends = array("I")
    for payload in payloads:
        ends.append(len(payload) + (ends[-1] if ends else 0))
    plain = {"options": OPTIONS[:1], "option_of": None, "created_at": 5, "run_at": 6}
    return msgspec.convert(
        {"ids": ids, "data": b"".join(payloads), "ends": list(ends), **plain, **said}, ClaimedRun
    )


RUNS = {
    "one": of(IdRun(7, 1), [b"a"]),
    "one_with_more": of(IdRun(7, 1), [b"a"], individual={7: Individual(attempt=2, key="k")}),
    "one_in_lists": of(IdRun(7, 1), [b"a"], created_at=[5], run_at=[6]),
    "many": of(IdRun(7, 3), [b"a", b"", b"ccc"]),
    "with_gaps": of(IdRun(7, 4, b"\1\0\0\1"), [b"a", b"bb"]),
    "of_two_kinds": of(IdRun(7, 2), [b"a", b"bb"], options=OPTIONS, option_of=[1, 0]),
    "each_its_own": of(
        IdRun(7, 2), [b"a", b"bb"], run_at=[8, 9], individual={8: Individual(depends_on=(3,))}
    ),
}


@pytest.mark.parametrize(
    "runs", [*[(run,) for run in RUNS.values()], tuple(RUNS.values())], ids=[*RUNS, "all"]
)
def test_what_was_claimed_is_what_arrives(runs: tuple[ClaimedRun, ...]) -> None:
    lease = Lease(token="t", queue="q", expires_at=99, runs=runs)
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(Claimed.of(lease)), type=Claimed)
    arrived = heard.claimed()
    assert arrived is not None
    assert (arrived.token, arrived.queue, arrived.expires_at) == ("t", "q", 99)
    assert (len(arrived), arrived.ids) == (len(lease), lease.ids)
    assert arrived.jobs == lease.jobs
    assert arrived.job(7) == lease.job(7)
    for sent, came in zip(runs, arrived.runs, strict=True):
        for field in (*ClaimedRun.__struct_fields__, "first", "span"):
            assert _plain(getattr(came, field)) == _plain(getattr(sent, field)), field
    assert Claimed.of(arrived) == Claimed.of(lease), "and goes on as it came"


def test_nothing_to_claim_is_no_lease() -> None:
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(Claimed.of(None)), type=Claimed)
    assert heard.claimed() is None


def _plain(value: object) -> object:
    return list(value) if isinstance(value, array) else value
