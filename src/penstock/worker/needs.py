"""What a job needs of the jobs before it, fetched before its handler runs.

A job of a flow has holes in its arguments for results (`client/inputs.py`), and a handler that asks
for its Context may ask it for the results of dependencies. Both come from the store, which handlers
never speak to. Every other job goes past here without a look at anything but `depends_on`.
"""

from typing import Any

from msgspec.structs import replace

from penstock.client.arguments import BadArguments, decoded
from penstock.client.execute import Failed, failed
from penstock.client.inputs import HEADER, with_inputs
from penstock.model.job import Job, Lease
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.worker.held import BatchWork, Work


def has_holes(job: Job) -> bool:
    return bool(job.headers) and HEADER in (job.headers or {})


def with_holes(lease: Lease) -> frozenset[int]:
    """The jobs of a lease that have holes, found without cutting out any."""
    return frozenset(
        job_id
        for run in lease.runs
        for job_id, own in run.individual.items()
        if own.headers and HEADER in own.headers
    )


def needy(work: Work) -> bool:
    job = work.job
    return bool(job.depends_on) and (work.task.arguments.context is not None or has_holes(job))


async def supply(store: Store, tenant: str, work: Work) -> Failed | None:
    """Fill in what is missing; a failure if no attempt ever could."""
    job = work.job
    if work.task.arguments.context is not None:
        found = await store.get(tenant, list(job.depends_on))
        work.results = {
            each.id: decoded(each.result_codec, each.result, Any)
            for each in found
            if each is not None and each.state is State.COMPLETED
        }
    if has_holes(job):
        try:
            payload = await with_inputs(store, tenant, job)
        except BadArguments as error:
            return failed(work.task, error)
        work.job = replace(job, payload=payload)
        if isinstance(work, BatchWork):
            work.payloads = [payload]  # such a job is a batch of its own
    return None
