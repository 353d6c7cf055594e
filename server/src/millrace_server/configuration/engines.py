"""The engine of replicated channels: that of the server, for channels without their own."""

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.setting_lines import SettingPath
from millrace.setting_problems import Problem
from millrace_server.agent.setting_types import named_tables, table_at


def with_engine(tables: Mapping[str, Any]) -> tuple[Mapping[str, Any], set[SettingPath]]:
    """Gives the server's `engine`, if there is one, to replicated channels without their own.

    Returns the tables, and the paths of the engines that were missing: problems of the server's engine are reported
    only for the server's table.
    """
    server, lacking = table_at(tables, "server"), _channels_without_engine(tables)
    if lacking and "engine" in server:
        completed = {name: {**tables["channels"][name], "engine": server["engine"]} for name in lacking}
        tables = {**tables, "channels": {**tables["channels"], **completed}}
    return tables, {("channels", name, "engine") for name in lacking}


def missing_engines(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields a problem for each replicated channel that has no engine after `with_engine`."""
    for name in _channels_without_engine(tables):
        yield Problem(("channels", name), "is replicated, but has no engine; add a table server.engine")


def _channels_without_engine(tables: Mapping[str, Any]) -> list[str]:
    channels = named_tables(tables, "channels").items()
    return [name for name, table in channels if table.get("type") == "replicated" and "engine" not in table]
