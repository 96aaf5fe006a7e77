"""Several keys on one job: each is a key of its own, and the first that is taken decides."""

import pytest

from penstock.model.answers import Pushed
from penstock.model.errors import Conflict
from penstock.model.job import KeyClaim, Run
from penstock.model.policy import KeepKey, OnConflict
from tests.conformance.harness import Harness


async def push_keyed(
    h: Harness, *jobs: tuple[KeyClaim, ...], keys: list[str | None] | None = None
) -> Pushed:
    payloads = [b"%d" % n for n in range(len(jobs))]
    return await h.store.push(h.name, [Run.pack("q", payloads, keys=keys, more_keys=jobs)])


async def found(h: Harness, *keys: str) -> list[int | None]:
    return [await h.store.by_key(h.name, "q", key) for key in keys]


def claim(key: str, on_conflict: OnConflict = "return", keep_key: KeepKey = "live") -> KeyClaim:
    return KeyClaim(key, on_conflict, keep_key)


async def test_every_key_of_a_job_leads_to_it_until_it_ends(h: Harness) -> None:
    pushed = await push_keyed(h, (claim("b"), claim("c")), (), keys=["a", None])
    keyed, plain = pushed.ids
    assert await found(h, "a", "b", "c") == [keyed, keyed, keyed]
    for key in ("a", "b", "c"):
        again = await h.push_many("q", [{"key": key}])
        assert again.jobs == [(keyed, "ignored")]
    assert await h.claimed("q", 5) == [keyed, plain]
    await h.cancel(keyed)
    assert await found(h, "a", "b", "c") == [None, None, None]


async def test_each_key_is_kept_in_its_own_way(h: Harness) -> None:
    (job_id,) = (
        await push_keyed(
            h,
            (
                claim("started", keep_key="started"),
                claim("live"),
                claim("retained", keep_key="retained"),
                claim("duration", keep_key=5_000),
            ),
        )
    ).ids
    keys = ("started", "live", "retained", "duration")
    assert await found(h, *keys) == [job_id] * 4
    lease = await h.lease("q")
    assert await found(h, *keys) == [None, job_id, job_id, job_id]
    await h.ack(lease)
    assert await found(h, *keys) == [None, None, job_id, job_id]
    await h.advance(5_000)
    assert await found(h, *keys) == [None, None, job_id, None]
    await h.advance(3_600_000)
    assert await found(h, *keys) == [None, None, None, None]


async def test_the_first_taken_key_decides_by_its_own_rule(h: Harness) -> None:
    a, b = (await push_keyed(h, (claim("a"),), (claim("b"),))).ids
    assert (await push_keyed(h, (claim("a"), claim("b", "reject")))).jobs == [(a, "ignored")]
    assert (await push_keyed(h, (claim("b", "replace"), claim("a")))).jobs == [(b, "updated")]
    with pytest.raises(Conflict):
        await push_keyed(h, (claim("b", "reject"), claim("a")))
    assert (await push_keyed(h, (claim("free"), claim("b")))).jobs == [(b, "ignored")]


async def test_the_one_key_is_asked_before_the_further_ones(h: Harness) -> None:
    a, _ = (await push_keyed(h, (claim("a"),), (claim("b"),))).ids
    pushed = await push_keyed(h, (claim("b", "reject"),), keys=["a"])
    assert pushed.jobs == [(a, "ignored")]


async def test_a_job_that_was_ignored_takes_none_of_its_keys(h: Harness) -> None:
    (known,) = (await push_keyed(h, (claim("taken"),))).ids
    await push_keyed(h, (claim("free"), claim("taken")))
    assert await found(h, "free", "taken") == [None, known]


async def test_keys_of_one_batch_are_taken_one_job_after_the_other(h: Harness) -> None:
    jobs = (
        await push_keyed(
            h,
            (claim("a"), claim("b")),
            (claim("b"), claim("c")),
            (claim("c"),),
            (claim("d"), claim("c")),
        )
    ).jobs
    first, third = jobs[0][0], jobs[2][0]
    assert third == first + 1
    assert jobs == [
        (first, "created"),
        (first, "ignored"),
        (third, "created"),
        (third, "ignored"),
    ]
    assert await found(h, "a", "b", "c", "d") == [first, first, third, None]


