"""JSON Web Tokens, and the keys that check them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, RSAAlgorithm
from pydantic import ValidationError
from structlog.testing import capture_logs

from millrace_server.access import jwt
from millrace_server.access.jwt import Jwts, JwtSettings
from millrace_server.errors import TokenExpiredError, UnauthenticatedError
from tests.free_ports import free_port
from tests.odd_certificates import DNS, IP, issued, write_certificate
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, encoded, jwks, key_server, rsa_key

ONE = Issuer()
OTHER = Issuer("EdDSA", "two")
RSA = Issuer("RS256", "three")


def settings(path: Path | None, **more: Any) -> JwtSettings:
    return JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=path, **more)


def jwts(path: Path, *issuers: Issuer, **more: Any) -> Jwts:
    path.write_bytes(jwks(*issuers))
    return Jwts(settings(path, **more))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Jwts:
    return jwts(tmp_path_factory.mktemp("keys") / "jwks.json", ONE, OTHER, RSA)


@pytest.mark.parametrize("issuer", [ONE, OTHER, RSA], ids=lambda issuer: issuer.algorithm)
def test_check_of_a_good_token_returns_its_name(checked: Jwts, issuer: Issuer) -> None:
    """Each of the three algorithms is accepted, with the key that the token names."""
    assert checked.check(issuer.token("boss")).name == "boss"


def test_check_of_a_service_account_returns_its_subject(checked: Jwts) -> None:
    """A projected token of Kubernetes has an array of audiences, and claims of its own."""
    bound: Any = {"namespace": "logs", "serviceaccount": {"name": "shipper", "uid": "0a1b"}, "warnafter": 1_700_000_000}
    token = ONE.token("system:serviceaccount:logs:shipper", aud=[AUDIENCE, "vault"], **{"kubernetes.io": bound})
    assert checked.check(token).name == "system:serviceaccount:logs:shipper"


def test_check_takes_the_claim_that_is_configured(tmp_path: Path) -> None:
    """The subject does not matter then, and a token without the claim is refused."""
    by_mail = jwts(tmp_path / "jwks.json", ONE, identity_claim="email")
    assert by_mail.check(ONE.token("1234", email="a@b.example")).name == "a@b.example"
    with pytest.raises(UnauthenticatedError, match="claim 'email' is not a valid name"):
        by_mail.check(ONE.token("boss"))


def test_check_allows_for_clocks_that_differ_by_a_minute(checked: Jwts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after its time a token is good for 60 seconds, and then it has expired."""
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    token = ONE.token(exp=5_000_000_000)
    proven = checked.check(token)
    assert proven.expiry_time == 5_000_000_060
    assert checked.check(ONE.token(lifetime=-59)).name == "boss"
    assert checked.check(ONE.token(nbf=now + 59, iat=now + 59)).name == "boss"
    with pytest.raises(TokenExpiredError, match=r"^authorization: the token has expired; get another one$"):
        checked.check(ONE.token(lifetime=-61))
    monkeypatch.setattr("time.time", lambda: proven.expiry_time - 1)
    assert checked.check(token) == proven
    monkeypatch.setattr("time.time", lambda: proven.expiry_time)
    with pytest.raises(TokenExpiredError):
        checked.check(token)
    monkeypatch.undo()
    for claims in ({"nbf": 5_000_000_000}, {"iat": 5_000_000_000}):
        with pytest.raises(UnauthenticatedError, match="is not valid yet"):
            checked.check(ONE.token(headers=None, **claims))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "is from another issuer"),
        ({"iss": None}, "lacks one of the claims"),
        ({"aud": "other"}, "is for another audience"),
        ({"aud": ["other", "Millrace"]}, "is for another audience"),
        ({"aud": []}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"exp": None}, "lacks one of the claims"),
        ({"exp": "never"}, "is not valid"),
        ({"exp": 1e999}, "is not valid"),
        ({"nbf": {}}, "is not valid"),
        ({"sub": None}, "is not a valid name"),
        ({"sub": 7}, "is not valid"),
        ({"sub": ""}, "is not a valid name"),
        ({"sub": "boss\n"}, "is not a valid name"),
        ({"sub": "boss\x00"}, "is not a valid name"),
        ({"sub": "\ud800"}, "is not a valid name"),
        ({"sub": "x" * 256}, "is not a valid name"),
    ],
)
def test_check_of_claims_that_are_not_good_refuses(checked: Jwts, claims: dict[str, Any], why: str) -> None:
    """The sentence says what is wrong, to those whom the issuer gave the token."""
    token = ONE.token(**claims)
    with pytest.raises(UnauthenticatedError, match=why) as refused:
        checked.check(token)
    assert refused.value.reason == "UNAUTHENTICATED"
    assert not any(part in str(refused.value) for part in token.split("."))


