"""Flows: tasks that run after each other, beside each other, and when others are done.

    chain(fetch.s(url), parse.s(), keep.s())             one after the other
    group(resize.s(1), resize.s(2))                      beside each other
    group(resize.s(1), resize.s(2)).then(publish.s())    all of them, and then one

Parts may stand in parts. What runs next is given the result of what ran before, in the first
parameter that its own call leaves free: of a chain the last result, of a group the list of its
members' results, in their order. `task.si(…)` takes nothing.

For a graph that is neither, a `Flow` takes parts and answers steps, and a step may stand among the
arguments of another part: its result will be there.

    flow = Flow()
    image = flow.add(fetch.s(url))
    sizes = [flow.add(resize.s(image, width)) for width in (100, 200)]
    flow.add(publish.s(sizes), after=flow.add(announce.s()))

A whole flow is pushed in one call, and so appears at one instant or not at all. Nothing here runs
anything: waiting is the store's (`depends_on`), filling in results `inputs.py`'s.

A loop that says `flow = flow.then(…)` makes parts as deep as it is long. So whatever goes through
them keeps what it has still to go through in a list, and not on Python's stack.
"""

from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from penstock.client.errors import BadDeclaration
from penstock.client.graph import Graph, Output
from penstock.client.pushed_flow import PushedFlow
from penstock.client.said import in_words
from penstock.model.answers import Pushed
from penstock.model.errors import Invalid

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.task import Task

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


# Asks for parts to be laid, each behind what is said with it, and is sent what they come to.
Laying: TypeAlias = Generator[tuple["Part[Any]", Output | None], Output, Output]


class Part(Generic[T_co]):
    """Whatever can be pushed as a flow, or stand in one. `T` is what it comes to."""

    @property
    def app(self) -> "Penstock | None":
        """The app of its tasks, if it has any."""
        left: list[Part[Any]] = [self]
        seen: set[Part[Any]] = set()
        while left:
            part = left.pop()
            if isinstance(part, Signature):
                return part.task.app
            if part not in seen:
                seen.add(part)
                left += reversed(part.within)
        return None

    @property
    @abstractmethod
    def within(self) -> "Sequence[Part[Any]]":
        """The parts that stand in it."""

    @abstractmethod
    def lay(self, graph: Graph, before: Output | None) -> Laying:
        """Have the parts that stand in it laid behind `before`."""

    def then(self, part: "Part[R]") -> "Chain[R]":
        """This, and when all of it is done, the other."""
        return Chain((self, part))

    async def apush(self) -> PushedFlow[T_co]:
        """Push all of its jobs at one instant; they are safe when this answers."""
        graph, output = self._laid()
        return _made(graph, output, await _sent(graph))

    def push(self) -> PushedFlow[T_co]:
        home = self._app().home
        home.may_block("push()", "apush()")
        graph, output = self._laid()
        return _made(graph, output, home.wait(_sent(graph)))

    def _app(self) -> "Penstock":
        app = self.app
        if app is None:
            raise Invalid("a flow needs at least one job", "parts")
        return app

    def _laid(self) -> tuple[Graph, Output]:
        graph = Graph(self._app())
        return graph, _laid(self, graph)


class Signature(Part[T_co]):
    """A call of a task that has not been made: one job."""

    def __init__(
        self,
        task: "Task[..., T_co, Any]",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
    ) -> None:
        self.task = task
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.immutable = immutable  # takes nothing from what runs before

    def __repr__(self) -> str:
        said = [*map(repr, self.args), *(f"{name}={v!r}" for name, v in self.kwargs.items())]
        return f"{self.task.name}.{'si' if self.immutable else 's'}({', '.join(said)})"

    @property
    def within(self) -> Sequence[Part[Any]]:
        return ()

    def lay(self, graph: Graph, before: Output | None) -> Laying:
        yield from ()  # it is the job
        args = [_resolved(each, graph) for each in self.args]
        kwargs = {name: _resolved(each, graph) for name, each in self.kwargs.items()}
        names = any(isinstance(each, Output) for each in (*args, *kwargs.values()))
        takes = None if before is None or self.immutable or names else before.places
        after = [] if before is None else before.ends
        place = graph.add(self.task, args, kwargs, takes=takes, after=after)
        return Output(place, place)


class Chain(Part[T_co]):
    """Parts one after the other; it comes to what the last one does."""

    def __init__(self, parts: Sequence[Part[Any]]) -> None:
        self.parts = _parts(parts, "chain")
        if not parts:
            raise Invalid("a chain needs at least one part", "parts")

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def within(self) -> Sequence[Part[Any]]:
        return self.parts

    def lay(self, graph: Graph, before: Output | None) -> Laying:
        for part in self.parts:
            before = yield part, before
        assert before is not None, "a chain has parts"
        return before


class Group(Part[list[T_co]]):
    """Parts beside each other; it comes to the list of what they do."""

    def __init__(self, parts: Sequence[Part[T_co]]) -> None:
        self.parts = _parts(parts, "group")

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def within(self) -> Sequence[Part[Any]]:
        return self.parts

    def lay(self, graph: Graph, before: Output | None) -> Laying:
        outputs = []
        for part in self.parts:
            output = yield part, before
            outputs.append(output)
        if not outputs:  # what follows waits for what came before instead
            return Output([], before.ends if before is not None else [])
        return _all(outputs)


def chain(*parts: *tuple[*tuple[Part[Any], ...], Part[T]]) -> Chain[T]:
    """One after the other, each given the result of the one before."""
    return Chain(parts)


def group(*parts: Part[T]) -> Group[T]:
    """Beside each other."""
    return Group(parts)


