from typing import Any

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.lines.config import LinesConfig


def test_settings_in_the_words_of_a_file_are_understood() -> None:
    """A configuration file has strings where the code has its own types."""
    written = {
        "charset": "Latin-1",
        "decode_errors": "ignore",
        "long_lines": "truncate",
        "multiline": {"pattern": "^x", "role": "continues"},
    }
    config = LinesConfig.model_validate(written, strict=True)
    assert (config.decode_errors, config.long_lines) == ("ignore", "truncate")
    assert config.multiline is not None
    assert config.multiline.role == "continues"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"charset": "klingon"}, 'charset: is "klingon"; it must be the name of a charset, such as "utf-8"'),
        ({"charset": "hex"}, 'charset: is "hex"; it must be the name of a charset'),
        ({"charset": "idna"}, 'charset: is "idna"; it must be the name of a charset'),
        ({"decode_errors": "panic"}, 'decode_errors: is "panic"; it must be'),
        ({"long_lines": 3}, "long_lines: is 3; it must be"),
        ({"line_bytes_max": 15}, "line_bytes_max: is 15; it must be a whole number from 16 to 67_108_864"),
        ({"multiline": {"pattern": "("}}, 'multiline.pattern: is "(", which is not a valid regular expression'),
        ({"multiline": {}}, "multiline.pattern"),
    ],
    ids=str,
)
def test_settings_that_are_wrong_are_reported(written: dict[str, Any], problem: str) -> None:
    """The sentence names the setting, its value, and what is allowed."""
    with pytest.raises(ValidationError) as refused:
        LinesConfig.model_validate(written, strict=True)
    [reported] = describe_problems(refused.value, LinesConfig)
    assert str(reported).startswith(problem)
