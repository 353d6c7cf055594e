"""The properties of a Flume component, which are read and accounted for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from millrace_server.flume_import.ledger import Ledger, Location, Outcome
from millrace_server.flume_import.references import ReferenceResolver, fill_in, is_to_be_filled_in, missing_in

T = TypeVar("T")

Table = dict[str, object]
"""A table of the TOML file."""

ANY_HOST = "0.0.0.0"  # noqa: S104 - the default address of Flume's sources
"""All addresses of the machine."""

_FLAGS = {"true": True, "false": False}
_MILLISECONDS = 1_000


@dataclass(frozen=True)
class ImportSettings:
    """What an import may use and do, besides reading the files."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that values may refer to."""
    definitions: Mapping[str, str] = field(default_factory=dict)
    """System properties of Flume's Java process."""
    allow_plaintext: bool = False
    """Whether sources may listen in plain text on addresses that other machines can reach."""
    tls_directory: Path | None = None
    """Where to write the certificates and keys of Java keystores; None: they are not converted."""


@dataclass(frozen=True)
class Import:
    """What all conversions of an agent share."""

    ledger: Ledger
    resolver: ReferenceResolver
    settings: ImportSettings
    written: set[str]
    """The channels that sources write to, by Flume's names."""
    read: set[str]
    """The channels that sinks read from, by Flume's names."""
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    """The new names of the components that were converted so far, by kind and Flume's name."""
    tables: dict[str, dict[str, Table]] = field(default_factory=dict)
    """The tables that were converted so far, by kind and new name."""
    added: dict[str, dict[str, Table]] = field(default_factory=dict)
    """Components that have no counterpart in Flume, by kind and name."""
    written_files: list[Path] = field(default_factory=list)
    """Files with certificates and keys that were written so far."""


