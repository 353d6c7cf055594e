"""The files of the page over HTTP, and a server without a console."""

import gzip
from collections.abc import AsyncIterator

import pytest

from millrace_server.channels.registry import ChannelRegistry
from millrace_server.console.static_files import INDEX
from millrace_server.http_service.service import HttpService
from millrace_server.network import Address, open_socket
from millrace_server.network.http_server import SECURITY_HEADERS
from tests.unit.console.served_console import ConsoleSite, ServedConsole


async def test_page_is_served_with_a_policy_that_lets_only_its_own_files_run(console: ServedConsole) -> None:
    """The other headers that protect browsers are those of all responses."""
    response = await console.get("/")
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy.pop("img-src") == "'self' data:"
    assert {key: value for key, value in policy.items() if value != "'none'"} == dict.fromkeys(
        ("script-src", "style-src", "connect-src", "font-src", "form-action"), "'self'"
    )
    assert {"default-src", "frame-ancestors", "base-uri"} < set(policy)
    assert len(response.headers.get_all("content-security-policy") or ()) == 1
    others = set(SECURITY_HEADERS) - {"Cache-Control", "Content-Security-Policy"}
    assert all(response.headers[key] == SECURITY_HEADERS[key] for key in others)


async def test_files_need_no_login(site: ConsoleSite) -> None:
    """The page asks for a token, and holds nothing of the server."""
    assert (await site.console.get("/")).status == 200
    assert (await site.console.get("/console/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"


async def test_file_that_the_browser_has_is_not_sent_again(console: ServedConsole) -> None:
    """Unless it has changed: a new release is seen at once."""
    first = await console.get("/console/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await console.get("/console/app.js", **{"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await console.get("/console/app.js", **{"If-None-Match": '"other"'})).status == 200
    versioned = await console.get("/console/app.js?v=1")
    assert "immutable" in versioned.headers["cache-control"]


async def test_file_is_compressed_for_browsers_that_can_read_it(console: ServedConsole) -> None:
    """Others get it as it is."""
    plain = await console.get("/console/app.js")
    packed = await console.get("/console/app.js", **{"Accept-Encoding": "gzip, br"})
    assert (plain.headers["content-encoding"], packed.headers["content-encoding"]) == (None, "gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["vary"] == "Accept-Encoding"


async def test_file_is_not_compressed_for_a_browser_that_refuses_gzip(console: ServedConsole) -> None:
    """A weight of 0 means that the browser cannot read it."""
    response = await console.get("/console/app.js", **{"Accept-Encoding": "br, gzip;q=0"})
    assert (response.status, response.headers["content-encoding"]) == (200, None)


@pytest.mark.parametrize(
    "path",
    [
        "../__init__.py",
        "..%2f__init__.py",
        "%2e%2e/routes.py",
        "....//routes.py",
        "/etc/passwd",
        "app.js%00.html",
        "style",
        "vendor/",
        "",
        "absent.js",
        ".hidden.js",
        "app.js/x.js",
        "vendor/htm.LICENSE",
        "x" * 3_000 + ".js",
    ],
)
async def test_path_that_is_no_file_of_the_page_is_not_found(console: ServedConsole, path: str) -> None:
    """Nothing outside the page's directory can be read."""
    assert (await console.get(f"/console/{path}")).status == 404


@pytest.fixture
async def without_console(prompt_http_stop: None) -> AsyncIterator[tuple[str, int]]:
    """The address of an HTTP service without a console."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    service = HttpService(registry)
    bound = await open_socket(Address("127.0.0.1", 0), "test")
    address = bound.getsockname()
    await service.start(bound)
    yield address
    await service.stop()


async def test_server_without_a_console_has_none_of_its_paths(
    without_console: tuple[str, int], console: ServedConsole
) -> None:
    """Nothing can be changed over HTTP then."""
    console.address = without_console
    for path in ("/", f"/console/{INDEX}", "/api/overview", "/api/session"):
        assert (await console.get(path)).status == 404
    for path in ("/session", "/api/acts/purge_channel"):
        assert (await console.post(path, {})).status == 405
