"""`deploy/millraced.service`."""

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_server.cli.reporting import EXIT_USAGE
from millrace_server.configuration.settings import load_settings
from tests.unit.repository.checkout import ROOT, read_pyproject

UNIT = ROOT / "deploy" / "millraced.service"
EXPOSURE_MAX = 20
"""In tenths, as in `systemd-analyze security`: 0 is fully confined, 100 is unconfined."""


@pytest.fixture
def service() -> configparser.SectionProxy:
    """The section [Service] of the unit; the last value of repeated settings."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    # Names must keep their case.
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # the documented way
    parser.read_string(UNIT.read_text())
    return parser["Service"]


@pytest.fixture
def verifiable_unit(tmp_path: Path) -> Path:
    """The unit with this environment's program, since systemd checks that it exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not on this machine")
    program = Path(sys.executable).with_name("millraced")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ExecStart=/opt/millrace/bin/millraced", f"ExecStart={program}"))
    return unit


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_unit_verified_by_systemd_has_no_findings(verifiable_unit: Path) -> None:
    """Systemd accepts every line."""
    verify = _analyze("verify", "--man=no", verifiable_unit)
    assert (verify.returncode, verify.stderr) == (0, "")


def test_unit_judged_by_systemd_is_confined(verifiable_unit: Path) -> None:
    """The daemon has few permissions beyond what it needs."""
    security = _analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", verifiable_unit)
    if "unrecognized option" in security.stderr:
        pytest.skip("this systemd cannot judge units that are not loaded")
    assert security.returncode == 0, security.stdout


def test_command_of_the_unit_is_one_that_the_daemon_has(service: configparser.SectionProxy) -> None:
    """The unit starts a program of the server's distribution, with an existing command and options."""
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name in read_pyproject("server")["project"]["scripts"]
    command, option, file = arguments
    shown = subprocess.run(
        [Path(sys.executable).with_name("millraced"), command, "--help"], capture_output=True, text=True, check=True
    )
    assert option in shown.stdout
    assert f"install -D --mode 0644 deploy/millrace.toml {file}" in UNIT.read_text()


def test_stop_of_the_unit_leaves_the_daemon_its_grace_time(service: configparser.SectionProxy) -> None:
    """Systemd sends the signal that stops the daemon, and kills only after the daemon's own grace time."""
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) > load_settings().server.shutdown_grace_seconds
    assert service["RestartPreventExitStatus"] == str(EXIT_USAGE)


def test_state_directory_of_the_unit_is_the_examples_data_dir(service: configparser.SectionProxy) -> None:
    """The unit may write only where the configuration keeps its data, and does not run as root."""
    data_dir = load_settings(ROOT / "deploy" / "millrace.toml").server.data_dir
    assert data_dir == Path("/var/lib") / service["StateDirectory"] == Path(service["WorkingDirectory"])
    assert service["DynamicUser"] == "yes"
