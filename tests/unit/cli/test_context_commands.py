"""`millrace context`, and commands in a context."""

import io
import json
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace_client import ChannelFullError, Tls
from millrace_client.cli import context_commands
from millrace_client.cli.contexts import load_contexts
from tests.certificates import Authority
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import FakeClient

SECRET = "token-of-prod"  # noqa: S105 - of a test


@pytest.fixture
def contexts(millrace: RunMillrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the contexts `prod`, which has all files, and `local`, which keeps a token."""
    monkeypatch.chdir(tmp_path)
    authority = Authority()
    Path("ca.pem").write_bytes(authority.certificate)
    authority.issue(tmp_path, "own")
    Path("token").write_text("token-of-a-file")
    files = ("--tls-ca", "ca.pem", "--tls-certificate", "own.pem", "--tls-key", "own.key", "--token-file", "token")
    assert millrace("context", "add", "prod", "--server", "prod-1", *files).exit_code == 0
    local = millrace("--server=127.0.0.1:1", "context", "add", "local", "--token-stdin", typed=f"{SECRET}\n")
    assert (local.exit_code, local.stderr) == (0, "")
    return tmp_path / "config" / "millrace" / "contexts.toml"


def test_command_in_a_context_connects_as_it_says(
    contexts: Path, millrace: RunMillrace, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option counts before the environment, and that before the context in use; paths hold in all directories."""
    tls = Tls(ca=f"{tmp_path}/ca.pem", certificate=f"{tmp_path}/own.pem", private_key=f"{tmp_path}/own.key")
    assert contexts.stat().st_mode & 0o777 == 0o600
    millrace("channels")
    assert (client.endpoint, client.token) == ("127.0.0.1:7070", None)
    millrace("context", "use", "local")
    millrace("channels")
    assert (client.endpoint, client.token, client.tls) == ("127.0.0.1:1", SECRET, None)
    millrace("channels", "--context", "prod")
    assert (client.endpoint, client.tls, client.token_file) == ("prod-1:7070", tls, f"{tmp_path}/token")
    millrace("--context", "prod", "channels", "--token-file", "near", "--server", "prod-2")
    assert (client.endpoint, client.tls, client.token_file) == ("prod-2:7070", tls, "near")
    monkeypatch.setenv("MILLRACE_CONTEXT", "prod")
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", "of the environment")
    millrace("channels")
    assert (client.endpoint, client.token_file, client.token) == ("prod-1:7070", "of the environment", None)
    millrace("channels", "--context", "local")
    assert (client.endpoint, client.token_file, client.token) == ("127.0.0.1:1", None, SECRET)
    millrace("context", "add", "public", "--server", "prod-3", "--tls-ca", "system")
    millrace("channels", "--context", "public")
    assert client.tls == Tls(ca="system")


@pytest.mark.usefixtures("contexts")
def test_context_in_use_gives_its_token_to_no_other_server(
    millrace: RunMillrace, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is named elsewhere is reached as if there was no context."""
    millrace("context", "use", "local")
    millrace("channels", "--server", "elsewhere")
    assert (client.endpoint, client.token) == ("elsewhere:7070", None)
    monkeypatch.setenv("MILLRACE_SERVER", "elsewhere:2")
    millrace("channels")
    assert (client.endpoint, client.token) == ("elsewhere:2", None)


@pytest.mark.usefixtures("contexts")
def test_contexts_shown_do_not_show_tokens(millrace: RunMillrace, tmp_path: Path) -> None:
    """The list and a context name the servers, the files, and whether there is a token."""
    millrace("context", "use", "prod")
    listed, shown = millrace("context", "list"), millrace("context", "show", "local")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["CONTEXT", "USED", "SERVER", "TLS", "IDENTITY"],
        ["prod", "*", "prod-1:7070", "yes", "certificate", "and", "token"],
        ["local", "127.0.0.1:1", "no", "token"],
    ]
    assert shown.stdout == "name: local\nused: False\nserver: 127.0.0.1:1\ntoken: (hidden)\n"
    used = json.loads(millrace("context", "show", "--json").stdout)
    assert (used["name"], used["tls_ca"]) == ("prod", f"{tmp_path}/ca.pem")
    documents = millrace("context", "list", "--json").stdout
    assert len(json.loads(documents)) == 2
    assert SECRET not in listed.output + shown.output + documents + repr(load_contexts())


@pytest.mark.usefixtures("contexts")
def test_put_in_a_context_tells_how_to_resume_without_its_token(
    millrace: RunMillrace, client: FakeClient, tmp_path: Path
) -> None:
    """The command names the context, also one in use, since another may be in use then."""
    millrace("context", "use", "local")
    (tmp_path / "lines").write_text("one\ntwo\n")
    client.orders.append_errors.append(ChannelFullError("full"))
    result = millrace("put", "orders", str(tmp_path / "lines"), "--patience=0", "--also=elsewhere")
    resumed = shlex.split(result.stderr.rpartition("run `")[2].strip().removesuffix("`"))
    assert "--context=local" in resumed
    assert not any(word.startswith("--server") for word in resumed)
    assert SECRET not in result.output
    # The other server of the put gets the context's token too.
    assert (client.endpoint, client.token) == ("elsewhere:7070", SECRET)


@pytest.mark.usefixtures("contexts")
def test_removed_context_is_gone(millrace: RunMillrace, contexts: Path) -> None:
    """It is not in use any more, and its token is in no file."""
    millrace("context", "use", "local")
    assert millrace("context", "remove", "local").exit_code == 0
    assert SECRET not in contexts.read_text()
    assert [*contexts.parent.iterdir()] == [contexts]
    assert millrace("context", "show").exit_code == 2
    for arguments in (["context", "remove", "local"], ["context", "use", "local"], ["channels", "--context=local"]):
        gone = millrace(*arguments)
        assert (gone.exit_code, "there is no context 'local'" in gone.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["prod", "--server=x"], 1, "there is a context prod already"),
        (["new"], 2, "give --server HOST:PORT"),
        (["a b", "--server=x"], 2, "'a b' is not a name"),
        (["new", "--server=x", "--tls-ca=nowhere.pem"], 2, "nowhere.pem cannot be read"),
        (["new", "--server=x", "--tls-ca=token"], 2, "token has no certificate in PEM"),
        (
            ["new", "--server=x", "--tls-ca=ca.pem", "--tls-certificate=own.pem", "--tls-key=ca.pem"],
            2,
            "are not a cert",
        ),
        (["new", "--server=x", "--token-file=token"], 2, "would be sent to x:7070 unencrypted"),
        (["new", "--server=localhost", "--token-file=token", "--token-stdin"], 2, "set only one of them"),
        (["new", "--server=localhost", "--token-stdin"], 2, "token is not a token"),
    ],
)
def test_context_that_could_not_connect_is_not_added(
    contexts: Path, millrace: RunMillrace, arguments: list[str], exit_code: int, sentence: str
) -> None:
    """What is wrong is told when it is added, and nothing changes."""
    before = contexts.read_text()
    refused = millrace("context", "add", *arguments, typed="two words\n")
    assert (refused.exit_code, sentence in refused.stderr) == (exit_code, True), refused.stderr
    assert contexts.read_text() == before


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize(
    ("given", "sentence"), [(None, "standard input is closed"), (b"caf\xe9\n", "token is not a token")]
)
def test_token_that_cannot_be_read_from_standard_input_is_refused(
    millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch, given: bytes | None, sentence: str
) -> None:
    """Whatever the locale makes of its bytes."""
    stdin = None if given is None else io.TextIOWrapper(io.BytesIO(given), "utf-8", "strict")
    monkeypatch.setattr(context_commands, "sys", SimpleNamespace(stdin=stdin))
    refused = millrace("context", "add", "new", "--server=localhost", "--token-stdin")
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_change_that_is_interrupted_leaves_only_the_former_contexts(
    contexts: Path, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file with tokens is left beside them."""
    before = contexts.read_text()

    def interrupted(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert millrace("context", "use", "local").exit_code == 130
    assert [(path.name, path.read_text()) for path in contexts.parent.iterdir()] == [("contexts.toml", before)]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("current = ", "is not TOML"),
        ("contexts = 1", "contexts is wrong"),
        ("[contexts]\na = 1", "contexts is wrong"),
        ("current = 'b'", "there is no context 'b'"),
        ("[contexts.a]\nserver = 1", "server of the context 'a' is wrong"),
        ("[contexts.a]\npassword = 'x'", "password of the context 'a' is wrong"),
        ("current = 'a'\n[contexts.a]\nserver = 'a:b'", "server of the context a: 'a:b' is not an address"),
    ],
)
def test_file_of_contexts_that_is_wrong_is_told(
    contexts: Path, millrace: RunMillrace, content: str, sentence: str
) -> None:
    """No command guesses what was meant."""
    contexts.write_text(content)
    told = millrace("channels")
    assert (told.exit_code, sentence in told.stderr) == (2, True), told.stderr


def test_file_of_contexts_that_others_may_read_is_refused(contexts: Path, millrace: RunMillrace) -> None:
    """The error says how to mend it."""
    contexts.chmod(0o640)
    refused = millrace("channels")
    assert (refused.exit_code, f"run: chmod 600 {contexts}" in refused.stderr) == (2, True)
