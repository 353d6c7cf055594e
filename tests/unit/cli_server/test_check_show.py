"""`millraced check --show`, and that no secret is shown anywhere."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.setting_file import SettingsError
from millrace_server.agent.setting_types import revealed
from millrace_server.cli import app
from millrace_server.configuration.settings import check_settings, load_settings
from tests.unit.repository.checkout import ROOT

SECRET = "hush-hush"  # noqa: S105 - it must not be found again
WITH_SECRETS = f"""
[channels.a]
type = "memory"
[sources.run]
type = "exec"
command = ["true"]
environment = {{ PASSWORD = "{SECRET}" }}
channels = ["a"]
selector = {{ type = "custom", factory = "builtins:dict", options = {{ password = "{SECRET}" }} }}
interceptors = [{{ type = "custom", factory = "builtins:dict", options = {{ password = ["{SECRET}"] }} }}]
[sources.own]
type = "custom"
factory = "builtins:dict"
options = {{ password = "{SECRET}" }}
channels = ["a"]
[sinks.own]
type = "custom"
factory = "builtins:dict"
options = {{ nested = {{ password = "{SECRET}" }} }}
channel = "a"
[sinks.web]
type = "http"
url = "https://example.com/in?token={SECRET}"
headers = {{ Authorization = "Bearer {SECRET}" }}
channel = "a"
[sinks.files]
type = "files"
path = "ftp://user:{SECRET}@example.com/dir"
options = {{ secret_key = "{SECRET}" }}
channel = "a"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "millrace.toml"
    path.write_text(WITH_SECRETS)
    return path


def test_show_is_the_configuration_with_its_defaults(tmp_path: Path) -> None:
    """What it prints is TOML, and the same configuration."""
    sources = '[sources.one]\ntype = "exec"\nshell = true\ncommand = "tail -F x"\nchannels = ["events"]\n'
    file = tmp_path / "millrace.toml"
    file.write_text(f"{(ROOT / 'deploy' / 'millrace.toml').read_text()}\n{sources}")
    shown = CliRunner().invoke(app, ["check", "--show", str(file)]).stdout
    assert check_settings(tomllib.loads(shown), "shown") == load_settings(file)
    assert "[server]\nallow_plaintext = false\n" in shown


def test_show_has_no_secrets(file: Path) -> None:
    """Names are shown, values of what may be secret are not; nor does anything else show them."""
    shown = CliRunner().invoke(app, ["check", "--show", str(file)])
    assert shown.exit_code == 0, shown.stderr
    sinks = tomllib.loads(shown.stdout)["sinks"]
    assert sinks["web"]["headers"] == {"Authorization": "**********"}
    assert sinks["web"]["url"] == "https://example.com/in"
    assert sinks["files"]["path"] == "ftp://***@example.com/dir"
    settings = load_settings(file)
    for text in (shown.output, CliRunner().invoke(app, ["check", str(file)]).output, repr(settings.sources)):
        assert SECRET not in text
    [own] = [sink for name, sink in settings.sinks.items() if name == "own"]
    assert SECRET not in repr(own)
    assert revealed(own.options) == {"nested": {"password": SECRET}}  # type: ignore[union-attr] # a custom sink


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (f'"Bearer {SECRET}"', f'"Bearer {SECRET}\\n"'),
        (f'{{ Authorization = "Bearer {SECRET}" }}', f'"Bearer {SECRET}"'),
        (f'{{ Authorization = "Bearer {SECRET}" }}', f'["Bearer {SECRET}"]'),
        (f'{{ PASSWORD = "{SECRET}" }}', f'{{ PASSWORD = "{SECRET}\\u0000" }}'),
        (f'{{ PASSWORD = "{SECRET}" }}', f'"PASSWORD={SECRET}"'),
        (f'{{ secret_key = "{SECRET}" }}', f'{{ secret_key = ["{SECRET}"] }}'),
        (f'{{ secret_key = "{SECRET}" }}', f'"{SECRET}"'),
        (f'{{ password = "{SECRET}" }}', f'"{SECRET}"'),
        ("https://example.com/in?", f"https://user:{SECRET}@example.com/in?"),
        ("https://example.com/in?", f"https://user:{SECRET}@example.com:99999/in?"),
        ("https://example.com/in?", "https://example.com:99999/in?"),
        ("example.com/dir", "example.com/{nothing}"),
    ],
)
def test_problems_show_no_secrets(file: Path, good: str, bad: str) -> None:
    """A secret that is not valid is a problem without its value."""
    assert good in WITH_SECRETS
    file.write_text(WITH_SECRETS.replace(good, bad))
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    assert refused.value.problems
    assert SECRET not in str(refused.value)
