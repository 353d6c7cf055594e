from pathlib import Path
from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_server.configuration.settings import check_settings, load_settings
from millrace_server.hosting.data_dir import CATALOG_FILE, CHANNELS_DIRECTORY


def problems_of(audit_file: Path | str, **tables: Any) -> list[str]:
    auth = {"tokens_file": "/dev/null", **tables.pop("auth", {}), "audit_file": str(audit_file)}
    try:
        check_settings({"auth": auth, **tables}, "test")
    except SettingsError as error:
        return [str(problem) for problem in error.problems if problem.path == ("auth", "audit_file")]
    return []


@pytest.mark.parametrize(
    ("tables", "setting"),
    [
        ({"auth": {"tokens_file": "FILE"}}, "auth.tokens_file"),
        ({"auth": {"jwt": {"jwks_file": "FILE"}}}, "auth.jwt.jwks_file"),
        ({"server": {"tls": {"certificate": "other", "private_key": "FILE"}}}, "server.tls.private_key"),
        ({"channels": {"a.b": {"type": "file", "encryption": {"keys": {"k": "FILE"}}}}},
         'channels."a.b".encryption.keys.k'),
        ({"sinks": {"out": {"type": "millrace", "token_file": "FILE"}}}, "sinks.out.token_file"),
    ],
)  # fmt: skip
def test_check_of_an_audit_file_that_another_setting_names_is_refused(
    tables: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    """The audit log is never appended to a file that the server reads, even under another name, with other errors."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch(0o600)
    link.symlink_to(target)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(entry) for key, entry in value.items()}
        return str(target) if value == "FILE" else value

    [problem] = problems_of(link, **filled(tables))
    assert problem.endswith(f", which is also {setting}; the audit log needs a file of its own")


@pytest.mark.parametrize("name", [CATALOG_FILE, "lock", f"{CHANNELS_DIRECTORY}/orders/checkpoint"])
def test_check_of_an_audit_file_among_the_servers_data_is_refused(name: str, tmp_path: Path) -> None:
    """The audit log is not appended to what the server keeps in its data directory."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    [problem] = problems_of(file, server={"data_dir": str(tmp_path)})
    assert problem.endswith(", which lies in server.data_dir; the audit log needs a file of its own")


def test_check_of_an_audit_file_in_a_channels_directory_is_refused(tmp_path: Path) -> None:
    """The audit log is not appended to a segment; beside the directories of channels it may be."""
    (tmp_path / "orders").mkdir()
    file = tmp_path / "orders" / "wal-0.log"
    channels = {"orders": {"type": "file", "data_dirs": [str(tmp_path)]}}
    [problem] = problems_of(file, channels=channels)
    assert problem.endswith(", which lies in channels.orders.data_dirs[0]; the audit log needs a file of its own")
    assert not problems_of(tmp_path / "audit.log", channels=channels, server={"data_dir": str(tmp_path)})


def test_check_of_an_audit_file_in_the_directory_of_a_spooldir_source_is_refused(tmp_path: Path) -> None:
    """The source would read the audit log as events, and then move or delete it."""
    source = {"type": "spooldir", "channels": ["orders"], "directory": str(tmp_path), "format": {"type": "lines"}}
    [problem] = problems_of(tmp_path / "audit.log", sources={"in": source})
    assert problem.endswith(", which lies in sources.in.directory; the audit log needs a file of its own")


def test_load_when_the_audit_file_is_the_configuration_itself_is_refused(tmp_path: Path) -> None:
    """The audit log is not appended to the file that says where it is."""
    file = tmp_path / "millrace.toml"
    file.write_text(f'[auth]\ntokens_file = "/dev/null"\naudit_file = "{file}"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert [problem.line for problem in caught.value.problems] == [3]
    assert "the configuration file itself; the audit log needs a file of its own" in str(caught.value)
