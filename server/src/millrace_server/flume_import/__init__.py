"""Import of a Flume agent: from a properties file to a TOML file."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace_server.flume_import.channels import convert_channel
from millrace_server.flume_import.options import ANY_HOST, Note, Options, Table
from millrace_server.flume_import.sinks import convert_group, convert_sink
from millrace_server.flume_import.sources import convert_source

_SEPARATOR = re.compile(r"(?P<key>(?:\\.|[^\s=:\\])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.)|$)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Returns the properties of a file; of a repeated key the last value, as in Java."""
    properties = {}
    for line in _logical_lines(text):
        match = _SEPARATOR.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescape(match["key"])] = _unescape(match["value"])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Returns the lines without comments; a line that ends in a backslash is joined with the next one."""
    lines: list[str] = []
    is_continued = False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not is_continued and (not line or line[0] in "#!"):
            continue
        is_next_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        line = line[:-1] if is_next_continued else line
        if is_continued:
            lines[-1] += line
        else:
            lines.append(line)
        is_continued = is_next_continued
    return lines


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        letter = match["letter"] or ""
        return _LETTERS.get(letter, letter)

    return _ESCAPE.sub(character, text)


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> str:
    """Returns a TOML file of named tables, such as `[channels.orders]`; of `[kind]` if the name is empty."""
    lines = []
    for kind, named in tables.items():
        for name, table in named.items():
            lines.append(f"[{kind}.{_key(name)}]" if name else f"[{kind}]")
            lines.extend(f"{_key(key)} = {_value(value)}" for key, value in table.items())
            lines.append("")
    return "\n".join(lines)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # TOML has the same escapes as JSON, except for characters beyond 16 bits, which are left unescaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case dict():
            entries = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be represented in TOML")


_RPC_SOURCES = {"avro", "thrift"}
_LOOPBACK = ("127.", "localhost")


class FlumeImportError(Exception):
    """Raised when there is nothing to import; the message says why."""


@dataclass
class ImportedAgent:
    """The result of an import."""

    agent: str
    tables: dict[str, dict[str, Table]] = field(default_factory=dict)
    """The tables of the configuration, by kind and name."""
    notes: list[Note] = field(default_factory=list)
    """What has no counterpart, and what else to know."""

    def toml(self) -> str:
        return to_toml(self.tables)


def import_agent(text: str, agent: str | None = None) -> ImportedAgent:
    """Converts one agent of a Flume properties file; the name may be omitted if there is only one.

    Raises FlumeImportError if the file does not have exactly that agent.
    """
    properties = parse_properties(text)
    agents = list(dict.fromkeys(key.split(".", 1)[0] for key in properties if "." in key))
    if agent is None and len(agents) != 1:
        problem = f"it describes {' and '.join(agents)}; choose one with --agent" if agents else "it describes no agent"
        raise FlumeImportError(problem)
    agent = agent or agents[0]
    if agent not in agents:
        raise FlumeImportError(f"it describes no agent {agent}, but {' and '.join(agents) or 'none'}")
    prefix = f"{agent}."
    values = {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}
    return _Import(agent, values).result


class _Import:
    def __init__(self, agent: str, values: dict[str, str]) -> None:
        self.result = ImportedAgent(agent)
        self._options = Options(agent, values, self.result.notes)
        self._convert()
        self._options.report_unused({"configfilters": "values are taken as they stand; nothing is filled in"})
        self._remove_unconnected()

    def _add(self, kind: str, name: str, table: Table | None) -> None:
        if table is not None:
            self.result.tables.setdefault(kind, {})[name] = table

    def _convert(self) -> None:
        for name, options in self._options.components("channels"):
            self._add("channels", name, convert_channel(options.text("type", "memory").lower(), options))
        for name, options in self._options.components("sources"):
            type_name = options.text("type")
            if type_name.lower() in _RPC_SOURCES:
                self._take_over_address(options)
            self._add("sources", name, convert_source(type_name, options))
        for name, options in self._options.components("sinks"):
            self._add("sinks", name, convert_sink(options.text("type"), options))
        for name, options in self._options.components("sinkgroups"):
            self._add("sink_groups", name, convert_group(options))

    def _take_over_address(self, options: Options) -> None:
        """Makes the server listen where its Avro source did, so that senders keep their address."""
        host, port = options.text("bind", ANY_HOST), options.text("port")
        if "server" in self.result.tables or not port:
            return
        server: Table = {"listen": f"{host}:{port}"}
        if not host.startswith(_LOOPBACK):
            server |= {"allow_plaintext": True, "allow_anonymous": True}
        self.result.tables = {"server": {"": server}, **self.result.tables}

    def _remove_unconnected(self) -> None:
        """Removes what names no existing channel, as Flume does, and groups with fewer than two sinks."""
        channels = self.result.tables.get("channels", {})
        sources, sinks = self.result.tables.get("sources", {}), self.result.tables.get("sinks", {})
        for name, table in list(sources.items()):
            known = [channel for channel in _names(table["channels"]) if channel in channels]
            if not known:
                self._options.note(f"sources.{name}.channels", "names no existing channel; the source is omitted")
                del sources[name]
            table["channels"] = known
        for name, table in list(sinks.items()):
            if table["channel"] not in channels:
                self._options.note(f"sinks.{name}.channel", "is no existing channel; the sink is omitted")
                del sinks[name]
        groups = self.result.tables.get("sink_groups", {})
        for name, table in list(groups.items()):
            table["sinks"] = [sink for sink in _names(table["sinks"]) if sink in sinks]
            if len(_names(table["sinks"])) < 2:  # noqa: PLR2004 - a group needs at least two
                self._options.note(f"sinkgroups.{name}", "has fewer than two sinks left; the group is omitted")
                del groups[name]


def _names(value: object) -> list[str]:
    assert isinstance(value, list), "created above"
    return value
