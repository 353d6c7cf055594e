import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import grpc._channel
import pytest
import typer

from millrace_client import ChannelNotFoundError, ForbiddenError
from millrace_client.cli import program
from millrace_client.cli.commands import COMMANDS, loaded_command
from millrace_client.cli.exit_status import MEANINGS, TerminatedError, end_on_signals, raise_on_signals
from millrace_client.cli.program import app
from tests.fork_server import run_code
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import FakeClient

_LIMIT = 200


def test_version_option_shows_the_distribution(millrace: RunMillrace) -> None:
    """The version is one line, for people and scripts."""
    assert millrace("--version").stdout == f"millrace {metadata.version('millrace-client')}\n"


def test_help_of_the_program_tells_commands_and_exit_codes(millrace: RunMillrace) -> None:
    """The table of exit codes is complete, one line each."""
    result = millrace("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("channels", "channel", "put", "take", "peek", "tail", "top"))
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert all(f"{code.value}  {meaning}" in lines for code, meaning in MEANINGS.items())


@pytest.mark.parametrize(
    "arguments", [(), ("channel",), ("nosuch",), ("put",), ("channels", "--nosuch"), ("take", "a", "b")]
)
def test_arguments_that_make_no_command_are_a_usage_error(millrace: RunMillrace, arguments: tuple[str, ...]) -> None:
    """Nothing is sent, and the message refers to --help."""
    result = millrace(*arguments)
    assert result.exit_code == 2
    assert "Usage: millrace" in result.output


def test_wrong_word_for_an_option_is_answered_with_the_allowed_ones(millrace: RunMillrace) -> None:
    """The message has none of the words of the library that checks options."""
    result = millrace("channel", "create", "a", "--type", "fil")
    assert result.exit_code == 2
    assert (
        "Invalid value for '--type': 'fil' is not one of 'memory', 'file', 'spillable', 'replicated'." in result.stderr
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_the_program_has_the_first_sentence_of_a_command(name: str) -> None:
    """The program knows it without importing the command."""
    listed: Any = typer.main.get_command(app)
    assert listed.commands[name].get_short_help_str(_LIMIT) == loaded_command(name).get_short_help_str(_LIMIT)


def test_interrupt_in_any_command_ends_with_130(client: FakeClient, millrace: RunMillrace) -> None:
    """Ctrl-C prints no traceback."""
    client.admin.errors.append(KeyboardInterrupt())
    result = millrace("channels")
    assert (result.exit_code, result.output) == (130, "")


def test_sigterm_in_any_command_ends_with_143(client: FakeClient, millrace: RunMillrace) -> None:
    """SIGTERM takes the same way out as errors, so that transactions are rolled back."""
    client.admin.errors.append(TerminatedError())
    assert millrace("channels").exit_code == 143


@pytest.mark.parametrize(("signal_error", "exit_code"), [(KeyboardInterrupt, 130), (TerminatedError, 143)])
def test_signal_while_a_command_is_imported_ends_with_its_exit_code(
    millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch, signal_error: type[BaseException], exit_code: int
) -> None:
    """Nothing more is imported then, since modules that were interrupted halfway cannot be."""

    def interrupted(_name: str) -> None:
        raise signal_error

    monkeypatch.setattr(program, "loaded_command", interrupted)
    monkeypatch.setattr(program, "millrace_client", None)
    result = millrace("channels")
    assert (result.exit_code, result.output) == (exit_code, "")


def test_signal_while_arguments_are_parsed_ends_the_program_at_once() -> None:
    """Typer imports pydantic then, and an import may swallow what a handler raises."""
    script = """
import signal, sys
from types import SimpleNamespace

def find(name, *_arguments):
    if name == "pydantic":
        signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, SimpleNamespace(find_spec=find))
from millrace_client.cli import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", script, "peek", "orders"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGTERM, b"")


def test_raise_on_signals_turns_them_into_errors_that_no_command_catches(restored_signals: None) -> None:
    """They are raised in the main thread, and `except Exception` does not catch them."""
    raise_on_signals()
    with pytest.raises(TerminatedError):
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not issubclass(TerminatedError, Exception)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_signal_while_grpc_starts_a_call_is_raised_once_it_has(
    restored_signals: None, number: signal.Signals, error: type[BaseException]
) -> None:
    """A call that has begun but has no thread yet would keep its channel from closing, and the program from ending."""
    channel = InterruptingChannel(number)
    state: Any = SimpleNamespace(lock=threading.RLock(), managed_calls=0, channel=channel)

    def call_and_wait() -> None:
        grpc._channel._channel_managed_call_management(state)(0, b"", None, None, None, None, [], None, None, None)
        time.sleep(60)

    raise_on_signals()
    with pytest.raises(error):
        call_and_wait()
    assert channel.has_ended.wait(60)


class InterruptingChannel:
    """A channel of which a signal interrupts the start of a call, which a thread ends."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.has_ended = threading.Event()

    def integrated_call(self, *_arguments: object) -> None:
        signal.raise_signal(self._number)

    def next_call_event(self) -> Any:
        self.has_ended.set()
        return SimpleNamespace(completion_type=None, tag=lambda _event: True)


def test_signal_that_is_ignored_at_the_start_stays_ignored(restored_signals: None) -> None:
    """Shells run programs in the background with Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_on_signals()
    end_on_signals()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.fixture
def restored_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_second_signal_while_the_program_exits_ends_it_silently() -> None:
    """Python would write a traceback of its own end."""
    script = """
    import os, signal, sys
    sys.argv = ["millrace", "--version"]
    os._exit = lambda _code: signal.raise_signal(signal.SIGINT)
    from millrace_client.cli import main
    main()
    """
    ran = run_code(script, warning_filters=())
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


def test_signal_when_the_command_has_just_ended_changes_nothing() -> None:
    """Until the program has given up its handlers, they still raise."""
    script = """
    import sys
    from millrace_client import cli
    raised = iter([None, KeyboardInterrupt])

    def end_on_signals():
        if error := next(raised, None):
            raise error

    cli.end_on_signals = end_on_signals
    sys.argv = ["millrace", "--version"]
    cli.main()
    """
    ran = run_code(script, warning_filters=())
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flush", "exit_code", "output"), [("sys.stderr.flush", 2, ""), ("lambda: open('')", 120, "taken apart\n")]
)
def test_main_ends_the_process_before_python_takes_it_apart(flush: str, exit_code: int, output: str) -> None:
    """Python aborts if a thread is just writing to standard error then; it reports output that cannot be written."""
    script = f"""
    import atexit, sys
    sys.argv = ["millrace", "nothing"]
    sys.stderr.flush = {flush}
    atexit.register(print, "taken apart")
    from millrace_client.cli import main
    main()
    """
    ran = run_code(script, warning_filters=())
    assert (ran.returncode, ran.stdout) == (exit_code, output)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_main_without_the_extra_says_how_to_install_it(missing: str) -> None:
    """The base installation has the program, but not its dependencies."""
    result = _run_without(missing)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == ("millrace: the command line is not installed; run `pip install 'millrace-client[cli]'`\n")


def test_main_with_another_module_missing_does_not_hide_it() -> None:
    """The error of a broken installation is shown."""
    result = _run_without("grpc")
    assert result.returncode == 1
    assert "grpc" in result.stderr


def _run_without(missing: str) -> subprocess.CompletedProcess[str]:
    """Runs `millrace channels` where a package cannot be imported."""
    script = f"import sys; sys.modules[{missing!r}] = None; from millrace_client.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, "channels"], capture_output=True, check=False, encoding="utf-8"
    )


def test_channel_that_does_not_exist_is_asked_about_by_the_similar_name(millrace: RunMillrace) -> None:
    """A mistyped name costs no second command; one that resembles nothing gets the advice alone."""
    mistyped, other = millrace("peek", "order"), millrace("peek", "payments")
    assert (
        "has no channel order; did you mean orders? If not, see the names with `millrace channels`" in mistyped.stderr
    )
    assert "has no channel payments; see the names with `millrace channels`" in other.stderr
    assert (mistyped.exit_code, mistyped.stderr.count("\n")) == (1, 1)
    assert "did you mean orders? If not, see" in millrace("top", "oders").stderr


def test_channel_that_does_not_exist_without_a_list_gets_no_suggestion(
    client: FakeClient, millrace: RunMillrace
) -> None:
    """Who may not list the channels sees the error that they would have seen."""
    client.admin.errors.append(ChannelNotFoundError("none", channel="order"))
    client.admin.errors.append(ForbiddenError("not allowed"))
    result = millrace("channel", "show", "order")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "no channel order; see the names" in result.stderr
