"""The parts of an agent, and how each of them is."""

import enum
import time
from collections.abc import Callable, Iterator

import structlog

_log = structlog.stdlib.get_logger(__name__)


class ComponentKind(enum.Enum):
    """What a component does."""

    SOURCE = "source"
    SINK = "sink"
    SINK_GROUP = "sink group"


class ComponentState(enum.Enum):
    """Moves; any is legal but out of STOPPED.

    STARTING -> RUNNING        it has begun its work
    any      -> BACKING_OFF    it could not do its work, and will try again by itself
    any      -> FAILED         it could not do its work, and trying again cannot help
    BACKING_OFF, FAILED -> RUNNING    it works again
    any      -> STOPPED        it has ended, because it was told to or because its work is done
    """

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    STOPPED = "stopped"


class Component:
    """A source, sink or sink group as others see it: its state, why, and what it has done.

    Attributes:
        event_count: Events that it has brought in, or that were settled.
        batch_count: Batches of these.
        byte_count: Bytes of their bodies.
        failure_count: Times that it had to back off.
        since: When it came to its state, in seconds since 1970.
    """

    def __init__(
        self, kind: ComponentKind, name: str, type_name: str, on_change: Callable[["Component"], None]
    ) -> None:
        self.kind = kind
        self.name = name
        self.type_name = type_name
        self._on_change = on_change
        self._log = _log.bind(**{kind.value.replace(" ", "_"): name})
        self.state = ComponentState.STARTING
        self.reason = ""
        self.since = time.time()
        self.event_count = 0
        self.batch_count = 0
        self.byte_count = 0
        self.failure_count = 0

    def note_progress(self, event_count: int, byte_count: int) -> None:
        """It has done a batch of its work; so it runs."""
        self.event_count += event_count
        self.batch_count += 1
        self.byte_count += byte_count
        self.runs()

    def starts(self) -> None:
        """It can do its work as far as it knows: it runs, unless its last try has failed."""
        if self.state is ComponentState.STARTING:
            self.runs()

    def runs(self) -> None:
        """It does its work."""
        if self.state is ComponentState.RUNNING:
            return
        if self.state is not ComponentState.STARTING:
            self._log.info("works again", after=self.reason)
        self._move(ComponentState.RUNNING, "")

    def backs_off(self, reason: str) -> None:
        """It could not do its work, and tries again later. The same reason is logged once, however often it comes."""
        self.failure_count += 1
        if self.state is not ComponentState.BACKING_OFF or self.reason != reason:
            self._log.warning("backs off", reason=reason)
            self._move(ComponentState.BACKING_OFF, reason)

    def fails(self, reason: str) -> None:
        """It cannot do its work until somebody changes something."""
        self._log.error("failed", reason=reason)
        self._move(ComponentState.FAILED, reason)

    def stops(self, reason: str = "") -> None:
        """It has ended; told again, it stays so."""
        if self.state is not ComponentState.STOPPED:
            self._move(ComponentState.STOPPED, reason)

    def _move(self, target: ComponentState, reason: str) -> None:
        assert self.state is not ComponentState.STOPPED, "what has stopped is made anew"
        self.state = target
        self.reason = reason
        self.since = time.time()
        self._on_change(self)


class Components:
    """All components of an agent."""

    def __init__(self) -> None:
        self._components: dict[tuple[ComponentKind, str], Component] = {}
        self._watchers: list[Callable[[Component], None]] = []

    def __iter__(self) -> Iterator[Component]:
        """By kind, then by name."""
        return iter(sorted(self._components.values(), key=lambda component: (component.kind.value, component.name)))

    def add(self, kind: ComponentKind, name: str, type_name: str) -> Component:
        """A component that starts; it takes the place of an earlier one of its kind and name."""
        component = Component(kind, name, type_name, self._tell_watchers)
        self._components[kind, name] = component
        self._tell_watchers(component)
        return component

    def remove(self, component: Component) -> None:
        """Knows no more of a component that has stopped."""
        if self._components.get((component.kind, component.name)) is component:
            del self._components[component.kind, component.name]
            self._tell_watchers(component)

    def watch(self, on_change: Callable[[Component], None]) -> None:
        """Calls `on_change` each time after a component was added, came to another state, or was removed."""
        self._watchers.append(on_change)

    def _tell_watchers(self, component: Component) -> None:
        for on_change in self._watchers:
            on_change(component)
