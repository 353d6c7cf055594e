import signal
import subprocess
import sys
from importlib import metadata

import pytest

from millrace_client.cli.exit_status import MEANINGS, TerminatedError, raise_on_sigterm
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import FakeClient


def test_version_asked_for_is_that_of_the_distribution(millrace: RunMillrace) -> None:
    """One line, for people and scripts."""
    assert millrace("--version").stdout == f"millrace {metadata.version('millrace-client')}\n"


def test_help_of_the_program_tells_commands_and_exit_codes(millrace: RunMillrace) -> None:
    """The table of exit codes is whole, one line each."""
    result = millrace("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("channels", "channel", "put", "take", "peek", "tail", "top"))
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert all(f"{code.value}  {meaning}" in lines for code, meaning in MEANINGS.items())


@pytest.mark.parametrize(
    "arguments", [(), ("channel",), ("nosuch",), ("put",), ("channels", "--nosuch"), ("take", "a", "b")]
)
def test_arguments_that_make_no_command_are_a_usage_error(millrace: RunMillrace, arguments: tuple[str, ...]) -> None:
    """Nothing is sent, and the way to help is shown."""
    result = millrace(*arguments)
    assert result.exit_code == 2
    assert "Usage: millrace" in result.output


def test_interrupt_in_any_command_ends_with_130(client: FakeClient, millrace: RunMillrace) -> None:
    """Ctrl-C leaves no traceback."""
    client.admin.errors.append(KeyboardInterrupt())
    result = millrace("channels")
    assert (result.exit_code, result.output) == (130, "")


def test_sigterm_in_any_command_ends_with_143(client: FakeClient, millrace: RunMillrace) -> None:
    """A command that is told to end leaves by the same way, so that transactions roll back."""
    client.admin.errors.append(TerminatedError())
    assert millrace("channels").exit_code == 143


def test_raise_on_sigterm_when_it_comes_raises() -> None:
    """The signal becomes an exception in the main thread, which no `except Exception` stops."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        raise_on_sigterm()
        with pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not issubclass(TerminatedError, Exception)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_main_without_the_extra_says_how_to_install_it(missing: str) -> None:
    """The base install has the program's name, but not what it draws with."""
    script = f"import sys; sys.modules[{missing!r}] = None; from millrace_client.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, encoding="utf-8")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == ("millrace: the command line is not installed; run `pip install 'millrace-client[cli]'`\n")


def test_main_with_another_module_missing_does_not_hide_it() -> None:
    """A broken installation is not explained away."""
    script = "import sys; sys.modules['grpc'] = None; from millrace_client.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, encoding="utf-8")
    assert result.returncode == 1
    assert "grpc" in result.stderr
