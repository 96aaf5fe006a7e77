"""The app of the soak: a task for each way in which a job may go, each with a queue of its own."""

from typing import Final

from penstock import Context, Penstock, fixed

PASSING: Final = "passing"  # the queue of workers that come and go
DOOMED: Final = "is not to be done"

app = Penstock(backoff=fixed("20ms"))


@app.task(queue="singles")
async def single(number: int) -> int:
    return number


@app.task(queue="threads")
def threaded(number: int) -> int:
    return number


@app.task(queue="batches", batch=100, result=False)
async def batched(texts: list[str]) -> None:
    """Much at once, and nothing to say about it."""


@app.task(queue="delayed")
async def delayed(ctx: Context, number: int) -> None:
    ctx.progress(50, "half of it")
    ctx.log(f"number {number}")


@app.task(queue="keyed")
async def keyed(number: int) -> None:
    """Only the last of those that were said in time is done."""


@app.task(queue="flaky", max_attempts=3)
async def flaky(ctx: Context, number: int) -> int:
    if ctx.attempt < 3:
        raise ConnectionError(f"nobody answers {number}")
    return number


@app.task(queue="doomed", max_attempts=2)
async def doomed(number: int) -> None:
    raise ValueError(f"{number} {DOOMED}")


@app.task(queue="flows")
async def part(number: int) -> int:
    return number


@app.task(queue="flows")
async def whole(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(queue=PASSING)
async def passing() -> None:
    """Whoever does this is there."""


@app.every("1s")
@app.task(queue="cron")
async def beat() -> None:
    """Every second, whoever comes and goes."""
