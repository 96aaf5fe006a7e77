"""What a competent programmer writes in an afternoon: a queue of job objects in a heap.

The yardstick for the kernel. It has tokens, leases with expiry, per-state counters and retention
by count, and does each as cheaply as plain Python objects allow. It has no delays, keys, groups,
limits, dependencies, ttl, timeouts, tenants or events, and so pays for none of them.
"""

import os
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from penstock.model.job import JobOptions

READY: Final = 0
ACTIVE: Final = 1
COMPLETED: Final = 2
DEAD: Final = 3


class HeapJob:
    __slots__ = ("attempts", "id", "options", "payload", "priority", "run_at", "state")

    def __init__(
        self, job_id: int, payload: bytes, priority: int, run_at: int, options: JobOptions
    ) -> None:
        self.id = job_id
        self.payload = payload
        self.priority = priority
        self.run_at = run_at
        self.attempts = 0
        self.state = READY
        self.options = options


class HeapQueue:
    __slots__ = ("_expiries", "_finished", "_jobs", "_keep", "_leases", "_next", "_ready", "counts")

    def __init__(self, keep: int = 10_000) -> None:
        self._next = 1
        self._jobs: dict[int, HeapJob] = {}
        self._ready: list[tuple[int, int, int, HeapJob]] = []  # (-priority, run_at, id, job)
        self._leases: dict[str, tuple[list[HeapJob], int]] = {}
        self._expiries: list[tuple[int, str]] = []  # those of acked leases stay until they are due
        self._finished: deque[int] = deque()
        self._keep = keep
        self.counts = [0, 0, 0, 0]

    def push(self, payloads: Sequence[bytes], options: JobOptions, now: int) -> range:
        """Jobs that share one set of options."""
        if self._expiries and self._expiries[0][0] <= now:
            self._expire(now)
        jobs, ready = self._jobs, self._ready
        first = job_id = self._next
        priority = options.priority
        rank = -priority
        for payload in payloads:
            job = jobs[job_id] = HeapJob(job_id, payload, priority, now, options)
            heappush(ready, (rank, now, job_id, job))
            job_id += 1
        self._next = job_id
        self.counts[READY] += job_id - first
        return range(first, job_id)

    def push_mixed(
        self, payloads: Sequence[bytes], options: Sequence[JobOptions], now: int
    ) -> range:
        """Jobs with options each."""
        if self._expiries and self._expiries[0][0] <= now:
            self._expire(now)
        jobs, ready = self._jobs, self._ready
        first = job_id = self._next
        for payload, own in zip(payloads, options, strict=True):
            priority = own.priority
            job = jobs[job_id] = HeapJob(job_id, payload, priority, now, own)
            heappush(ready, (-priority, now, job_id, job))
            job_id += 1
        self._next = job_id
        self.counts[READY] += job_id - first
        return range(first, job_id)

    def claim(self, n: int, lease_ms: int, now: int) -> tuple[str, list[HeapJob]] | None:
        """Up to n jobs on one lease, or None."""
        if self._expiries and self._expiries[0][0] <= now:
            self._expire(now)
        ready = self._ready
        taken: list[HeapJob] = []
        for _ in range(min(n, len(ready))):
            job = heappop(ready)[3]
            job.state = ACTIVE
            job.attempts += 1
            taken.append(job)
        if not taken:
            return None
        self.counts[READY] -= len(taken)
        self.counts[ACTIVE] += len(taken)
        token = os.urandom(16).hex()
        expires = now + lease_ms
        self._leases[token] = (taken, expires)
        heappush(self._expiries, (expires, token))
        return token, taken

    def ack(self, token: str, now: int) -> int:
        """Every job of the lease completes; answers how many."""
        if self._expiries and self._expiries[0][0] <= now:
            self._expire(now)
        lease = self._leases.pop(token, None)
        if lease is None:
            raise KeyError(token)
        taken = lease[0]
        finished = self._finished
        for job in taken:
            job.state = COMPLETED
            finished.append(job.id)
        n = len(taken)
        counts = self.counts
        counts[ACTIVE] -= n
        counts[COMPLETED] += n
        excess = len(finished) - self._keep
        if excess > 0:
            jobs = self._jobs
            for _ in range(excess):
                del jobs[finished.popleft()]
            counts[COMPLETED] -= excess
        return n

    def _expire(self, now: int) -> None:
        expiries = self._expiries
        while expiries and expiries[0][0] <= now:
            _, token = heappop(expiries)
            lease = self._leases.pop(token, None)
            if lease is None:
                continue
            for job in lease[0]:
                self.counts[ACTIVE] -= 1
                most = job.options.max_attempts
                if most and job.attempts >= most:
                    job.state = DEAD
                    self.counts[DEAD] += 1
                else:
                    job.state = READY
                    self.counts[READY] += 1
                    heappush(self._ready, (-job.priority, job.run_at, job.id, job))
