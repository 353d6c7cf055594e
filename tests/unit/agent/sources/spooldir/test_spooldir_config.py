from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.spool import spool_config


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"done": {"type": "move", "directory": "/spool"}}, "it must be a directory other"),
        ({"quarantine_directory": "/spool"}, "it must be a directory other"),
        ({"done": {"type": "rename", "suffix": ""}}, "it must be the end of a file's name"),
        ({"done": {"type": "rename", "suffix": "/x"}}, "it must be the end of a file's name"),
        ({"done": {"type": "burn"}}, "does not match any of the expected tags"),
        ({"format": {"type": "xml"}}, "does not match any of the expected tags"),
        ({"include": []}, "at least 1"),
        ({"poll_seconds": 0.0}, "greater than or equal to 0.05"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    """`millraced check` reports what would fail at the first file."""
    with pytest.raises(ValidationError, match=problem):
        spool_config(Path("/spool"), **settings)


def test_format_avro_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is an optional dependency, since few need it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"pip install 'millrace-server\[avro\]'"):
        spool_config(Path("/spool"), format={"type": "avro"})
