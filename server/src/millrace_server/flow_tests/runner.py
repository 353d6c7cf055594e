"""Runs cases and collects their results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from millrace.json_bodies import body_document
from millrace_server.agent.settings import AnySourceConfig
from millrace_server.configuration.settings import Settings
from millrace_server.flow_tests.cases import Case, CaseFile
from millrace_server.flow_tests.comparison import differences
from millrace_server.flow_tests.trial import Outcome, PausedClock, Row, Trial, TrialError


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case."""

    name: str
    source: str
    differences: Sequence[str]
    outcome: Outcome

    @property
    def is_passed(self) -> bool:
        return not self.differences

    def document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "source": self.source,
            "is_passed": self.is_passed,
            "differences": list(self.differences),
            "channels": {
                name: [{"headers": headers, **body_document(body)} for headers, body in rows]
                for name, rows in self.outcome.channels.items()
            },
            "dropped": self.outcome.dropped_count,
        }


def run_cases(settings: Settings, file: CaseFile) -> Iterator[CaseResult]:
    """Runs each case with its own interceptors. The sources of all cases must exist."""
    for case in file.cases:
        try:
            outcome = _outcome(case, settings.sources[case.source], file)
            found = list(differences(case.expect, outcome))
        except TrialError as error:
            outcome, found = Outcome(), [f"the source would not make progress: {error}"]
        yield CaseResult(case.name, case.source, found, outcome)


def _outcome(case: Case, source: AnySourceConfig, file: CaseFile) -> Outcome:
    clock = PausedClock(file.start_seconds)
    trial = Trial(case.source, source, clock, clock.context(file.host, file.address))
    for seconds, rows in _batches(case, case.batch_events or source.batch_events_max):
        clock.advance(seconds)
        trial.put(rows)
    return trial.outcome


def _batches(case: Case, events_max: int) -> Iterator[tuple[float, list[Row]]]:
    """Yields each batch with the seconds that pass before it."""
    seconds, rows = 0.0, list[Row]()
    for event in case.events:
        if event.after_seconds:
            if rows:
                yield seconds, rows
            seconds, rows = event.after_seconds, []
        for row in repeat((event.headers, event.content or b""), event.repeat):
            if len(rows) == events_max:
                yield seconds, rows
                seconds, rows = 0.0, []
            rows.append(row)
    yield seconds, rows
