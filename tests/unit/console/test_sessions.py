"""Logging in and out, and what sessions may do."""

import asyncio
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog.testing

from millrace_server import files
from millrace_server.access import jwt
from millrace_server.access.control import AccessControl, credentials_of
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings, IdentitySettings, RoleSettings
from millrace_server.console import sessions
from millrace_server.console.queries import BODY_BYTES_MAX
from millrace_server.console.sessions import FAILURE_SECONDS, FAILURES_MAX, LoginLimit, Sessions
from millrace_server.grpc_services import guard
from tests.fake_clock import FakeClock
from tests.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.unit.console.served_console import ConsoleSite, ServedConsole, append, served_console

PAGES = (
    "/api/overview",
    "/api/flow",
    "/api/components",
    "/api/configuration",
    "/api/channels/web.a",
    "/api/channels/web.a/history",
    "/api/channels/web.a/events",
    "/channels/web.a/events",
    "/api/channels/web.a/dead_letters",
    "/api/channels/web.a/follow",
)


async def test_pages_without_a_session_are_refused(site: ConsoleSite) -> None:
    """A wrong session or token is none; of channels nobody learns whether they exist."""
    site.console.create("web.a")
    for page in PAGES:
        for headers in ({}, {"Cookie": site.console.cookie_name + "=guess"}, {"Authorization": "Bearer guess"}):
            response = await site.console.get(page, **headers)
            assert (response.status, response.reason) == (401, "UNAUTHENTICATED"), page


async def test_login_with_a_token_begins_a_session_that_scripts_cannot_read(site: ConsoleSite) -> None:
    """Every request of the page carries the cookie, and no request of another site's page does."""
    before = await site.console.read("/api/session")
    assert (before["is_required"], before["identity"], before["server"]) == (True, None, None)
    response = await site.console.log_in(site.tokens["viewer"] + "\n")
    assert (response.status, response.json()["identity"]) == (200, "viewer")
    cookie = response.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} < set(cookie.split("; "))
    assert site.tokens["viewer"] not in cookie
    session = await site.console.read("/api/session")
    assert (session["identity"], session["server"]["version"]) == ("viewer", version("millrace-server"))
    assert (await site.console.read("/api/overview"))["total"] == 0


async def test_cookie_of_a_server_with_tls_is_never_sent_without(tmp_path: Path, prompt_http_stop: None) -> None:
    """Its prefix lets browsers take it from this server only."""
    site = ConsoleSite(tmp_path)
    async with served_console(tmp_path, access=site.access, has_tls=True) as console:
        cookie = (await console.log_in(site.tokens["viewer"])).headers["set-cookie"]
        assert cookie.startswith(f"__Host-millrace_session_{console.address[1]}=")
        assert {"Secure", "Path=/"} < set(cookie.split("; "))
        assert (await console.read("/api/session"))["identity"] == "viewer"


