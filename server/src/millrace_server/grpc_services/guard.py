"""Authentication and authorization of calls: the one check that all RPCs pass."""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from grpc import aio

from millrace_server.access.audit import Audit
from millrace_server.access.control import AccessControl, Credentials, Identity, credentials_of
from millrace_server.access.permissions import ANYTHING, Entitlements, Permission
from millrace_server.access.quotas import Bucket
from millrace_server.channels.config import shown
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ForbiddenError, MillraceError, UnauthenticatedError
from millrace_server.grpc_services.call import Call, about_of
from millrace_server.grpc_services.txn_owners import TxnOwners

PEER_CERTIFICATE = "x509_pem_cert"
"""The key of a client's certificate in the authentication context of a call."""

_EXPIRY_CHECK_SECONDS = 60.0
"""How late it is noticed that the clock was set past the expiry of credentials."""

_CACHE_SECONDS = 1.0
"""How long calls with the same credentials need no new check; less than any change may take to be in force."""

_CALLERS_MAX = 4_096

_APPEND_WAIT_SECONDS = 10.0
"""How long an append of a stream waits for its turn: less than a producer waits for its response."""

_LOOK_SECONDS = 0.25
"""How often a waiting stream checks whether its quota has changed."""

Context = aio.ServicerContext[Any, Any]

Authorizations = tuple[str | bytes | Credentials, ...]
AUTHORIZATIONS: ContextVar[Authorizations] = ContextVar("authorizations", default=())
"""The authorization headers of the current call, or the credentials of its session."""


class Rule(NamedTuple):
    """What an RPC requires of its caller."""

    check: Callable[["GuardedCall", Any], None]
    administers: bool = False
    """Whether the audit log has it even if it is allowed."""
    lasts: bool = False
    """Whether it may last long: then it ends once it is no longer allowed."""
    reads: bool = False
    """Whether its responses hold stored data: it waits or is refused while its caller is above the read quota."""
    finishes: bool = False
    """Whether it completes or renews earlier work, which no quota prevents."""


class Caller(NamedTuple):
    """An authenticated caller, and until when no new check is needed."""

    identity: Identity
    credentials: Credentials
    entitlements: Entitlements
    valid_until: float


class Guard:
    """Admits calls according to the current identities and roles."""

    def __init__(self, access: AccessControl, registry: ChannelRegistry, *, has_certificates: bool) -> None:
        self.access = access
        self.registry = registry
        self.audit = Audit()
        self.calls: set[GuardedCall] = set()
        self._callers: dict[Hashable, Caller] = {}
        self._has_certificates = has_certificates
        self.on_caller: Callable[[str], None] = lambda _peer: None
        """Called with the peer of each authenticated call."""
        self.txn_owners = TxnOwners(access, registry)
        access.watch(self._check_again)

    def enter(self, rule: Rule, name: str, context: Context) -> "GuardedCall":
        """Returns the call as a context; raises UnauthenticatedError unless the caller is authenticated."""
        # By its bytes: the next connection of an address may be another's, and names alone may be read in two ways.
        certificates = tuple(context.auth_context().get(PEER_CERTIFICATE, ())) if self._has_certificates else ()
        peer = context.peer()
        try:
            caller = self._caller(AUTHORIZATIONS.get(), certificates)
        except UnauthenticatedError as error:
            self.audit.note(None, peer, name, error, administers=False)
            raise
        self.on_caller(peer)
        return GuardedCall(self, rule, name, peer, caller)

    def is_authenticated(self, authorizations: Authorizations) -> bool:
        """Whether these authorization headers, or the connection's certificate, prove an identity."""
        if not self._has_certificates:
            try:
                self._caller(authorizations, ())
            except UnauthenticatedError:
                return False
        return True

    async def is_authenticated_soon(self, authorizations: Authorizations) -> bool:
        """Does the same, after a wait for the issuer's keys if a token names one that is not known yet."""
        try:
            self._caller(authorizations, ())
        except UnauthenticatedError as error:
            if error.retry_delay_seconds is not None:
                await self.access.wait_for_keys()
        return self.is_authenticated(authorizations)

    def _caller(self, authorizations: Authorizations, certificates: tuple[bytes, ...]) -> Caller:
        caller = self._callers.get((authorizations, certificates))
        if caller is None or caller.valid_until < time.monotonic():
            caller = self._authenticate(authorizations, certificates)
            if len(self._callers) >= _CALLERS_MAX:
                self._callers.clear()
            self._callers[authorizations, certificates] = caller
        return caller

    def _authenticate(self, authorizations: Authorizations, certificates: tuple[bytes, ...]) -> Caller:
        credentials = credentials_of(authorizations, next(iter(certificates), None))
        identity = self.access.identify(credentials)
        return Caller(identity, credentials, self.access.entitlements_of(identity), time.monotonic() + _CACHE_SECONDS)

    def _check_again(self) -> None:
        self._callers.clear()
        for call in tuple(self.calls):
            call.check_again()
        self.txn_owners.roll_back_revoked()


