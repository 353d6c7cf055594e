"""Generates `docs/settings.md`: every setting of the configuration file, from the code.

`python -m tools.generate_settings_page` writes it; `--check` fails if the committed page is stale. The description of a
setting is the docstring below its field; defaults and limits are those of the model.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from millrace.setting_problems import allowed_values, choices_of, shown_value
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings, IdentitySettings, QuotaSettings, RoleSettings
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.kafka.security import KafkaSaslConfig, KafkaTlsConfig
from millrace_server.agent.lines.config import LinesConfig, MultilineConfig
from millrace_server.agent.selectors import AnySelectorConfig
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.avro.config import AvroTlsConfig
from millrace_server.agent.sinks.millrace.config import ClientTlsConfig
from millrace_server.agent.sinks.sink import SinkConfig
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.agent.sources.spooldir.config import AnyDone, AnyFormat
from millrace_server.channels.config import (
    EncryptionConfig,
    FileChannelConfig,
    MemoryChannelConfig,
    ReplicatedChannelConfig,
    SpillableChannelConfig,
)
from millrace_server.configuration.settings import ServerSettings, TracingSettings
from millrace_server.network.tls import TlsSettings
from millrace_server.replication.engine_access import EngineTls
from millrace_server.replication.engine_settings import EngineSettings
from tools.generated_page import docstrings_of, write_or_check

_INTRODUCTION = """\
# Settings

Every setting of the configuration file. `make docs` generates this page from the code. [agent.md](agent.md) explains
how the components work together, and [millrace.toml](../deploy/millrace.toml) is a configuration to start from.

Numbers of bytes may have a unit, as text: `"64MiB"`, `"8GB"`. So may capacities in events: `"500k"`, `"1M"`.
"""

_SHARE_OF_MEMORY = frozenset({"byte_capacity", "memory_byte_capacity"})
"""Settings whose default differs from machine to machine."""


_OF_REPLICATED = {"engine": "`server.engine`", "min_free_bytes": "a tenth of the stream"}
"""Defaults of replicated channels that depend on other settings."""


class _Shared(NamedTuple):
    """Settings that many tables have, described in one place."""

    model: type[BaseModel]
    title: str


_FILE_CHANNEL = _Shared(FileChannelConfig, "Channel of type file")
_ALL_SOURCES = _Shared(SourceConfig, "All sources")
_LINES = _Shared(LinesConfig, "Lines")
_ALL_SINKS = _Shared(SinkConfig, "All sinks")


def page() -> str:
    """The content of the page."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    yield from _section("`[server]`", ServerSettings)
    yield from _section("`tls` of the server", TlsSettings, level=3)
    yield from _section("`tracing` of the server", TracingSettings, level=3)
    yield from _section("`[auth]`", AuthSettings)
    yield from _section("`jwt` of `[auth]`", JwtSettings, level=3)
    yield from _section("`[roles.NAME]`", RoleSettings)
    yield from _section('`[identities."PATTERN"]`', IdentitySettings)
    yield from _section("`quota` of identities", QuotaSettings, level=3)
    yield "## `[channels.NAME]`\n"
    yield from _section("Channel of type memory", MemoryChannelConfig, level=3)
    yield from _section(_FILE_CHANNEL.title, FileChannelConfig, level=3)
    yield from _section("Channel of type spillable", SpillableChannelConfig, [_FILE_CHANNEL], level=3)
    yield from _section("Channel of type replicated", ReplicatedChannelConfig, level=3)
    yield from _section("`engine` of a channel", EngineSettings, level=3)
    yield from _section("`tls` of an engine", EngineTls, level=3)
    yield from _section("`encryption` of a channel", EncryptionConfig, level=3)
    yield "## `[sources.NAME]`\n"
    yield from _section(_ALL_SOURCES.title, SourceConfig, level=3)
    yield from _section(_LINES.title, LinesConfig, level=3)
    yield from _section("`multiline` of lines", MultilineConfig, level=3)
    yield from _choices("Source", AnySourceConfig, [_ALL_SOURCES, _LINES])
    yield from _choices("`format` of a source spooldir:", AnyFormat, [_LINES])
    yield from _choices("`done` of a source spooldir:", AnyDone)
    yield from _section("`tls` of a source or sink kafka", KafkaTlsConfig, level=3)
    yield from _section("`sasl` of a source or sink kafka", KafkaSaslConfig, level=3)
    yield "## `interceptors` of a source\n"
    yield from _choices("Interceptor", AnyInterceptorConfig)
    yield "## `selector` of a source\n"
    yield from _choices("Selector", AnySelectorConfig)
    yield "## `[sinks.NAME]`\n"
    yield from _section(_ALL_SINKS.title, SinkConfig, level=3)
    yield from _choices("Sink", AnySinkConfig, [_ALL_SINKS])
    yield from _section("`tls` of a sink avro", AvroTlsConfig, level=3)
    yield from _section("`tls` of a sink millrace", ClientTlsConfig, level=3)
    yield from _section("`[sink_groups.NAME]`", SinkGroupConfig)


