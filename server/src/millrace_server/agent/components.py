"""The components of an agent, with their states and counters."""

import asyncio
import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import structlog

from millrace.setting_problems import without_passwords
from millrace_server.agent.rate_limited_log import FailureLog

_log = structlog.stdlib.get_logger(__name__)


class _KeyedEnum(enum.Enum):
    @property
    def key(self) -> str:
        """The value as a single word, for logs, metrics and JSON."""
        return str(self.value).replace(" ", "_")


class ComponentKind(_KeyedEnum):
    """The kind of a component."""

    SOURCE = "source"
    SINK = "sink"
    SINK_GROUP = "sink group"


class ComponentState(_KeyedEnum):
    """Moves; any is legal except out of STOPPED, which is final.

    STARTING -> RUNNING        it has started to work
    any      -> BACKING_OFF    it could not work, and retries automatically
    any      -> FAILED         it could not work, and a retry cannot help
    BACKING_OFF, FAILED -> RUNNING    it works again; after FAILED only because of `retry`
    any      -> STANDING_BY    it is healthy but another one is active: a sink of its group with a higher priority, or
                               the component of this name at the server that owns its replicated channel
    STANDING_BY -> RUNNING     it has become its group's active sink, or this server owns the channel
    any      -> STOPPED        it was stopped, or its work is done
    """

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    STOPPED = "stopped"
    STANDING_BY = "standing by"

    @property
    def is_healthy(self) -> bool:
        """Whether a component in this state is not known to have a problem."""
        return self in {ComponentState.STARTING, ComponentState.RUNNING, ComponentState.STANDING_BY}


class EventOutcome(enum.Enum):
    """What can happen to an event that is neither stored in all its channels nor delivered."""

    FILTERED = "filtered"
    """An interceptor dropped it, as configured."""
    UNROUTED = "unrouted"
    """The selector has no channel for it."""
    DEAD_LETTERED = "dead_lettered"
    """It is in the dead-letter channel: a channel or a sink can never accept it, or an interceptor refused it."""
    DROPPED = "dropped"
    """It is lost: it should have become a dead letter but could not, or its source could not keep it."""
    MISSED = "missed"
    """An optional channel did not accept it."""


