"""Who a caller is, while tokens and keys change."""

import asyncio

import pytest

from millrace_server.access import control, jwt
from millrace_server.access.control import AccessControl, credentials_of
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings
from millrace_server.errors import UnauthenticatedError
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, key_server

ONE = Issuer()


async def test_keys_are_in_force_once_their_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then tokens are refused; whoever watches is told of other keys."""
    monkeypatch.setattr(control, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(jwt, "_RETRY_SECONDS", 0.001)
    with key_server(ONE) as server:
        url, port = server.url, server.http.server_port
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
