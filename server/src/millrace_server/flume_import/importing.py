"""Java's properties files, as Flume's configurations are written."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from millrace_server.flume_import.channels import convert_channel
from millrace_server.flume_import.options import ANY_HOST, Options, Remark, Table
from millrace_server.flume_import.sinks import convert_group, convert_sink
from millrace_server.flume_import.sources import convert_source

_SEPARATOR = re.compile(r"(?P<key>(?:\\.|[^\s=:\\])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.)|$)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The properties of a file; where a key comes twice, the last one counts, as in Java."""
    properties = {}
    for line in _logical_lines(text):
        match = _SEPARATOR.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescaped(match["key"])] = _unescaped(match["value"])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Lines without comments, those that end in a backslash joined with the next."""
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


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        letter = match["letter"] or ""
        return _LETTERS.get(letter, letter)

    return _ESCAPE.sub(character, text)


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def written(tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> str:
    """A TOML file of named tables, such as `[channels.orders]`, by the kind and then the name; empty for one alone."""
    return "\n".join(_pieces(tables))


def _pieces(tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Iterator[str]:
    for kind, named in tables.items():
        for name, table in named.items():
            yield f"[{kind}.{_key(name)}]" if name else f"[{kind}]"
            for key, value in table.items():
                yield f"{_key(key)} = {_value(value)}"
            yield ""


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's too, but for the letters beyond 16 bits, which may stand as they are.
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
            return f"{{ {', '.join(f'{_key(key)} = {_value(part)}' for key, part in value.items())} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in TOML")


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
