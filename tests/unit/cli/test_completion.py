import pytest

from millrace_client import UnavailableError
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import FakeChannel
from tests.unit.cli.fake_client import FakeClient


@pytest.fixture
def complete(millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch) -> "Complete":
    return Complete(millrace, monkeypatch)


class Complete:
    """Completes the last word of a command line, as bash does."""

    def __init__(self, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch) -> None:
        self._millrace = millrace
        self._monkeypatch = monkeypatch

    def __call__(self, line: str) -> list[str]:
        with self._monkeypatch.context() as environment:
            environment.setenv("_MILLRACE_COMPLETE", "complete_bash")
            environment.setenv("COMP_WORDS", line)
            environment.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
            result = self._millrace()
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout.split()


def test_completion_of_commands_and_options_has_those_of_the_program(complete: Complete) -> None:
    """Also those of commands that are imported only when they are called."""
    assert complete("millrace cha") == ["channels", "channel"]
    assert complete("millrace channel p") == ["purge"]
    assert complete("millrace peek orders --max") == ["--max-events"]


def test_completion_of_a_channel_asks_the_server(client: FakeClient, complete: Complete) -> None:
    """The names that begin like the word, at the server that the options give."""
    client.admin.channels["audit"] = FakeChannel("audit")
    client.admin.channels["archive"] = FakeChannel("archive")
    assert complete("millrace --server other:7070 peek a") == ["archive", "audit"]
    assert client.endpoint == "other:7070"
    assert complete("millrace channel show --server another a") == ["archive", "audit"]
    assert client.endpoint == "another:7070"
    assert client.timeout_seconds <= 1


def test_completion_of_a_context_reads_the_file(millrace: RunMillrace, complete: Complete) -> None:
    """It asks no server."""
    assert complete("millrace --context ") == []
    for name in ("east", "west"):
        millrace("context", "add", name, "--server", "a:1")
    assert complete("millrace --context e") == ["east"]
    assert complete("millrace context use ") == ["east", "west"]


def test_completion_without_a_server_is_silent(client: FakeClient, complete: Complete) -> None:
    """An error would disturb the line that the user is typing."""
    client.admin.errors.append(UnavailableError("gone"))
    assert complete("millrace peek ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_each_shell_has_a_script(
    millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    """The script calls the program with the variable that asks for completions."""
    monkeypatch.setenv("_MILLRACE_COMPLETE", f"source_{shell}")
    assert f"_MILLRACE_COMPLETE=complete_{shell}" in millrace().stdout
