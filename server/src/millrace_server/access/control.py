"""Who a caller is, and what it may do, while tokens and roles change."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog

from millrace_server.access.permissions import Grant, Policy, Rights
from millrace_server.access.settings import AuthSettings, IdentitySettings, RoleSettings
from millrace_server.access.tokens import NAME_LENGTH_MAX, TokensFile, hash_of
from millrace_server.errors import UnauthenticatedError

_CHECK_SECONDS = 1.0
"""How late a changed tokens file is in force."""

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]{1,8192})", re.IGNORECASE)

_log = structlog.stdlib.get_logger(__name__)


class Credentials(NamedTuple):
    """What a caller shows, and nothing that could be used in its place: the hash of its token."""

    token_hash: str | None
    certificate_name: str | None


class Identity(NamedTuple):
    """Who calls, and by what that is proven."""

    name: str
    proof: str


def credentials_of(authorizations: Sequence[str | bytes], certificate_name: str | None) -> Credentials:
    """Returns what a request shows: its authorization headers, and the name in the connection's certificate."""
    if not authorizations:
        return Credentials(None, certificate_name)
    if len(authorizations) > 1:
        raise UnauthenticatedError("authorization: is given more than once; send one token")
    [header] = authorizations
    bearer = _BEARER.fullmatch(header) if isinstance(header, str) else None
    if bearer is None:
        raise UnauthenticatedError("authorization: is not a bearer token; send it as: authorization: Bearer TOKEN")
    return Credentials(hash_of(bearer[1]), certificate_name)


def certificate_name(uris: Sequence[str], dns_names: Sequence[str], common_names: Sequence[str]) -> str | None:
    """Returns whom a certificate names: its SPIFFE id, else its first DNS name, else its common name."""
    # A certificate with several URIs is no SPIFFE certificate.
    spiffe = [uri for uri in uris if uri.startswith("spiffe://")] if len(uris) == 1 else []
    name = next(iter([*spiffe, *dns_names[:1], *common_names[:1]]), None)
    return name if name and len(name) <= NAME_LENGTH_MAX else None


class AccessControl:
    """Identities and rights as they are now."""

    def __init__(
        self, auth: AuthSettings, roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]
    ) -> None:
        """Reads the tokens file; raises ValueError if it is not valid any more."""
        self._tokens = None if auth.tokens_file is None else TokensFile(auth.tokens_file)
        self._policy = _policy(roles, identities)
        self._watchers: list[Callable[[], None]] = []

    def identify(self, credentials: Credentials) -> Identity:
        """Returns who shows these credentials; raises UnauthenticatedError if they are not valid now."""
        token_hash, certificate = credentials
        if token_hash is not None:
            name = None if self._tokens is None else self._tokens.name_of(token_hash)
            if name is None:
                raise UnauthenticatedError("authorization: the token is not valid; it may have been removed")
            return Identity(name, "token" if certificate is None else "token and certificate")
        if certificate is None:
            raise UnauthenticatedError("authorization: is missing; send a token, as: authorization: Bearer TOKEN")
        return Identity(certificate, "certificate")

    def rights_of(self, identity: Identity) -> Rights:
        return self._policy.rights_of(identity.name)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` once other tokens or roles are in force."""
        self._watchers.append(on_change)

    def replace(self, roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]) -> None:
        """Puts other roles in force."""
        self._policy = _policy(roles, identities)
        self._notify()

    async def follow(self) -> None:
        """Puts a changed tokens file in force, until it is cancelled."""
        while self._tokens is not None:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                if await asyncio.to_thread(self._tokens.refresh):
                    self._notify()
            except Exception:  # noqa: BLE001 - a token that is removed later must still be noticed
                _log.exception("the tokens file could not be followed")

    def _notify(self) -> None:
        for on_change in self._watchers:
            on_change()


def _policy(roles: Mapping[str, RoleSettings], identities: Mapping[str, IdentitySettings]) -> Policy:
    return Policy(
        {name: [Grant.parse(text) for text in role.allow] for name, role in roles.items()},
        {pattern: identity.roles for pattern, identity in identities.items()},
    )
