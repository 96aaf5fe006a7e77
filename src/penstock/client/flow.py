"""Flows: tasks that run after each other, beside each other, and when others are done.

chain(fetch.s(url), parse.s(), store.s())           one after the other
group(resize.s(1), resize.s(2)).then(publish.s())   all of them, and then one
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from penstock.client.task import Task


class Signature(msgspec.Struct, frozen=True):
    """A call of a task that has not been made."""

    task: "Task[..., Any, Any]"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
