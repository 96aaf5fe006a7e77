"""A worker's process is scheduled in short slices, where the kernel knows of that."""

import ctypes
import errno
import os
import platform
import subprocess
import sys

import pytest

from penstock.worker.slices import _ATTRIBUTES, _SETATTR, SLICE_NS, ask_for_short_slices


def attributes() -> tuple[int, int, int]:
    """(policy, nice, slice) of this thread, as the kernel says it."""
    said = ctypes.create_string_buffer(_ATTRIBUTES.size)
    get = _SETATTR[platform.machine()] + 1
    assert ctypes.CDLL(None).syscall(get, 0, said, len(said), 0) == 0
    _, policy, _, nice, _, runtime, _, _ = _ATTRIBUTES.unpack(said.raw)
    return policy, nice, runtime


def known() -> bool:
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor)) >= (6, 12)


def elsewhere(case: str) -> None:
    """In a process of its own: what is asked for cannot be taken back by everybody."""
    call = f"from tests.worker.test_slices import {case}; {case}()"
    subprocess.run([sys.executable, "-c", call], check=True, timeout=60)


def a_nice_one_stays_so() -> None:
    nice = os.nice(7)
    assert ask_for_short_slices()
    assert attributes() == (os.SCHED_OTHER, nice, SLICE_NS if known() else 0)
    shown = f"import {__name__} as t; assert t.attributes()[1:] == {attributes()[1:]}"
    subprocess.run([sys.executable, "-c", shown], check=True, timeout=60)  # so do its processes


def one_that_was_told_otherwise_stays_so() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    before = attributes()
    assert not ask_for_short_slices()
    assert attributes() == before


@pytest.mark.parametrize("case", (a_nice_one_stays_so, one_that_was_told_otherwise_stays_so))
def test_it_is_asked_for_once_and_changes_nothing_else(case: object) -> None:
    elsewhere(case.__name__)  # type: ignore[attr-defined]


def test_a_c_library_that_makes_no_such_call_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As musl's, which has the functions and no more."""

    def stub(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    before = attributes()
    monkeypatch.setattr(os, "sched_getscheduler", stub)
    assert not ask_for_short_slices()
    assert attributes() == before


def test_where_nobody_knows_of_it_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = attributes()
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert not ask_for_short_slices()
    monkeypatch.undo()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert not ask_for_short_slices()
    monkeypatch.undo()
    assert attributes() == before
