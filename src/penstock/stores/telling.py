"""What happened, told: to the meter at once, to the event log and to watchers when it is safe."""

from typing import TYPE_CHECKING

from penstock.model.errors import Overloaded
from penstock.model.event import Event, EventKeeper, EventSink
from penstock.stores.watching import Watcher

if TYPE_CHECKING:
    from penstock.stores.engine import Engine


class Telling:
    def __init__(
        self, engine: "Engine", sink: EventSink | None, observer: EventSink | None
    ) -> None:
        self._engine = engine
        self._sink = sink
        self.kept = sink if isinstance(sink, EventKeeper) else None
        self._observer = observer
        self.heard = False  # somebody waits for events to be safe
        self.watchers: dict[Watcher, None] = {}
        self.untold: list[list[Event]] = []  # of each command of this turn
        self.listen()

    def listen(self) -> None:
        """Have the kernel tell events exactly while somebody hears them."""
        kernel = self._engine.kernel
        self.heard = self._sink is not self.kept or bool(self.watchers)
        wanted = self.heard or self.kept is not None or self._observer is not None
        if wanted and kernel.events is None:
            kernel.events = []
        elif not wanted:
            kernel.events = None

    def take(self) -> None:
        """Set aside what the last command has led to: its events are numbered by themselves."""
        kernel = self._engine.kernel
        if kernel.events:
            self.untold.append(kernel.events)
            kernel.events = []

    def pass_on(self) -> None:
        """Tell what was set aside; the last thing of a turn, when those who waited have their jobs."""
        untold, self.untold = self.untold, []
        for events in untold:
            self._pass_on(events)

    def _pass_on(self, events: list[Event]) -> None:
        keeper = self._engine.keeper
        if self._observer is not None:
            self._observer.write(events)
        if self.heard or self.kept is not None:
            if keeper is None:
                self._tell(events)
                return
            keeper.after(lambda: self._tell(events))
            if not self.heard:
                keeper.soon()

    def _tell(self, events: list[Event]) -> None:
        if self._sink is not None:
            self._sink.write(events)
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.offer(events)

    def watch(self, watcher: Watcher) -> None:
        most = self._engine.kernel.caps.subscribers
        if len(self.watchers) >= most:
            raise Overloaded(f"{most} watchers are listening")
        self.watchers[watcher] = None
        self.listen()

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.pop(watcher, None)
        self.listen()

    def end(self) -> None:
        for watcher in list(self.watchers):
            watcher.end(None)