def forged(alg: Any, secret: bytes, **header: Any) -> str:
    """A token that is signed with a secret that everybody may know."""
    head, body, _ = ONE.token(headers={"alg": alg, **header}).split(".")
    signature = HMACAlgorithm(HMACAlgorithm.SHA256)
    return f"{head}.{body}.{encoded(signature.sign(f'{head}.{body}'.encode(), secret))}"


KIDS: list[Any] = ["../../dev/null", "' OR 1=1", "", 1, ["one"], {}, "one\x00"]


def forgeries() -> list[str]:
    public = rsa_key().public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    evil = Issuer("ES256", "evil")
    head, body, signature = ONE.token().split(".")
    return [
        f"{head}.{body}.",
        *(f"{ONE.token(headers={'alg': alg}).rpartition('.')[0]}." for alg in ("none", "None", "", None, 7, ["ES256"])),
        # The public key as the secret: what "algorithm confusion" means.
        *(forged("HS256", secret, kid=kid) for secret in (pem, jwks(RSA), b"") for kid in ("one", "three", None)),
        # Another's key, which the header brings along, or by a name that is good.
        evil.token(),
        evil.token(headers={"kid": "one"}),
        evil.token(headers={"kid": "one", "jwk": evil.jwk}),
        evil.token(headers={"kid": "one", "jku": "http://127.0.0.1:1/", "x5u": "file:///etc/passwd"}),
        *(evil.token(headers={"kid": kid}) for kid in KIDS),
        # A good signature, by a key that is for another algorithm.
        *(ONE.token(headers={"alg": alg}) for alg in ("RS256", "EdDSA", "ES384", "PS256", "es256")),
        *(RSA.token(headers={"alg": alg}) for alg in ("RS512", "PS256", "HS256")),
        *(ONE.token(headers={"kid": kid}) for kid in ("two", "three")),
        # Without the name of its key, of which there are three.
        ONE.token(headers={"kid": None}),
        ONE.token(headers={"crit": ["exp"]}),
        ONE.token(headers={"b64": False, "crit": ["b64"]}),
        f"{head}.{body}.{signature}.{signature}",
        f"{head}.{body}.{signature}=",
        f"{head}.{body}.{encoded(b'[' * 5_000)}",
        f"{encoded(b'[' * 5_000)}.{body}.{signature}",
        "..",
        "e30.e30.",
    ]


def test_check_of_a_forgery_refuses(checked: Jwts) -> None:
    """Nothing that the issuer has not signed as it is proves anything."""
    for token in forgeries():
        with pytest.raises(UnauthenticatedError) as refused:
            checked.check(token)
        assert refused.value.reason == "UNAUTHENTICATED", token


GOOD = ONE.token(exp=5_000_000_000)


@given(st.text() | st.binary().map(lambda content: content.decode("latin-1")), st.integers(0, len(GOOD)))
def test_check_of_any_text_refuses(checked: Jwts, text: str, at: int) -> None:
    """Alone, or in the place of one character of a good token, it ends in no other error."""
    assert checked.check(GOOD).name == "boss"
    for token in (text, GOOD[:at] + text + GOOD[at + 1 :]):
        if token != GOOD:
            with pytest.raises(UnauthenticatedError):
                checked.check(token)


def test_check_without_a_kid_wants_a_set_of_one_key(tmp_path: Path) -> None:
    """Then there is no doubt which key is meant; keys for something else do not count."""
    lonely = Issuer("ES256", None)
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}, lonely.jwk, RSA.jwk | {"use": "enc"}]}))
    alone = Jwts(settings(path))
    assert alone.check(lonely.token()).name == "boss"
    for kid in ("one", ""):
        with pytest.raises(UnauthenticatedError, match="the key of the token is not known"):
            alone.check(lonely.token(headers={"kid": kid}))


