"""url → Store: the one place that knows which stores there are."""

from urllib.parse import urlsplit

from penstock.model.errors import Invalid
from penstock.model.event import EventSink
from penstock.model.policy import DEFAULT_CAPS, Caps
from penstock.model.store import Store
from penstock.stores.clock import Clock


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    caps: Caps = DEFAULT_CAPS,
    events: EventSink | None = None,
    seed: int | None = None,
) -> Store:
    """Open the store that `url` names, ready for use. Close it when done.

    `seed` fixes the jitter of backoffs (tests); None draws one for a new store.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        if url != "memory://":
            raise Invalid(f"{url!r} names more than memory:// does", "url")
        from penstock.stores.embedded import EmbeddedStore

        return EmbeddedStore(clock=clock, caps=caps, events=events, seed=seed)
    raise Invalid(f"{url!r} is no store that this release knows; memory:// is", "url")
