"""Calls that type checkers must accept, and the types that they must see. Not run, only checked."""

from typing import Any, assert_type

from penstock import Context, Flow, Penstock, PushedFlow, PushedJob, PushedJobs, chain, group
from penstock.client.flow import Chain, Group, Signature, Step

app = Penstock("memory://", queue="all")


@app.task
def plain(user_id: int, lang: str = "en") -> str:
    return lang


@app.task(queue="emails", max_attempts=5, timeout="30s", retry_on=ConnectionError)
async def awaited(user_id: int, *, lang: str = "en") -> list[int]:
    return [user_id]


@app.task
def with_context(ctx: Context, year: int) -> None: ...


@app.task(name="other")
async def awaited_with_context(ctx: Context, year: int) -> float:
    return 0.5


@app.task(batch=100)
def batch(items: list[int]) -> None: ...


@app.task(batch=100, queue="index")
async def batch_with_context(ctx: Context, items: list[str]) -> list[int]:
    return [len(item) for item in items]


@app.task
def untyped(a, b=None):  # type: ignore[no-untyped-def]
    return a


@app.task(queue="q")
def anything_first(value: object, n: int = 1) -> int:
    return n


@app.cron("0 2 * * *", tz="Europe/Berlin")
@app.every("15m", overlap="skip", name="often")
@app.daily("02:00", "14:00", arguments={"user_id": 1}, name="daily")
@app.task
def scheduled(user_id: int = 1) -> int:
    return user_id


assert_type(plain(1), str)
assert_type(plain.push(1, "de"), PushedJob[str])
assert_type(plain.push(user_id=1).result(), str)
assert_type(plain.push_many([(1,), (2, "de")]), PushedJobs[str])
assert_type(plain.push_many([(1,)])[0].result(timeout="5s"), str)
assert_type(with_context.push(2024), PushedJob[None])
with_context(2024)
assert_type(batch.push(5).id, int)
assert_type(batch([1, 2]), None)  # type: ignore[arg-type]  # pyright: ignore
batch_with_context.push("text")
untyped.push(1, b=2)
untyped.push("x")
assert_type(plain.job(7).result(), str)
assert_type(anything_first.push("x", 2).result(), int)
assert_type(scheduled.push().result(), int)
assert_type(plain.options(delay="5m", priority="high", key="k", tags=["a"]).push(1).result(), str)


async def asynchronously() -> None:
    assert_type(await awaited(1), list[int])
    assert_type(await awaited.apush(1, lang="de"), PushedJob[list[int]])
    assert_type(await (await awaited.apush(1)).aresult(), list[int])
    assert_type(await awaited.apush_many((n,) for n in range(10)), PushedJobs[list[int]])
    assert_type(await (await awaited_with_context.apush(year=2024)).aresult(), float)


with app.testing() as t:
    assert_type(t.drain().completed, int)
    assert_type(t.results, dict[int, Any])


# -- flows -----------------------------------------------------------------------------------------


@app.task
def length(text: str) -> int:
    return len(text)


@app.task
async def total(lengths: list[int]) -> float:
    return float(sum(lengths))


assert_type(plain.s(1), Signature[str])
assert_type(plain.si(1, lang="de"), Signature[str])
assert_type(awaited.si(1, lang="de"), Signature[list[int]])
assert_type(with_context.si(2024), Signature[None])
assert_type(length.s(), Signature[int])  # its text comes from what runs before it
assert_type(chain(plain.s(1), length.s()), Chain[int])
assert_type(chain(plain.s(1), length.s()).push(), PushedFlow[int])
assert_type(chain(plain.s(1), length.s()).push().result(timeout="5s"), int)
assert_type(plain.s(1).then(length.s()), Chain[int])
assert_type(group(plain.s(1), plain.s(2)), Group[str])
assert_type(group(plain.s(1), plain.s(2)).push().result(), list[str])
assert_type(group(length.s("a"), length.s("b")).then(total.s()).push().result(), float)
assert_type(group(chain(plain.s(1), length.s()), length.s("b")).push().result(), list[int])
assert_type(plain.options(priority="high").s(1).push().last.id, int)

flow = Flow()
first = flow.add(plain.s(1))
assert_type(first, Step[str])
assert_type(flow.add(length.s(first)), Step[int])
assert_type(
    flow.add(total.s(), after=[flow.add(length.s("a")), flow.add(length.s("b"))]), Step[float]
)
flow.add(plain.si(1), after=first)
assert_type(flow.push()[0], PushedJob[Any])
assert_type(flow.push().ids, list[int])


async def flows() -> None:
    assert_type(await (await chain(plain.s(1), total.s()).apush()).aresult(), float)
    assert_type(await (await group(plain.s(1)).apush()).acancel(), int)