class GuardedCall(Call):
    """A call of an identity, until it ends. Once its token is not valid any more, it is ended with that error."""

    # There is one for each call, and most calls need no more than this.
    _request: Any = None
    _held: tuple[Callable[..., None], tuple[Any, ...]] | None = None
    _refusal: MillraceError | None = None
    _expiry: asyncio.TimerHandle | None = None
    _foreign_owner = ""

    def __init__(self, guard: Guard, rule: Rule, name: str, peer: str, caller: Caller) -> None:
        super().__init__(peer)
        self._guard = guard
        self._rule = rule
        self._name = name
        self._caller = caller
        self._rights, self.quota = caller.entitlements
        self.identity = caller.identity.name

    def __enter__(self) -> Self:
        super().__enter__()
        if self._rule.lasts:
            self._task = asyncio.current_task()
            self._guard.calls.add(self)
            self._await_expiry()
        return self

    def _await_expiry(self) -> None:
        """Checks again once the credentials expire, by a clock that may be set in the meantime."""
        remaining = self._caller.identity.expiry_time - time.time()
        if remaining < math.inf and self._refusal is None:
            delay = min(max(remaining, 0.0), _EXPIRY_CHECK_SECONDS)
            self._expiry = asyncio.get_running_loop().call_later(delay, self._on_expiry)

    def _on_expiry(self) -> None:
        self.check_again()
        self._await_expiry()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._guard.calls.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        if error is None and not (self._rule.administers or self._foreign_owner):
            return
        ended = self._refusal if isinstance(error, asyncio.CancelledError) else None
        self._note(ended or error, self._request)
        # gRPC keeps the frame of a failed call, and with it this object, for a while: not the request too.
        self._request = None
        if ended is not None and self._task is not None:
            self._task.uncancel()
            raise ended from None

    def note_refusal(self, error: MillraceError, request: Any) -> None:
        self._note(error, request)

    def _note(self, error: BaseException | None, request: Any) -> None:
        about = about_of(request)
        if isinstance(error, MillraceError):
            # The requests of a stream come later than this one.
            about |= error.metadata
        if self._foreign_owner:
            about["owner"] = self._foreign_owner
        self._guard.audit.note(
            self._caller.identity,
            self.peer,
            self._name,
            error,
            about,
            administers=self._rule.administers or bool(self._foreign_owner),
        )

    def check(self, request: Any) -> None:
        self._request = request
        self._rule.check(self, request)

    @property
    def registry(self) -> ChannelRegistry:
        return self._guard.registry

    def note_foreign_owner(self, owner: str) -> None:
        """Notes that the call is about what another identity owns: the audit log has it, whether it succeeds or not."""
        self._foreign_owner = owner

    def use_txn(self) -> None:
        """Notes that the caller uses one of its transactions."""
        self._guard.txn_owners.note_use(self._caller.identity, self._caller.credentials)

    def recheck(self) -> None:
        access = self._guard.access
        if access.identify(self._caller.credentials) != self._caller.identity:
            raise UnauthenticatedError("authorization: the token belongs to another identity now")
        self._rights, self.quota = access.entitlements_of(self._caller.identity)
        if self._held is not None:
            requirement, arguments = self._held
            requirement(self, *arguments)

    def check_again(self) -> None:
        """Ends the call if its caller may not make it any more."""
        try:
            self.recheck()
        except MillraceError as error:
            if self._refusal is None and self._task is not None:
                self._refusal = error
                self._task.cancel()

    # Quotas.

    def admit(self, byte_count: int) -> None:
        if (requests := self.quota.requests) is not None:
            if self._rule.finishes:
                requests.count(byte_count)
            else:
                requests.admit(byte_count)
        if (responses := self.quota.responses) is not None and self._rule.reads:
            # The response's size is not known yet: it counts once it is sent, and may leave the bucket in deficit.
            responses.admit(0)

    async def receive(self, byte_count: int) -> None:
        if (requests := self.quota.requests) is not None:
            if self._rule.finishes:
                requests.count(byte_count)
            else:
                await self._pass(requests, byte_count, requests.admit(byte_count, _APPEND_WAIT_SECONDS))

    async def send(self, byte_count: int) -> None:
        if (responses := self.quota.responses) is not None:
            seconds = responses.count(byte_count)
            if self._rule.reads:
                await self._pass(responses, byte_count, seconds)

    async def _pass(self, bucket: Bucket, byte_count: int, seconds: float) -> None:
        """Waits that long, or until the quota has changed."""
        quota, due = self.quota, time.monotonic() + seconds
        try:
            while self.quota is quota and (seconds := due - time.monotonic()) > 0:  # noqa: ASYNC110 - this is seldom
                await asyncio.sleep(min(seconds, _LOOK_SECONDS))
        except asyncio.CancelledError:
            bucket.give_back(byte_count)
            raise

    def may(self, permission: Permission, channel: str) -> bool:
        return self._rights.may(permission, channel)

    def may_everywhere(self, permission: Permission) -> bool:
        return self._rights.may_everywhere(permission)

    def require(self, permissions: Sequence[Permission], channel: str) -> None:
        for permission in permissions:
            if self._rights.may(permission, channel):
                return
        self._forbid(" or ".join(permissions), channel)

    def require_throughout(self, permissions: Sequence[Permission], channel: str) -> None:
        # As `hold` does, for the calls that must be quick.
        self._held = GuardedCall.require, (permissions, channel)
        self.require(permissions, channel)

    def hold(self, requirement: Callable[..., None], *arguments: Any) -> None:
        """Calls a requirement of this call, which raises ForbiddenError, now and whenever the call is checked again."""
        # Not bound to this call: most calls need no garbage collection.
        self._held = requirement, arguments
        requirement(self, *arguments)

    def require_everywhere(self, permission: Permission) -> None:
        if not self._rights.may_everywhere(permission):
            self._forbid(permission, ANYTHING)

    def _forbid(self, permission: str, channel: str) -> NoReturn:
        raise ForbiddenError(
            f"no role of {shown(self.identity)} allows {permission} on channel {shown(channel)}",
            permission=permission,
            channel=channel,
        )
