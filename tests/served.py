"""A store behind a live server in the same loop, with its telemetry, reached as clients reach it."""

from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock.model.store import Store
from penstock.open import open_store
from penstock.protocol.access import OpenToAll
from penstock.server.tcp import tcp_listener
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener
from penstock.stores.target import target_of
from penstock.telemetry.meter import Meter
from penstock.telemetry.store import Telemetry

SERVED: Final = ("tcp", "unix")  # how it is reached


class ServedStore(RemoteStore):
    """The client; its server and the store behind it go with it."""

    inner: EmbeddedStore
    listener: Listener
    directory: "TemporaryDirectory[str] | None" = None  # of the socket file

    @classmethod
    async def open(cls, how: str, **options: Any) -> "ServedStore":
        meter = Meter(options["clock"].now_ms)
        inner = await open_store("memory://", observer=meter, **options)
        assert isinstance(inner, EmbeddedStore)
        listener = tcp_listener(Telemetry(inner, meter), OpenToAll())
        directory = None
        if how == "tcp":
            host, port = await listener.listen_tcp("127.0.0.1", 0)
            url = f"penstock://{host}:{port}"
        else:
            directory = TemporaryDirectory(prefix="penstock-")
            url = f"penstock+unix://{await listener.listen_unix(directory.name + '/sock')}"
        store = cls(target_of(url))
        store.inner, store.listener, store.directory = inner, listener, directory
        await store.connect()
        return store

    async def close(self) -> None:
        await super().close()
        await self.listener.close()
        await self.inner.close()
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None


def behind(store: Store) -> Store:
    """What a server serves; of a store that is not served, itself."""
    return store.inner if isinstance(store, ServedStore) else store
