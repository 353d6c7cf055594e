from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from millrace_server.network.http_requests import HEAD_BYTES_MAX, HostName, RequestCheck


def scope(method: str = "GET", server: str = "127.0.0.1", **headers: str) -> dict[str, Any]:
    sent = [(key.replace("_", "-").encode(), value.encode("latin-1")) for key, value in headers.items()]
    return {"method": method, "server": (server, 7071), "raw_path": b"/", "query_string": b"", "headers": sent}


def reason(check: RequestCheck, asked: dict[str, Any], *, is_open: bool = False) -> str | None:
    refusal = check.refusal(asked, is_open=is_open)
    return refusal and refusal.reason


@pytest.mark.parametrize(
    ("listen", "host", "is_own"),
    [
        ("127.0.0.1:7071", "127.0.0.1:7071", True),
        ("127.0.0.1:7071", "LocalHost", True),
        ("127.0.0.1:7071", "[::1]:9", True),
        ("127.0.0.1:7071", "mill.example:80", True),
        ("127.0.0.1:7071", "evil.example", False),
        ("127.0.0.1:7071", "mill.example.evil.example", False),
        ("127.0.0.1:7071", "10.0.0.1", False),
        ("127.0.0.1:7071", "", False),
        ("127.0.0.1:7071", "localhost:7071@evil.example", False),
        ("127.0.0.1:7071", "localhost\x85", False),
        ("mill.internal:7071", "mill.internal", True),
        ("mill.internal:7071", "127.0.0.1", True),
        ("[::1]:7071", "[::1]:7071", True),
        ("0.0.0.0:7071", "10.0.0.1:7071", True),
        ("[::]:7071", "[fd00::1]:7071", True),
        ("0.0.0.0:7071", "evil.example", False),
    ],
)
def test_host_must_be_a_name_of_the_server(listen: str, host: str, *, is_own: bool) -> None:
    """A page under a name that its owner has directed here gets nothing; open paths are shown under every name."""
    check = RequestCheck(listen, ["mill.example"], "server.http_hosts")
    assert reason(check, scope(host=host)) == (None if is_own else "UNKNOWN_HOST")
    assert reason(check, scope(host=host), is_open=True) is None


def test_host_may_be_the_address_that_the_connection_came_to() -> None:
    """The listening address may be a name, and probes use addresses."""
    check = RequestCheck("mill.internal:7071", [], "server.http_hosts")
    assert reason(check, scope(server="10.0.0.1", host="10.0.0.1:7071")) is None
    assert reason(check, scope(server="10.0.0.1", host="10.0.0.2:7071")) == "UNKNOWN_HOST"


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"origin": "http://localhost:7071"}, None),
        ({"origin": "https://localhost:7071", "sec_fetch_site": "same-origin"}, None),
        ({"origin": "http://localhost:80"}, "FOREIGN_ORIGIN"),
        ({"origin": "null"}, "FOREIGN_ORIGIN"),
        ({"origin": "http://evil.example"}, "FOREIGN_ORIGIN"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, "FOREIGN_ORIGIN"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, None),
        ({"sec_fetch_site": "none"}, None),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], refused: str | None) -> None:
    """Links from other sites are followed."""
    check = RequestCheck("127.0.0.1:7071", [], "server.http_hosts")
    for is_open in (False, True):
        assert reason(check, scope(host="localhost:7071", **headers), is_open=is_open) == refused


def test_form_of_another_site_is_refused() -> None:
    """Only links are followed, as they change nothing."""
    check = RequestCheck("127.0.0.1:7071", [], "sources.in.http_hosts")
    asked = scope("POST", host="localhost", origin="http://evil.example", sec_fetch_mode="navigate")
    assert reason(check, asked) == "FOREIGN_ORIGIN"


def test_only_browsers_must_name_the_host_of_a_source() -> None:
    """Programs call by any name; a page that gives itself the name of its own site is not let in."""
    check = RequestCheck("0.0.0.0:80", ["in.example"], "sources.in.http_hosts")
    assert check.refusal_of_browser(scope("POST", host="whatever")) is None
    assert check.refusal_of_browser(scope("POST", host="in.example", origin="https://in.example")) is None
    refusal = check.refusal_of_browser(scope("POST", host="evil.example", origin="http://evil.example"))
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (421, "UNKNOWN_HOST")
    assert "'evil.example'" in refusal.message
    assert "sources.in.http_hosts" in refusal.message


def test_large_heads_are_refused() -> None:
    """Also those that come at once."""
    check = RequestCheck("127.0.0.1:7071", [], "server.http_hosts")
    assert reason(check, scope(host="localhost", x="x" * HEAD_BYTES_MAX), is_open=True) == "HEAD_TOO_LARGE"


@pytest.mark.parametrize("name", ["", "a:80", "http://a", "a b", "a\n", "*"])
def test_host_name_that_is_none_is_refused(name: str) -> None:
    """A port or a pattern would never be equal to what clients send."""
    with pytest.raises(ValidationError, match="without a port"):
        TypeAdapter(HostName).validate_python(name)
