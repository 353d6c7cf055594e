"""`deploy/millrace.toml`, the configuration to start with."""

import re
import tomllib
from pathlib import Path

from millrace_server.access.settings import AuthSettings
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import SinkConfig
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.channels.config import (
    EncryptionConfig,
    FileChannelConfig,
    MemoryChannelConfig,
    SpillableChannelConfig,
)
from millrace_server.configuration.settings import ServerSettings, load_settings
from millrace_server.network.tls import TlsSettings
from millrace_server.replication.engine_settings import EngineSettings
from tests.certificates import Authority
from tests.unit.repository.checkout import ROOT

EXAMPLE = ROOT / "deploy" / "millrace.toml"


def _with(commented_out: str) -> str:
    """The example with those settings enabled that follow a comment sign and this pattern."""
    return re.sub(rf"^# {commented_out}(?=[\w.]+ = |\[)", "", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_example_loaded_as_it_is_is_good() -> None:
    """The daemon accepts the example unchanged: one file channel, one memory channel, and one spillable channel."""
    types = {name: channel.type for name, channel in load_settings(EXAMPLE).channels.items()}
    assert types == {"orders": "file", "events": "memory", "bursts": "spillable"}


def test_example_with_everything_in_force_shows_every_setting(tmp_path: Path) -> None:
    """The example shows every setting of server and channels, and no other; its flow is valid too.

    Sources, sinks and interceptors show all settings that do not depend on the type.
    """
    authority = Authority()
    authority.issue(tmp_path, "server")
    (tmp_path / "clients.pem").write_bytes(authority.certificate)
    (tmp_path / "engine.pem").write_bytes(authority.certificate)
    (tmp_path / "tokens").touch(0o600)
    (tmp_path / "engine.token").write_text("abc")
    (tmp_path / "engine.token").chmod(0o600)
    # These files are read with the configuration.
    files = r"/etc/millrace/(?=(?:server|clients|engine)\.|tokens)|/var/log/millrace/(?=audit)"
    everything = re.sub(files, f"{tmp_path}/", _with("(?:For example: )?"))
    tables = tomllib.loads(everything)
    assert tables["server"].keys() == ServerSettings.model_fields.keys()
    assert tables["server"]["tls"].keys() == TlsSettings.model_fields.keys()
    assert tables["auth"].keys() == AuthSettings.model_fields.keys()
    assert tables["channels"]["events"].keys() == MemoryChannelConfig.model_fields.keys()
    assert tables["channels"]["orders"].keys() == FileChannelConfig.model_fields.keys()
    its_own = SpillableChannelConfig.model_fields.keys() - FileChannelConfig.model_fields.keys()
    assert tables["channels"]["bursts"].keys() == {"type", *its_own}, "file channels describe the rest"
    instead_of_a_token = {"credentials_file", "nkey_file", "user", "password_file"}
    assert tables["channels"]["payments"]["engine"].keys() == EngineSettings.model_fields.keys() - instead_of_a_token
    assert tables["channels"]["orders"]["encryption"].keys() == EncryptionConfig.model_fields.keys()
    assert SourceConfig.model_fields.keys() < tables["sources"]["access_log"].keys()
    assert SinkConfig.model_fields.keys() < tables["sinks"]["collector"].keys()
    assert tables["sink_groups"]["out"].keys() == SinkGroupConfig.model_fields.keys()
    path = tmp_path / "millrace.toml"
    path.write_text(everything)
    assert load_settings(path) != load_settings(EXAMPLE)


def test_settings_commented_out_hold_the_defaults(tmp_path: Path) -> None:
    """Removing the comment sign changes nothing."""
    path = tmp_path / "millrace.toml"
    path.write_text(_with(""))
    assert path.read_text() != EXAMPLE.read_text()
    assert load_settings(path) == load_settings(EXAMPLE)
