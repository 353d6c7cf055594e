"""Import of one agent of a Flume configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from millrace_server.configuration.toml_text import to_toml
from millrace_server.flume_import.channels import convert_channel
from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.ledger import Ledger, Location, Note, Outcome
from millrace_server.flume_import.names import free_name, new_names
from millrace_server.flume_import.options import Import, ImportSettings, Options, Table
from millrace_server.flume_import.properties import Property
from millrace_server.flume_import.references import ReferenceResolver, is_to_be_filled_in, without_marks
from millrace_server.flume_import.sinks import convert_group, convert_sink
from millrace_server.flume_import.sources import convert_source

_CONVERSIONS: dict[str, Callable[[Options], Table | None]] = {
    "channels": convert_channel,
    "sources": convert_source,
    "sinks": convert_sink,
    "sinkgroups": convert_group,
}
"""The function that converts components, for each kind; later kinds refer to earlier ones."""

_AGENT_KEYS = {*_CONVERSIONS, "configfilters"}
_SECTIONS = {"sinkgroups": "sink_groups"}
"""The sections for kinds of components whose names differ from Flume's."""

_KAFKA_NAME_LENGTH = 58
"""The maximum length of a channel's name to which `-kafka` can be appended."""


class FlumeImportError(Exception):
    """Raised when there is nothing to import; the message says why."""


@dataclass(frozen=True)
class ImportedAgent:
    """The result of an import."""

    agent: str
    tables: dict[str, dict[str, Table]]
    """The tables of the configuration, by kind and name."""
    ledger: Ledger
    """The outcome for each property of the agent."""
    other_agents: dict[str, int]
    """The number of properties of each other agent in the files; an empty name stands for no agent."""
    written_files: list[Path]
    """The files with certificates and keys that the import has written."""

    @property
    def notes(self) -> list[Note]:
        return self.ledger.notes

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out."""
        return all(note.outcome is not Outcome.LEFT_OUT for note in self.notes) and Outcome.LEFT_OUT not in self.counts

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of properties with each outcome."""
        outcomes = list(self.ledger.outcomes.values())
        return {outcome: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}

    @property
    def default_counts(self) -> dict[Outcome, int]:
        """The number of Flume's defaults, of absent properties, that have changed in meaning or are left out."""
        # A note may also be about a whole component, whose name is the beginning of keys.
        given = {beginning for key in self.ledger.outcomes for beginning in accumulate(key.split("."), "{}.{}".format)}
        outcomes = [note.outcome for note in self.notes if note.key not in given]
        return {each: outcomes.count(each) for each in (Outcome.CHANGED, Outcome.LEFT_OUT) if each in outcomes}

    def toml(self) -> str:
        """Returns the configuration, with comments on what has changed in meaning or is left out."""
        head = [f"Converted from Flume's agent {self.agent}."]
        comments: dict[tuple[str, str], list[str]] = {("", ""): head}
        for note in self.notes:
            location = self.ledger.locations[note]
            table = self.tables.get(location.kind, {}).get(location.name)
            if table is not None and note.outcome is not Outcome.UNNEEDED:
                key = location.setting if location.setting in table else ""
                comments.setdefault((f"{location.kind}.{location.name}", key), []).append(note.comment())
            elif note.outcome is Outcome.LEFT_OUT:
                head.append(f"Left out: {note.key}: {note.sentence}.")
        return to_toml(self.tables, comments)


def agents_of(properties: Sequence[Property]) -> list[str]:
    """Returns the agents that the properties describe."""
    split = (item.key.split(".", 2) for item in properties)
    return list(dict.fromkeys(parts[0] for parts in split if len(parts) > 1 and parts[1] in _AGENT_KEYS))


def import_agent(
    properties: Sequence[Property], agent: str | None = None, settings: ImportSettings | None = None
) -> ImportedAgent:
    """Converts one agent; its name may be omitted if there is only one. Of a repeated key the last value counts.

    Raises FlumeImportError if there is no such agent.
    """
    agents = agents_of(properties)
    if agent is None and len(agents) != 1:
        problem = f"it describes {' and '.join(agents)}; choose one with --agent" if agents else "it describes no agent"
        raise FlumeImportError(problem)
    agent = agent or agents[0]
    if agent not in agents:
        raise FlumeImportError(f"it describes no agent {agent}, but {' and '.join(agents) or 'none'}")
    values = {item.key: item.value for item in properties}
    return _AgentImport(agent, values, settings or ImportSettings()).result(agents)


