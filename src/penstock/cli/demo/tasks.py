"""The app of the demo: a shop's work, from greetings that cost nothing to a job that kills its worker.

`penstock worker penstock.cli.demo.tasks:app` runs it against the store that PENSTOCK_URL names. What
goes wrong is drawn from the arguments and the attempt alone, so every run of the demo has the same
failures.
"""

import asyncio
import os
import signal
from hashlib import blake2b
from zlib import crc32

from msgspec import Struct

from penstock import Context, Dead, Penstock, at_once, fixed

app = Penstock()


class Declined(Exception):
    """The bank says no, and will say no again."""


class Image(Struct):
    name: str
    width: int


class Sales(Struct):
    region: str
    year: int
    total: int


@app.task(queue="emails")
async def welcome(user: int, lang: str = "en") -> None:
    """A greeting: a mail relay that answers within milliseconds."""
    await asyncio.sleep(0.001 + _chance("relay", user) * 0.004)


@app.task(queue="images", batch=1_000)
async def thumbnails(images: list[Image]) -> None:
    """A thousand images a call: what is alike is dealt with together."""
    await asyncio.sleep(len(images) / 1_000_000)


@app.task(queue="reports", priority="high")
def sales(context: Context, region: str, year: int) -> Sales:
    """Some honest computing, in a process of its own, with progress."""
    total = 0
    for quarter in range(4):
        for _ in range(2_000):
            total += crc32(f"{region}{year}{quarter}{total}".encode())
        context.progress(25 * (quarter + 1))
    return Sales(region, year, total % 1_000_000)


@app.task(
    queue="payments",
    max_attempts=6,
    backoff=fixed("150ms"),
    dead_on=Declined,
    timeout="10s",
)
async def charge(context: Context, order: int, cents: int) -> str:
    """A third party that is down now and then, slow now and then, and sometimes says no."""
    await asyncio.sleep(0.005)
    luck = _chance("bank", order, context.attempt)
    if _chance("card", order) < 0.01:
        raise Declined(f"card of order {order} was declined")
    if luck < 0.12:
        raise ConnectionError(f"bank.example:443 refused the connection for order {order}")
    if luck < 0.18:
        raise TimeoutError(f"bank.example did not answer within 5000 ms for order {order}")
    return f"receipt-{order}"


@app.task(queue="etl")
async def extract(day: int) -> int:
    await asyncio.sleep(0.01)
    return 1_000 + day


@app.task(queue="etl")
async def transform(rows: int, part: int) -> int:
    await asyncio.sleep(0.01)
    return rows * part


@app.task(queue="etl")
async def load(parts: list[int]) -> int:
    await asyncio.sleep(0.01)
    return sum(parts)


@app.every("2s")
@app.task(queue="cron")
async def heartbeat() -> None:
    """Every even second, once, however many schedulers there are."""


@app.task(queue="imports", max_attempts=2, backoff=at_once())
def parse(file: str) -> None:
    """One of these files crashes whatever reads it: the whole process, each time."""
    if file == "poison.xml":
        os.kill(os.getpid(), signal.SIGKILL)
    if not file.endswith(".xml"):
        raise Dead(f"{file} is not XML")


def _chance(*of: object) -> float:
    """From 0 to 1, the same for the same things."""
    drawn = blake2b(repr(of).encode(), digest_size=4).digest()
    return int.from_bytes(drawn) / 2**32
