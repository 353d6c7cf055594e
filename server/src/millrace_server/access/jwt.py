"""JSON Web Tokens, and their issuer's keys, which change while the server runs."""

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import structlog
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.access.tokens import TOKEN, check_identity, hash_of
from millrace_server.errors import TokenExpiredError, UnauthenticatedError
from millrace_server.files import FileWatch, NamedPath, read_named
from millrace_server.network import is_loopback
from millrace_server.network.pem_files import RSA_BITS_MIN

if TYPE_CHECKING:
    from jwt import PyJWK

LEEWAY_SECONDS = 60
"""Maximum difference between the clocks of the issuer and this machine."""

_TIME_MAX = 1 << 40
_VERIFIED_MAX = 4_096
_REFRESH_SECONDS = 300.0
_RETRY_SECONDS = 5.0
_RESPONSE_SECONDS_MAX = 5.0
_FETCH_SECONDS_MAX = 10.0
_READ_BYTES = 64 << 10
_BYTES_MAX = 1 << 20
_RSA_BITS_MAX = 8_192  # Verifying a signature of a larger key would block the event loop too long.

_ALGORITHMS = {"RSA/": "RS256", "EC/P-256": "ES256", "OKP/Ed25519": "EdDSA"}
"""The only algorithm accepted for a key, by its kty and crv; the algorithm in a token's header is ignored."""

_log = structlog.stdlib.get_logger(__name__)


class JwtSettings(BaseModel, frozen=True, extra="forbid"):
    """Which JSON Web Tokens are accepted: those signed by a key of the issuer with RS256, ES256 or EdDSA."""

    # Validators of later fields use earlier ones, which are missing if they are invalid.

    issuer: str = Field(min_length=1)
    """The required claim `iss`."""

    audience: str = Field(min_length=1)
    """The value that the claim `aud` must be or contain."""

    jwks_file: NamedPath | None = None
    """File of the issuer's public keys, a JSON Web Key Set; it is reread when it changes."""

    jwks_url: str | None = Field(None, validate_default=True)
    """URL of the issuer's public keys: HTTPS, or HTTP on a loopback address. They are fetched every 5 minutes, and when
    a token names an unknown key. If the URL does not respond, the previous keys stay in use."""

    jwks_ca: NamedPath | None = None
    """File of the certificate authorities, in PEM, for the certificate of `jwks_url`; by default the system's."""

    jwks_token_file: NamedPath | None = None
    """File of a bearer token that is sent to `jwks_url`, such as that of a Kubernetes service account."""

    identity_claim: str = Field("sub", min_length=1)
    """The claim with the name of the identity."""

    @field_validator("jwks_file")
    @classmethod
    def _check_file(cls, path: Path | None) -> Path | None:
        if path is not None:
            _KeysFile(path).read()
        return path

    @field_validator("jwks_ca")
    @classmethod
    def _check_ca(cls, path: Path | None) -> Path | None:
        _context_of(path)
        return path

    @field_validator("jwks_token_file")
    @classmethod
    def _check_token_file(cls, path: Path | None) -> Path | None:
        if path is not None:
            _read_token(path)
        return path

    @field_validator("jwks_url")
    @classmethod
    def _check_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if "jwks_file" in info.data and (url is None) == (info.data["jwks_file"] is None):
            raise ValueError("must be set if jwks_file is not, and only then")
        if url is not None:
            _check_url(url)
        return url


def _check_url(url: str) -> None:
    if "@" in url:
        # The URL is not shown here: it may contain a secret.
        raise ValueError("has a user name before its host; use jwks_token_file for credentials")
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        is_valid = url.isascii() and url.isprintable() and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_safe = is_valid = False
    if not (is_safe and is_valid):
        raise ValueError(f"is {shown_value(url)}; it must be an HTTPS URL, or an HTTP URL on a loopback address")


def _context_of(ca: Path | None) -> ssl.SSLContext:
    """Returns a context that trusts the authorities in a file, or the system's; raises ValueError if there are none."""
    if ca is not None:
        read_named(ca, _BYTES_MAX)
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError:
        raise ValueError(f"is {shown_value(str(ca))}, which holds no certificates in PEM") from None


def _read_token(path: Path) -> str:
    """Returns the bearer token in a file; raises ValueError, which does not quote the content, if it has none."""
    token = read_named(path, _BYTES_MAX).decode("latin-1").strip()
    if not TOKEN.fullmatch(token):
        raise ValueError(f"is {shown_value(str(path))}, which has no bearer token")
    return token


class VerifiedName(NamedTuple):
    """The identity in a verified token."""

    name: str
    expiry_time: float
    """When the token expires, leeway included, in seconds since the epoch."""


