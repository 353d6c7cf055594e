"""The account of an import: what has become of each property."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from millrace_server.flume_import.references import without_marks


class Outcome(IntEnum):
    """What has become of a property, in ascending order of the attention that it needs."""

    CONVERTED = 0
    """A setting means the same."""
    UNNEEDED = 1
    """Nothing is lost without it."""
    CHANGED = 2
    """It is converted, and the meaning differs."""
    LEFT_OUT = 3
    """It has no counterpart, or its value has none."""


OUTCOME_WORDS = {
    Outcome.CONVERTED: "converted",
    Outcome.UNNEEDED: "not needed",
    Outcome.CHANGED: "changed in meaning",
    Outcome.LEFT_OUT: "left out",
}
"""How each outcome is called in reports."""


class Location(NamedTuple):
    """A location in the configuration: a table, or one of its settings."""

    kind: str
    """`channels`, `sources`, `sinks` or `sink_groups`."""
    name: str
    setting: str = ""


class Note(NamedTuple):
    """What to know about a property, or about a component."""

    key: str
    """The property, or the common beginning of several."""
    outcome: Outcome
    sentence: str
    """The reason, and what to do."""

    def comment(self) -> str:
        """Returns the note as it stands in the table of its component, where it is plain which one that is."""
        *_, name = self.key.split(".", _COMPONENT_PARTS)
        is_about_all = self.key.count(".") < _COMPONENT_PARTS or name == "type"
        return f"{self.sentence[0].upper()}{self.sentence[1:]}." if is_about_all else f"{name}: {self.sentence}."


_COMPONENT_PARTS = 3
"""The agent, the kind and the name of the component, before the rest of a key."""


class Ledger:
    """Keeps what has become of each property of an agent."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._outcomes: dict[str, Outcome | None] = dict.fromkeys(keys)
        self._by_component: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._outcomes:
            self._by_component[_component_of(key)].append(key)
        self.locations: dict[Note, Location] = {}
        """Where each note belongs in the configuration, if what it is about is there."""

    def settle(self, key: str, outcome: Outcome, sentence: str = "", location: Location | None = None) -> None:
        """Records what has become of a property; of several records of one, that counts which needs more attention."""
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
        """The outcome of each property, in the order of the file; each has one, whatever the conversion forgot."""
        return {key: Outcome.LEFT_OUT if outcome is None else outcome for key, outcome in self._outcomes.items()}

    @property
    def unsettled(self) -> list[str]:
        """The properties that nothing was recorded for yet."""
        return [key for key, outcome in self._outcomes.items() if outcome is None]

    @property
    def notes(self) -> list[Note]:
        """The notes, first those that need the most attention."""
        return sorted(self.locations, key=lambda note: -note.outcome)


def _component_of(key: str) -> str:
    return ".".join(key.split(".", _COMPONENT_PARTS)[:_COMPONENT_PARTS])


_NOWHERE = Location("", "")
