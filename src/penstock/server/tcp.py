"""The commands that strangers may say on TCP and Unix sockets, and the listener for them."""

from collections.abc import Callable
from typing import Final

from penstock.model.store import Store
from penstock.protocol.access import Authenticator
from penstock.protocol.command import Figures, Request
from penstock.protocol.compatible import COMPATIBLE
from penstock.protocol.native import NATIVE
from penstock.stores.serving import Audit, Listener, ServingLimits

COMMANDS: Final[tuple[type[Request], ...]] = NATIVE + COMPATIBLE


def tcp_listener(
    store: Store,
    authenticator: Authenticator,
    *,
    limits: ServingLimits | None = None,
    audit: Audit | None = None,
    figures: Callable[[str], Figures] | None = None,
) -> Listener:
    """A listener for every command; say where with its `listen_tcp` and `listen_unix`."""
    return Listener(store, COMMANDS, authenticator, limits=limits, audit=audit, figures=figures)
