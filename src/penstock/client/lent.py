"""The store of an app, in the hands of whoever asks the app for it.

It is everybody's who uses the app, a worker among them, and ends with the app alone.
"""

from typing import Any

from penstock.model.errors import Conflict
from penstock.model.store import Store
from penstock.model.wrapper import Wrapper


class Lent(Wrapper):
    def __init__(self, store: Store) -> None:
        self._inner = store

    @property
    def inner(self) -> Store:
        return self._inner

    def __getattr__(self, name: str) -> Any:
        """What only some stores have, like `backup`."""
        return getattr(self._inner, name)

    async def close(self) -> None:
        raise Conflict("the store is the app's, and others use it: close the app")
