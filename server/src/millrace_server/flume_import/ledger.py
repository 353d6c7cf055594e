"""The account of an import: what has become of each property."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from millrace_server.flume_import.references import without_marks


class Fate(IntEnum):
    """What has become of a property, in ascending order of the attention that it needs."""

    CONVERTED = 0
    """A setting means the same."""
    UNNEEDED = 1
    """Nothing is lost without it."""
    CHANGED = 2
    """It is converted, and the meaning differs."""
    LEFT_OUT = 3
    """It has no counterpart, or its value has none."""


FATE_WORDS = {
    Fate.CONVERTED: "converted",
    Fate.UNNEEDED: "not needed",
    Fate.CHANGED: "changed in meaning",
    Fate.LEFT_OUT: "left out",
}
"""How each fate is called in reports."""


class Place(NamedTuple):
    """A place in the configuration: a table, or one of its settings."""

    kind: str
    """`channels`, `sources`, `sinks` or `sink_groups`."""
    name: str
    setting: str = ""


class Note(NamedTuple):
    """What to know about a property, or about a component."""

    key: str
    """The property, or the common beginning of several."""
    fate: Fate
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
        self._fates: dict[str, Fate | None] = dict.fromkeys(keys)
        self._by_component: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._fates:
            self._by_component[_component_of(key)].append(key)
        self.places: dict[Note, Place] = {}
        """Where each note belongs in the configuration, if what it is about is there."""

    def settle(self, key: str, fate: Fate, sentence: str = "", place: Place | None = None) -> None:
        """Records what has become of a property; of several records of one, that counts which needs more attention."""
        if key in self._fates:
            self._fates[key] = max(self._fates[key] or Fate.CONVERTED, fate)
        if sentence:
            note = Note(without_marks(key), fate, without_marks(sentence))
            self.places.setdefault(note, place or _NOWHERE)

    def omit(self, beginning: str, sentence: str, place: Place | None = None) -> None:
        """Records that a component is left out, with all of its properties."""
        for key in self._by_component[_component_of(beginning)]:
            if key == beginning or key.startswith(f"{beginning}."):
                self.settle(key, Fate.LEFT_OUT)
        self.settle(beginning, Fate.LEFT_OUT, sentence, place)

    @property
    def fates(self) -> Mapping[str, Fate]:
        """The fate of each property, in the order of the file; each has one, whatever the conversion forgot."""
        return {key: Fate.LEFT_OUT if fate is None else fate for key, fate in self._fates.items()}

    @property
    def unsettled(self) -> list[str]:
        """The properties that nothing was recorded for yet."""
        return [key for key, fate in self._fates.items() if fate is None]

    @property
    def notes(self) -> list[Note]:
        """The notes, first those that need the most attention."""
        return sorted(self.places, key=lambda note: -note.fate)


def _component_of(key: str) -> str:
    return ".".join(key.split(".", _COMPONENT_PARTS)[:_COMPONENT_PARTS])


_NOWHERE = Place("", "")
