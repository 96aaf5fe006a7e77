"""The work of the demo's day: how much of what, and how it is pushed."""

from collections.abc import Callable
from typing import Self

import msgspec

from penstock.cli.demo import tasks
from penstock.client.flow import chain, group
from penstock.client.home import Home

REGIONS = ("north", "east", "south", "west")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    emails: int
    images: int
    reports: int
    payments: int
    flows: int
    files: int

    @classmethod
    def of(cls, scale: float) -> Self:
        def many(jobs: int) -> int:
            return max(int(jobs * scale), 1)

        return cls(
            emails=many(40_000),
            images=many(400_000),
            reports=many(200),
            payments=many(3_000),
            flows=many(20),
            files=many(20),
        )

    @property
    def jobs(self) -> int:
        """Everything that is pushed; the cron's own come on top."""
        flow = 1 + len(REGIONS) + 1
        counts = (self.emails, self.images, self.reports, self.payments, self.files)
        return sum(counts) + self.flows * flow + 1


async def push_all(url: str, load: Load, pushed: Callable[[int], None]) -> None:
    """Push the day's work, the slow things first."""
    tasks.app.home = Home(url, tasks.app.tenant)
    async with tasks.app:
        await tasks.parse.apush("poison.xml")
        files = [
            (f"import-{number}.{'csv' if number % 10 == 9 else 'xml'}",)
            for number in range(load.files)
        ]
        await tasks.parse.apush_many(files)
        pushed(load.files + 1)
        reports = [(REGIONS[number % 4], 2_000 + number) for number in range(load.reports)]
        await tasks.sales.apush_many(reports)
        pushed(load.reports)
        for day in range(load.flows):
            parts = group(*(tasks.transform.s(part=part) for part in range(len(REGIONS))))
            await chain(tasks.extract.s(day), parts, tasks.load.s()).apush()
            pushed(2 + len(REGIONS))
        await tasks.charge.apush_many(
            (order, 100 + order % 9_900) for order in range(load.payments)
        )
        pushed(load.payments)
        for first in range(0, load.images, 50_000):
            numbers = range(first, min(first + 50_000, load.images))
            await tasks.thumbnails.apush_many(
                tasks.Image(f"image-{number}.jpg", 640) for number in numbers
            )
            pushed(len(numbers))
        await tasks.welcome.apush_many((user,) for user in range(load.emails))
        pushed(load.emails)