async def test_session_of_a_json_web_token_ends_when_that_expires(
    tmp_path: Path, prompt_http_stop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says that, rather than that the token is wrong."""
    monkeypatch.setattr(guard, "_CACHE_SECONDS", -1.0)
    issuer, keys = Issuer(), tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [issuer.jwk]}))
    auth = AuthSettings(jwt=JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=keys))
    access = AccessControl(auth, {"all": RoleSettings(allow=["*:*"])}, {"boss": IdentitySettings(roles=["all"])})
    async with served_console(tmp_path, access=access) as console:
        response = await console.log_in(issuer.token(lifetime=600))
        assert (response.json()["identity"], response.json()["proof"]) == ("boss", "JWT")
        assert (await console.get("/api/overview")).status == 200
        monkeypatch.setattr(jwt, "time", SimpleNamespace(time=lambda: time.time() + 1_000, monotonic=time.monotonic))
        assert (await console.get("/api/overview")).reason == "TOKEN_EXPIRED"


async def test_session_opens_the_other_pages_of_the_port(site: ConsoleSite) -> None:
    """A person who has logged in sees /metrics too."""
    pages = ("/metrics", "/channels", "/components")
    assert [(await site.console.get(page)).status for page in pages] == [401] * 3
    await site.console.log_in(site.tokens["viewer"])
    assert [(await site.console.get(page)).status for page in pages] == [200] * 3


async def test_token_of_a_program_opens_the_pages_without_a_session(site: ConsoleSite) -> None:
    """The API can be called with a bearer token, as /metrics can."""
    response = await site.console.get("/api/overview", Authorization=f"Bearer {site.tokens['viewer']}")
    assert response.status == 200


@pytest.mark.parametrize(
    ("token", "status", "reason"),
    [("wrong", 401, "UNAUTHENTICATED"), ("x" * 8_193, 400, "BAD_ARGUMENT"), ("sp ace", 401, "UNAUTHENTICATED")],
)
async def test_login_with_a_wrong_token_is_refused_and_audited(
    site: ConsoleSite, token: str, status: int, reason: str
) -> None:
    """The response, the cookie and the log have nothing of it."""
    with structlog.testing.capture_logs() as logs:
        response = await site.console.log_in(token)
    assert (response.status, response.reason) == (status, reason)
    assert response.headers["set-cookie"] is None
    assert token not in response.body.decode() + json.dumps(logs)
    assert [entry["outcome"] for entry in logs if entry["event"] == "audit"] == ["denied"] * (status == 401)


async def test_login_without_a_right_to_see_all_channels_is_refused(site: ConsoleSite) -> None:
    """The message names the permission."""
    response = await site.console.log_in(site.tokens["shipper"])
    assert (response.status, response.reason) == (403, "FORBIDDEN")
    assert "describe:*" in response.json()["message"]


async def test_login_after_many_failures_has_to_wait(site: ConsoleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with the right token, so that guesses learn nothing."""
    # No failure is forgiven during the test.
    monkeypatch.setattr(sessions, "FAILURE_SECONDS", 3_600.0)
    for _ in range(FAILURES_MAX):
        assert (await site.console.log_in("wrong")).status == 401
    response = await site.console.log_in(site.tokens["viewer"])
    assert (response.status, response.reason) == (429, "TOO_MANY_LOGINS")
    assert 1 <= int(response.headers["retry-after"]) <= 3_600


async def test_logout_ends_the_session_and_removes_the_cookie(site: ConsoleSite) -> None:
    """The cookie is worth nothing afterwards."""
    await site.console.log_in(site.tokens["viewer"])
    response = await site.console.ask("DELETE", "/session", b"", {"X-Millrace-Console": "1"})
    assert response.status == 204
    assert "millrace_session" in response.headers["set-cookie"]
    assert (await site.console.get("/api/overview")).status == 401


async def test_session_whose_token_was_removed_has_ended(site: ConsoleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """So has what it follows, with the reason."""
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.001)
    web = site.console.create("web.a")
    await site.console.log_in(site.tokens["operator"])
    following = asyncio.create_task(site.access.follow())
    async with site.console.stream("/api/channels/web.a/follow") as events:
        await append(web, ({}, b"one"))
        assert len((await anext(events))["events"]) == 1
        site.tokens_file.write_text("")
        assert (await anext(events))["reason"] == "UNAUTHENTICATED"
    assert (await site.console.get("/api/overview")).status == 401
    following.cancel()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Millrace-Console": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
    ],
)
async def test_login_from_a_page_of_another_site_is_refused(site: ConsoleSite, headers: dict[str, str]) -> None:
    """Also under a name that its owner has directed to this server."""
    response = await site.console.post("/session", {"token": site.tokens["viewer"]}, **headers)
    assert response.status in {403, 415, 421}
    assert response.headers["set-cookie"] is None


