import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millrace_client.aio
from millrace_client import BadArgumentError, Consumer, ConsumerConfig, Producer, Tls, security
from millrace_client._settings import ConnectionSettings, check_endpoints

SECRET = "token-of-a-test"  # noqa: S105 - the name says it


def test_check_endpoints_takes_one_or_several() -> None:
    """Duplicates are dropped; gRPC's own schemes are accepted."""
    assert check_endpoints("a:1") == ("a:1",)
    assert check_endpoints(["a:1", "unix:/run/b", "[::1]:7070", "a:1"]) == ("a:1", "unix:/run/b", "[::1]:7070")


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ([], "is empty"),
        ("", "endpoint: '' is not an address"),
        (["a:1", "b"], "endpoint: 'b' has no port; write host:port, such as b:7070"),
        ("[::1]", r"'\[::1\]' has no port; write host:port, such as \[::1\]:7070"),
        ("::1", "is not an address; write host:port, such as 127.0.0.1:7070 or"),
        ("a:0", "is not an address"),
        ("a:65536", "is not an address"),
        (
            "https://a:7070/",
            "has the scheme https, which gRPC does not use; write a:7070, and connect over TLS",
        ),
    ],
)
def test_check_endpoints_of_nonsense_says_why(endpoints: str | list[str], message: str) -> None:
    """Otherwise a producer or a consumer would wait for a server that does not exist."""
    with pytest.raises(BadArgumentError, match=message):
        check_endpoints(endpoints)
    if isinstance(endpoints, str):
        for connect in (millrace_client.connect, millrace_client.aio.connect):
            with pytest.raises(BadArgumentError, match=message):
                connect(endpoints)
    with pytest.raises(BadArgumentError, match=message):
        Producer(endpoints, "orders")
    with pytest.raises(BadArgumentError, match=message):
        Consumer(endpoints, "orders")


@pytest.mark.parametrize("endpoint", [7070, None, b"a:7070", ["a:7070"]])
def test_endpoint_that_is_no_text_says_what_to_give(endpoint: Any) -> None:
    """A port alone is a likely slip of callers without a type checker."""
    message = rf"endpoint: is {re.escape(repr(endpoint))}; give host:port as text"
    for connect in (millrace_client.connect, millrace_client.aio.connect):
        with pytest.raises(BadArgumentError, match=message):
            connect(endpoint)
    with pytest.raises(BadArgumentError, match=message):
        check_endpoints([endpoint])


@pytest.mark.parametrize("endpoints", [7070, None, b"a:7070"])
def test_endpoints_that_are_no_list_say_what_to_give(endpoints: Any) -> None:
    """So do those of producers and consumers, which take several."""
    for create in (Producer, Consumer):
        with pytest.raises(BadArgumentError, match="give host:port as text"):
            create(endpoints, "orders")


@pytest.mark.parametrize(
    "local",
    ["localhost:1", "127.0.0.9:1", "[::1]:1", "unix:/s", "dns:///localhost:1", "ipv4:127.0.0.1:1"],
)
def test_token_travels_in_plain_text_on_this_machine_only(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client refuses to show it to a network, unless TLS or the network itself encrypts; none shows it itself."""
    for connect in (millrace_client.connect, millrace_client.aio.connect):
        assert SECRET not in repr(vars(connect(local, token=SECRET)._connection))
        connect("far:1", token=SECRET, tls=Tls())
        with pytest.raises(BadArgumentError, match="would be sent to far:1 unencrypted"):
            connect("far:1", token=SECRET)
    with pytest.raises(BadArgumentError, match="would be sent to far:1 unencrypted"):
        Producer([local, "far:1"], "orders", token=SECRET)
    config = ConsumerConfig(token=SECRET)
    assert SECRET not in repr(config)
    with pytest.raises(BadArgumentError, match="would be sent to ipv4:"):
        config.connection("ipv4:127.0.0.1:1,10.0.0.1:1")
    with pytest.raises(BadArgumentError, match="would be sent"):
        Consumer("far:1", "orders", config=config)
    monkeypatch.setenv("MILLRACE_ALLOW_PLAINTEXT", "true")
    assert config.connection("far:1").token is not None


def test_server_that_another_one_named_gets_the_same_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS, token and options are the client's own; a token is not sent in plain text because a server says so."""
    monkeypatch.delenv("MILLRACE_ALLOW_PLAINTEXT", raising=False)
    given = ConnectionSettings(
        endpoint="mill-1:7070",
        timeout_seconds=5.0,
        wait_for_ready=True,
        tls=Tls(ca="ca.pem"),
        token=security.Token.given(SECRET, None),
        options=(("grpc.primary_user_agent", "test"),),
    )
    there = given.at("mill-2:7070")
    assert (there.endpoint, there.wait_for_ready) == ("mill-2:7070", False)
    assert (there.tls, there.token) == (given.tls, given.token)
    assert set(given.options) <= set(there.options)
    with pytest.raises(BadArgumentError, match="mill-2"):
        replace(given, tls=None, endpoint="127.0.0.1:7070").at("mill-2:7070")


@pytest.mark.parametrize("where", ["SSL_CERT_FILE", "its place"])
def test_tls_with_the_systems_authorities_reads_their_file(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is where the environment says, or where distributions have it; without one the sentence says what to do."""
    authorities = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities if where == "SSL_CERT_FILE" else tmp_path / "none"))
    monkeypatch.setattr(security, "_SYSTEM_FILES", (str(authorities),) if where == "its place" else ())
    tls = Tls(ca="system")
    with pytest.raises(BadArgumentError, match="not found; name their file by SSL_CERT_FILE"):
        tls.credentials()
    authorities.write_bytes(b"")
    before = tls.state()
    assert tls.credentials() is not None
    authorities.write_bytes(b"changed")
    assert tls.state() != before