class Component:
    """A source, sink or sink group as operators see it: its state, the reason, and its counters.

    Attributes:
        log: A log whose lines name the component.
        reason: Why it backs off, has failed or has stopped; may be empty.
        event_count: Events that a source has completed in batches, whatever their outcome, or a sink has delivered.
        byte_count: Bytes of their bodies.
        outcome_counts: The number of events with each other outcome.
        incident_counts: How often an incident happened, by its name: not a failure, but relevant to operators, such as
            a rebalance of a Kafka consumer group.
        since: When it entered its state, in seconds since 1970.
        progress_time: When it last completed a batch, in seconds since 1970; None before the first one.
        channels: The channels that it writes or reads; a role that may describe one of them may see the component.
        dead_letter_channel: The channel for events that it sets aside; None if there is none.
        members: The sinks of a sink group.
    """

    def __init__(
        self,
        kind: ComponentKind,
        name: str,
        type_name: str,
        on_change: Callable[["Component"], None],
        channels: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.name = name
        self.type_name = type_name
        self.channels = channels
        self.dead_letter_channel: str | None = None
        self.members: Sequence[Component] = ()
        self._retries: set[asyncio.Event] = set()
        self.log = _log.bind(**{kind.key: name})
        self._on_change = on_change
        self._failures = FailureLog()
        self._progress_at: float | None = None
        self.progress_time: float | None = None
        self.state = ComponentState.STARTING
        self.reason = ""
        self.since = time.time()
        self.event_count = 0
        self.batch_count = 0
        self.byte_count = 0
        self.failure_count = 0
        self.outcome_counts = dict.fromkeys(EventOutcome, 0)
        self.incident_counts: Counter[str] = Counter()

    @property
    def progress_age_seconds(self) -> float | None:
        """Seconds since its last batch; None before the first one."""
        return None if self._progress_at is None else time.monotonic() - self._progress_at

    def record_progress(self, event_count: int, byte_count: int) -> None:
        self.event_count += event_count
        self.batch_count += 1
        self.byte_count += byte_count
        self._progress_at, self.progress_time = time.monotonic(), time.time()
        self.mark_running()

    def record_outcome(self, outcome: EventOutcome, event_count: int) -> None:
        self.outcome_counts[outcome] += event_count

    def record_incident(self, incident: str, count: int = 1) -> None:
        self.incident_counts[incident] += count

    async def wait_for_retry(self, seconds: float) -> None:
        """Waits until its next attempt is due, or `retry` is called."""
        retry = asyncio.Event()
        self._retries.add(retry)
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await retry.wait()
        except TimeoutError:
            pass
        finally:
            self._retries.discard(retry)

    def retry(self) -> None:
        """Ends the wait for the next attempt, also of the sinks of a group; does nothing if none waits."""
        retries, self._retries = self._retries, set()
        for retry in retries:
            retry.set()
        for member in self.members:
            member.retry()

    def mark_ready(self) -> None:
        """Makes it RUNNING unless its last attempt failed."""
        if self.state in {ComponentState.STARTING, ComponentState.STANDING_BY}:
            self.mark_running()

    def mark_standing_by(self, reason: str = "") -> None:
        self._move(ComponentState.STANDING_BY, reason)

    def mark_running(self) -> None:
        """Makes it RUNNING, and logs the end of an outage."""
        if self.state is ComponentState.RUNNING:
            return
        if self._failures.end_outage():
            self.log.info("works again", after=self.reason)
        self._move(ComponentState.RUNNING, "")

    def mark_backing_off(self, reason: str, unexpected: Exception | None = None) -> None:
        """Makes it BACKING_OFF. Called for each failure; logging is rate-limited.

        The traceback of an `unexpected` error, which must be a bug, is logged.
        """
        self.failure_count += 1
        if self._failures.admits(reason):
            suppressed = {"failures_suppressed": count} if (count := self._failures.suppressed_count) else {}
            self._failures.suppressed_count = 0
            if unexpected is None:
                self.log.warning("backs off", reason=reason, **suppressed)
            else:
                self.log.error("backs off", reason=reason, exc_info=unexpected, **suppressed)
        self._move(ComponentState.BACKING_OFF, reason)

    def mark_failed(self, reason: str) -> None:
        """Makes it FAILED: it cannot work until an operator changes something."""
        self.failure_count += 1
        if self.state is not ComponentState.FAILED:
            # Not rate-limited: there is no retry, so there is no flood of lines, and no later line would report it.
            self._failures.admits(f"failed: {reason}")
            self.log.error("failed", reason=reason)
        self._move(ComponentState.FAILED, reason)

    def mark_stopped(self, reason: str = "") -> None:
        self._move(ComponentState.STOPPED, reason)

    def _move(self, target: ComponentState, reason: str) -> None:
        if self.state is ComponentState.STOPPED:
            # A restart creates a new component, but a task of a user-defined sink may still report on this one.
            return
        self.reason = without_passwords(reason)
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
        return self._components.get((kind, name))

    def add(self, kind: ComponentKind, name: str, type_name: str, channels: Sequence[str] = ()) -> Component:
        """Creates a component, which replaces any earlier one of the same kind and name."""
        component = Component(kind, name, type_name, self._notify, channels)
        self._components[kind, name] = component
        self._notify(component)
        return component

    def remove(self, component: Component) -> None:
        if self.find(component.kind, component.name) is component:
            del self._components[component.kind, component.name]
            self._notify(component)

    def wake(self, channel: str) -> None:
        """Ends the wait of components that stand by for a channel, since this server may own it now."""
        for component in self._components.values():
            if component.state is ComponentState.STANDING_BY and channel in component.channels:
                component.retry()

    def watch(self, on_change: Callable[[Component], None]) -> None:
        """Calls `on_change` whenever a component was added, changed its state, or was removed."""
        self._watchers.append(on_change)

    def _notify(self, component: Component) -> None:
        for on_change in self._watchers:
            on_change(component)