class Jwts:
    """Checks tokens against the issuer's current keys. If new keys cannot be read, the previous ones stay in use."""

    reload_message = "keys of JSON Web Tokens reloaded"
    """Logged once changed keys are in use."""

    def __init__(self, settings: JwtSettings) -> None:
        """Reads the file of keys, if one is configured; raises ValueError if it is no longer valid."""
        self._settings = settings
        self._keys: dict[str | None, PyJWK] = {}
        self._verified_names: dict[str, VerifiedName] = {}
        self._problem = ""
        self._source: _KeysFile | _KeysUrl
        if settings.jwks_file is not None:
            self._source = _KeysFile(settings.jwks_file)
            self._keys = self._source.read() or {}
        else:
            self._source = _KeysUrl(settings)

    def refresh(self) -> bool:
        """Reads the keys again if that is due; returns whether they have changed. Blocks on disk and network."""
        try:
            keys = self._source.read()
        except ValueError as error:
            self._source.request_refresh()
            if str(error) != self._problem:
                self._problem = str(error)
                _log.error("the keys of JSON Web Tokens cannot be read; previous ones stay in use", why=self._problem)
            return False
        if keys is None:
            return False
        is_changed = {kid: key.key for kid, key in keys.items()} != {kid: key.key for kid, key in self._keys.items()}
        if self._problem:
            _log.info("the keys of JSON Web Tokens can be read now", keys=len(keys))
        # In this order, since `check` may run at the same time on another thread.
        self._keys = keys
        self._verified_names = {}
        self._problem = ""
        return is_changed

    @property
    def is_fetch_due(self) -> bool:
        """Whether `refresh` would fetch keys from the issuer now."""
        return isinstance(self._source, _KeysUrl) and self._source.is_due

    def check(self, token: str) -> VerifiedName:
        """Returns the identity in a token; raises UnauthenticatedError unless the issuer signed it for this server."""
        # Verified names are cached: signatures are slow to verify, and many streams may use a few tokens. A name
        # verified with previous keys goes into the previous dictionary, which `refresh` has replaced.
        verified_names, token_hash = self._verified_names, hash_of(token)
        if (verified := verified_names.get(token_hash)) is None:
            verified = self._verified(token)
            if len(verified_names) >= _VERIFIED_MAX:
                verified_names.clear()
            verified_names[token_hash] = verified
        if verified.expiry_time <= time.time():
            raise TokenExpiredError(_EXPIRED)
        return verified

    def _verified(self, token: str) -> VerifiedName:
        # Slow to import, and not needed without such tokens.
        import jwt

        settings = self._settings
        try:
            # Only the header is decoded first, so that tokens with an unknown kid are refused cheaply.
            key = self._key_of(json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "==")).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
            expiry_time = min(int(claims["exp"]), _TIME_MAX) + LEEWAY_SECONDS
            return VerifiedName(_name_in(claims, settings.identity_claim), expiry_time)
        except jwt.ExpiredSignatureError:
            raise TokenExpiredError(_EXPIRED) from None
        except UnauthenticatedError:
            raise
        except Exception as error:  # noqa: BLE001 - a token that makes the library raise anything is not valid
            # Claims are checked after the signature, so the reason is shown only to clients of the issuer.
            why = _REASONS.get(type(error).__name__, "is not valid")
            raise UnauthenticatedError(f"authorization: the token {why}") from None

    def _key_of(self, kid: str | None) -> "PyJWK":
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if kid is not None and (key := self._keys.get(kid)) is not None:
            return key
        self._source.request_refresh()
        why = "of the token is not known" if self._keys else "could not be fetched from the token's issuer yet"
        raise UnauthenticatedError(f"authorization: the key {why}", retry_delay_seconds=_RETRY_SECONDS)


_EXPIRED = "authorization: the token has expired; get another one"
_REASONS = {
    "ImmatureSignatureError": "is not valid yet",
    "InvalidAudienceError": "is for another audience (aud)",
    "InvalidIssuerError": "is from another issuer (iss)",
    "MissingRequiredClaimError": "lacks one of the claims exp, iss and aud",
}


def _name_in(claims: dict[str, Any], claim: str) -> str:
    name = claims.get(claim)
    try:
        check_identity(name if isinstance(name, str) else "")
    except ValueError as error:
        raise UnauthenticatedError(f"authorization: the token's claim {claim!a} is not a valid name: {error}") from None
    return str(name)


