"""Programs started by the fork server, which must behave as with `subprocess`."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import ForkedProgram, fork_server, run_program


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


def test_program_whose_starter_has_ended_meanwhile_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may be killed just when it starts a program."""
    requests = fork_server().requests
    ended, its = socket.socketpair()
    ended.shutdown(socket.SHUT_RDWR)
    with ended, monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", lambda: (ended, its))
        with pytest.raises(ValueError, match="invalid literal"):
            ForkedProgram("millraced", ["--version"], requests=requests)
    assert run_program("millraced", ["--version"], timeout=60.0).returncode == 0
