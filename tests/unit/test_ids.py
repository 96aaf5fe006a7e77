"""Ids in compact form, and jobs packed into runs: what goes in comes out."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.job import (
    MAX_ID,
    ClaimedRun,
    IdRun,
    Ids,
    Individual,
    JobOptions,
    JobSpec,
    Lease,
    Run,
)

ids = st.lists(st.integers(1, 60) | st.integers(MAX_ID - 3, MAX_ID), max_size=40)
payloads = st.lists(st.binary(max_size=12), min_size=1, max_size=20)


@given(ids)
def test_ids_give_back_what_they_were_made_of_in_that_order(named: list[int]) -> None:
    packed = Ids.of(named)
    assert list(packed) == named
    assert len(packed) == len(named)
    assert bool(packed) == bool(named)


@given(ids)
def test_neighbours_share_a_run_and_others_do_not(named: list[int]) -> None:
    runs = Ids.of(named).runs
    assert all(run.mask is None and run.span > 0 for run in runs)
    assert all(one.first + one.span != other.first for one, other in pairwise(runs))


def test_a_thousand_neighbours_are_one_run() -> None:
    assert Ids.of(range(5, 1_005)) == Ids((IdRun(5, 1_000),))


def test_no_ids_are_no_runs() -> None:
    assert Ids.of([]) == Ids()
    assert not Ids()
    assert list(Ids()) == []
    assert len(Ids()) == 0


@given(st.integers(1, MAX_ID - 50), st.lists(st.booleans(), min_size=1, max_size=50))
def test_a_mask_picks_the_ids_whose_byte_is_one(first: int, picks: list[bool]) -> None:
    run = IdRun(first, len(picks), bytes(picks))
    assert list(run) == [first + index for index, picked in enumerate(picks) if picked]
    assert len(run) == sum(picks)


def test_a_run_without_a_mask_is_every_id_of_its_span() -> None:
    run = IdRun(7, 3)
    assert (list(run), len(run)) == ([7, 8, 9], 3)


@given(payloads)
def test_packed_payloads_are_cut_out_as_they_went_in(said: list[bytes]) -> None:
    run = Run.pack("q", said)
    assert list(run.payloads()) == said
    assert len(run) == len(said)
    assert run.data == b"".join(said)


specs = st.builds(
    JobSpec,
    payload=st.binary(max_size=8),
    priority=st.sampled_from([0, 0, 1, -5]),
    task=st.sampled_from(["", "mail"]),
    delay_ms=st.none() | st.integers(0, 9),
    key=st.none() | st.sampled_from("abc"),
    group=st.none() | st.sampled_from("gh"),
    depends_on=st.sampled_from([(), (1,), (1, 2)]),
    headers=st.none() | st.just({"a": "b"}),
    max_attempts=st.integers(0, 3),
)


def said_by(run: Run, index: int) -> dict[str, Any]:
    """What the run says of one job."""
    options = run.options[0 if run.option_of is None else run.option_of[index]]

    def of(column: Any, nothing: Any = None) -> Any:
        return nothing if column is None else column if isinstance(column, int) else column[index]

    return {
        "payload": list(run.payloads())[index],
        "options": options,
        "delay_ms": of(run.delay_ms),
        "run_at": of(run.run_at),
        "key": of(run.keys),
        "group": of(run.groups),
        "headers": of(run.headers),
        "depends_on": of(run.depends_on, ()),
    }


@given(st.lists(specs, min_size=1, max_size=15))
def test_a_run_of_jobs_says_of_each_what_the_job_said(jobs: list[JobSpec]) -> None:
    run = Run.of("q", jobs)
    assert len(run) == len(jobs)
    for index, job in enumerate(jobs):
        assert said_by(run, index) == {
            "payload": job.payload,
            "options": job.options(),
            "delay_ms": job.delay_ms,
            "run_at": job.run_at,
            "key": job.key,
            "group": job.group,
            "headers": job.headers,
            "depends_on": job.depends_on,
        }


@given(st.lists(specs, min_size=1, max_size=15))
def test_equal_options_stand_in_a_run_once(jobs: list[JobSpec]) -> None:
    run = Run.of("q", jobs)
    assert len(run.options) == len(set(run.options)) == len({job.options() for job in jobs})
    assert (run.option_of is None) == (len(run.options) == 1)


def test_jobs_that_are_alike_pay_for_nothing_of_their_own() -> None:
    run = Run.of("q", [JobSpec()] * 3)
    assert run.option_of is None
    columns = (run.delay_ms, run.run_at, run.keys, run.groups, run.headers, run.depends_on)
    assert columns == (None,) * 6


def test_the_run_of_no_jobs_is_empty() -> None:
    run = Run.of("q", [])
    assert len(run) == 0
    assert list(run.payloads()) == []


def test_a_lease_cuts_its_runs_into_jobs() -> None:
    plain, urgent = JobOptions(), JobOptions(priority=9, task="mail")
    lease = Lease(
        token="t",
        queue="q",
        expires_at=99,
        runs=(
            ClaimedRun(
                ids=IdRun(10, 4, b"\x01\x00\x01\x01"),
                data=b"abbccc",
                ends=[1, 3, 6],
                options=(plain, urgent),
                option_of=[0, 1, 0],
                created_at=5,
                run_at=[5, 6, 7],
                individual={12: Individual(attempt=2, key="k", group="g")},
            ),
            ClaimedRun(
                ids=IdRun(3, 1),
                data=b"",
                ends=[0],
                options=(urgent,),
                option_of=None,
                created_at=[8],
                run_at=8,
                individual={3: Individual(priority=-1)},
            ),
        ),
    )
    assert len(lease) == 4
    assert lease.ids == [10, 12, 13, 3]
    jobs = lease.jobs
    assert jobs is lease.jobs, "cut once"
    assert [job.id for job in jobs] == lease.ids
    assert [job.payload for job in jobs] == [b"a", b"bb", b"ccc", b""]
    assert [job.attempt for job in jobs] == [1, 2, 1, 1]
    assert [job.redelivered for job in jobs] == [False, True, False, False]
    assert [job.priority for job in jobs] == [0, 9, 0, -1]
    assert [job.options.priority for job in jobs] == [0, 9, 0, 9]
    assert [job.created_at for job in jobs] == [5, 5, 5, 8]
    assert [job.run_at for job in jobs] == [5, 6, 7, 8]
    assert [(job.key, job.group) for job in jobs] == [(None, None), ("k", "g"), *[(None, None)] * 2]


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=5), st.booleans())
def test_jobs_that_are_alike_are_cut_out_like_any_other(said: list[bytes], apart: bool) -> None:
    """All at once is another way than one by one."""
    packed = Run.pack("q", said, JobOptions(priority=3, task="mail"))
    ids = IdRun(7, 2 * len(said) - 1, bytes([1, 0] * len(said))[:-1]) if apart else None
    run = ClaimedRun(
        ids=ids or IdRun(7, len(said)),
        data=packed.data,
        ends=packed.ends,
        options=packed.options,
        option_of=None,
        created_at=5,
        run_at=6,
    )
    lease = Lease(token="t", queue="q", expires_at=99, runs=(run, run))
    one_by_one = [lease.job(job_id) for job_id in run.ids]
    assert [job.payload for job in one_by_one] == said
    assert lease.jobs == one_by_one * 2
