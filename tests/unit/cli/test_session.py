import re

import pytest

from millrace_client import Tls
from millrace_client.cli.exit_status import CommandError
from millrace_client.cli.session import DEFAULT_SERVER, SERVER_VARIABLE, Session, parse_server
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import FakeClient


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("collector-1:7070", "collector-1:7070"),
        ("collector-1", "collector-1:7070"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[::1]:65535", "[::1]:65535"),
        ("[::1]", "[::1]:7070"),
        ("unix:/run/millrace.sock", "unix:/run/millrace.sock"),
        ("dns:///collector-1:7070", "dns:///collector-1:7070"),
        ("collector-1, [::1]:1,collector-1", "collector-1:7070,[::1]:1"),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "ipv4:10.0.0.1:1,10.0.0.2:1"),
    ],
)
def test_parse_server_of_addresses_completes_them(text: str, server: str) -> None:
    """A missing port is the default one, and gRPC's own forms are passed on."""
    assert parse_server(text) == server


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":7070",
        "a:",
        "a:0",
        "a:65536",
        "a:x",
        "::1",
        "a b:7070",
        "a\n:7070",
        "\udcff:7070",
        "a:٣",
        "a:1,",
        "a:1,b:x",
    ],
)
def test_parse_server_of_nonsense_says_what_is_allowed(text: str) -> None:
    """Invalid addresses are refused before anything is sent."""
    with pytest.raises(ValueError, match="is not an address; write host:port"):
        parse_server(text)


def test_parse_server_of_a_url_says_what_to_write() -> None:
    """People copy addresses from a browser."""
    with pytest.raises(ValueError, match=r"has the scheme http, which gRPC does not use; write a:7071$"):
        parse_server("http://a:7071/x")


def test_address_without_any_option_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is the address of a server without configuration."""
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    assert Session().address == DEFAULT_SERVER


def test_address_from_the_environment_when_wrong_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the environment variable, which the user may have forgotten."""
    monkeypatch.setenv(SERVER_VARIABLE, "a:b")
    with pytest.raises(CommandError, match=f"^{SERVER_VARIABLE}: 'a:b' is not an address"):
        _ = Session().address


def test_server_said_in_several_places_is_the_nearest(
    client: FakeClient, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option after the command takes precedence over one before it, and that over the environment."""
    monkeypatch.setenv(SERVER_VARIABLE, "environment:1")
    millrace("channels")
    assert client.endpoint == "environment:1"
    millrace("--server", "before:2", "channels")
    assert client.endpoint == "before:2"
    millrace("--server", "before:2", "channels", "--server", "behind:3")
    assert client.endpoint == "behind:3"


def test_timeout_said_in_several_places_is_the_nearest(client: FakeClient, millrace: RunMillrace) -> None:
    """The option after the command takes precedence over one before it, and that over the client's default."""
    millrace("channels")
    assert client.timeout_seconds == 20.0
    millrace("--timeout", "5", "channels")
    assert client.timeout_seconds == 5.0
    millrace("--timeout", "5", "channel", "show", "orders", "--timeout", "1.5")
    assert client.timeout_seconds == 1.5


def test_tls_said_in_several_places_is_the_nearest(
    client: FakeClient, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has an option and a variable; without any of them, nothing is encrypted."""
    millrace("channels")
    assert client.tls is None
    for name, file in (("CA", "ca.pem"), ("CERTIFICATE", "own.pem"), ("KEY", "own.key")):
        monkeypatch.setenv(f"MILLRACE_TLS_{name}", file)
    millrace("channels")
    assert client.tls == Tls(ca="ca.pem", certificate="own.pem", private_key="own.key")
    millrace("--tls-ca", "before.pem", "channels", "--tls-key", "behind.key")
    assert client.tls == Tls(ca="before.pem", certificate="own.pem", private_key="behind.key")


def test_token_file_said_in_several_places_is_the_nearest(
    millrace: RunMillrace, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the command counts before in front of it, and both before the environment."""
    millrace("channels")
    assert client.token_file is None
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", "environment")
    millrace("channels")
    assert client.token_file == "environment"  # noqa: S105 - a path
    millrace("--token-file", "before", "channels", "--token-file", "behind")
    assert client.token_file == "behind"  # noqa: S105 - a path


def test_token_of_the_environment_gives_way_to_a_nearer_file(
    millrace: RunMillrace, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MILLRACE_TOKEN holds the token itself; together with the variable for a file it is a mistake."""
    monkeypatch.setenv("MILLRACE_TOKEN", "secret")
    millrace("channels")
    assert (client.token, client.token_file) == ("secret", None)
    millrace("channels", "--token-file", "near")
    assert (client.token, client.token_file) == (None, "near")
    assert "secret" not in repr(Session().resolved())


def test_tls_with_a_certificate_alone_says_what_is_missing(millrace: RunMillrace) -> None:
    """A certificate is of no use without its key."""
    result = millrace("channels", "--tls-certificate", "own.pem")
    assert result.exit_code == 2
    assert "private_key is missing" in result.stderr


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
def test_timeout_that_makes_no_sense_is_a_usage_error(millrace: RunMillrace, timeout: str) -> None:
    """A timeout is a finite number of seconds above zero."""
    result = millrace("channels", "--timeout", timeout)
    assert result.exit_code == 2
    assert "--timeout" in result.stderr


def test_commands_when_done_close_their_client(client: FakeClient, millrace: RunMillrace) -> None:
    """A command that fails leaves no connection open either."""
    millrace("take", "nosuch")
    assert client.is_closed


def test_help_of_each_command_shows_the_connection_options(millrace: RunMillrace) -> None:
    """Each command's help includes --server."""
    for command in ("channels", "put", "take", "peek", "tail", "top", *(f"channel {verb}" for verb in CHANNEL_VERBS)):
        result = millrace(*command.split(), "--help")
        assert result.exit_code == 0
        assert re.search(r"--server HOST:PORT", result.stdout)


CHANNEL_VERBS = ("create", "show", "update", "delete", "purge")