EC_P384 = ONE.jwk | {"crv": "P-384"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "is not a JSON Web Key Set"),
        (b"[" * 100_000, "is not a JSON Web Key Set"),
        (b"{}", "is not a JSON Web Key Set"),
        (b'{"keys": [1]}', "is not a JSON Web Key Set"),
        (b'{"keys": 1}', "is not a JSON Web Key Set"),
        (b'{"keys": []}', "has no signing key for"),
        (
            json.dumps({"keys": [EC_P384, ONE.jwk | {"alg": "RS256"}, RSA.jwk | {"alg": "PS256"}]}).encode(),
            "no signing key for",
        ),
        (json.dumps({"keys": [ONE.jwk | {"key_ops": ["sign"]}, {"kty": []}]}).encode(), "has no signing key for"),
        (jwks(ONE, Issuer("EdDSA", "one")), "has several keys with the kid 'one'"),
        (jwks(Issuer(kid=None), Issuer(kid=None)), "has several keys with the kid None"),
        (json.dumps({"keys": [ONE.jwk | {"kid": ["one"]}]}).encode(), "whose kid is not a string"),
        (json.dumps({"keys": [ONE.jwk | {"x": "AAAA"}]}).encode(), "has an invalid key for ES256"),
        (json.dumps({"keys": [RSA.jwk | {"n": 7}]}).encode(), "has an invalid key for RS256"),
        (json.dumps({"keys": [ECAlgorithm.to_jwk(ONE.key, as_dict=True)]}).encode(), "holds a private key"),
        (
            json.dumps({"keys": [RSAAlgorithm.to_jwk(rsa_key(1_024).public_key(), as_dict=True)]}).encode(),
            "has an RSA key of 1024 bits, not 2048 to 8192",
        ),
    ],
    ids=lambda value: "keys" if isinstance(value, bytes) else value,
)
def test_settings_with_keys_that_are_not_good_say_why(tmp_path: Path, content: bytes, problem: str) -> None:
    """The sentence names the file, and shows nothing of the keys."""
    path = tmp_path / "jwks.json"
    path.write_bytes(content)
    with pytest.raises(ValidationError, match=f'is "{re.escape(str(path))}", which .*{re.escape(problem)}'):
        settings(path)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://id.example/keys", "it must be an HTTPS URL"),
        ("http://127.0.0.1.id.example/keys", "it must be an HTTPS URL"),
        ("ftp://localhost/keys", "it must be an HTTPS URL"),
        ("file:///etc/passwd", "it must be an HTTPS URL"),
        ("https:///keys", "it must be an HTTPS URL"),
        ("https://id.example:99999/", "it must be an HTTPS URL"),
        ("https://[id.example/", "it must be an HTTPS URL"),
        ("https://id.example/a b\n", "it must be an HTTPS URL"),
        ("https://user:hush@id.example/", "has a user name before its host"),
    ],
)
def test_settings_with_an_address_that_is_not_safe_refuse_it(url: str, problem: str) -> None:
    """Keys come over HTTPS, or from this machine; a password is not shown."""
    with pytest.raises(ValidationError, match=problem) as refused:
        settings(None, jwks_url=url)
    assert "hush" not in refused.value.errors()[0]["msg"]


def test_settings_want_a_file_or_an_address(tmp_path: Path) -> None:
    """Neither, or both, would leave open whose keys count."""
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(ONE))
    for url, file in ((None, None), ("https://id.example/", path)):
        with pytest.raises(ValidationError, match="must be set if jwks_file is not"):
            settings(file, jwks_url=url)
    assert settings(None, jwks_url="http://[::1]:80/keys").jwks_url


def test_refresh_of_a_file_puts_its_keys_in_force(tmp_path: Path) -> None:
    """A key that was removed is refused from then on; a broken or absent file changes nothing, and is told once."""
    path = tmp_path / "jwks.json"
    held = jwts(path, ONE)
    assert not held.refresh()
    with capture_logs() as told:
        path.write_text("{")
        assert not held.refresh()
        path.unlink()
        assert not held.refresh()
        assert not held.refresh()
    assert [entry["log_level"] for entry in told] == ["error"] * 2
    token = ONE.token()
    assert held.check(token).name == "boss"
    path.write_bytes(jwks(OTHER))
    assert held.refresh()
    assert held.check(OTHER.token()).name == "boss"
    with pytest.raises(UnauthenticatedError):
        held.check(token)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt, "_RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_refresh_from_an_address_survives_its_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first response tokens are refused, with the reason; afterwards the former keys stay in force."""
    for name in ("http_proxy", "HTTP_PROXY"):
        # It is not for this machine's own addresses.
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    token_file = tmp_path / "token"
    token_file.write_text("abc.def\n")
    with key_server(ONE, port=free_port()) as server:
        held = Jwts(settings(None, jwks_url=server.url, jwks_token_file=token_file))
        with pytest.raises(UnauthenticatedError, match="could not be fetched from the token's issuer yet"):
            held.check(ONE.token())
        assert held.refresh()
        assert server.authorizations == ["Bearer abc.def"]
        assert not held.refresh(), "it is not time yet"
        assert len(server.authorizations) == 1
        with capture_logs() as told:
            for server.status, server.content in ((503, b""), (302, b""), (200, b"{}"), (200, b"x" * (2 << 20))):
                with pytest.raises(UnauthenticatedError, match="is not known"):
                    held.check(OTHER.token())
                assert not held.refresh()
                assert held.check(ONE.token()).name == "boss"
    assert [entry["why"].partition(", which ")[2] for entry in told] == [
        "cannot be fetched: it returned 503 Service Unavailable",
        "cannot be fetched: it returned 302 Found",
        "is not a JSON Web Key Set",
        "cannot be fetched: the response has more than 1048576 bytes, or takes too long",
    ]
    with capture_logs() as told:
        assert not held.refresh()
        assert not held.refresh()
    assert len(told) == 1
    assert "Connection refused" in told[0]["why"]
    with key_server(OTHER, port=server.http.server_port):
        assert held.refresh()
    assert held.check(OTHER.token()).name == "boss"


