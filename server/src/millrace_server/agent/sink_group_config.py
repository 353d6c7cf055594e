"""The configuration of sink groups."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from millrace.setting_problems import Problem, shown_value
from millrace_server.agent.setting_types import ChannelName, check_unique, named_tables

_Tables = dict[str, dict[str, Any]]


class SinkGroupConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Several sinks that together empty one channel."""

    sinks: Annotated[list[ChannelName], Field(min_length=2), AfterValidator(check_unique)]
    """Its sinks, all with the same `channel`; for `failover`, in the order of their priority."""

    policy: Literal["failover", "load_balancing"] = "failover"
    """How the sinks share the work.

    `failover`: one at a time, the first healthy one. `load_balancing`: all of them at the same time, each at its own
    speed.
    """

    backoff_seconds_max: float = Field(30.0, gt=0, le=3_600, allow_inf_nan=False)
    """The longest delay before a sink that has failed is tried again."""


def group_problems(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each sink that a group must not contain.

    It works on the tables as parsed from TOML, so that other problems of the configuration do not hide these.
    """
    groups, sinks = named_tables(tables, "sink_groups"), named_tables(tables, "sinks")
    problems = []
    taken: dict[str, str] = {}
    for group_name, group in groups.items():
        names = group.get("sinks")
        if not isinstance(names, list):
            continue
        for index, name in enumerate(names):
            if isinstance(name, str) and (problem := _problem(name, group_name, names, sinks, taken)):
                problems.append(Problem(("sink_groups", group_name, "sinks", index), problem))
    return problems


def _problem(name: str, group_name: str, names: list[str], sinks: _Tables, taken: dict[str, str]) -> str:
    """Returns the problem with a sink of a group, or an empty string."""
    is_name = shown_value(name)
    if name not in sinks:
        known = ", ".join(map(shown_value, sinks)) or "none"
        return f"is {is_name}; it must be a configured sink, of which there are: {known}"
    if (former := taken.setdefault(name, group_name)) != group_name:
        return f"is {is_name}, which is already in group {shown_value(former)}; a sink can be in only one group"
    channels = [sinks[other].get("channel") for other in (name, next(other for other in names if other in sinks))]
    if channels[0] != channels[1] and all(isinstance(channel, str) for channel in channels):
        emptied, first = map(shown_value, channels)
        return (
            f"is {is_name}, which empties channel {emptied}; all sinks of a group must empty the same channel, here "
            f"{first}"
        )
    return ""
