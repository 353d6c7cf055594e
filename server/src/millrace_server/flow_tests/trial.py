"""Trials, which pass events through a source's interceptors and selector, on a paused clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from millrace.dead_letters import DeadLetterField
from millrace_server.agent.dead_letters import as_dead_letters
from millrace_server.agent.events import EventTable
from millrace_server.agent.fan_out import channel_batches_of, unrouted_count
from millrace_server.agent.interceptor_run import InterceptorRun, StepError
from millrace_server.agent.interceptors.context import InterceptorContext
from millrace_server.agent.interceptors.interceptor import MustWaitError
from millrace_server.agent.selectors import LoadBalancer, LoadBalancingConfig
from millrace_server.agent.settings import AnySourceConfig
from millrace_server.agent.supervision import ComponentError

ANY_CHANNEL = "*"
"""Stands for any of the source's channels, since a load balancer's choice depends on the free space."""

Row = tuple[Mapping[str, str], bytes]
"""The headers and the body of an event."""


def channels_of(source: AnySourceConfig) -> Sequence[str]:
    """Returns the names that the channels of a source have in a trial."""
    selector = source.selector
    is_balanced = isinstance(selector, LoadBalancingConfig) and selector.policy != "key_hash"
    own = [ANY_CHANNEL] if is_balanced else source.channels
    return own if source.dead_letter_channel is None else [*own, source.dead_letter_channel]


class TrialError(Exception):
    """Raised when events do not pass; the message says why."""


@dataclass(slots=True)
class PausedClock:
    """A clock that moves only by `advance`."""

    start_seconds: float
    """Seconds since 1970."""
    elapsed_seconds: float = 0.0

    def time(self) -> float:
        return self.start_seconds + self.elapsed_seconds

    def monotonic(self) -> float:
        return self.elapsed_seconds

    def advance(self, seconds: float) -> None:
        self.elapsed_seconds += seconds

    def context(self, host: str, address: str) -> InterceptorContext:
        """Returns a context with this clock, in which random numbers are reproducible as well."""
        randomness = Random(0)  # noqa: S311 - it guards no secret
        return InterceptorContext(self.time, self.monotonic, lambda: host, lambda: address, randomness.randbytes)


@dataclass(slots=True)
class Outcome:
    """The outcome: the events of each channel in order, and the number of events that reached no channel."""

    channels: dict[str, list[Row]] = field(default_factory=dict)
    dropped_count: int = 0

    def add(self, channel: str, table: EventTable) -> None:
        if table.count:
            self.channels.setdefault(channel, []).extend(table.rows())


class Trial:
    """Passes batches through the interceptors and the selector of a source, as if each batch were then stored.

    Raises TrialError if a user-defined interceptor or selector cannot be created.
    """

    def __init__(self, name: str, source: AnySourceConfig, clock: PausedClock, context: InterceptorContext) -> None:
        self._name = name
        self._dead_letter_channel = source.dead_letter_channel
        self._clock = clock
        try:
            self._interceptors = [each.make(context) for each in source.interceptors]
            selector = source.selector.make(source.channels)
        except Exception as error:
            # Only a user-defined one can fail, and it may raise anything.
            raise TrialError(f"a custom part cannot be created: {type(error).__name__}: {error}") from error
        self._selector = None if isinstance(selector, LoadBalancer) else selector
        self.outcome = Outcome()

    def put(self, rows: Iterable[Row]) -> None:
        """Passes a batch. Raises TrialError if an interceptor or the selector fails, at which a source would wait."""
        run = InterceptorRun(self._interceptors, self._selector, EventTable.of_rows(rows))
        try:
            self._complete(run)
        except (StepError, ComponentError) as error:
            raise TrialError(str(error)) from None
        run.note_stored()
        self._record(run)

    def _complete(self, run: InterceptorRun) -> None:
        while True:
            try:
                run.resume()
            except MustWaitError as error:
                self._clock.advance(error.seconds)
            except StepError:
                if self._dead_letter_channel is None or not self._refuses_more(run):
                    raise
            else:
                return

    @staticmethod
    def _refuses_more(run: InterceptorRun) -> bool:
        refusal_count = len(run.refusals)
        run.refuse_failing_events()
        return len(run.refusals) > refusal_count

    def _record(self, run: InterceptorRun) -> None:
        outcome = self.outcome
        outcome.dropped_count += run.filtered_count
        for table, step, reason in run.refusals:
            self._refuse(table, {DeadLetterField.STEP: step, DeadLetterField.REASON: reason})
        if self._selector is None:
            outcome.add(ANY_CHANNEL, run.table)
            return
        for channel, batch in channel_batches_of(run.table, run.masks).items():
            outcome.add(channel, batch.table)
        outcome.dropped_count += unrouted_count(run.table, run.masks)

    def _refuse(self, table: EventTable, fields: Mapping[str, str]) -> None:
        if self._dead_letter_channel is None:
            self.outcome.dropped_count += table.count
            return
        letters = as_dead_letters(table, {**fields, DeadLetterField.SOURCE: self._name})
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        letters.headers[DeadLetterField.TIME.header] = now.isoformat(timespec="milliseconds")
        self.outcome.add(self._dead_letter_channel, letters)
