"""Who a caller is, while tokens and keys change."""

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server import files
from millrace_server.access import jwt
from millrace_server.access.control import AccessControl, credentials_of
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings
from millrace_server.errors import TokenExpiredError, UnauthenticatedError
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, key_server

ONE = Issuer()


async def test_keys_are_in_force_once_their_address_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then tokens are refused; whoever watches is told of other keys."""
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(jwt, "_RETRY_SECONDS", 0.001)
    port = free_port()
    url = f"http://127.0.0.1:{port}/keys"
    access = AccessControl(AuthSettings(jwt=JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=url)), {}, {})
    changed = asyncio.Event()
    access.watch(changed.set)
    shown = credentials_of([f"Bearer {ONE.token()}"], None)
    await access.prepare()
    with pytest.raises(UnauthenticatedError, match="could not be fetched"):
        access.identify(shown)
    following = asyncio.create_task(access.follow())
    with key_server(ONE, port=port):
        await changed.wait()
    following.cancel()
    assert access.identify(shown)[:2] == ("boss", "JWT")
    assert access.identify(shown._replace(certificate_name="web"))[:2] == ("boss", "JWT and certificate")


def test_credentials_show_no_token() -> None:
    """Of a token only its hash is kept, unless it is a JSON Web Token, which nothing shows by accident."""
    for token in (ONE.token(), "opaque-token"):
        shown = credentials_of([f"Bearer {token}"], None)
        assert (shown.jwt is None) == ("." not in token)
        assert token not in repr(shown)
        assert token not in str(shown)


def test_certificate_that_expires_proves_nothing_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and sessions outlive the certificate that they began with; a token does not help it."""
    path, _ = Authority().issue(tmp_path, "web", days=1)
    access = AccessControl(AuthSettings(), {}, {})
    shown = credentials_of([], path.read_bytes())
    identity = access.identify(shown)
    assert identity[:2] == ("localhost", "certificate")
    assert 0 < identity.expiry_time - time.time() <= 86_400
    monkeypatch.setattr(time, "time", lambda: identity.expiry_time)
    for late in (shown, shown._replace(token_hash="0" * 64)):
        with pytest.raises(TokenExpiredError, match="the certificate of the connection has expired"):
            access.identify(late)


@given(st.lists(st.text() | st.binary() | st.text(alphabet="bearBEAR .-_~+/= \n\0").map("Bearer ".__add__), max_size=3))
def test_any_headers_let_nobody_in(headers: list[str | bytes]) -> None:
    """Unless there is exactly one, with a token that is valid."""
    access = AccessControl(AuthSettings(), {}, {})
    with pytest.raises(UnauthenticatedError):
        access.identify(credentials_of(headers, None))