class Step(Generic[T_co]):
    """A part of a `Flow`; among the arguments of another part it stands for its result."""

    __slots__ = ("__weakref__", "after", "part")

    def __init__(self, part: Part[T_co], after: "Step[Any] | Sequence[Step[Any]]") -> None:
        self.part = part
        self.after = after

    def __repr__(self) -> str:
        part = self.part  # which may have other steps in it, each many times
        what = part.task.name if isinstance(part, Signature) else type(part).__name__.lower()
        return f"<step {what}>"


class Flow(Part[Any]):
    """A graph, said step by step. A step can only name earlier ones, so there are no cycles.

    It comes to the result of the step that no other one uses; if there are several, to the list
    of their results.
    """

    def __init__(self) -> None:
        self._steps: dict[Step[Any], None] = {}

    def __repr__(self) -> str:
        return f"<flow of {len(self._steps)} steps>"

    def add(self, part: Part[T], after: "Step[Any] | Sequence[Step[Any]]" = ()) -> Step[T]:
        """One step more, which begins when those that it is said `after`, or names, are done.

        If it names none among its arguments, its first free parameter gets the result of the one
        that it comes after; of several, the list of their results.
        """
        _parts((part,))
        said: Any = after
        for each in said if isinstance(said, list | tuple) else (said,):
            if not isinstance(each, Step):
                raise BadDeclaration(
                    f"{each!r} is no step: steps are what flow.add(…) answered", "after"
                )
            if each not in self._steps:
                raise Invalid(f"{each!r} is not a step of this flow", "after")
        step = Step(part, said if isinstance(said, Step) else tuple(said))
        self._steps[step] = None
        return step

    @property
    def within(self) -> Sequence[Part[Any]]:
        return [step.part for step in self._steps]

    def lay(self, graph: Graph, before: Output | None) -> Laying:
        for step in self._steps:
            graph.outputs[step] = yield step.part, _joined(graph, step.after) or before
        # What nobody has named or come after is what it all comes to.
        ends = [graph.outputs[step] for step in self._steps if step not in graph.used]
        return ends[0] if len(ends) == 1 else _all(ends)


def _joined(graph: Graph, after: "Step[Any] | Sequence[Step[Any]]") -> Output | None:
    if isinstance(after, Step):
        graph.used.add(after)
        return graph.outputs[after]
    graph.used.update(after)
    outputs = [graph.outputs[each] for each in after]
    if len(outputs) == 1:
        return outputs[0]
    return _all(outputs) if outputs else None


def _all(outputs: Sequence[Output]) -> Output:
    return Output([each.places for each in outputs], [each.ends for each in outputs])


def _resolved(said: Any, graph: Graph) -> Any:
    """An argument; a step, or a list of steps, as what it will come to."""
    if isinstance(said, Step):
        output = graph.outputs.get(said)
        if output is None:
            raise Invalid(f"{said!r} is not an earlier step of this flow")
        graph.used.add(said)
        return output
    if isinstance(said, list | tuple) and said and all(isinstance(each, Step) for each in said):
        return _all([_resolved(each, graph) for each in said])
    return said


def _parts(parts: Sequence[Any], of: str = "") -> tuple[Any, ...]:
    for part in parts:
        if not isinstance(part, Part):
            hint = ": say task.s(…)" if callable(part) else ""
            if of and isinstance(part, Iterable) and not isinstance(part, str):
                hint = f": say {of}(*parts)"
            raise BadDeclaration(f"{part!r} is no part of a flow{hint}", "parts")
    return tuple(parts)


def _laid(part: Part[Any], graph: Graph) -> Output:
    """What the part comes to, and its jobs are in the graph."""
    waiting = {part: part.lay(graph, None)}  # each for the one behind it
    output: Any = None  # unset before its first step
    while waiting:
        try:
            part, before = waiting[next(reversed(waiting))].send(output)
        except StopIteration as laid:
            output = laid.value
            waiting.popitem()
        else:
            if part in waiting:
                raise Invalid(f"{part!r} stands in itself", "parts")
            output = None
            waiting[part] = part.lay(graph, before)
    return output  # type: ignore[no-any-return]


def _shown(whole: Part[Any]) -> str:
    said: list[str] = []
    left: list[Part[Any] | str] = [whole]
    while left:
        each = left.pop()
        if isinstance(each, Chain | Group):
            said.append(f"{type(each).__name__.lower()}(")
            left.append(")")
            for place, part in enumerate(reversed(each.parts)):
                left += (", ", part) if place else (part,)
        else:
            said.append(each if isinstance(each, str) else repr(each))
    return "".join(said)


# -- pushing ---------------------------------------------------------------------------------------


async def _sent(graph: Graph) -> list[Any]:
    """(id, outcome) of every job, by its place."""
    home = graph.app.home
    runs, order = graph.runs()
    store = await home.store()
    try:
        pushed: Pushed = await store.push(home.tenant, runs, durability=graph.durability)
    except Invalid as error:
        raise in_words(error) from None
    by_place: list[Any] = [None] * len(order)
    for place, job in zip(order, pushed.jobs, strict=True):
        by_place[place] = job
    return by_place


def _made(graph: Graph, output: Output, jobs: list[Any]) -> PushedFlow[Any]:
    app = graph.app
    if app.middleware:
        by_task: dict[int, tuple[Task[..., Any, Any], list[int]]] = {}
        for node, (job_id, _) in zip(graph.nodes, jobs, strict=True):
            by_task.setdefault(id(node.task), (node.task, []))[1].append(job_id)
        for task, ids in by_task.values():
            task._after(ids)
    returns = [node.task.arguments.returns for node in graph.nodes]
    steps = {step: each.places for step, each in graph.outputs.items()}
    return PushedFlow(app.home, jobs, returns, output.places, steps)
