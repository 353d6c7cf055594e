"""A configuration file for tests of what it means."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from millrace.setting_file import SettingsError
from millrace_server.configuration.settings import Settings, load_settings


def load(directory: Path, toml: str | bytes, overrides: Mapping[str, str] | None = None) -> Settings:
    """Writes a configuration file and loads it."""
    path = directory / "millrace.toml"
    path.write_bytes(toml.encode() if isinstance(toml, str) else toml)
    return load_settings(path, overrides)


def problems_of(directory: Path, toml: str | bytes, overrides: Mapping[str, str] | None = None) -> list[str]:
    """Returns why a configuration file is refused."""
    with pytest.raises(SettingsError) as caught:
        load(directory, toml, overrides)
    return list(map(str, caught.value.problems))
