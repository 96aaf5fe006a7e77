"""One app, many threads, loops and processes: where its store lives, and how it comes to an end."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.client.app import DEFAULT_URL
from penstock.client.home import Home
from penstock.model.errors import Conflict, Invalid, Unavailable
from penstock.model.store import Store
from penstock.open import open_store
from tests.client.conftest import Script

THREADS = 16


def counting(app: Penstock, queue: str) -> Any:
    @app.task(queue=queue)
    def count(thread: int, n: int) -> None: ...

    return count


async def size(app: Penstock, queue: str) -> int:
    (info,) = await (await app.store()).queues(app.tenant, [queue])
    return sum(info.counts.values())


def test_a_server_that_is_not_there_is_asked_about() -> None:
    app = Penstock("penstock://127.0.0.1:1")

    @app.task
    def one() -> None: ...

    said = r"^penstock://127.0.0.1:1 cannot be reached: .*; is penstock serve running there\?$"
    with app, pytest.raises(Unavailable, match=said):
        one.push()


def test_many_threads_push_through_one_app(url: str) -> None:
    with Penstock(url) as app:
        task = counting(app, "threads")
        together = threading.Barrier(THREADS)

        def push(thread: int) -> list[int]:
            together.wait()
            ids: list[int] = [task.push(thread, n).id for n in range(5)]
            ids += asyncio.run(push_here(thread))
            ids += task.push_many((thread, n) for n in range(20)).ids
            return ids

        async def push_here(thread: int) -> list[int]:
            return [(await task.apush(thread, n)).id for n in range(5)]

        with ThreadPoolExecutor(THREADS) as pool:
            ids = [job_id for each in pool.map(push, range(THREADS)) for job_id in each]
        assert len(ids) == len(set(ids)) == THREADS * 30
        assert app.home.wait(size(app, "threads")) == THREADS * 30


def test_one_app_and_several_loops_after_each_other(url: str) -> None:
    with Penstock(url) as app:
        task = counting(app, "loops")

        async def once() -> int:
            job = await task.apush(0, 0)
            return int((await job.aget()).id)

        assert len({asyncio.run(once()) for _ in range(3)} | {task.push(0, 0).id}) == 4


def test_what_was_closed_opens_again(shared_url: str) -> None:
    app = Penstock(shared_url)
    task = counting(app, "closed")
    job = task.push(0, 1)
    app.close()
    app.close()
    assert job.get().payload == b'{"thread":0,"n":1}'

    async def closing() -> None:
        await app.aclose()
        assert (await task.apush(0, 2)).id != job.id
        async with app:
            pass

    asyncio.run(closing())
    assert not [each for each in threading.enumerate() if each.name == "penstock-home"]


def test_the_store_of_an_app_is_closed_with_the_app_alone(shared_url: str) -> None:
    """Whoever has asked for it is not the only one: a worker may live by it."""

    async def case(app: Penstock) -> None:
        store = await app.store()
        with pytest.raises(Conflict, match="close the app"):
            await store.close()
        assert (await store.health()).ok

    with Penstock(shared_url) as app:
        asyncio.run(case(app))


def test_a_store_in_memory_is_gone_when_closed() -> None:
    app = Penstock("memory://")
    count = counting(app, "q")
    job = count.push(0, 0)
    store = app.home.wait(app.store())
    app.close()

    async def late() -> None:
        with pytest.raises(Unavailable):
            await store.health()

    asyncio.run(late())
    with app:
        assert count.push(0, 0).id == job.id


def test_whoever_is_cancelled_while_it_opens_cancels_nobody_else() -> None:
    go = threading.Event()

    async def slowly() -> Store:
        await asyncio.to_thread(go.wait)
        return await open_store("memory://")

    async def both() -> None:
        first, second = (asyncio.create_task(home.store()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        go.set()
        assert (await (await second).health()).ok

    home = Home("memory://", "default", slowly)
    asyncio.run(both())
    home.close()


def test_a_store_that_cannot_be_opened_is_tried_again() -> None:
    tries: list[int] = []

    async def at_last() -> Store:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("not yet")
        return await open_store("memory://")

    home = Home("memory://", "default", at_last)
    for _ in range(2):
        with pytest.raises(Unavailable, match="not yet"):
            home.wait(home.store())
    assert home.wait(home.store()) is home.wait(home.store())
    assert len(tries) == 3
    home.close()


def test_a_wrong_url_of_the_environment_is_refused_at_the_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "mysql://localhost")
    app = Penstock()
    task = counting(app, "q")
    with pytest.raises(Invalid, match="no store that this release knows"):
        task.push(0, 0)
    app.close()


def test_whoever_waits_when_the_app_is_closed_waits_no_more() -> None:
    app = Penstock("memory://")
    job = counting(app, "q").push(0, 0)
    waiting = threading.Event()
    ended: list[BaseException] = []

    async def wait() -> None:
        waiting.set()
        await job.aresult()

    def in_a_thread() -> None:
        try:
            app.home.wait(wait())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            ended.append(error)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    waiting.wait()
    app.close()
    thread.join(10)
    assert [type(error).__name__ for error in ended] in (["Unavailable"], ["CancelledError"])


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///elsewhere.db")
    assert Penstock().url == "sqlite:///elsewhere.db"
    assert Penstock("memory://").url == "memory://"
    monkeypatch.setenv("PENSTOCK_URL", "")
    assert Penstock().url == DEFAULT_URL
    assert (Penstock().tenant, Penstock(tenant="acme").tenant) == ("default", "acme")


FORKS = """
import os, sys, asyncio
from penstock import Penstock

