"""The parts of an agent, and how each of them is."""

import enum
import time
from collections.abc import Callable, Iterator

import structlog

from millrace_server.agent.rate_limited_log import TroubleLog

_log = structlog.stdlib.get_logger(__name__)


class ComponentKind(enum.Enum):
    """What a component does."""

    SOURCE = "source"
    SINK = "sink"
    SINK_GROUP = "sink group"

    @property
    def key(self) -> str:
        """The kind as one word, for logs, metrics and JSON."""
        return self.value.replace(" ", "_")


class ComponentState(enum.Enum):
    """Moves; any is legal but out of STOPPED, which changes nothing.

    STARTING -> RUNNING        it has begun its work
    any      -> BACKING_OFF    it could not do its work, and will try again by itself
    any      -> FAILED         it could not do its work, and trying again cannot help
    BACKING_OFF, FAILED -> RUNNING    it works again
    any      -> STANDING_BY    it is well, and a better sink of its group works
    STANDING_BY -> RUNNING     its turn has come
    any      -> STOPPED        it has ended, because it was told to or because its work is done
    """

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    STOPPED = "stopped"
    STANDING_BY = "standing by"

    @property
    def key(self) -> str:
        """The state as one word, for metrics."""
        return self.value.replace(" ", "_")

    @property
    def is_well(self) -> bool:
        """Whether a component in this state does its work, as far as anybody knows."""
        return self in {ComponentState.STARTING, ComponentState.RUNNING, ComponentState.STANDING_BY}


class EventOutcome(enum.Enum):
    """What may become of an event other than being stored in all channels that it is meant for, or brought on."""

    FILTERED = "filtered"
    """An interceptor has dropped it, as it is told to."""
    UNROUTED = "unrouted"
    """The selector has no channel for it."""
    DEAD_LETTERED = "dead_lettered"
    """It is in the dead-letter channel: a channel or a sink can never take it, or an interceptor refuses it."""
    DROPPED = "dropped"
    """The same, where no dead-letter channel could take it, or its source could not keep it: it is lost."""
    MISSED = "missed"
    """An optional channel did not take it."""


class Component:
    """A source, sink or sink group as others see it: its state, why, and what it has done.

    Attributes:
        reason: Why it backs off, has failed or has stopped; empty where there is nothing to say.
        event_count: Events that it has brought in, or brought on.
        batch_count: Batches of these.
        byte_count: Bytes of their bodies.
        failure_count: Times that it could not do its work.
        fates: How many events came to each of these ends.
        since: When it came to its state, in seconds since 1970.
    """

    def __init__(
        self, kind: ComponentKind, name: str, type_name: str, on_change: Callable[["Component"], None]
    ) -> None:
        self.kind = kind
        self.name = name
        self.type_name = type_name
        self._on_change = on_change
        self._log = _log.bind(**{kind.key: name})
        self._troubles = TroubleLog()
        self._progress_at: float | None = None
        self.state = ComponentState.STARTING
        self.reason = ""
        self.since = time.time()
        self.event_count = 0
        self.batch_count = 0
        self.byte_count = 0
        self.failure_count = 0
        self.fates = dict.fromkeys(EventOutcome, 0)

    @property
    def progress_age_seconds(self) -> float | None:
        """How long ago it did a batch of its work; None where it never did."""
        return None if self._progress_at is None else time.monotonic() - self._progress_at

    def note_progress(self, event_count: int, byte_count: int) -> None:
        """It has done a batch of its work; so it runs."""
        self.event_count += event_count
        self.batch_count += 1
        self.byte_count += byte_count
        self._progress_at = time.monotonic()
        self.runs()

    def note_outcome(self, fate: EventOutcome, event_count: int) -> None:
        """Events came to such an end."""
        self.fates[fate] += event_count

    def starts(self) -> None:
        """It can do its work as far as it knows: it runs, unless its last try has failed."""
        if self.state in {ComponentState.STARTING, ComponentState.STANDING_BY}:
            self.runs()

    def stands_by(self) -> None:
        """It could do its work as far as it knows, and does not, for a better one does it."""
        self._move(ComponentState.STANDING_BY, "")

    def runs(self) -> None:
        """It does its work."""
        if self.state is ComponentState.RUNNING:
            return
        if self._troubles.ends_spell():
            self._log.info("works again", after=self.reason)
        self._move(ComponentState.RUNNING, "")

    def backs_off(self, reason: str, unexpected: Exception | None = None) -> None:
        """It could not do its work, and tries again later. To be called at each failure: the log is not flooded.

        Args:
            reason: Why, in a sentence.
            unexpected: An error that it should not have raised: the log gets its traceback.
        """
        self.failure_count += 1
        if self._troubles.admits(reason):
            untold = {"failures_not_told": count} if (count := self._troubles.untold_count) else {}
            self._troubles.untold_count = 0
            if unexpected is None:
                self._log.warning("backs off", reason=reason, **untold)
            else:
                self._log.error("backs off", reason=reason, exc_info=unexpected, **untold)
        self._move(ComponentState.BACKING_OFF, reason)

    def fails(self, reason: str) -> None:
        """It cannot do its work until somebody changes something."""
        self.failure_count += 1
        if self.state is not ComponentState.FAILED:
            # Told in any case: it is not tried again, so there is no flood to fear, and nobody else will say it.
            self._troubles.admits(f"failed: {reason}")
            self._log.error("failed", reason=reason)
        self._move(ComponentState.FAILED, reason)

    def stops(self, reason: str = "") -> None:
        """It has ended; told again, it stays so."""
        self._move(ComponentState.STOPPED, reason)

    def _move(self, target: ComponentState, reason: str) -> None:
        if self.state is ComponentState.STOPPED:
            # What has stopped is made anew; a task of a user's own sink may still have something to say of it.
            return
        self.reason = reason
        if self.state is not target:
            self.state = target
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

    def find(self, kind: ComponentKind, name: str) -> Component | None:
        """The component of that kind and name; None where there is none."""
        return self._components.get((kind, name))

    def add(self, kind: ComponentKind, name: str, type_name: str) -> Component:
        """A component that starts; it takes the place of an earlier one of its kind and name."""
        component = Component(kind, name, type_name, self._tell_watchers)
        self._components[kind, name] = component
        self._tell_watchers(component)
        return component

    def remove(self, component: Component) -> None:
        """Knows no more of a component that has stopped."""
        if self.find(component.kind, component.name) is component:
            del self._components[component.kind, component.name]
            self._tell_watchers(component)

    def watch(self, on_change: Callable[[Component], None]) -> None:
        """Calls `on_change` each time after a component was added, came to another state, or was removed."""
        self._watchers.append(on_change)

    def _tell_watchers(self, component: Component) -> None:
        for on_change in self._watchers:
            on_change(component)
