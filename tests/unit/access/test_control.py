"""Who a caller is, while tokens and keys change."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from millrace_server import files
from millrace_server.access import jwt
from millrace_server.access.control import AccessControl, certificate_name, credentials_of
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings
from millrace_server.errors import TokenExpiredError, UnauthenticatedError
from tests.certificates import Authority
from tests.odd_certificates import DNS, IP, MAIL, URI, Names, issued
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, key_server

ONE = Issuer()


async def test_keys_are_in_force_once_their_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then tokens are refused; whoever watches is told of other keys."""
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.001)
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


SPIFFE = b"spiffe://example.org/web"


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
@pytest.mark.parametrize(
    ("alternative", "common", "name"),
    [
        ([(DNS, b"web"), (URI, SPIFFE)], ["common"], SPIFFE.decode()),
        ([(URI, SPIFFE), (URI, b"https://example.org"), (DNS, b"web"), (DNS, b"other")], ["common"], "web"),
        ([(URI, b"https://example.org"), (MAIL, b"a@b.example"), (IP, bytes(4))], ["common", "other"], "common"),
        ([], ["Alice Smith"], "Alice Smith"),
        ([(MAIL, b"a@b.example")], [], None),
        # A name that is not good does not make way for the next one.
        ([(DNS, b"boss\0.evil.example")], ["common"], None),
        ([(URI, b"spiffe://boss\0")], ["common"], None),
        ([(DNS, b"\xff")], ["common"], None),
        ([(DNS, b"")], ["common"], None),
        ([(DNS, b"a\r\nb")], ["common"], None),
        ([], ["boss\0"], None),
        ([], ["x" * 256], None),
        ([(IP, b"1")], ["common"], None),
    ],
)
def test_certificate_names_one_identity(encoding: Encoding, alternative: Names, common: Any, name: str | None) -> None:
    """Its SPIFFE ID, else its first DNS name, else its common name; never what only resembles one of them."""
    assert certificate_name(issued(alternative, common).public_bytes(encoding)) == name


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


@given(
    st.lists(st.tuples(st.sampled_from([DNS, IP, MAIL, URI, 0xA0]), st.binary(max_size=300)), max_size=4),
    st.lists(st.text(max_size=300).filter(lambda text: text.encode(errors="ignore").decode() == text), max_size=2),
)
def test_certificate_with_any_names_names_printable_text_or_nobody(alternative: Names, common: list[str]) -> None:
    """Whatever an authority signs, it does not forge log lines, nor end in an error."""
    name = certificate_name(issued(alternative, common).public_bytes(Encoding.DER))
    assert name is None or (name.isprintable() and 0 < len(name) <= 255)
    shown = [content.decode("latin-1") for kind, content in alternative if kind in {DNS, URI}]
    assert name is None or name.encode().decode("latin-1") in shown or name in common


@given(st.binary())
def test_certificate_that_is_none_names_nobody(certificate: bytes) -> None:
    """Not even a part of one is taken."""
    assert certificate_name(certificate) is None
    assert certificate_name(issued([], ["web"]).public_bytes(Encoding.DER)[: len(certificate) + 1]) is None


@given(st.lists(st.text() | st.binary() | st.text(alphabet="bearBEAR .-_~+/= \n\0").map("Bearer ".__add__), max_size=3))
def test_any_headers_let_nobody_in(headers: list[str | bytes]) -> None:
    """Unless there is exactly one, with a token that is valid."""
    access = AccessControl(AuthSettings(), {}, {})
    with pytest.raises(UnauthenticatedError):
        access.identify(credentials_of(headers, None))
