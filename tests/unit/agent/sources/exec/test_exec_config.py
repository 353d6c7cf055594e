from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace_server.agent.setting_types import revealed
from millrace_server.agent.sources.exec.source import ExecSourceConfig


def config_of(**settings: Any) -> ExecSourceConfig:
    tables = {"type": "exec", "channels": ["lines"], "command": ["true"], **settings}
    return ExecSourceConfig.model_validate(tables, strict=True)


def test_command_as_text_with_a_shell_is_given_to_it() -> None:
    """The shell interprets pipelines and variables."""
    config = config_of(command="a | b", shell=True)  # noqa: S604 - a setting of the source, nothing is run
    assert config.command == ["/bin/sh", "-c", "a | b"]


def test_command_as_an_array_is_run_unchanged() -> None:
    """The command is run without a shell."""
    config = config_of(command=["tail", "-F", "a b"], directory="/var/x", environment={"A": ""})
    assert config.command == ["tail", "-F", "a b"]
    assert (config.directory, revealed(config.environment)) == (Path("/var/x"), {"A": ""})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"command": "tail -F x"}, 'is "tail -F x"; it must be an array such as .*, or shell must be true'),
        ({"command": " ", "shell": True}, 'is " "; it must be a command'),
        ({"command": ["true"], "shell": True}, "is an array; if shell is true, it must be text"),
        ({"command": []}, "has no program"),
        ({"command": [""]}, "has no program"),
        ({"command": ["a\0"]}, "which cannot be passed to a program"),
        ({"environment": {"A": "\0"}}, "which cannot be passed to a program"),
        ({"environment": {"A=B": ""}}, "should match pattern"),
        ({"environment": {"": ""}}, "should match pattern"),
        ({"restart": "sometimes"}, "Input should be 'always', 'on_failure' or 'never'"),
        ({"linger_seconds": -1.0}, "greater than or equal to 0"),
        ({"grace_seconds": float("inf")}, "finite"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    """`millraced check` reports what would fail at the start."""
    with pytest.raises(ValidationError, match=problem):
        config_of(**settings)
