from typing import Any

import pytest
from pydantic import ValidationError

from millrace.setting_file import SettingsError
from millrace_server.agent.sink_group_config import SinkGroupConfig, group_problems
from millrace_server.configuration.settings import check_settings

SINKS = {name: {"type": "null", "channel": "others" if name == "c" else "orders"} for name in "abc"}
KNOWN = '"a", "b", "c"'
SAME = 'all sinks of a group must empty the same channel, here "orders"'


def group_of(*sinks: str) -> SinkGroupConfig:
    return SinkGroupConfig(sinks=list(sinks))


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        ([], "at least 2 items"),
        (["a"], "at least 2 items"),
        (["a", "b", "a"], 'lists "a" twice'),
        (["a", "B"], "match"),
    ],
)
def test_config_of_an_invalid_group_is_refused(sinks: list[str], words: str) -> None:
    """A group has two sinks or more, each once."""
    with pytest.raises(ValidationError, match=words):
        SinkGroupConfig(sinks=sinks)


def test_config_without_a_policy_fails_over() -> None:
    """The order is that of the list."""
    assert group_of("b", "a") == SinkGroupConfig(sinks=["b", "a"], policy="failover", backoff_seconds_max=30.0)


def problems_of(**groups: Any) -> list[str]:
    tables = {"channels": {"orders": {"type": "memory"}, "others": {"type": "memory"}}, "sinks": SINKS}
    try:
        check_settings({**tables, "sink_groups": groups}, "test")
    except SettingsError as error:
        return list(map(str, error.problems))
    return []


def test_settings_with_good_groups_have_them() -> None:
    """All sinks exist, each is in at most one group, and those of a group empty the same channel."""
    assert problems_of(all={"sinks": ["b", "a"], "policy": "load_balancing"}) == []


def test_settings_with_bad_groups_report_all_problems() -> None:
    """Each problem names the group, the sink and the value, and says what is allowed."""
    assert problems_of(one={"sinks": ["a", "missing", "c"]}, two={"sinks": ["b", "a"], "policy": "none"}) == [
        'sink_groups.two.policy: is "none"; it must be "failover" or "load_balancing"',
        f'sink_groups.one.sinks[1]: is "missing"; it must be a configured sink, of which there are: {KNOWN}',
        f'sink_groups.one.sinks[2]: is "c", which empties channel "others"; {SAME}',
        'sink_groups.two.sinks[1]: is "a", which is already in group "one"; a sink can be in only one group',
    ]


@pytest.mark.parametrize("group", [{"sinks": "a"}, {"sinks": [1, ["a"]]}, {}, "a", {"sinks": ["a"]}])
def test_settings_with_something_else_for_a_group_are_reported_once(group: object) -> None:
    """This holds for any value."""
    assert len({problem.partition(":")[0] for problem in problems_of(all=group)}) >= 1


def test_group_problems_of_tables_that_are_none_are_none() -> None:
    """Invalid tables are reported elsewhere."""
    assert group_problems({"sink_groups": 7, "sinks": []}) == []
    assert (
        group_problems({"sink_groups": {"all": {"sinks": ["a", "b"]}}, "sinks": {"a": {}, "b": {"channel": 7}}}) == []
    )