async def test_a_replace_of_an_ended_job_creates_whatever_the_further_keys_say(
    h: Harness,
) -> None:
    kept = (claim("a", keep_key="retained"), claim("b", keep_key="retained"))
    (old,) = (await push_keyed(h, kept)).ids
    await h.ack(await h.lease("q"))
    (other,) = (await push_keyed(h, (claim("c"),))).ids
    claims = (claim("a", "replace"), claim("b", "reject"), claim("c", "replace"), claim("d"))
    assert (await push_keyed(h, claims)).jobs == [(other + 1, "created")]
    assert await found(h, "a", "b", "c", "d") == [other + 1, old, other, other + 1]


@pytest.mark.parametrize("held", [False, True], ids=["pushed", "committed"])
async def test_a_key_that_stands_for_another_job_stays_with_it_within_a_batch(
    h: Harness, held: bool
) -> None:
    kept = (claim("a", keep_key="retained"), claim("b", keep_key="retained"))
    (old,) = (await push_keyed(h, kept)).ids
    await h.ack(await h.lease("q"))
    jobs = ((claim("a", "replace"), claim("b", "reject")), (claim("b"),), (claim("a"),))
    if held:
        await h.store.open_bulk(h.name, "x")
        run = Run.pack("q", [b"0", b"1", b"2"], more_keys=jobs)
        new = (await h.store.push(h.name, [run], bulk="x")).ids[0]
        assert (await h.store.commit_bulk(h.name, "x")).jobs == 1
    else:
        (new, what), *others = (await push_keyed(h, *jobs)).jobs
        assert what == "created"
        assert others == [(old, "ignored"), (new, "ignored")]
    assert await found(h, "a", "b") == [new, old]


async def test_a_key_that_a_job_never_took_does_not_hinder_its_redrive(h: Harness) -> None:
    kept = (claim("a", keep_key="retained"), claim("b", keep_key="retained"))
    (old,) = (await push_keyed(h, kept)).ids
    await h.ack(await h.lease("q"))
    (new,) = (await push_keyed(h, (claim("a", "replace"), claim("b", "reject")))).ids
    await h.cancel(new, discard=True)
    assert (await h.store.redrive(h.name, "q")).ids == (new,)
    assert await found(h, "a", "b") == [new, old]


async def test_a_replace_leaves_its_job_its_other_keys(h: Harness) -> None:
    (job_id,) = (await push_keyed(h, (claim("a"), claim("b", keep_key=5_000)))).ids
    run = Run.pack("q", [b"9"], more_keys=[(claim("a", "replace"), claim("c"))])
    assert (await h.store.push(h.name, [run])).jobs == [(job_id, "updated")]
    assert await found(h, "a", "b", "c") == [job_id] * 3
    for key in ("a", "b", "c"):
        again = Run.pack("q", [b"9"], more_keys=[(claim(key, "match"),)])
        assert (await h.store.push(h.name, [again])).jobs == [(job_id, "ignored")]
    await h.ack(await h.lease("q"))
    assert await found(h, "a", "b", "c") == [None, job_id, None]


async def test_an_identical_replace_takes_no_further_key(h: Harness) -> None:
    jobs = ((claim("a", "replace"),), (claim("a", "replace"), claim("b")), (claim("b"),))
    run = Run.pack("q", [b"0", b"0", b"1"], more_keys=jobs)
    pushed = (await h.store.push(h.name, [run])).jobs
    first = pushed[0][0]
    assert pushed == [(first, "created"), (first, "ignored"), (first + 1, "created")]
    assert await found(h, "a", "b") == [first, first + 1]


async def test_several_keys_survive_a_restart(h: Harness) -> None:
    (job_id,) = (await push_keyed(h, (claim("a"), claim("b", keep_key=5_000)))).ids
    await h.restart()
    assert await found(h, "a", "b") == [job_id, job_id]
    await h.cancel(job_id)
    assert await found(h, "a", "b") == [None, job_id]
