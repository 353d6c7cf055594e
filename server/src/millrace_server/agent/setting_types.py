"""Types of settings that refer to something: a channel, a server, the user's code, or a time zone."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, Secret

from millrace.setting_problems import shown_value
from millrace_server.channels.config import CHANNEL_NAME_PATTERN
from millrace_server.extras import check_installed
from millrace_server.network import Address

_T = TypeVar("_T")


@dataclass(frozen=True)
class ChannelReference:
    """Marks a setting that names a channel, which must exist in the configuration."""

    is_own: bool
    """Whether the channel must be one of those of the source that has the setting."""


ChannelName = Annotated[str, Field(pattern=rf"^(?:{CHANNEL_NAME_PATTERN})$")]
"""A channel, of this server or another one."""

KnownChannelName = Annotated[ChannelName, ChannelReference(is_own=False)]
"""A channel of the configuration."""

OwnChannelName = Annotated[ChannelName, ChannelReference(is_own=True)]
"""One of the source's channels."""


def valid_for(parse: Callable[[str], object]) -> AfterValidator:
    """Returns a validator that keeps a text unchanged, and raises ValueError if `parse` does."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def check_fastavro(value: str) -> str:
    """Returns the type of a component that needs fastavro; raises ValueError if that is not installed."""
    check_installed(value, "fastavro", "avro")
    return value


def _parse_server(text: str) -> None:
    if not Address.of_setting(text).port:
        raise ValueError(f"is {shown_value(text)}; its port must be at least 1")


ServerAddress = Annotated[str, valid_for(_parse_server)]
"""`host:port` of a server to connect to."""


def check_unique(names: list[str]) -> list[str]:
    """Returns a list of names. Raises ValueError if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"lists {' and '.join(map(shown_value, twice))} twice; list each one once")
    return names


Endpoints = Annotated[list[ServerAddress], Field(min_length=1), AfterValidator(check_unique)]
"""The servers that a sink sends to, in order of preference. Each name must stand for a single server."""


def named_tables(tables: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Returns the tables `[key.NAME]` of a configuration that is not yet validated, by name."""
    return {name: table for name, table in table_at(tables, key).items() if isinstance(table, dict)}


def table_at(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the table `[key]` of a configuration that is not validated yet; empty if there is none."""
    table = tables.get(key)
    return table if isinstance(table, dict) else {}


def revealed(secrets: Mapping[str, Secret[_T]]) -> dict[str, _T]:
    """Returns the plain values of a table of secrets; they must not be shown."""
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def load_factory(path: str) -> Callable[..., Any]:
    """Imports the callable `package.module:name`. Raises ValueError with a sentence about the setting."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f'is {shown_value(path)}; it must be "package.module:name"')
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        message = " ".join(str(error).split()) or "without a message"
        raise ValueError(
            f"is {shown_value(path)}, which cannot be imported ({type(error).__name__}: {message})"
        ) from None
    if not callable(factory):
        # A ValueError, because pydantic turns only those into problems of the setting.
        raise ValueError(f"is {shown_value(path)}, which is not callable")  # noqa: TRY004 - see above
    found: Callable[..., Any] = factory
    return found


FactoryPath = Annotated[str, valid_for(load_factory)]
"""Where a class or function is imported from: `package.module:name`."""


def time_zone_of(name: str) -> tzinfo:
    """Returns a time zone; UTC exists on every machine. Raises ValueError with a sentence about the setting."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError(
            f'is {shown_value(name)}; it must be the name of a time zone on this machine, such as "Europe/Berlin"'
        ) from None


TimeZoneName = Annotated[str, valid_for(time_zone_of)]
"""A time zone, such as Europe/Berlin."""
