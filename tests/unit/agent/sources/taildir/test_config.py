from typing import Any

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"paths": []}, "paths: "),
        ({"paths": ["/var/log/\0"]}, 'paths[0]: is "/var/log/\\u0000"; no file can have such a name'),
        ({"files_open_max": 0}, "files_open_max: is 0; it must be a whole number from 1 to 65_536"),
        ({"unfinished_line_seconds": 0.0}, "unfinished_line_seconds: is 0.0; it must be"),
        (
            {"path_headers": {"/other": {"a": "b"}}},
            'path_headers: has "/other", which is not one of the patterns in paths; write it exactly as there',
        ),
        ({"positions": "x"}, "positions: "),
    ],
    ids=str,
)
def test_settings_that_are_wrong_are_reported(written: dict[str, Any], problem: str) -> None:
    """The sentence names the setting, its value, and what is allowed."""
    good = {"type": "taildir", "channels": ["orders"], "paths": ["/var/log/*.log"]}
    with pytest.raises(ValidationError) as refused:
        TaildirSourceConfig.model_validate({**good, **written}, strict=True)
    [reported] = describe_problems(refused.value, TaildirSourceConfig)
    assert str(reported).startswith(problem)


def test_settings_without_further_words_leave_compressed_files_out() -> None:
    """A compressed log contains only what was read before its rotation."""
    config = TaildirSourceConfig(type="taildir", channels=["orders"], paths=["/var/log/*"])
    assert "*.gz" in config.exclude