app = Penstock(sys.argv[1])

@app.task(queue="forks")
def step(n: int) -> None: ...

first = step.push(0).id
children = []
for n in range(3):
    child = os.fork()
    if not child:
        step.push(n)
        asyncio.run(step.apush(n))
        step.push_many([(n,), (n,)])
        assert int(step.push(n)) > first
        sys.exit(0)
    children.append(child)
assert step.push(9).id > first  # while they do
for child in children:
    assert os.waitpid(child, 0)[1] == 0
step.push(9)

async def size():
    (info,) = await (await app.store()).queues("default", ["forks"])
    return sum(info.counts.values())

print(asyncio.run(size()))
"""


def test_after_a_fork_both_go_on(shared_url: str, script: Script) -> None:
    assert script(FORKS, shared_url) == "18\n"


def test_a_store_in_memory_stays_with_its_process(script: Script) -> None:
    said = script("""
import os, sys
from penstock import Penstock

app = Penstock("memory://")
untouched = Penstock("memory://")
step = app.task(lambda: None)
other = untouched.task(lambda: None)
step.push()
child = os.fork()
if not child:
    try:
        step.push()
    except Exception as error:
        print(error, flush=True)
    print(other.push().id, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(step.push().id)
""")
    assert said == (
        "the jobs of a store in memory are in the process that this one was forked from:"
        " use sqlite:///path or a server to share them\n1\n2\n"
    )


def test_a_process_that_pushes_and_ends_loses_nothing(tmp_path: Path, script: Script) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    said = script(
        """
import sys
from penstock import Penstock

app = Penstock(sys.argv[1])
step = app.task(name="step")(lambda n: None)
print(len(step.push_many((n,) for n in range(1_000))))
""",
        url,
    )
    assert said == "1000\n"
    assert not (tmp_path / "jobs.db.sock").exists()  # closed, and not just gone
    with Penstock(url) as app:
        assert app.home.wait(size(app, "default")) == 1_000


def test_importing_the_package_imports_little(script: Script) -> None:
    """What a web process pays that only pushes."""
    said = script("""
import sys
import penstock
assert "penstock.client" not in sys.modules
from penstock import Penstock
for name in ("typer", "rich", "prometheus_client", "httptools", "pytest"):
    assert name not in sys.modules, name
print("fine")
""")
    assert said == "fine\n"


def test_several_tasks_of_one_loop_may_be_the_first_to_use_it(tmp_path: Path) -> None:
    """The visit of the one must not end with that of the other."""

    async def main() -> None:
        home = Home(f"sqlite:///{tmp_path}/jobs.db", "default")
        try:
            stores = await asyncio.gather(home.store(), home.store(), home.store())
            gc.collect()
            await asyncio.sleep(0)
            assert [await store.queues("default") for store in stores] == [[], [], []]
        finally:
            await home.aclose()

    for _ in range(3):
        asyncio.run(main())
