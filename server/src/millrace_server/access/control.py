"""Access control: the identities and rights of callers, according to the current tokens and roles."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog
from pydantic import SecretStr

from millrace_server.access.certificates import read_certificate
from millrace_server.access.jwt import Jwts
from millrace_server.access.permissions import Entitlements, Grant, Policy, Rights
from millrace_server.access.quotas import UNBOUNDED, Quota
from millrace_server.access.settings import AuthSettings, IdentitySettings, RoleSettings
from millrace_server.access.tokens import TOKEN, TokensFile, hash_of
from millrace_server.errors import TokenExpiredError, UnauthenticatedError
from millrace_server.files import follow

_PREPARATION_SECONDS = 2.0
_FETCH_WAIT_SECONDS = 2.0

_BEARER = re.compile(f"bearer +({TOKEN.pattern})", re.IGNORECASE)
_JWT_DOTS = 2

_log = structlog.stdlib.get_logger(__name__)


class Credentials(NamedTuple):
    """A caller's credentials: its certificate, and the hash of its token, or the token if it may be a JWT."""

    token_hash: str | None
    certificate_name: str | None
    jwt: SecretStr | None = None
    certificate_expiry_time: float = math.inf


class Identity(NamedTuple):
    """An authenticated caller: its name, the kind of its credentials, and their expiry."""

    name: str
    proof: str
    expiry_time: float = math.inf
    """When the credentials expire, in seconds since the epoch."""


def credentials_of(authorizations: Sequence[str | bytes | Credentials], certificate: bytes | None) -> Credentials:
    """Returns the credentials in a request's authorization headers and its connection's certificate.

    The credentials of a session may take the place of a header. Raises UnauthenticatedError if they are malformed.
    """
    shown = Credentials(None, None)
    if certificate is not None:
        read = read_certificate(certificate)
        read.refuse_if_weak()
        shown = Credentials(None, read.name, None, read.expiry_time)
    if not authorizations:
        return shown
    if len(authorizations) > 1:
        raise UnauthenticatedError("authorization: was sent more than once; send one token")
    [header] = authorizations
    if isinstance(header, Credentials):
        return shown._replace(token_hash=header.token_hash, jwt=header.jwt)
    bearer = _BEARER.fullmatch(header) if isinstance(header, str) else None
    if bearer is None:
        raise UnauthenticatedError("authorization: is not a bearer token; send it as: authorization: Bearer TOKEN")
    token = bearer[1]
    return shown._replace(token_hash=hash_of(token), jwt=SecretStr(token) if token.count(".") == _JWT_DOTS else None)


class AccessControl:
    """The current identities and rights."""

    def __init__(
        self, auth: AuthSettings, roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]
    ) -> None:
        """Reads the files of tokens and keys; raises ValueError if one of them is no longer valid."""
        self._tokens = None if auth.tokens_file is None else TokensFile(auth.tokens_file)
        self._jwts = None if auth.jwt is None else Jwts(auth.jwt)
        self._policy = _policy(roles, identities)
        self._watchers: list[Callable[[], None]] = []
        self._fetching: asyncio.Future[bool] | None = None

    def identify(self, credentials: Credentials) -> Identity:
        """Returns the identity of these credentials; raises UnauthenticatedError if they are not valid now."""
        certificate, expiry_time = credentials.certificate_name, credentials.certificate_expiry_time
        if expiry_time <= time.time():
            # It expired after the handshake, or the handshake resumed an earlier session.
            raise TokenExpiredError("the certificate of the connection has expired; connect with another one")
        if credentials.token_hash is not None:
            proven = self._proven_by_token(credentials.token_hash, credentials.jwt)
            if certificate is None:
                return proven
            return Identity(proven.name, f"{proven.proof} and certificate", min(proven.expiry_time, expiry_time))
        if certificate is None:
            raise UnauthenticatedError(
                "authorization: is missing; send a token, as: authorization: Bearer TOKEN; or use a certificate with a "
                "SPIFFE ID, DNS name or common name"
            )
        return Identity(certificate, "certificate", expiry_time)

    def _proven_by_token(self, token_hash: str, jwt: SecretStr | None) -> Identity:
        if self._tokens is not None and (name := self._tokens.name_of(token_hash)) is not None:
            return Identity(name, "token")
        if self._jwts is not None and jwt is not None:
            proven = self._jwts.check(jwt.get_secret_value())
            return Identity(proven.name, "JWT", proven.expiry_time)
        raise UnauthenticatedError("authorization: the token is not valid; it may have been removed")

    def still_proves(self, credentials: Credentials, name: str) -> bool:
        """Whether an identity can still authenticate, with these credentials or another token of the same name."""
        try:
            return self.identify(credentials).name == name
        except UnauthenticatedError:
            return self._tokens is not None and self._tokens.has_name(name)

    def rights_of(self, identity: Identity) -> Rights:
        return self.entitlements_of(identity).rights

    def entitlements_of(self, identity: Identity) -> Entitlements:
        return self._policy.entitlements_of(identity.name)

    def quotas(self) -> dict[str, Quota]:
        """Returns the current quotas of all identities that have called and have one."""
        return self._policy.quotas()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` after tokens, keys or roles have changed."""
        self._watchers.append(on_change)

    def replace(self, roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]) -> None:
        """Applies other roles and quotas."""
        self._policy = _policy(roles, identities)
        self._notify()

    async def prepare(self) -> None:
        """Fetches the keys of JSON Web Tokens; if their URL does not respond in time, `follow` keeps trying."""
        if self._jwts is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PREPARATION_SECONDS):
                    await asyncio.to_thread(self._jwts.refresh)

    async def wait_for_keys(self) -> None:
        """Waits for the keys of JSON Web Tokens if a token refers to an unknown one; all callers share one fetch."""
        if self._fetching is None and self._jwts is not None and self._jwts.is_fetch_due:
            self._fetching = asyncio.ensure_future(asyncio.to_thread(self._jwts.refresh))
            self._fetching.add_done_callback(self._on_fetched)
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=_FETCH_WAIT_SECONDS)

    def _on_fetched(self, fetching: asyncio.Future[bool]) -> None:
        self._fetching = None
        if fetching.result():
            self._on_reload(Jwts.reload_message)

    async def follow(self) -> None:
        """Applies changed files and keys, until it is cancelled."""
        await asyncio.gather(
            *(
                follow(source.refresh, "tokens or keys", partial(self._on_reload, source.reload_message))
                for source in (self._tokens, self._jwts)
                if source is not None
            )
        )

    def _on_reload(self, message: str) -> None:
        self._notify()
        # Logged after the watchers have run: the change is effective only then.
        _log.info(message)

    def _notify(self) -> None:
        for on_change in self._watchers:
            on_change()


def _policy(roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]) -> Policy:
    return Policy(
        {name: [Grant.parse(text) for text in role.allow] for name, role in roles.items()},
        {pattern: identity.roles for pattern, identity in identities.items()},
        lambda pattern: _quota(identities[pattern]),
    )


def _quota(identity: IdentitySettings) -> Quota:
    return UNBOUNDED if identity.quota is None else Quota(**identity.quota.model_dump())
