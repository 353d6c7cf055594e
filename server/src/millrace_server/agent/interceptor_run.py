"""The way of a batch through a source's interceptors and to its selector's answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, Interceptor
from millrace_server.agent.selectors import Choice, Selector
from millrace_server.agent.supervision import ComponentError

_REASON_LENGTH_MAX = 1_000


class StepError(Exception):
    """Returned when an interceptor, or a selector, raised an error that it should not.

    Attributes:
        cause: The error.
    """

    def __init__(self, step: str, cause: Exception) -> None:
        super().__init__(f"{step} raised {type(cause).__name__}: {cause}")
        self.cause = cause


class Refusal(NamedTuple):
    """Events that cannot go on."""

    table: EventTable
    """The events, as far as they have come."""
    step: str
    """Who refused them: `interceptors[0]`, or `selector`."""
    reason: str


class InterceptorRun:
    """One batch on its way: where a step raises, nothing of it has happened, and the next try goes on there.

    Args:
        interceptors: The first steps.
        selector: The last one; None: another one decides, later.
        table: The events, as the source hands them over; it stays as it is.

    Attributes:
        table: The events that have come through so far.
        refusals: Events that cannot go on, and are to be set aside.
        filtered_count: Events that interceptors have dropped.
    """

    def __init__(self, interceptors: Sequence[Interceptor], selector: Selector | None, table: EventTable) -> None:
        self._selecting = None if selector is None else _Selecting(selector)
        self._steps = [*interceptors, *([] if self._selecting is None else [self._selecting])]
        self._position = 0
        self._is_abandoned = False
        self.table = EventTable(table.bodies, table.headers)
        self.table.places = range(table.count)
        self.refusals: list[Refusal] = []
        self.filtered_count = 0

    @property
    def choices(self) -> Mapping[str, Choice]:
        """Where the selector sends them."""
        return {} if self._selecting is None else self._selecting.choices

    def go_on(self) -> None:
        """Takes the steps that are left.

        Raises:
            StepError: One of them raised something that it should not.
            ComponentError: One of them cannot do its work now.
        """
        while self.table.count and self._position < len(self._steps) and not self._is_abandoned:
            try:
                passed = self._steps[self._position].intercept(self.table)
            except EventsRefusedError as error:
                self._refuse(error)
            except ComponentError:
                raise
            except Exception as error:
                raise StepError(self._step_name, error) from error
            else:
                self.filtered_count += max(self.table.count - passed.count, 0)
                self.table = passed
                self._position += 1

    def abandon(self) -> None:
        """Nobody waits for it any more: whoever goes on with it stops as soon as may be."""
        self._is_abandoned = True

    def refuse_culprits(self) -> None:
        """Refuses the events on which the next step raises whatever it is that it should not, found by halving.

        Raises:
            ComponentError: It cannot do its work now.
        """
        reasons: dict[int, str] = {}
        self._find_culprits(0, self.table.count, reasons)
        if reasons:
            self._refuse(EventsRefusedError(reasons))

    def _find_culprits(self, start: int, stop: int, reasons: dict[int, str]) -> None:
        try:
            self._steps[self._position].intercept(self.table.part(start, stop))
        except EventsRefusedError:
            # Its next try will say it again.
            return
        except ComponentError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's own may raise anything
            if stop - start == 1:
                reasons[start] = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
                return
            middle = (start + stop) // 2
            self._find_culprits(start, middle, reasons)
            self._find_culprits(middle, stop, reasons)

    @property
    def _step_name(self) -> str:
        is_selector = self._steps[self._position] is self._selecting
        return "selector" if is_selector else f"interceptors[{self._position}]"

    def _refuse(self, error: EventsRefusedError) -> None:
        reasons = [error.reasons.get(index) for index in range(self.table.count)]
        if all(reason is None for reason in reasons):
            raise StepError(self._step_name, error)
        for told in dict.fromkeys(reasons):
            if told is not None:
                refused = self.table.chosen([reason == told for reason in reasons])
                self.refusals.append(Refusal(refused, self._step_name, told))
        self.table = self.table.chosen([reason is None for reason in reasons])


class _Selecting:
    """A selector as the last of the steps."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self.choices: Mapping[str, Choice] = {}

    def intercept(self, table: EventTable) -> EventTable:
        self.choices = self._selector.select(table)
        return table
