"""A flow that was pushed, in the hands of whoever pushed it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from penstock.client.inputs import Places, leaves
from penstock.client.job import PushedJob
from penstock.model.duration import Duration, duration_ms, say_ms
from penstock.model.errors import Deadline
from penstock.model.job import Outcome

if TYPE_CHECKING:
    from penstock.client.flow import Step
    from penstock.client.home import Home

T_co = TypeVar("T_co", covariant=True)

AT_ONCE: Final = 100  # results that are waited for together


class PushedFlow(Generic[T_co]):
    """Its jobs by their place, in the order in which the flow says them, and what it comes to.

    Synchronous calls block; each has an asynchronous twin that begins with `a`.
    """

    def __init__(
        self,
        home: "Home",
        jobs: Sequence[tuple[int, Outcome]],
        returns: Sequence[Any],
        places: Places,
        steps: "Mapping[Step[Any], Places] | None" = None,
    ) -> None:
        self.jobs: list[PushedJob[Any]] = [
            PushedJob(home, job_id, outcome, kind)
            for (job_id, outcome), kind in zip(jobs, returns, strict=True)
        ]
        self._home = home
        self._places = places
        self._steps = steps or {}

    def __repr__(self) -> str:
        return f"<flow of {len(self.jobs)} jobs>"

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[PushedJob[Any]]:
        return iter(self.jobs)

    @overload
    def __getitem__(self, which: int) -> PushedJob[Any]: ...
    @overload
    def __getitem__(self, which: "Step[Any]") -> "PushedJob[Any] | PushedFlow[Any]": ...
    def __getitem__(self, which: "int | Step[Any]") -> "PushedJob[Any] | PushedFlow[Any]":
        """A job by its place; or what a step of a `Flow` became: its job, or its part."""
        if isinstance(which, int):
            return self.jobs[which]
        places = self._steps[which]
        if isinstance(places, int):
            return self.jobs[places]
        part: PushedFlow[Any] = object.__new__(PushedFlow)
        part.__dict__.update(self.__dict__, _places=places)
        return part

    @property
    def ids(self) -> list[int]:
        return [job.id for job in self.jobs]

    @property
    def last(self) -> PushedJob[Any]:
        """The job that was said last: of a chain that ends in one, the one that ends it."""
        return self.jobs[-1]

    async def aresult(self, timeout: Duration | None = None) -> T_co:  # noqa: ASYNC109
        """What it comes to, waiting for it: one result, or a list of them (of lists of them …).

        Raises JobFailed as soon as a job that it is made of has failed, and whatever else
        `PushedJob.aresult` raises.
        """
        timeout_ms = None if timeout is None else duration_ms(timeout, "timeout")
        ends = None if timeout_ms is None else monotonic() + timeout_ms / 1_000
        found: dict[int, Any] = {}
        rest = iter(dict.fromkeys(leaves(self._places)))
        while some := list(islice(rest, AT_ONCE)):
            left = None if ends is None else max(ends - monotonic(), 0.0)
            waiting = [asyncio.ensure_future(self.jobs[place].aresult(left)) for place in some]
            try:
                found.update(zip(some, await asyncio.gather(*waiting), strict=True))
            except Deadline:
                if timeout_ms is None or not self._home.patient:
                    raise
                raise Deadline(
                    f"the flow has not ended within {say_ms(timeout_ms)}", "timeout"
                ) from None
            finally:
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        return _shaped(self._places, found)  # type: ignore[no-any-return]

    def result(self, timeout: Duration | None = None) -> T_co:
        return self._home.run(self.aresult(timeout), "result()", "aresult()")

    async def acancel(self) -> int:
        """Cancel whatever of it has not ended; answers how many jobs that were."""
        store = await self._home.store()
        return len((await store.cancel(self._home.tenant, self.ids)).acked)

    def cancel(self) -> int:
        return self._home.run(self.acancel(), "cancel()", "acancel()")


def _shaped(places: Places, found: Mapping[int, Any]) -> Any:
    """Without a step down for each group that stands in another: see `flow.py`."""
    whole: list[Any] = [places]
    left = [whole]
    while left:
        into = left.pop()
        for place, each in enumerate(into):
            if isinstance(each, int):
                into[place] = found[each]
            else:
                into[place] = inner = list(each)
                left.append(inner)
    return whole[0]
