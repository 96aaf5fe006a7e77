"""Flows: what runs after what, and which results it is given."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import (
    BlocksTheLoop,
    Flow,
    JobFailed,
    Middleware,
    Penstock,
    Task,
    at_once,
    chain,
    group,
)
from penstock.client.arguments import BadArguments
from penstock.client.flow import Part
from penstock.client.inputs import HEADER, with_inputs
from penstock.client.options import Plan
from penstock.model.errors import BatchTooLarge, Deadline, Invalid
from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from tests.client.small_worker import STORES, SmallWorker, url_of, working


class Tasks:
    """An app with a few tasks in two queues."""

    def __init__(self, url: str, **more: Any) -> None:
        self.app = app = Penstock(url, max_attempts=1, **more)

        @app.task
        async def number(n: int) -> int:
            return n

        @app.task(queue="other")
        def add(a: int, b: int = 10) -> int:
            return a + b

        @app.task
        async def total(numbers: list[int | None]) -> int:
            return sum(each or 0 for each in numbers)

        @app.task(queue="other")
        def show(value: Any) -> str:
            return repr(value)

        @app.task
        def nothing() -> None:
            return None

        @app.task
        def broken(n: int = 0) -> int:
            raise RuntimeError("broken")

        self.number, self.add, self.total = number, add, total
        self.show, self.nothing, self.broken = show, nothing, broken


Case = Callable[[Tasks, SmallWorker], Coroutine[Any, Any, None]]


def on_stores(case: Case) -> Any:
    """Run the case over each store, with tasks and a worker on it."""

    @pytest.mark.parametrize("kind", STORES)
    @wraps(case)
    def run(kind: str, tmp_path: Path) -> None:
        async def whole() -> None:
            tasks = Tasks(url_of(kind, tmp_path))
            async with working(tasks.app) as worker:
                await case(tasks, worker)

        asyncio.run(whole())

    del run.__wrapped__  # pytest asks it for the parameters
    return run


# -- chains ----------------------------------------------------------------------------------------


@on_stores
async def test_a_chain_hands_every_result_on(t: Tasks, worker: SmallWorker) -> None:
    flow = await chain(t.number.s(1), t.add.s(), t.add.s(b=100), t.show.s()).apush()
    states = [job.state for job in await worker.store.get("default", flow.ids) if job is not None]
    assert states == [State.READY, State.BLOCKED, State.BLOCKED, State.BLOCKED]
    await worker.drain()
    assert await flow.aresult() == "111"
    assert await flow.last.aresult() == "111"
    assert [await job.aresult() for job in flow] == [1, 11, 111, "111"]
    assert [name for name, _ in worker.ran] == ["number", "add", "add", "show"]


@on_stores
async def test_the_result_takes_the_first_parameter_that_is_free(
    t: Tasks, worker: SmallWorker
) -> None:
    first = await chain(t.number.s(1), t.add.s(5)).apush()
    second = await chain(t.number.s(1), t.add.s(b=7)).apush()
    await worker.drain()
    assert [said for name, said in worker.ran if name == "add"] == [
        {"a": 5, "b": 1},
        {"a": 1, "b": 7},
    ]
    assert (await first.aresult(), await second.aresult()) == (6, 8)


@on_stores
async def test_an_immutable_call_takes_nothing(t: Tasks, worker: SmallWorker) -> None:
    flow = await chain(t.number.s(1), t.nothing.si(), t.number.si(2), t.show.s()).apush()
    await worker.drain()
    assert await flow.aresult() == "2"


@on_stores
async def test_a_task_that_answers_nothing_hands_on_none(t: Tasks, worker: SmallWorker) -> None:
    flow = await chain(t.nothing.s(), t.show.s()).apush()
    await worker.drain()
    assert await flow.aresult() == "None"


@on_stores
async def test_a_chain_ends_where_a_job_fails(t: Tasks, worker: SmallWorker) -> None:
    flow = await chain(t.number.s(1), t.broken.s(), t.show.s(), t.show.s()).apush()
    await worker.drain()
    with pytest.raises(JobFailed) as caught:
        await flow.aresult()
    assert caught.value.dead_reason == "dependency_failed"
    with pytest.raises(JobFailed, match="RuntimeError: broken"):
        await flow[1].aresult()
    assert [name for name, _ in worker.ran] == ["number", "broken"]


# -- groups ----------------------------------------------------------------------------------------


@on_stores
async def test_a_group_comes_to_the_list_of_its_results(t: Tasks, worker: SmallWorker) -> None:
    flow = await group(*(t.number.s(n) for n in range(5))).apush()
    await worker.drain()
    assert await flow.aresult() == [0, 1, 2, 3, 4]


@on_stores
async def test_a_callback_gets_the_list_when_all_are_done(t: Tasks, worker: SmallWorker) -> None:
    flow = await group(t.number.s(3), t.add.s(1, 2), t.number.s(5)).then(t.total.s()).apush()
    await worker.drain()
    assert worker.ran[-1] == ("total", {"numbers": [3, 3, 5]})
    assert await flow.aresult() == 11


@on_stores
async def test_a_failed_member_fails_the_callback(t: Tasks, worker: SmallWorker) -> None:
    flow = await group(t.number.s(3), t.broken.s()).then(t.total.s()).apush()
    await worker.drain()
    with pytest.raises(JobFailed):
        await flow.aresult()


@on_stores
async def test_a_callback_that_ignores_failures_gets_none_in_their_place(
    t: Tasks, worker: SmallWorker
) -> None:
    total = t.total.options(on_dependency_failure="ignore")
    flow = await group(t.number.s(3), t.broken.s(), t.number.s(4)).then(total.s()).apush()
    await worker.drain()
    assert worker.ran[-1] == ("total", {"numbers": [3, None, 4]})
    assert await flow.aresult() == 7


@on_stores
async def test_results_stay_until_they_are_taken(t: Tasks, worker: SmallWorker) -> None:
    number = t.number.options(retain=0)
    flow = await group(number.s(1), number.s(2)).then(t.total.options(delay="1ms").s()).apush()
    await worker.drain()
    await asyncio.sleep(0.002)
    await worker.drain()
    assert await flow.aresult() == 3
    assert await worker.store.get("default", flow.ids[:2]) == [None, None]


# -- parts in parts --------------------------------------------------------------------------------


@on_stores
async def test_groups_of_chains_of_groups(t: Tasks, worker: SmallWorker) -> None:
    inner = group(chain(t.add.s(), t.add.s(b=1)), t.add.s(b=2))
    flow = await chain(t.number.s(1), group(inner, t.number.si(9)), t.show.s()).apush()
    await worker.drain()
    assert await flow.aresult() == "[[12, 3], 9]"


@on_stores
async def test_everything_of_a_group_runs_before_anything_of_the_next(
    t: Tasks, worker: SmallWorker
) -> None:
    flow = await chain(
        group(t.number.s(1), t.number.s(2)), group(t.show.s(), t.show.s()), t.show.s()
    ).apush()
    await worker.drain()
    assert [name for name, _ in worker.ran] == ["number"] * 2 + ["show"] * 3
    assert await flow.aresult() == repr(["[1, 2]", "[1, 2]"])


@on_stores
async def test_a_group_without_members_comes_to_an_empty_list(
    t: Tasks, worker: SmallWorker
) -> None:
    flow = await chain(t.number.s(1), group(), t.show.s()).apush()
    job = await flow.last.aget()
    assert job.depends_on == (flow.ids[0],)
    await worker.drain()
    assert await flow.aresult() == "[]"


@on_stores
async def test_what_follows_a_group_without_members_need_wait_for_nothing(
    t: Tasks, worker: SmallWorker
) -> None:
    graph = Flow()
    rows = graph.add(group(*[t.number.s(n) for n in range(0)]))
    graph.add(t.show.s(rows))
    parts = [
        (group().then(t.total.s()), 0),
        (chain(group(), t.show.s()), "[]"),
        (chain(group(group(), group()), t.show.s()), "[[], []]"),
        (chain(group(group(), t.number.s(1)), t.show.s()), "[[], 1]"),
        (graph, "[]"),
    ]
    flows = [(await part.apush(), expected) for part, expected in parts]
    first = await flows[0][0].last.aget()
    assert (first.payload, first.headers, first.depends_on) == (b'{"numbers":[]}', None, ())
    await worker.drain()
    for flow, expected in flows:
        assert await flow.aresult() == expected


@on_stores
async def test_a_part_may_be_pushed_again(t: Tasks, worker: SmallWorker) -> None:
    part = chain(t.number.s(1), t.add.s())
    first, second = await part.apush(), await part.apush()
    await worker.drain()
    assert await first.aresult() == await second.aresult() == 11
    assert set(first.ids).isdisjoint(second.ids)


# -- graphs ----------------------------------------------------------------------------------------


@on_stores
async def test_a_graph_said_step_by_step(t: Tasks, worker: SmallWorker) -> None:
    graph = Flow()
    one = graph.add(t.number.s(1))
    two = graph.add(t.add.s(), after=[one])
    three = graph.add(t.number.s(3))
    end = graph.add(t.show.s(), after=[two, three, one])
    flow = await graph.apush()
    await worker.drain()
    assert await flow.aresult() == "[11, 3, 1]"
    assert await flow[two].aresult() == 11
    assert flow[end] is flow.last


@on_stores
async def test_steps_stand_for_their_results_among_arguments(t: Tasks, worker: SmallWorker) -> None:
    graph = Flow()
    one, two = graph.add(t.number.s(1)), graph.add(t.number.s(2))
    both = graph.add(group(t.number.s(3), t.number.s(4)))
    last = graph.add(t.nothing.si(), after=both)
    graph.add(t.add.s(one, b=two), after=last)
    graph.add(t.show.s([two, both, one]))
    flow = await graph.apush()
    await worker.drain()
    assert await flow.aresult() == [3, "[2, [3, 4], 1]"]
    assert await flow[both].aresult() == [3, 4]
    assert [name for name, _ in worker.ran].index("nothing") > 3


@on_stores
async def test_a_graph_may_stand_in_a_chain(t: Tasks, worker: SmallWorker) -> None:
    graph = Flow()
    one = graph.add(t.add.s())
    graph.add(t.add.s(one, 1))
    flow = await chain(t.number.s(5), graph, t.show.s()).apush()
    await worker.drain()
    assert await flow.aresult() == "16"


def test_steps_of_another_flow_are_refused() -> None:
    t = Tasks("memory://")
    one, other = Flow(), Flow()
    step = one.add(t.number.s(1))
    with pytest.raises(Invalid, match="not a step of this flow"):
        other.add(t.add.s(), after=[step])
    other.add(t.add.s(step))
    with pytest.raises(Invalid, match="not an earlier step"):
        other.push()


# -- batch tasks, codecs, options ------------------------------------------------------------------


@on_stores
async def test_a_batch_task_gets_the_result_as_its_item(t: Tasks, worker: SmallWorker) -> None:
    @t.app.task(batch=10)
    def doubled(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    flow = await chain(t.number.s(4), doubled.s(), t.show.s()).apush()
    await worker.drain()
    assert await flow.aresult() == "8"
    with pytest.raises(TypeError, match="takes one item"):
        await chain(t.number.s(4), doubled.s(1)).apush()


@on_stores
async def test_a_result_crosses_codecs(t: Tasks, worker: SmallWorker) -> None:
    packed = t.add.options(codec="msgpack")
    flow = await chain(t.number.s(4), packed.s(b=1), t.show.options(codec="msgpack").s()).apush()
    await worker.drain()
    assert await flow.aresult() == "5"


@on_stores
async def test_every_job_keeps_its_own_options(t: Tasks, worker: SmallWorker) -> None:
    earlier = await t.number.options(delay="1h").apush(1)
    flow = await chain(
        t.number.options(priority=7, tags=["a"], headers={"x": "y"}).s(1),
        t.add.options(
            queue="third", group="g", headers={"x": "z"}, depends_on=[earlier], delay="1h"
        ).s(),
    ).apush()
    first, second = [await job.aget() for job in flow]
    assert (first.priority, first.options.tags, first.headers) == (7, ("a",), {"x": "y"})
    assert (second.queue, second.group) == ("third", "g")
    assert second.headers == {"x": "z", HEADER: '{"a":0}'}
    assert second.depends_on == (first.id, earlier.id)


@on_stores
async def test_a_key_that_is_taken_stands_for_the_job_that_has_it(
    t: Tasks, worker: SmallWorker
) -> None:
    known = await t.number.options(key="k", keep_key="retained").apush(40)
    await worker.drain()
    keyed = t.number.options(key="k", keep_key="retained")
    flow = await group(t.number.s(1), keyed.s(2)).then(t.total.s()).apush()
    await worker.drain()
    assert flow[1].id == known.id
    assert flow[1].outcome == "ignored"
    assert await flow.aresult() == 41


@on_stores
async def test_a_flow_can_be_cancelled(t: Tasks, worker: SmallWorker) -> None:
    flow = await chain(t.number.s(1), t.add.s()).apush()
    assert await flow.acancel() == 2
    with pytest.raises(JobFailed, match="cancelled"):
        await flow.aresult()
    assert await flow.acancel() == 0


@on_stores
async def test_waiting_for_a_flow_ends_in_time(t: Tasks, worker: SmallWorker) -> None:
    flow = await group(*(t.number.s(n) for n in range(150))).apush()
    with pytest.raises(Deadline):
        await flow.aresult(timeout="10ms")
    await worker.drain()
    assert await flow.aresult(timeout="10s") == list(range(150))


@on_stores
async def test_a_failed_member_is_told_before_the_slow_ones(t: Tasks, worker: SmallWorker) -> None:
    slow = t.number.options(delay="1h")
    flow = await group(slow.s(1), t.broken.s()).apush()
    await worker.drain()
    with pytest.raises(JobFailed, match="broken"):
        await flow.aresult(timeout="10s")


def test_synchronous_code_pushes_and_waits(tmp_path: Path) -> None:
    t = Tasks(url_of("sqlite://", tmp_path))
    with t.app:
        flow = chain(t.number.s(1), t.add.s()).push()

        async def work() -> None:
            await SmallWorker(t.app, await t.app.store()).drain()

        t.app.home.wait(work())
        assert flow.result(timeout="10s") == 11
        assert flow.cancel() == 0

        async def inside() -> None:
            chain(t.number.s(1)).push()

        with pytest.raises(BlocksTheLoop):
            asyncio.run(inside())


def test_middleware_sees_every_job_of_a_flow() -> None:
    seen: list[Any] = []

    class Seeing(Middleware):
        def before_push(self, task: Task[..., Any, Any], plan: Plan) -> Plan:
            seen.append(task.name)
            return msgspec.structs.replace(plan, headers={"by": "middleware"})

        def after_push(self, task: Task[..., Any, Any], ids: list[int]) -> None:
            seen.append((task.name, ids))

    t = Tasks("memory://", middleware=[Seeing()])
    with t.app:
        flow = chain(t.number.s(1), group(t.add.s(), t.add.s())).push()
        assert seen == [
            *("number", "add", "add"),
            ("number", flow.ids[:1]),
            ("add", flow.ids[1:]),
        ]
        assert (flow[0].get().headers or {})["by"] == "middleware"


# -- mistakes --------------------------------------------------------------------------------------


def test_mistakes_are_told_before_anything_is_pushed() -> None:
    t = Tasks("memory://")
    other = Tasks("memory://")
    with t.app:
        with pytest.raises(TypeError, match=r"no parameter left .* say nothing\.si\(…\)"):
            chain(t.number.s(1), t.nothing.s()).push()
        with pytest.raises(TypeError, match="no parameter left"):
            chain(t.number.s(1), t.add.s(1, 2)).push()
        with pytest.raises(TypeError, match="number"):
            chain(t.number.s(), t.add.s()).push()
        with pytest.raises(TypeError, match="too many positional"):
            chain(t.number.s(1), t.add.s(1, 2, 3)).push()
        with pytest.raises(TypeError, match=r"no part of a flow: say task\.s"):
            chain(t.number, t.add.s())  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="another app"):
            chain(t.number.s(1), other.add.s()).push()
        with pytest.raises(Invalid, match="at least one"):
            group().push()
        with pytest.raises(Invalid, match="at least one"):
            chain()  # type: ignore[call-arg]
        with pytest.raises(Invalid, match="two jobs of the flow have the key"):
            keyed = t.number.options(key="k")
            group(keyed.s(1), keyed.s(2)).push()
        assert t.app.home.wait(_count(t)) == 0


async def _count(t: Tasks) -> int:
    store = await t.app.store()
    return sum(sum(info.counts.values()) for info in await store.queues("default"))


def test_how_large_a_flow_may_be() -> None:
    t = Tasks("memory://")
    with t.app:
        wide = group(*(t.number.s(n) for n in range(1_000)))
        flow = wide.then(t.total.s()).push()
        assert (flow.last.get().headers or {})[HEADER] == '{"numbers":"0:1000"}'
        with pytest.raises(Invalid, match="more than 1,000"):
            group(wide, t.number.s(1)).then(t.total.s()).push()
        with pytest.raises(BatchTooLarge, match="at most 10,000"):
            group(*[wide] * 11).push()
        assert len(group(*[wide] * 10).push()) == 10_000
        with pytest.raises(Invalid, match="so many small groups"):
            group(*(group(t.number.s(1)) for _ in range(600))).then(t.total.s()).push()


DEEP = 2_000


def _behind(t: Tasks) -> Part[Any]:
    flow: Part[Any] = t.number.s(0)
    for _ in range(DEEP):
        flow = flow.then(t.number.s())
    return flow


def _before(t: Tasks) -> Part[Any]:
    flow: Part[Any] = t.number.s()
    for _ in range(DEEP - 1):
        flow = chain(t.number.s(), flow)
    return chain(t.number.s(0), flow)


def _in_flows(t: Tasks) -> Part[Any]:
    flow: Part[Any] = t.number.s(0)
    for _ in range(DEEP):
        outer = Flow()
        outer.add(t.number.s(), after=outer.add(flow))
        flow = outer
    return flow


@pytest.mark.parametrize("made", [_behind, _before, _in_flows])
def test_a_chain_of_parts_in_parts_may_be_as_deep_as_it_is_long(
    made: Callable[[Tasks], Part[Any]],
) -> None:
    t = Tasks("memory://")
    with t.app.testing() as testing:
        flow = made(t).push()
        waits_for = [job.get().depends_on for job in flow]
        assert waits_for == [(), *((job.id,) for job in flow.jobs[:-1])]
        assert testing.drain().completed == len(flow) == DEEP + 1
        assert flow.result() == 0


def test_groups_in_groups_come_to_lists_as_deep() -> None:
    t = Tasks("memory://")
    with t.app.testing() as testing:
        flow: Part[Any] = t.number.s(0)
        for n in range(1, DEEP + 1):
            flow = group(flow, t.number.s(n))
        pushed = flow.push()
        assert not any(job.get().depends_on for job in pushed)
        testing.drain()
        left = pushed.result()
        for n in range(DEEP, 0, -1):
            left, last = left
            assert last == n
        assert left == 0


def test_a_job_takes_the_results_of_groups_a_hundred_deep() -> None:
    t = Tasks("memory://")
    with t.app.testing() as testing:
        flow: Part[Any] = t.number.s(1)
        for _ in range(100):
            flow = group(flow)
        pushed = flow.then(t.show.s()).push()
        testing.drain()
        assert pushed.result() == f"{'[' * 100}1{']' * 100}"
        with pytest.raises(Invalid, match="more than 100 deep"):
            group(flow).then(t.show.s()).push()


def test_what_deep_parts_are_can_be_shown() -> None:
    t = Tasks("memory://")
    assert repr(chain(group(t.number.s(1), t.add.s(b=2)), group())) == (
        f"chain(group({t.number.name}.s(1), {t.add.name}.s(b=2)), group())"
    )
    assert repr(_behind(t)).startswith("chain(chain(chain(")
    flow = Flow()
    step = flow.add(t.number.s(1))
    for _ in range(DEEP):
        step = flow.add(t.add.s(step, step))
    assert repr(step) == f"<step {t.add.name}>"


@pytest.mark.parametrize("empty", [True, False])
def test_a_flow_that_stands_in_itself_is_refused(empty: bool) -> None:
    t = Tasks("memory://")
    with t.app:
        flow = Flow()
        if not empty:
            flow.add(t.number.s(1))
        flow.add(group(flow))
        with pytest.raises(Invalid, match="at least one" if empty else "stands in itself"):
            flow.push()


def test_a_part_that_stands_in_too_many_others_is_refused_at_the_limit() -> None:
    asked = []

    class Asked(Middleware):
        def before_push(self, task: Task[..., Any, Any], plan: Plan) -> Plan:
            asked.append(plan)
            return plan

    t = Tasks("memory://", middleware=[Asked()])
    with t.app:
        flow: Part[Any] = t.number.s(1)
        for _ in range(20):
            flow = group(flow, flow)
        with pytest.raises(BatchTooLarge, match="at most 10,000"):
            flow.push()
    assert len(asked) == 10_000


# -- headers of strangers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "payload", "codec"),
    [
        ("nonsense", b"{}", "json"),
        ('{"a":1}', b"{}", "json"),
        ('{"a":-1}', b"{}", "json"),
        ('{"a":true}', b"{}", "json"),
        ('{"a":"0:99999"}', b"{}", "json"),
        ('{"a":"x"}', b"{}", "json"),
        ('{"a":{"b":null}}', b"{}", "json"),
        ('{"a":0}', b"[]", "json"),
        (f'{{"a":{"[" * 2_000}0{"]" * 2_000}}}', b"{}", "json"),
        ('{"a":0}', b"\xc1", "bytes"),
        ("[0]", b"", "bytes"),
    ],
)
def test_a_header_that_makes_no_sense_is_bad_arguments(
    header: str, payload: bytes, codec: Any
) -> None:
    async def whole() -> None:
        t = Tasks("memory://")
        async with working(t.app) as worker:
            before = await t.number.apush(1)
            await worker.drain()
            spec = JobSpec(
                payload=payload, codec=codec, headers={HEADER: header}, depends_on=(before.id,)
            )
            await worker.store.push_jobs("default", "q", [spec])
            lease = await worker.store.claim("default", ["q"])
            assert lease is not None
            with pytest.raises(BadArguments):
                await with_inputs(worker.store, "default", lease.jobs[0])

    asyncio.run(whole())


def test_retries_fill_in_again() -> None:
    async def whole() -> None:
        t = Tasks("memory://")
        seen = []

        @t.app.task(max_attempts=3, backoff=at_once())
        def stubborn(n: int) -> int:
            seen.append(n)
            if len(seen) < 3:
                raise RuntimeError("again")
            return n

        async with working(t.app) as worker:
            flow = await chain(t.number.s(7), stubborn.s()).apush()
            await worker.drain()
            assert await flow.aresult() == 7
            assert seen == [7, 7, 7]

    asyncio.run(whole())
