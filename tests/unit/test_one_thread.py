"""The executor that goes on when the process begins to end."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait

import pytest

from penstock.stores.one_thread import OneThread

ENDING = """
import threading, time
from penstock.stores.one_thread import OneThread

one = OneThread("one")

def late():
    threading.main_thread().join()
    print(one.submit(lambda: "still").result(30))

threading.Thread(target=late).start()
"""


def test_one_after_the_other_in_one_thread() -> None:
    one = OneThread("one")
    names = [one.submit(threading.current_thread) for _ in range(3)]
    assert {future.result(30).name for future in names} == {"one"}
    with pytest.raises(KeyError):
        one.submit({}.__getitem__, "no").result(30)
    one.shutdown()


def test_what_was_submitted_is_done_and_nothing_more_is_taken() -> None:
    one, go = OneThread("one"), threading.Event()
    held, behind, given_up = one.submit(go.wait, 30), one.submit(len, "two"), one.submit(len, "")
    assert given_up.cancel()
    one.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        one.submit(len, "three")
    go.set()
    one.shutdown()
    assert not wait([held, behind], timeout=0).not_done
    assert (held.result(), behind.result()) == (True, 3)
    with pytest.raises(CancelledError):
        given_up.result()


def test_it_takes_work_when_the_main_thread_is_over() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("still\n", "")
