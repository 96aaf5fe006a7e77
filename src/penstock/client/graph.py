"""The jobs of a flow before they are pushed: which task, what it waits for, and what it takes.

Parts of a flow (see `flow.py`) lay themselves out here, one node per job. A node's place is its
index, and everything that runs before it has a lower one. `Graph.runs` is what a store takes: all
of it in one push, so that the whole flow appears or none of it.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.inputs import HEADER, Later, Places, leaves, shape_of, with_holes
from penstock.client.options import Plan
from penstock.model.answers import Durability
from penstock.model.errors import BatchTooLarge, Invalid
from penstock.model.job import MAX_BATCH, MAX_DEPENDENCIES, JobOptions, Run

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.task import Task


class Output(msgspec.Struct, frozen=True):
    """What a part comes to: the places of its results, and those that must have ended before what
    follows begins. They differ where nothing comes of a part: a group without members."""

    places: Places
    ends: Places


class Node(msgspec.Struct, frozen=True):
    task: Any  # Task
    plan: Plan
    payload: bytes
    header: str | None
    after: tuple[int, ...]  # places; those whose results are taken come first


class Graph:
    def __init__(self, app: "Penstock") -> None:
        self.app = app
        self.nodes: list[Node] = []
        self.outputs: dict[Any, Output] = {}  # of the steps of a `Flow`
        self.used: set[Any] = set()  # the steps that others name, or come after
        self._keys: set[tuple[str, str]] = set()

    def add(
        self,
        task: "Task[..., Any, Any]",
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        takes: Places | None,
        after: Places,
    ) -> int:
        """One job more; answers its place. An argument that is an `Output` will be its results, and
        the first free parameter those of `takes`."""
        if task.app is not self.app:
            raise Invalid(f"task {task.name!r} belongs to another app than the rest of the flow")
        if len(self.nodes) == MAX_BATCH:  # a part may stand in many, and its jobs are as many
            raise BatchTooLarge(
                f"a flow has at most {MAX_BATCH:,} jobs, and this one more; jobs that wait for"
                " nothing go by push_many(…, atomic=True)"
            )
        plan = task._before()
        named = [each for each in (*args, *kwargs.values()) if isinstance(each, Output)]
        taken = [each.places for each in named] + ([] if takes is None else [takes])
        first = dict.fromkeys(place for each in taken for place in leaves(each))
        ends = (end for each in named for end in leaves(each.ends))
        whole = tuple(dict.fromkeys([*first, *leaves(after), *ends]))
        if len(whole) + len(plan.depends_on) > MAX_DEPENDENCIES:
            raise Invalid(
                f"a job of task {task.name!r} would wait for more than {MAX_DEPENDENCIES:,} others:"
                " let some of them be joined by jobs of their own"
            )
        index = {place: number for number, place in enumerate(first)}

        def here(each: Any) -> Any:
            return Later(shape_of(each.places, index)) if isinstance(each, Output) else each

        payload, header = with_holes(
            task,
            plan.job.codec,
            [here(each) for each in args] if named else args,
            {name: here(each) for name, each in kwargs.items()} if named else kwargs,
            None if takes is None else shape_of(takes, index),
        )
        self._note_key(plan)
        self.nodes.append(Node(task, plan, payload, header, whole))
        return len(self.nodes) - 1

    def _note_key(self, plan: Plan) -> None:
        if plan.key is None:
            return
        if (plan.queue, plan.key) in self._keys:
            raise Invalid(f"two jobs of the flow have the key {plan.key!r}", "key")
        self._keys.add((plan.queue, plan.key))

    # -- for the store ---------------------------------------------------------------------------

    def runs(self) -> tuple[list[Run], list[int]]:
        """A run for each queue, and the places of their jobs in the order in which they go."""
        if not self.nodes:
            raise Invalid("a flow needs at least one job", "parts")
        queues: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            queues.setdefault(node.plan.queue, []).append(place)
        order = [place for places in queues.values() for place in places]
        names = {place: -(index + 1) for index, place in enumerate(order)}
        return [self._run(queue, places, names) for queue, places in queues.items()], order

    def _run(self, queue: str, places: Sequence[int], names: Mapping[int, int]) -> Run:
        nodes = [self.nodes[place] for place in places]
        table: dict[JobOptions, int] = {}
        option_of = [table.setdefault(node.plan.job, len(table)) for node in nodes]
        return Run(
            queue=queue,
            data=b"".join(node.payload for node in nodes),
            ends=list(accumulate(len(node.payload) for node in nodes)),
            options=tuple(table),
            option_of=option_of if len(table) > 1 else None,
            delay_ms=_column([node.plan.delay_ms for node in nodes]),
            run_at=_column([node.plan.run_at for node in nodes]),
            keys=_column([node.plan.key for node in nodes]),
            groups=_column([node.plan.group for node in nodes]),
            headers=_column([_headers(node) for node in nodes]),
            depends_on=_column(
                [(*(names[each] for each in node.after), *node.plan.depends_on) for node in nodes]
            ),
        )

    @property
    def durability(self) -> Durability | None:
        """What all of them say; where they differ, the store's own."""
        said = {node.plan.durability for node in self.nodes}
        return said.pop() if len(said) == 1 else None


def _headers(node: Node) -> dict[str, str] | None:
    headers = dict(node.plan.headers or {})
    if node.header is not None:
        headers[HEADER] = node.header
    return headers or None


def _column(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None and value != () for value in values) else None
