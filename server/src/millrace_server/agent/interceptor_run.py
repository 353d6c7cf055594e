"""Interceptor runs, which pass a batch through a source's interceptors and selector, and can resume after a failure."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import (
    EventsRefusedError,
    Interceptor,
    MustWaitError,
    RememberingInterceptor,
)
from millrace_server.agent.selectors import EventMask, Selector
from millrace_server.agent.supervision import ComponentError

_REASON_LENGTH_MAX = 1_000


class StepError(Exception):
    """Raised when an interceptor or a selector has raised an error that its contract does not allow."""

    def __init__(self, step: str, cause: Exception) -> None:
        super().__init__(f"{step} raised {type(cause).__name__}: {cause}")
        self.cause = cause


class Refusal(NamedTuple):
    """Events that were refused."""

    table: EventTable
    step: str
    """The step that refused them: `interceptors[0]`, or `selector`."""
    reason: str


class InterceptorRun:
    """The steps of a batch. A step that raises has changed nothing; the next attempt resumes there.

    Attributes:
        table: The events after the steps done so far.
        refusals: Events that were refused and must be stored as dead letters.
    """

    def __init__(self, interceptors: Sequence[Interceptor], selector: Selector | None, table: EventTable) -> None:
        self._interceptors = interceptors
        self._selector = selector
        self._step_count = len(interceptors) + (selector is not None)
        self._position = 0
        self._is_abandoned = False
        self._notes: list[Callable[[], None]] = []
        self.table = table.copy()
        self.table.batch_indexes = range(table.count)
        self.refusals: list[Refusal] = []
        self.filtered_count = 0
        self.masks: Mapping[str, EventMask] = {}

    def resume(self) -> None:
        """Runs the remaining steps.

        Raises StepError or ComponentError if a step fails, MustWaitError if a step requires a delay.
        """
        while self.table.count and self._position < self._step_count and not self._is_abandoned:
            try:
                passed = self._run_step(self.table)
            except EventsRefusedError as error:
                self._refuse(error)
            except (ComponentError, MustWaitError):
                raise
            except Exception as error:
                raise StepError(self._step_name, error) from error
            else:
                self.filtered_count += max(self.table.count - passed.count, 0)
                self.table = passed
                self._position += 1

    def _run_step(self, table: EventTable) -> EventTable:
        if self._position < len(self._interceptors):
            interceptor = self._interceptors[self._position]
            if not isinstance(interceptor, RememberingInterceptor):
                return interceptor.intercept(table)
            passed, note_stored = interceptor.screen(table)
            self._notes.append(note_stored)
            return passed
        assert self._selector is not None, "it is the last step"
        self.masks = self._selector.select(table)
        return table

    def note_stored(self) -> None:
        """Notifies the interceptors that remember events; called once all channels have stored them durably."""
        for note in self._notes:
            note()

    def abandon(self) -> None:
        """Makes a thread that is still running it stop after the current step."""
        self._is_abandoned = True

    def refuse_failing_events(self) -> None:
        """Finds by bisection the events for which the next step raises an unexpected error, and refuses them."""
        reasons: dict[int, str] = {}
        self._find_failing_events(0, self.table.count, reasons)
        if reasons:
            self._refuse(EventsRefusedError(reasons))

    def _find_failing_events(self, start: int, stop: int, reasons: dict[int, str]) -> None:
        try:
            self._run_step(self.table.part(start, stop))
        except EventsRefusedError:
            # The next attempt of the step refuses these in any case.
            return
        except (ComponentError, MustWaitError):
            raise
        except Exception as error:  # noqa: BLE001 - a user-defined step may raise anything
            if stop - start == 1:
                reasons[start] = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
                return
            middle = (start + stop) // 2
            self._find_failing_events(start, middle, reasons)
            self._find_failing_events(middle, stop, reasons)

    @property
    def _step_name(self) -> str:
        return f"interceptors[{self._position}]" if self._position < len(self._interceptors) else "selector"

    def _refuse(self, error: EventsRefusedError) -> None:
        reasons = [error.reasons.get(index) for index in range(self.table.count)]
        if all(reason is None for reason in reasons):
            raise StepError(self._step_name, error)
        for distinct in dict.fromkeys(reasons):
            if distinct is not None:
                refused = self.table.chosen([reason == distinct for reason in reasons])
                self.refusals.append(Refusal(refused, self._step_name, distinct))
        self.table = self.table.chosen([reason is None for reason in reasons])
