"""`deploy/millrace.toml`, the configuration to begin with."""

import re
import tomllib
from pathlib import Path

from millrace_server.channels.config import ChannelConfig
from millrace_server.settings import ServerSettings, load_settings
from tests.unit.repository.checkout import ROOT

EXAMPLE = ROOT / "deploy" / "millrace.toml"


def _with_all_settings() -> str:
    """The example with the settings that are commented out in force."""
    return re.sub(r"^# (?=\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_example_loaded_as_it_is_is_good() -> None:
    """The daemon takes the example unchanged."""
    settings = load_settings(EXAMPLE)
    assert list(settings.channels) == ["events"]


def test_example_with_everything_in_force_shows_every_setting() -> None:
    """The example tells of every setting that there is, and of no other."""
    tables = tomllib.loads(_with_all_settings())
    assert tables["server"].keys() == ServerSettings.model_fields.keys()
    assert tables["channels"]["events"].keys() == ChannelConfig.model_fields.keys()


def test_settings_commented_out_hold_the_defaults(tmp_path: Path) -> None:
    """Taking the comment sign away changes nothing."""
    path = tmp_path / "millrace.toml"
    path.write_text(_with_all_settings())
    assert load_settings(path) == load_settings(EXAMPLE)