@pytest.mark.usefixtures("impatient")
def test_refresh_over_tls_trusts_the_configured_authority_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no certificate of it for this name gets no token, and its keys are not taken."""
    ca, _ = write_certificate(tmp_path, "ca", issued([], [], is_authority=True))
    token_file = tmp_path / "token"
    token_file.write_text("abc.def")
    for names, is_trusted in (([(DNS, b"id.example")], False), ([(IP, bytes((127, 0, 0, 1)))], True)):
        own = write_certificate(tmp_path, "server", issued(names, ["127.0.0.1"]))
        with key_server(ONE, tls=own) as server:
            held = Jwts(settings(None, jwks_url=server.url, jwks_ca=ca, jwks_token_file=token_file))
            assert held.refresh() == is_trusted
            assert not Jwts(settings(None, jwks_url=server.url)).refresh(), "the system trusts no such authority"
            assert server.authorizations == ["Bearer abc.def"] * is_trusted
            monkeypatch.setattr(jwt, "_FETCH_SECONDS_MAX", -1.0)
            held = Jwts(settings(None, jwks_url=server.url, jwks_ca=ca))
            assert not held.refresh(), "it takes too long"
            monkeypatch.undo()


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "caf\u00e9"])
def test_refresh_with_a_token_that_is_none_does_not_show_it(tmp_path: Path, token: str) -> None:
    """Such as the file of something else: nothing of it is sent or logged."""
    token_file = tmp_path / "token"
    token_file.write_text("abc.def")
    with key_server(ONE) as server, capture_logs() as told:
        held = Jwts(settings(None, jwks_url=server.url, jwks_token_file=token_file))
        token_file.write_text(token)
        assert not held.refresh()
    assert server.authorizations == []
    assert told[0]["why"].endswith(f'cannot be fetched: is "{token_file}", which has no bearer token')


def test_settings_with_files_for_an_address_that_are_not_good_name_them(tmp_path: Path) -> None:
    """They are needed only when keys are fetched, and are wrong before the server starts."""
    held = tmp_path / "held"
    held.write_text("two words")
    for name, problem in (("jwks_ca", "holds no certificates in PEM"), ("jwks_token_file", "has no bearer token")):
        with pytest.raises(ValidationError, match=f'{name}\n.*is "{re.escape(str(held))}", which {problem}'):
            settings(None, jwks_url="https://id.example/", **{name: held})
        with pytest.raises(ValidationError, match=f"{name}\n.*which cannot be read: No such file"):
            settings(None, jwks_url="https://id.example/", **{name: tmp_path / "absent"})


def test_refresh_after_an_unknown_kid_waits_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends forged names of keys cannot make the server ask the issuer again and again."""
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with key_server(ONE) as server:
        held = Jwts(settings(None, jwks_url=server.url))
        assert held.refresh()
        for _ in range(10):
            with pytest.raises(UnauthenticatedError):
                held.check(OTHER.token())
            held.refresh()
        assert len(server.authorizations) == 1
        server.content = jwks(ONE, OTHER)
        now += 5.0
        assert held.refresh()
        assert held.check(OTHER.token()).name == "boss"
        now += 299.0
        assert not held.refresh()
        now += 1.0
        assert not held.refresh()
        assert len(server.authorizations) == 3