async def test_login_with_a_body_that_is_no_login_is_refused(site: ConsoleSite) -> None:
    """Neither a huge body nor deep JSON costs anything."""
    marked = {"X-Millrace-Console": "1", "Content-Type": "application/json"}
    # One byte too many: if the server refused more of them before it has read all, it would reset the connection.
    too_large = b"x" * (BODY_BYTES_MAX + 1)
    for body, status in ((b"{", 400), (b"[]", 400), (b'{"token": 5}', 400), (b"[" * 60_000, 400), (too_large, 413)):
        response = await site.console.ask("POST", "/session", body, marked)
        assert response.status == status, body[:20]


async def test_events_need_the_permission_to_peek(site: ConsoleSite) -> None:
    """That of the channel, as over gRPC; alike for channels that do not exist."""
    for name in ("web.a", "app"):
        await append(site.console.create(name), ({}, b"x"))
    await site.console.log_in(site.tokens["reader"])
    for page in ("events", "dead_letters", "follow"):
        for name in ("app", "absent"):
            response = await site.console.get(f"/api/channels/{name}/{page}")
            assert (response.status, response.reason) == (403, "FORBIDDEN")
            assert f"peek on channel '{name}'" in response.json()["message"]
    assert len((await site.console.read("/api/channels/web.a/events"))["events"]) == 1
    assert (await site.console.read("/api/channels/app"))["may"]["peek"] is False


async def test_login_without_auth_has_nothing_to_do(console: ServedConsole) -> None:
    """The page asks for no token."""
    session = await console.read("/api/session")
    assert (session["is_required"], session["identity"]) == (False, None)
    assert abs(session["server"]["time"] - time.time()) < 60
    response = await console.post("/session", {"token": "any"})
    assert (response.status, response.reason) == (409, "NO_LOGIN")


@pytest.fixture
def opened(tmp_path: Path) -> tuple[FakeClock, Sessions, Callable[[], str]]:
    """A clock, sessions by it, and what opens another one."""
    site, clock = ConsoleSite(tmp_path), FakeClock(0.0)
    open_sessions = Sessions(site.access, clock)
    credentials = credentials_of([f"Bearer {site.tokens['viewer']}"], None)
    identity = site.access.identify(credentials)
    return clock, open_sessions, lambda: open_sessions.open(credentials, identity)


def test_session_that_is_not_used_ends(opened: tuple[FakeClock, Sessions, Callable[[], str]]) -> None:
    """One that is used goes on, but not for ever."""
    clock, open_sessions, open_one = opened
    used, unused = open_one(), open_one()
    clock.now = sessions.IDLE_SECONDS_MAX - 1
    assert open_sessions.credentials_of(used) is not None
    clock.now = sessions.IDLE_SECONDS_MAX
    assert open_sessions.credentials_of(unused) is None
    while clock.now < sessions.AGE_SECONDS_MAX - sessions.IDLE_SECONDS_MAX:
        assert open_sessions.credentials_of(used) is not None
        clock.now += sessions.IDLE_SECONDS_MAX / 2
    clock.now = sessions.AGE_SECONDS_MAX
    assert open_sessions.credentials_of(used) is None


def test_open_above_the_limit_ends_the_session_that_is_idle_longest(
    opened: tuple[FakeClock, Sessions, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logins cannot fill the memory; ids are never held as they are."""
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    clock, open_sessions, open_one = opened
    ids = []
    for _ in range(3):
        clock.now += 1
        ids.append(open_one())
    assert [open_sessions.credentials_of(one) is not None for one in ids] == [False, True, True]
    assert all(one not in repr(open_sessions._sessions) for one in ids)


def test_delay_of_logins_ends_with_time_and_is_that_of_one_address() -> None:
    """One failure is forgiven after the other."""
    clock = FakeClock()
    limit = LoginLimit(clock)
    for _ in range(FAILURES_MAX):
        assert limit.delay_seconds("one") == 0
        limit.note_failure("one")
    assert limit.delay_seconds("one") == FAILURE_SECONDS
    assert limit.delay_seconds("other") == 0
    clock.now += FAILURE_SECONDS
    assert limit.delay_seconds("one") == 0
    limit.note_failure("one")
    assert limit.delay_seconds("one") == FAILURE_SECONDS
