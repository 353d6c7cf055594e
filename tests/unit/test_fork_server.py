"""Programs started by the fork server, which must behave as with `subprocess`."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import ForkedProgram, run_program


def test_run_program_that_fails_returns_its_streams_and_exit_code() -> None:
    """A command with a wrong argument reports that on its standard error."""
    ran = run_program("millraced", ["no-such-command"], timeout=60.0)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "No such command 'no-such-command'" in ran.stderr


def test_run_program_in_a_folder_works_there(tmp_path: Path) -> None:
    """Relative paths are those of the given folder."""
    (tmp_path / "millrace.toml").write_text('channels.a.type = "memory"')
    assert run_program("millraced", ["check", "millrace.toml"], cwd=tmp_path, timeout=60.0).returncode == 0


def test_forked_program_that_is_killed_has_the_signal_as_its_exit_code() -> None:
    """A wait for a running program times out, and returns once it is killed."""
    with ForkedProgram("millrace", ["put", "orders"], stdin=subprocess.PIPE) as program:
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.0)
        program.kill()
        assert program.wait(60.0) == -signal.SIGKILL