class Options:
    """The properties of one component. Each is removed and accounted for when it is read."""

    def __init__(self, prefix: str, values: Mapping[str, str], shared: Import, location: Location) -> None:
        self.prefix = prefix
        self.shared = shared
        self.location = location
        self._values = dict(values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def unread(self) -> list[str]:
        """Returns the keys of the properties that were not read yet."""
        return list(self._values)

    def unread_of(self, prefix: str) -> list[str]:
        """Returns the rest of the keys that begin with a prefix and a dot, of properties that were not read yet."""
        return [key.removeprefix(f"{prefix}.") for key in self._values if key.startswith(f"{prefix}.")]

    def text(self, key: str, default: str = "") -> str:
        """Returns a value with its references resolved or marked; the default if it is absent or empty, as in Flume."""
        if key not in self._values:
            return default
        self._settle(key, Outcome.CONVERTED)
        value = self.shared.resolver.resolve(self._values.pop(key)).strip()
        if missing := missing_in(value):
            self.left_out(key, f"refers to {' and '.join(missing)}, which is not known here: fill it in")
        return value or default

    def required(self, key: str, what: str, setting: str = "") -> str:
        """Returns a value like `text`; if there is none, a text that has to be filled in."""
        value = self.text(key)
        if not value:
            self.left_out(key, "is missing, and Flume needs it: fill it in", setting)
        return value or fill_in(what)

    def peek(self, key: str) -> str:
        """Returns a value like `text`, but does not count the property as read."""
        return self.shared.resolver.resolve(self._values.get(key, "")).strip()

    def words(self, key: str) -> list[str]:
        return self.text(key).split()

    def listed(self, key: str) -> list[str]:
        """Returns the parts of a value that are separated by commas."""
        return [part.strip() for part in self.text(key).split(",") if part.strip()]

    def channels(self, key: str) -> list[str]:
        """Returns the new names of the channels that a property lists, each once, without unknown channels."""
        names, words = self.shared.names["channels"], self.words(key)
        if unknown := [word for word in words if word not in names]:
            self.left_out(key, f"lists {' and '.join(unknown)}, which is not a channel of the agent")
        return list(dict.fromkeys(names[word] for word in words if word in names))

    def number(self, key: str) -> int | None:
        return self._parse(key, int, "a whole number")

    def seconds(self, key: str) -> float | None:
        return self._parse(key, float, "a number of seconds")

    def milliseconds(self, key: str) -> float | None:
        """Returns a duration in seconds."""
        found = self._parse(key, float, "a number of milliseconds")
        return None if found is None else found / _MILLISECONDS

    def flag(self, key: str) -> bool | None:
        return self._parse(key, lambda text: _FLAGS[text.lower()], "true or false")

    def choice(self, key: str, choices: Mapping[str, str]) -> str | None:
        """Returns the choice for a value, which is case-insensitive."""
        text = self.text(key)
        if text and text.lower() not in choices:
            self.left_out(key, f'is "{text}", which has no counterpart; the default is used')
        return choices.get(text.lower())

    def _parse(self, key: str, convert: Callable[[str], T], what: str) -> T | None:
        text = self.text(key)
        # A value that has to be filled in was already reported.
        if not text or is_to_be_filled_in(text):
            return None
        try:
            return convert(text)
        except (ValueError, KeyError, OverflowError):
            self.left_out(key, f'is "{text}", which is not {what}; the default is used')
            return None

    def subset(self, prefix: str, setting: str = "") -> "Options":
        """Removes and returns the properties whose keys begin with a prefix and a dot, which belong to a setting."""
        begin = f"{prefix}."
        values = {key.removeprefix(begin): self._values.pop(key) for key in self.unread() if key.startswith(begin)}
        location = self.location._replace(setting=self.location.setting or setting)
        return Options(f"{self.prefix}.{prefix}", values, self.shared, location)

    def take_by_component(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Removes and returns the properties of each of these components; a key begins with the name and a dot."""
        taken: dict[str, dict[str, str]] = {name: {} for name in names}
        for key in self.unread():
            name, dot, rest = key.partition(".")
            if dot and name in taken:
                taken[name][rest] = self._values.pop(key)
        return taken

    def items(self) -> Iterator[tuple[str, str]]:
        """Removes and yields all remaining properties."""
        for key in self.unread():
            yield key, self.text(key)

    def changed(self, key: str | None, sentence: str, setting: str = "") -> None:
        """Records that a property, or the component if there is no key, has changed in meaning."""
        self._settle(key, Outcome.CHANGED, sentence, setting)

    def left_out(self, key: str, sentence: str, setting: str = "") -> None:
        """Records that a property, or its value, has no counterpart."""
        self._settle(key, Outcome.LEFT_OUT, sentence, setting)

    def leave_out_unread(self, sentence: str) -> None:
        """Records that the properties that were not read have no counterpart."""
        for key in self.unread():
            self.discard(key)
            self.left_out(key, sentence)

    def unneeded(self, key: str, sentence: str) -> None:
        """Records that nothing is lost without a property."""
        self._settle(key, Outcome.UNNEEDED, sentence)

    def advise(self, key: str, sentence: str, setting: str = "") -> None:
        """Records advice on a property that is converted."""
        self._settle(key, Outcome.CONVERTED, sentence, setting)

    def omit(self, sentence: str) -> None:
        """Records that the component is left out, with all its properties."""
        self._values.clear()
        self.shared.ledger.omit(self.prefix, sentence, self.location)

    def _settle(self, key: str | None, outcome: Outcome, sentence: str = "", setting: str = "") -> None:
        location = self.location._replace(setting=self.location.setting or setting)
        full = self.prefix if key is None else f"{self.prefix}.{key}"
        self.shared.ledger.settle(full, outcome, sentence, location)

    def discard(self, key: str) -> None:
        """Removes a property, for which the caller records the outcome."""
        self._values.pop(key, None)


def set_values(table: Table, **values: object) -> None:
    """Sets the values that are not None."""
    table.update({key: value for key, value in values.items() if value is not None})


def address(host: str, port: str) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    is_ipv6 = ":" in host and not host.startswith("[") and not is_to_be_filled_in(host)
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"
