"""The ledger of an import: the outcome for each property."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from millrace_server.flume_import.references import without_marks


class Outcome(IntEnum):
    """The outcome for a property, in ascending order of the attention that it needs."""

    CONVERTED = 0
    """It is converted to a setting with the same meaning."""
    UNNEEDED = 1
    """Nothing is lost without it."""
    CHANGED = 2
    """It is converted, but the meaning differs."""
    LEFT_OUT = 3
    """It has no counterpart, or its value has none."""


OUTCOME_WORDS = {
    Outcome.CONVERTED: "converted",
    Outcome.UNNEEDED: "not needed",
    Outcome.CHANGED: "changed in meaning",
    Outcome.LEFT_OUT: "left out",
}
"""The name of each outcome in reports."""


class Location(NamedTuple):
    """A location in the configuration: a table, or one of its settings."""

    kind: str
    """`channels`, `sources`, `sinks` or `sink_groups`."""
    name: str
    setting: str = ""


class Note(NamedTuple):
    """A note on a property or a component."""

    key: str
    """The property, or the common beginning of several."""
    outcome: Outcome
    sentence: str
    """The reason, and what to do."""

    def comment(self) -> str:
        """Returns the note as a comment in the component's table, without the name of the component."""
        *_, name = self.key.split(".", _COMPONENT_PARTS)
        is_about_all = self.key.count(".") < _COMPONENT_PARTS or name == "type"
        return f"{self.sentence[0].upper()}{self.sentence[1:]}." if is_about_all else f"{name}: {self.sentence}."


_COMPONENT_PARTS = 3
"""The number of parts of a key that identify the component: the agent, the kind and the name."""


class Ledger:
    """Records the outcome for each property of an agent."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._outcomes: dict[str, Outcome | None] = dict.fromkeys(keys)
        self._by_component: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._outcomes:
            self._by_component[_component_of(key)].append(key)
        self.locations: dict[Note, Location] = {}
        """The location in the configuration to which each note belongs, if it exists there."""

    def settle(self, key: str, outcome: Outcome, sentence: str = "", location: Location | None = None) -> None:
        """Records the outcome for a property; of several outcomes, the one that needs the most attention counts."""
        if key in self._outcomes:
            self._outcomes[key] = max(self._outcomes[key] or Outcome.CONVERTED, outcome)
        if sentence:
            note = Note(without_marks(key), outcome, without_marks(sentence))
            self.locations.setdefault(note, location or _NOWHERE)

    def omit(self, beginning: str, sentence: str, location: Location | None = None) -> None:
        """Records that a component is left out, with all of its properties."""
        for key in self._by_component[_component_of(beginning)]:
            if key == beginning or key.startswith(f"{beginning}."):
                self.settle(key, Outcome.LEFT_OUT)
        self.settle(beginning, Outcome.LEFT_OUT, sentence, location)

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome for each property, in the order of the file; LEFT_OUT if none was recorded."""
        return {key: Outcome.LEFT_OUT if outcome is None else outcome for key, outcome in self._outcomes.items()}

    @property
    def unsettled(self) -> list[str]:
        """The properties for which nothing has been recorded yet."""
        return [key for key, outcome in self._outcomes.items() if outcome is None]

    @property
    def notes(self) -> list[Note]:
        """The notes, those that need the most attention first."""
        return sorted(self.locations, key=lambda note: -note.outcome)


def _component_of(key: str) -> str:
    return ".".join(key.split(".", _COMPONENT_PARTS)[:_COMPONENT_PARTS])


_NOWHERE = Location("", "")
