"""A Flume agent as a configuration of Millrace."""

from dataclasses import dataclass, field

from millrace_server.flume_import.channels import convert_channel
from millrace_server.flume_import.options import ANY_HOST, Options, Remark, Table
from millrace_server.flume_import.properties import parse_properties
from millrace_server.flume_import.sinks import convert_group, convert_sink
from millrace_server.flume_import.sources import convert_source
from millrace_server.flume_import.toml import written

_RPC_SOURCES = {"avro", "thrift"}
_LOOPBACK = ("127.", "localhost")


class FlumeImportError(Exception):
    """Returned when there is nothing to import; the message says why."""


@dataclass
class Imported:
    """What became of an agent."""

    agent: str
    """Its name in the file."""
    tables: dict[str, dict[str, Table]] = field(default_factory=dict)
    """The configuration's tables, by kind and name."""
    remarks: list[Remark] = field(default_factory=list)
    """What has no counterpart, and what else to know."""

    def toml(self) -> str:
        """The configuration file."""
        return written(self.tables)


def agents_of(text: str) -> list[str]:
    """The agents that a file describes, in its order."""
    return list(dict.fromkeys(key.split(".", 1)[0] for key in parse_properties(text) if "." in key))


def import_agent(text: str, agent: str | None = None) -> Imported:
    """Converts one agent of a Flume configuration.

    Args:
        text: The properties file.
        agent: Which one; None where there is only one.

    Raises:
        FlumeImportError: There is none, no such one, or several to choose from.
    """
    agents = agents_of(text)
    if agent is None and len(agents) != 1:
        told = f"it describes {' and '.join(agents)}; choose one with --agent" if agents else "it describes no agent"
        raise FlumeImportError(told)
    agent = agent or agents[0]
    if agent not in agents:
        raise FlumeImportError(f"it describes no agent {agent}, but {' and '.join(agents) or 'none'}")
    properties = parse_properties(text)
    begin = f"{agent}."
    mine = {key.removeprefix(begin): value for key, value in properties.items() if key.startswith(begin)}
    return _Import(agent, mine).result


class _Import:
    def __init__(self, agent: str, values: dict[str, str]) -> None:
        self.result = Imported(agent)
        self._options = Options(agent, values, self.result.remarks)
        self._convert_channels()
        self._convert_sources()
        self._convert_sinks()
        self._convert_groups()
        self._options.tell_rest({"configfilters": "values are taken as they stand; nothing is filled in"})
        self._remove_what_lost_its_channel()

    def _add(self, kind: str, name: str, table: Table | None) -> None:
        if table is not None:
            self.result.tables.setdefault(kind, {})[name] = table

    def _convert_channels(self) -> None:
        names, each = self._options.words("channels"), self._options.below("channels")
        for name in names:
            options = each.below(name)
            self._add("channels", name, convert_channel(options.text("type", "memory").lower(), options))
        each.tell_rest({})

    def _convert_sources(self) -> None:
        names, each = self._options.words("sources"), self._options.below("sources")
        for name in names:
            options = each.below(name)
            type_name = options.text("type")
            if type_name.lower() in _RPC_SOURCES:
                self._listen_as(options)
            self._add("sources", name, convert_source(type_name, options))
        each.tell_rest({})

    def _listen_as(self, options: Options) -> None:
        """Has the server listen where its Avro source did, so that the addresses of those who send stay right."""
        host, port = options.text("bind", ANY_HOST), options.text("port")
        if "server" in self.result.tables or not port:
            return
        server: Table = {"listen": f"{host}:{port}"}
        if not host.startswith(_LOOPBACK):
            server["allow_plaintext"] = True
        self.result.tables = {"server": {"": server}, **self.result.tables}

    def _convert_sinks(self) -> None:
        names, each = self._options.words("sinks"), self._options.below("sinks")
        for name in names:
            options = each.below(name)
            self._add("sinks", name, convert_sink(options.text("type"), options))
        each.tell_rest({})

    def _convert_groups(self) -> None:
        names, each = self._options.words("sinkgroups"), self._options.below("sinkgroups")
        for name in names:
            self._add("sink_groups", name, convert_group(each.below(name)))
        each.tell_rest({})

    def _remove_what_lost_its_channel(self) -> None:
        """Flume leaves out what names no channel that is there; and a group needs its sinks."""
        channels = self.result.tables.get("channels", {})
        sources, sinks = self.result.tables.get("sources", {}), self.result.tables.get("sinks", {})
        for name, table in list(sources.items()):
            known = [channel for channel in _names(table["channels"]) if channel in channels]
            if not known:
                self._options.remark(
                    f"sources.{name}.channels", "names no channel that is there; the source is left out"
                )
                del sources[name]
            table["channels"] = known
        for name, table in list(sinks.items()):
            if table["channel"] not in channels:
                self._options.remark(f"sinks.{name}.channel", "is no channel that is there; the sink is left out")
                del sinks[name]
        groups = self.result.tables.get("sink_groups", {})
        for name, table in list(groups.items()):
            table["sinks"] = [sink for sink in _names(table["sinks"]) if sink in sinks]
            if len(_names(table["sinks"])) < 2:  # noqa: PLR2004 - a group of one is none
                self._options.remark(f"sinkgroups.{name}", "has less than two sinks left; the group is left out")
                del groups[name]


def _names(value: object) -> list[str]:
    assert isinstance(value, list), "made by us"
    return value