def _choices(what: str, union: object, shared: Sequence[_Shared] = ()) -> Iterator[str]:
    _, choices = choices_of(union)
    for tag, model in choices.items():
        yield from _section(f"{what} {tag}", model, shared, level=3)


def _section(title: str, model: type[BaseModel], shared: Sequence[_Shared] = (), level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield f"{inspect.cleandoc(model.__doc__ or '')}\n"
    described_elsewhere = [one for one in shared if one.model.model_fields.keys() <= model.model_fields.keys()]
    if described_elsewhere:
        links = " and of ".join(
            f"[{one.title[0].lower()}{one.title[1:]}](#{_anchor(one.title)})" for one in described_elsewhere
        )
        yield f"It has the settings of {links}.\n"
    rows = list(_rows(model, described_elsewhere))
    if rows:
        yield "\n".join(["| setting | default | description |", "| --- | --- | --- |", *rows, ""])


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-").replace("`", "")


def _rows(model: type[BaseModel], described_elsewhere: Sequence[_Shared]) -> Iterator[str]:
    descriptions = _docstrings(model)
    for name, field in model.model_fields.items():
        if name == "type" or any(_is_same(field, one.model.model_fields.get(name)) for one in described_elsewhere):
            continue
        what = " ".join([descriptions[name], *_limits(field, descriptions[name])]).replace("|", r"\|")
        yield f"| `{name}` | {default_of(model, name)} | {what} |"


def _limits(field: FieldInfo, description: str) -> Iterator[str]:
    """The allowed values of a setting, unless its docstring and its default show them."""
    allowed = allowed_values(field)
    words = re.findall('"[^"]+"', allowed)
    if any(word.strip('"') not in description for word in words) or any(character.isdigit() for character in allowed):
        yield f"*{allowed[0].upper()}{allowed[1:]}.*"


def _is_same(field: FieldInfo, shared: FieldInfo | None) -> bool:
    return shared is not None and (field.default, field.default_factory) == (shared.default, shared.default_factory)


def default_of(model: type[BaseModel], name: str) -> str:
    """A setting's default as the page shows it."""
    field = model.model_fields[name]
    if model is ReplicatedChannelConfig and name in _OF_REPLICATED:
        return _OF_REPLICATED[name]
    if field.is_required():
        return "required"
    if name in _SHARE_OF_MEMORY and field.default_factory is not None:
        return "a fifth of the memory"
    value = field.get_default(call_default_factory=True, validated_data=_defaults_before(model, name))
    return "none" if value in (None, [], {}, "") else f"`{_written(value)}`"


def _defaults_before(model: type[BaseModel], name: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for former, field in model.model_fields.items():
        if former == name:
            break
        if not field.is_required():
            values[former] = field.get_default(call_default_factory=True, validated_data=values)
    return values


def _written(value: object) -> str:
    match value:
        case BaseModel():
            return f"{{ type = {shown_value(value.model_dump()['type'])} }}"
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case Enum():
            return shown_value(value.value)
        case Path():
            return shown_value(str(value))
        case int() if not isinstance(value, bool):
            return f"{value:_}"
        case _:
            return shown_value(value)


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The description of each field, in one line; for a field that a subclass redeclares, that of the subclass."""
    descriptions: dict[str, str] = {}
    for declaring in reversed(model.__mro__):
        if issubclass(declaring, BaseModel) and declaring is not BaseModel:
            descriptions |= docstrings_of(declaring)
    return descriptions


if __name__ == "__main__":
    write_or_check("settings.md", page(), __doc__)
