"""A store that does not let the worker in, or not any more: a token revoked, a scope taken away.

Whoever runs a worker may have revoked its token on purpose, or be about to put it back: so a refusal
ends nothing by itself. It is said once for each cause, with what to do, and the worker goes on asking.
"""

import logging
from typing import Final

from penstock.model.errors import Forbidden, PenstockError, Unauthenticated

log: Final = logging.getLogger("penstock.worker")

REFUSED: Final = (Unauthenticated, Forbidden)
TO_DO: Final = (
    "the worker needs a token that the server knows, with the scope claim for its queues;"
    " it goes on asking"
)


def said(error: PenstockError) -> str:
    """With what to do about it, where somebody can do something."""
    return f"{error}; {TO_DO}" if isinstance(error, REFUSED) else str(error)


class Refusals:
    """Of calls of one kind."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._cause = ""  # the one that was said last

    def say(self, error: PenstockError) -> None:
        if error.code != self._cause:
            self._cause = error.code
            log.error("%s: %s", self._what, said(error), extra={"code": error.code})

    def over(self) -> None:
        """It was let in again."""
        self._cause = ""