class _AgentImport:
    def __init__(self, agent: str, values: Mapping[str, str], settings: ImportSettings) -> None:
        self._agent = agent
        self._all = values
        own = {key: value for key, value in values.items() if key.startswith(f"{agent}.")}
        self._ledger = Ledger(own)
        resolver = ReferenceResolver(settings.environment, settings.definitions, values, set(), set())
        written = {word for key, value in own.items() if _is_of(key, "sources", "channels") for word in value.split()}
        read = {value.strip() for key, value in own.items() if _is_of(key, "sinks", "channel")}
        self._shared = Import(self._ledger, resolver, settings, written, read)
        values = {key.removeprefix(f"{agent}."): value for key, value in own.items()}
        self._options = Options(agent, values, self._shared, Location("", ""))

    def result(self, agents: list[str]) -> ImportedAgent:
        self._read_filters()
        for kind in _CONVERSIONS:
            self._convert_all(kind)
        self._add_components()
        self._options.leave_out_unread("is not a property of an agent")
        tables = {
            kind: {name: _shown(table) for name, table in named.items()} for kind, named in self._shared.tables.items()
        }
        others, written = self._others(agents), self._shared.written_files
        return ImportedAgent(self._agent, tables, self._ledger, others, written)

    def _others(self, agents: list[str]) -> dict[str, int]:
        owners = [key.partition(".")[0] for key in self._all if key not in self._shared.resolver.used]
        counted = [owner if owner in agents else "" for owner in owners if owner != self._agent]
        return {owner: counted.count(owner) for owner in dict.fromkeys(counted)}

    def _read_filters(self) -> None:
        """Reads the configuration filters, to which the values of all other properties may refer."""
        for name, options in self._components("configfilters"):
            component = find_component("configuration filter", options.text("type"))
            if component.becomes:
                self._shared.resolver.environment_filters.add(name)
            else:
                options.omit(f"{component.name} has no counterpart: {component.advice}")

    def _components(self, kind: str) -> list[tuple[str, Options]]:
        """Removes and returns the properties of each component that the agent lists, by Flume's name."""
        listed = list(dict.fromkeys(self._options.words(kind)))
        subset = self._options.subset(kind)
        ours = new_names(listed)
        section = _SECTIONS.get(kind, kind)
        values = subset.take_by_component(listed)
        subset.leave_out_unread(f"belongs to none of the {kind} that the agent lists")
        return [
            (name, Options(f"{self._agent}.{kind}.{name}", values[name], self._shared, Location(section, ours[name])))
            for name in listed
        ]

    def _convert_all(self, kind: str) -> None:
        names = self._shared.names.setdefault(kind, {})
        section = _SECTIONS.get(kind, kind)
        for name, options in self._components(kind):
            if is_to_be_filled_in(name):
                options.omit("its name is to be filled in")
                continue
            table = _convert(kind, options)
            if table is None:
                continue
            ours = names[name] = options.location.name
            self._shared.tables.setdefault(section, {})[ours] = table
            if name != ours:
                sentence = f"it is called {ours} here: names have lower-case letters, digits, . _ and -"
                options.changed("type" if kind != "sinkgroups" else "sinks", sentence)

    def _add_components(self) -> None:
        """Adds the components that have no counterpart in Flume, under unused names."""
        for kind, added in self._shared.added.items():
            named = self._shared.tables.setdefault(kind, {})
            for channel, table in added.items():
                named[free_name(f"{channel[:_KAFKA_NAME_LENGTH]}-kafka", named)] = table


def _convert(kind: str, options: Options) -> Table | None:
    """Returns the table of a component; None if it is left out, which is recorded."""
    if kind != "sinkgroups" and not options.peek("type"):
        options.omit("it has no type, so Flume leaves it out too")
        return None
    table = _CONVERSIONS[kind](options)
    if table is not None and not table.get("channels" if kind == "sources" else "channel", True):
        options.omit("it has no channel, so Flume leaves it out too")
        return None
    return table


def _is_of(key: str, kind: str, setting: str) -> bool:
    """Whether a property is this setting of a component of a kind."""
    parts = key.split(".")
    return parts[1:2] == [kind] and parts[3:] == [setting]


def _shown(value: Table) -> Table:
    """Returns a table in which text that has to be filled in becomes a table, so that every check rejects it."""

    def show(part: object) -> object:
        match part:
            case str() if is_to_be_filled_in(part):
                return {"fill_in": without_marks(part)}
            case dict():
                return {without_marks(str(key)): show(inner) for key, inner in part.items()}
            case list():
                return [show(inner) for inner in part]
            case _:
                return part

    return {key: show(inner) for key, inner in value.items()}
