"""What goes wrong while a path changes hands: nobody is left waiting, and no lock is left behind."""

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.stores import connecting, durable, link
from penstock.stores import shared as module
from penstock.stores.journal import recovery
from penstock.stores.journal.ownership import Ownership, owner_of
from penstock.stores.serving import Listener
from penstock.stores.shared import SharedStore
from tests.durable import scratch
from tests.unit.test_shared import play, push, shared

PATIENCE_S = 30


@pytest.fixture(params=["rocksdb", "sqlite"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with scratch() as directory:
        yield f"{request.param}:///{directory}/jobs"


def path_of(url: str) -> Path:
    return Path(url.partition("///")[2])


async def only_this_task() -> None:
    """Let what has been cancelled end; nothing else may be left."""
    async with asyncio.timeout(PATIENCE_S):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


class Recovery:
    """A recovery that waits until it is let on, in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        recover = recovery.recover

        def waiting(*said: Any, **more: Any) -> Any:
            self.begun.set()
            assert self.go_on.wait(30)
            return recover(*said, **more)

        monkeypatch.setattr(durable, "recover", waiting)

    async def under_way(self) -> None:
        await asyncio.to_thread(self.begun.wait, 30)


# -- cancelled and closed --------------------------------------------------------------------------


def test_a_cancelled_opening_keeps_the_lock_while_its_thread_works(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Recovery(monkeypatch)

    async def case() -> None:
        opening = asyncio.ensure_future(open_store(url))
        await slow.under_way()
        for _ in range(3):
            opening.cancel()
            await asyncio.sleep(0)
        assert not opening.done()
        assert owner_of(path_of(url)) == os.getpid()
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert owner_of(path_of(url)) is None
        store = await open_store(url, share=False)
        await store.close()
        await only_this_task()

    play(case)


def test_a_store_that_is_closed_while_it_takes_over_leaves_the_path_free(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        slow = Recovery(monkeypatch)
        await first.close()
        await slow.under_way()
        assert owner_of(path_of(url)) == os.getpid()
        closing = asyncio.ensure_future(second.close())
        await asyncio.sleep(0)
        slow.go_on.set()
        await closing
        assert not second.owned
        assert owner_of(path_of(url)) is None
        with pytest.raises(Unavailable, match="closed"):
            await push(second)
        await only_this_task()

    play(case)


def test_a_store_that_is_closed_while_it_begins_to_listen_leaves_the_path_free(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        listen, reached, go_on = Listener.listen_unix, asyncio.Event(), asyncio.Event()

        async def slowly(self: Listener, *said: Any, **more: Any) -> Path:
            found = await listen(self, *said, **more)
            reached.set()
            await go_on.wait()
            return found

        monkeypatch.setattr(Listener, "listen_unix", slowly)
        await first.close()
        await reached.wait()
        closing = asyncio.ensure_future(second.close())
        await asyncio.sleep(0)  # it has begun
        go_on.set()
        await closing
        assert owner_of(path_of(url)) is None
        assert not path_of(url).with_name("jobs.sock").exists()
        await only_this_task()

    play(case)


def test_an_opening_given_up_on_leaves_nobody_who_takes_over_later(url: str) -> None:
    """The owner does not answer, and whoever wanted to open the store has gone on."""

    async def case() -> None:
        ownership = Ownership(path_of(url))
        ownership.take()
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(f"{path_of(url)}.sock")
            mute.listen()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await open_store(url)
        await only_this_task()
        ownership.leave()
        assert owner_of(path_of(url)) is None

    play(case)


def test_attempts_that_fail_one_after_the_other_do_not_meet(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that is mute at first: no attempt drops the connection that another one made."""
    monkeypatch.setattr(connecting, "CONNECT_S", 0.2)

    async def case() -> None:
        ownership = Ownership(path_of(url))
        ownership.take()
        address = f"{path_of(url)}.sock"
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(address)
            mute.listen()
            mute.setblocking(False)
            opening = asyncio.ensure_future(shared(url))
            loop = asyncio.get_running_loop()
            heard = [await loop.sock_accept(mute) for _ in range(3)]  # and no word to any
        for attempt, _ in heard:
            attempt.close()
        ownership.leave()
        store = await opening
        assert await push(store)
        assert store.owned
        await store.close()
        await only_this_task()

    play(case)


def test_two_who_close_it_at_once_both_wait_until_it_is_closed(url: str) -> None:
    async def case() -> None:
        store = await shared(url)
        given_up = asyncio.ensure_future(store.close())
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        given_up.cancel()
        await closing
        assert owner_of(path_of(url)) is None
        await store.close()

    play(case)


def test_a_close_that_is_cancelled_frees_the_path_of_whoever_shares_it_with_nobody(
    url: str,
) -> None:
    async def case() -> None:
        store = await open_store(url, share=False)
        ids = await push(store, 3)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert owner_of(path_of(url)) is None
        again = await open_store(url, share=False)
        assert [job is not None for job in await again.get("default", ids)] == [True] * 3
        await again.close()

    play(case)


# -- loops -----------------------------------------------------------------------------------------


def test_a_loop_that_ends_without_closing_the_store_hands_it_over(url: str) -> None:
    async def forgetful() -> list[int]:
        return await push(await shared(url), 3)

    ids = asyncio.run(forgetful())
    assert owner_of(path_of(url)) is None

    async def case() -> None:
        store = await open_store(url, share=False)
        assert (await store.health()).detail["cut_bytes"] == 0
        lease = await store.claim("default", ["work"], 10)
        assert lease is not None
        assert lease.ids == ids
        await store.close()

    play(case)


# A loop that is closed leaves its tasks and sockets to the collector, which complains: not here.
_CLOSED_UNDER = """
import asyncio, os, sys
from pathlib import Path
from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.stores.journal.ownership import owner_of

url, path = sys.argv[1], Path(sys.argv[2])
loop = asyncio.new_event_loop()
store = loop.run_until_complete(open_store(url))
first = loop.run_until_complete(store.push_jobs("default", "work", [JobSpec()] * 3)).ids
loop.close()
assert owner_of(path) == os.getpid()

async def main():
    assert (await store.push_jobs("default", "work", [JobSpec()])).ids > first
    assert store.owned  # by the loop that needs it next
    await store.close()
    assert owner_of(path) is None

asyncio.run(main())
"""


def test_a_loop_that_was_closed_under_the_store_does_not_keep_the_path(url: str) -> None:
    argv = [sys.executable, "-W", "ignore", "-c", _CLOSED_UNDER, url, str(path_of(url))]
    subprocess.run(argv, check=True, timeout=60)


def test_the_store_is_closed_from_whichever_loop(url: str) -> None:
    async def case() -> None:
        store = await shared(url)
        await asyncio.to_thread(lambda: asyncio.run(store.close()))
        assert owner_of(path_of(url)) is None

    play(case)


def test_a_thread_that_became_the_owner_leaves_the_path_to_the_others(url: str) -> None:
    async def case() -> None:
        first = await shared(url)
        heirs: list[SharedStore] = []
        opened = threading.Event()

        async def in_a_thread() -> None:
            store = await shared(url)
            heirs.append(store)
            opened.set()
            await store.changed_hands()
            await store.leave()
            assert not store.owned

        thread = threading.Thread(target=lambda: asyncio.run(in_a_thread()))
        thread.start()
        await asyncio.to_thread(opened.wait, 30)
        await first.close()
        await asyncio.to_thread(thread.join)
        assert await push(heirs[0])
        assert heirs[0].owned
        await heirs[0].close()

    play(case)


def test_everybody_who_waits_to_own_the_path_is_told(url: str) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        waiting = [asyncio.ensure_future(second.changed_hands()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        await first.close()
        await asyncio.gather(*waiting)
        await second.close()

    play(case)


# -- heirs -----------------------------------------------------------------------------------------


def test_one_of_many_heirs_gets_the_path(url: str) -> None:
    async def case() -> None:
        owner, *stores = [await shared(url) for _ in range(6)]
        ids: list[int] = []
        while stores:
            pushing = [asyncio.ensure_future(push(store)) for store in stores]
            heirs = [asyncio.ensure_future(store.changed_hands()) for store in stores]
            await owner.close()
            for pushed in await asyncio.gather(*pushing):
                ids += pushed
            await asyncio.wait(heirs, return_when=asyncio.FIRST_COMPLETED)
            (owner,) = [store for store in stores if store.owned]
            stores.remove(owner)
            for heir in heirs:
                heir.cancel()
        await owner.close()
        assert len(set(ids)) == 5 + 4 + 3 + 2 + 1
        last = await open_store(url, share=False)
        assert None not in await last.get("default", ids)
        await last.close()
        await only_this_task()

    play(case)


def test_a_store_is_opened_while_its_owner_closes_it(url: str) -> None:
    async def case() -> None:
        owner = await shared(url)
        for turn in range(20):
            opening = asyncio.ensure_future(shared(url))
            for _ in range(turn):
                await asyncio.sleep(0)
            await owner.close()
            owner = await opening
            assert await push(owner)
        await owner.close()
        await only_this_task()

    play(case)


# -- what an heir may meet -------------------------------------------------------------------------


def test_an_heir_that_cannot_listen_says_so_and_tries_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)

    async def case() -> None:
        first, second = await shared(url), await shared(url)

        async def full(self: Listener, *_: Any, **__: Any) -> Path:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Listener, "listen_unix", full)
            await first.close()
            with pytest.raises(Unavailable, match="No space left"):
                await push(second)
            assert owner_of(path_of(url)) is None
        await second.changed_hands()  # nobody has to ask
        assert await push(second)
        await second.close()

    with caplog.at_level(logging.WARNING, "penstock.store"):
        play(case)
    told = [record for record in caplog.records if "cannot be owned" in record.message]
    assert len(told) == 1


def test_an_heir_of_a_damaged_store_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)

    async def case() -> None:
        first, second = await shared(url), await shared(url)

        def damaged(*_: Any, **__: Any) -> Any:
            raise ValueError("a bit has flipped")

        monkeypatch.setattr(durable, "recover", damaged)
        await first.close()
        with pytest.raises(Unavailable, match="a bit has flipped"):
            await push(second)
        with pytest.raises(Unavailable, match="a bit has flipped"):
            await open_store(url)
        assert owner_of(path_of(url)) is None
        await second.close()
        await only_this_task()

    play(case)


def test_an_owner_that_does_not_answer_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(connecting, "CONNECT_S", 0.1)

    async def case() -> None:
        ownership = Ownership(path_of(url))
        ownership.take()
        with pytest.raises(Unavailable) as refused:
            await open_store(url)
        ownership.leave()
        said = str(refused.value)
        assert f"{path_of(url)} is owned by process {os.getpid()}" in said
        assert f"{path_of(url)}.sock cannot be reached" in said

    play(case)


def test_a_path_that_this_user_may_not_write_says_so(tmp_path: Path) -> None:
    async def case() -> None:
        with pytest.raises(Unavailable, match="cannot be owned"):
            await open_store(f"sqlite:///{tmp_path}/missing/jobs.db")

    play(case)


def test_the_path_is_the_same_from_wherever_and_by_whichever_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, path = url.partition(":")[0], path_of(url)
    path.with_name("other").symlink_to(path)

    async def case() -> None:
        first = await shared(url)
        monkeypatch.chdir(path.parent)
        second, third = await shared(f"{scheme}:///jobs"), await shared(f"{scheme}:///other")
        monkeypatch.chdir(tmp_path)
        ids = await push(first, 3)
        await first.close()
        assert await push(third) > ids
        await second.close()
        await third.changed_hands()
        lease = await third.claim("default", ["work"], 10)
        assert lease is not None
        assert lease.ids[:3] == ids
        await third.close()

    play(case)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_was_deleted_before_it_was_locked_is_no_lock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(url)
    lock = path.with_name("jobs.lock")
    locked = Ownership._locked
    others: list[Ownership] = []

    def late(self: Ownership) -> int:
        handle = locked(self)
        if not others:
            lock.unlink()
            others.append(Ownership(path))
            others[0].take()
        return handle

    monkeypatch.setattr(Ownership, "_locked", late)
    with pytest.raises(Unavailable, match="is owned"):
        Ownership(path).take()
    others[0].leave()


# -- what is seen ----------------------------------------------------------------------------------


def test_health_says_who_owns_the_path(url: str) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        for store, role in ((first, "owner"), (second, "client")):
            detail = (await store.health()).detail
            assert (detail["role"], detail["owner"]) == (role, os.getpid())
        await first.close()
        await second.changed_hands()
        assert (await second.health()).detail["role"] == "owner"
        await second.close()

    play(case)


def test_an_heir_says_whom_it_follows(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        await first.close()
        await second.changed_hands()
        await second.close()

    with caplog.at_level(logging.INFO, "penstock.store"):
        play(case)
    told = [record.getMessage() for record in caplog.records if "took it over" in record.message]
    (line,) = told
    assert f"process {os.getpid()} took it over from process {os.getpid()} in " in line


# -- forks -----------------------------------------------------------------------------------------

# A process that opens the store and forks a child, which outlives it and then wants to push.
_FORKING = """
import asyncio, os, sys, threading
from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.stores import shared

async def as_child(store):
    try:
        await store.push_jobs("default", "work", [JobSpec()])
        await store.close()
        print("pushed", flush=True)
    except Exception as error:
        print(error, flush=True)

async def main():
    shared.PATIENCE_S = 0.3 if "impatient" in sys.argv else 30.0
    store = await open_store(sys.argv[1])
    if "claim" in sys.argv:
        waiting = asyncio.ensure_future(store.claim("default", ["work"], wait_ms=600_000))
        await store.health()
    print("open", flush=True)
    await asyncio.to_thread(os.read, 0, 1)
    if os.fork() == 0:
        if os.read(0, 1):  # a thread, because here the parent's loop is running
            thread = threading.Thread(target=lambda: asyncio.run(as_child(store)))
            thread.start()
            thread.join()
        os._exit(0)
    print("forked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Forking:
    """That process."""

    def __init__(self, url: str, *said: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FORKING, url, *said],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "open"

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def fork(self) -> None:
        assert self.tell() == "forked"

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> "Forking":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # the child's, too
        self.process.wait()
        self.process.stdout.close()


def test_clients_notice_the_death_of_an_owner_whose_child_lives(url: str) -> None:
    with Forking(url) as owner:

        async def case() -> None:
            store = await shared(url)
            await push(store)
            await asyncio.to_thread(owner.fork)
            owner.kill()
            async with asyncio.timeout(link.SILENCE_S):  # else it is noticed by silence alone
                await store.changed_hands()
            await store.close()

        play(case)


def test_the_owner_notices_the_death_of_a_client_whose_child_lives(url: str) -> None:
    async def case() -> None:
        store = await shared(url)
        with await asyncio.to_thread(Forking, url, "claim") as client:
            assert (await store.health()).detail["waiting_claims"] == 1
            await asyncio.to_thread(client.fork)
            client.kill()
            for _ in range(500):
                if not (await store.health()).detail["waiting_claims"]:
                    break
                await asyncio.sleep(0.01)
            assert (await store.health()).detail["waiting_claims"] == 0
        await store.close()

    play(case)


def test_a_child_of_the_owner_goes_on_as_a_client_of_the_next(url: str) -> None:
    with Forking(url) as owner:

        async def case() -> None:
            store = await shared(url)
            await asyncio.to_thread(owner.fork)
            owner.kill()
            await store.changed_hands()
            assert await asyncio.to_thread(owner.tell) == "pushed"
            assert store.owned
            await store.close()

        play(case)


def test_a_child_of_the_owner_is_not_its_heir(url: str) -> None:
    """It has inherited an open database, and neither SQLite nor RocksDB knows that it is not its
    own: it would believe to hold locks that died with its parent."""
    with Forking(url, "impatient") as owner:
        owner.fork()
        owner.kill()
        assert owner.process.wait() == -signal.SIGKILL
        said = owner.tell()
        assert f"was open in process {owner.process.pid} when this one was forked" in said


def test_a_child_of_a_client_may_be_the_heir(url: str) -> None:
    async def case() -> None:
        store = await shared(url)
        with await asyncio.to_thread(Forking, url) as client:
            await asyncio.to_thread(client.fork)
            client.kill()
            await store.close()
            assert await asyncio.to_thread(client.tell) == "pushed"

    play(case)


ENDING = """
import sys, threading
from penstock import Penstock

app = Penstock(sys.argv[1])

@app.task(queue="q")
def job(n: int) -> None: ...

job.push(0)
threading.Thread(target=sys.stdin.read).start()  # for as long as this is open, the process is
threading.Thread(target=lambda: (threading.main_thread().join(), print("over", flush=True))).start()
"""


def test_an_owner_whose_main_thread_is_over_goes_on_serving(url: str) -> None:
    """With payloads that it has to read first. When it has gone, the path is another's."""

    async def case() -> None:
        store = await open_store(url)
        specs = [JobSpec(payload=b"%d" % n) for n in range(1, 51)]
        await store.push_jobs("default", "q", specs)
        await store.close()
        owner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ENDING, url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"over\n"
        client = await open_store(url)
        given: list[bytes] = []
        while (lease := await client.claim("default", ["q"], 10)) is not None:
            given += [job.payload for job in lease.jobs]
            await client.ack("default", lease.token)
        assert len(given) == 51
        owner.stdin.close()
        assert await owner.wait() == 0
        await push(client)
        assert owner_of(path_of(url)) == os.getpid()
        await client.close()

    play(case)