class _KeysFile:
    """Keys in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watch: FileWatch | None = None

    def read(self) -> "dict[str | None, PyJWK] | None":
        """Returns the keys, or None if the file has not changed; raises ValueError if they are invalid."""
        if self._watch is None:
            self._watch = FileWatch(self._path)
        elif not self._watch.has_changed():
            return None
        return _parsed(json.dumps(str(self._path)), read_named(self._path, _BYTES_MAX))

    def request_refresh(self) -> None:
        """Does nothing: `read` notices when the file has changed."""


class _KeysUrl:
    """Keys at a URL."""

    def __init__(self, settings: JwtSettings) -> None:
        assert settings.jwks_url is not None, "checked with the configuration"
        self._url = settings.jwks_url
        self._settings = settings
        self._tried_at = self._due = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def read(self) -> "dict[str | None, PyJWK] | None":
        """Returns the keys, or None if they are not due yet; raises ValueError if there are no valid ones."""
        if not self.is_due:
            return None
        now = time.monotonic()
        self._tried_at, self._due = now, now + _REFRESH_SECONDS
        try:
            content = self._fetch(now + _FETCH_SECONDS_MAX)
        except (OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ValueError(f"is {shown_value(self._url)}, which cannot be fetched: {why}") from None
        return _parsed(shown_value(self._url), content)

    def request_refresh(self) -> None:
        """Makes `read` fetch the keys soon, at most once per retry interval."""
        self._due = min(self._due, self._tried_at + _RETRY_SECONDS)

    def _fetch(self, deadline: float) -> bytes:
        request = urllib.request.Request(self._url)  # noqa: S310 - of HTTPS, or of HTTP on this machine
        if (token_file := self._settings.jwks_token_file) is not None:
            # The token is validated first: the library's error would quote an invalid header.
            request.add_unredirected_header("Authorization", f"Bearer {_read_token(token_file)}")
        content = b""
        with self._opener().open(request, timeout=_RESPONSE_SECONDS_MAX) as response:
            if response.status != HTTPStatus.OK:
                raise ValueError(f"it returned {response.status} {response.reason}")
            while part := response.read1(_READ_BYTES):
                content += part
                if len(content) > _BYTES_MAX or time.monotonic() > deadline:
                    raise ValueError(f"the response has more than {_BYTES_MAX} bytes, or takes too long")
        return content

    def _opener(self) -> urllib.request.OpenerDirector:
        # A proxy may be needed to reach an issuer, but never this machine.
        proxies: dict[str, str] | None = {} if self._url.startswith("http:") else None
        return urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=_context_of(self._settings.jwks_ca)),
            _AnyResponse,
        )


class _AnyResponse(urllib.request.HTTPErrorProcessor):
    """Returns every response as it is, and follows no redirects: only the configured address is trusted."""

    def http_response(self, _request: Any, response: Any) -> Any:
        return response

    def https_response(self, _request: Any, response: Any) -> Any:
        return response


def _parsed(where: str, content: bytes) -> "dict[str | None, PyJWK]":
    """Returns the keys of a JSON Web Key Set that can verify tokens, by kid; raises ValueError if there are none."""
    try:
        return _keys(content)
    except ValueError as error:
        raise ValueError(f"is {where}, which {error}") from None


def _keys(content: bytes) -> "dict[str | None, PyJWK]":
    keys: dict[str | None, PyJWK] = {}
    for key in filter(None, map(_key, _entries(content))):
        if key.key_id in keys:
            raise ValueError(f"has several keys with the kid {key.key_id!a}")
        keys[key.key_id] = key
    if not keys:
        raise ValueError("has no signing key for RS256, ES256 or EdDSA")
    return keys


def _entries(content: bytes) -> list[dict[str, Any]]:
    try:
        entries = json.loads(content)["keys"]
    except (ValueError, TypeError, LookupError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("is not a JSON Web Key Set")
    return entries


def _key(entry: dict[str, Any]) -> "PyJWK | None":
    """Returns a key, or None if it is not for signatures; raises ValueError if it cannot be trusted."""
    from jwt import PyJWK, PyJWTError

    if "d" in entry:
        raise ValueError("holds a private key; it must hold public keys only")
    algorithm = _ALGORITHMS.get(f"{entry.get('kty')}/{entry.get('crv', '')}")
    operations = entry.get("key_ops", ["verify"])
    is_for_signatures = entry.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    if algorithm is None or entry.get("alg", algorithm) != algorithm or not is_for_signatures:
        return None
    try:
        key = PyJWK(entry, algorithm)
    except PyJWTError:
        raise ValueError(f"has an invalid key for {algorithm}") from None
    if not isinstance(key.key_id, str | None):
        raise ValueError("has a key whose kid is not a string")  # noqa: TRY004 - a problem of the file
    if algorithm == "RS256" and not RSA_BITS_MIN <= key.key.key_size <= _RSA_BITS_MAX:
        raise ValueError(f"has an RSA key of {key.key.key_size} bits, not {RSA_BITS_MIN} to {_RSA_BITS_MAX}")
    return key
