"""Mistakes that type checkers must report: those on the lines that say so, and no others."""

from datetime import datetime

from penstock import Context, Flow, Penstock, chain, group

app = Penstock("memory://", queues="all")  # wrong
app = Penstock(5)  # wrong


@app.task
def plain(user_id: int, lang: str = "en") -> str:
    return lang


@app.task(queue="emails")
async def awaited(user_id: int, *, lang: str = "en") -> list[int]:
    return [user_id]


@app.task
def with_context(ctx: Context, year: int) -> None: ...


@app.task(batch=100)
def batch(items: list[int]) -> None: ...


plain.push("1")  # wrong
plain.push()  # wrong
plain.push(1, 2)  # wrong
plain.push(1, language="de")  # wrong
plain.push(1, "de", "at")  # wrong
plain("1")  # wrong
text: int = plain.push(1).result()  # wrong
with_context.push(ctx=5, year=2024)  # wrong
with_context.push("2024")  # wrong
batch.push("text")  # wrong
batch.push(1, 2)  # wrong
batch.push([1, 2])  # wrong
plain.options(retries=3)  # wrong
plain.options(priority="urgent")  # wrong
plain.options(on_conflict="explode")  # wrong
plain.options(delay=datetime.now())  # wrong  # noqa: DTZ005
plain.options(name="other")  # wrong
app.task(timeouts="5s")  # wrong
app.task(batch="many")  # wrong
app.every("15m", overlaps="skip")  # wrong
app.cron(5)  # wrong


async def asynchronously() -> None:
    await awaited.apush("1")  # wrong
    await awaited.apush(1, "de")  # wrong
    number: int = await (await awaited.apush(1)).aresult()  # wrong
    print(number)


# -- flows -----------------------------------------------------------------------------------------

plain.si("1")  # wrong
plain.si()  # wrong
plain.si(1, language="de")  # wrong
with_context.si("2024")  # wrong
chain()  # wrong
chain(plain)  # wrong
chain(plain.push(1))  # wrong
group(5)  # wrong
group([plain.s(1)])  # wrong
plain.s(1).then(plain)  # wrong
number_of: int = chain(plain.s(1)).push().result()  # wrong
texts: list[int] = group(plain.s(1)).push().result()  # wrong
plain.s(1).push(1)  # wrong
plain.s(1).push().result(timeouts="5s")  # wrong

flow = Flow()
step = flow.add(plain.s(1))
flow.add(plain)  # wrong
flow.add(plain.s(2), after=3)  # wrong
flow.add(plain.s(2), after=plain.s(1))  # wrong
flow.add(plain.s(2), before=step)  # wrong
