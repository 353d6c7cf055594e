"""Who may make which call: the one check that all RPCs pass.

Without a `Guard` everybody may do everything, as `Call` says.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from grpc import aio

from millrace_server.access.audit import Audit
from millrace_server.access.control import AccessControl, Credentials, Identity, certificate_name, credentials_of
from millrace_server.access.permissions import ANYTHING, Permission, Rights
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import shown
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ForbiddenError, MillraceError, UnauthenticatedError

_AUTHORIZATION = "authorization"

_EXPIRY_CHECK_SECONDS = 60.0
"""How late it is noticed that the clock was set past the expiry of credentials."""


class Call:
    """A call of anybody, who may do everything; a context in which it is the current one."""

    identity = ""
    """Who calls, as the owner of transactions and claims; empty where nobody is told apart."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        return

    def check(self, request: Any) -> None:
        """Raises ForbiddenError, or that there is no such thing, unless the caller may make this request."""

    def may(self, _permission: Permission, _channel: str) -> bool:
        """Whether the caller may do this."""
        return True

    def require(self, *permissions: Permission, channel: str) -> None:
        """Raises ForbiddenError unless the caller has one of the permissions."""

    def require_throughout(self, *permissions: Permission, channel: str) -> None:
        """Does the same, and ends the call with that error once no role allows it any more."""


ANYBODY = Call()
_CURRENT: ContextVar[Call] = ContextVar("call", default=ANYBODY)


def current_call() -> Call:
    """Returns the call that the current task serves."""
    return _CURRENT.get()


class Guard:
    """Admits calls by the identities and roles that are in force."""

    def __init__(self, access: AccessControl, registry: ChannelRegistry, *, has_certificates: bool) -> None:
        self.access = access
        self.registry = registry
        self.audit = Audit()
        self.calls: set[GuardedCall] = set()
        self._has_certificates = has_certificates
        access.watch(self._check_again)

    def enter(self, rule: "Rule", name: str, context: "aio.ServicerContext[Any, Any]") -> "GuardedCall":
        """Returns the call as a context; raises UnauthenticatedError unless the caller proves who it is."""
        peer = context.peer()
        try:
            credentials = credentials_of(
                [value for key, value in context.invocation_metadata() or () if key == _AUTHORIZATION],
                _certificate_name(context.auth_context()) if self._has_certificates else None,
            )
            identity = self.access.identify(credentials)
        except UnauthenticatedError as error:
            self.audit.note(None, peer, name, error, administers=False)
            raise
        return GuardedCall(self, rule, name, peer, credentials, identity)

    def _check_again(self) -> None:
        for call in tuple(self.calls):
            call.check_again()


def _certificate_name(auth_context: Mapping[str, Any]) -> str | None:
    return next(map(certificate_name, auth_context.get("x509_pem_cert", ())), None)


class GuardedCall(Call):
    """A call of an identity, until it ends. Once its token is not valid any more, it is ended with that error."""

    def __init__(  # noqa: PLR0913, PLR0917 - what the guard has found out
        self, guard: Guard, rule: "Rule", name: str, peer: str, credentials: Credentials, identity: Identity
    ) -> None:
        self._guard = guard
        self._rule = rule
        self._name = name
        self._peer = peer
        self._credentials = credentials
        self._identity = identity
        self._rights: Rights = guard.access.rights_of(identity)
        self._held: tuple[tuple[Permission, ...], str] | None = None
        self._refusal: MillraceError | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.identity = identity.name
        self.about: dict[str, str] = {}

    def __enter__(self) -> Self:
        _CURRENT.set(self)
        if self._rule.lasts:
            self._task = asyncio.current_task()
            self._guard.calls.add(self)
            self._await_expiry()
        return self

    def _await_expiry(self) -> None:
        """Checks again once the credentials expire, by a clock that may be set meanwhile."""
        remaining = self._identity.expiry_time - time.time()
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
        ended = self._refusal if isinstance(error, asyncio.CancelledError) else None
        self._guard.audit.note(
            self._identity, self._peer, self._name, ended or error, self.about, administers=self._rule.administers
        )
        if ended is not None and self._task is not None:
            self._task.uncancel()
            raise ended from None

    def check(self, request: Any) -> None:
        self.about = {key: getattr(request, key) for key in ("channel", "name") if hasattr(request, key)}
        self._rule.check(self, request)

    def check_again(self) -> None:
        """Ends the call if its caller may not make it any more."""
        try:
            if self._guard.access.identify(self._credentials) != self._identity:
                raise UnauthenticatedError("authorization: the token belongs to another identity now")
            self._rights = self._guard.access.rights_of(self._identity)
            if self._held is not None:
                self.require(*self._held[0], channel=self._held[1])
        except MillraceError as error:
            if self._refusal is None and self._task is not None:
                self._refusal = error
                self._task.cancel()

    def may(self, permission: Permission, channel: str) -> bool:
        return self._rights.may(permission, channel)

    def may_everywhere(self, permission: Permission) -> bool:
        return self._rights.may_everywhere(permission)

    def require(self, *permissions: Permission, channel: str) -> None:
        if not any(self._rights.may(permission, channel) for permission in permissions):
            self._forbid(" or ".join(permissions), channel)

    def require_throughout(self, *permissions: Permission, channel: str) -> None:
        self._held = permissions, channel
        self.require(*permissions, channel=channel)

    def require_everywhere(self, permission: Permission) -> None:
        if not self._rights.may_everywhere(permission):
            self._forbid(permission, ANYTHING)

    def _forbid(self, permission: str, channel: str) -> NoReturn:
        raise ForbiddenError(
            f"no role of {shown(self.identity)} allows {permission} on channel {shown(channel)}",
            permission=permission,
            channel=channel,
        )

    # Transactions and claims, which belong to an identity.

    def require_own_txn(self, txn_id: str) -> str:
        """Returns the channel of the caller's own transaction; another's does not exist for it."""
        directory = self._guard.registry.transactions
        transactions = directory.find(txn_id)
        owner = transactions.owner_of(txn_id)
        channel = transactions.name
        # After a restart nobody knows who began a transaction that has ended.
        knows_it = (
            owner == self.identity
            if owner
            else self.may(Permission.APPEND, channel) or self.may(Permission.TAKE, channel)
        )
        if not knows_it:
            directory.refuse_unknown(txn_id)
        return channel

    def require_no_others_claim(self, request: Any) -> None:
        """Raises ChannelClaimedError where another identity has claimed the channel."""
        channel = self._open_channel(request.channel)
        claim = None if channel is None else channel.claims.claim
        if claim is None or claim.owner in ("", self.identity):
            return
        if request.HasField("epoch") and request.epoch != claim.epoch:
            # The call itself says that the claim is over.
            return
        if getattr(request, "takeover", False):
            self.require(Permission.OPERATE, channel=request.channel)
        else:
            assert channel is not None, "a claim has a channel"
            channel.claims.refuse_if_claimed()

    def _open_channel(self, name: str) -> Channel | None:
        registry = self._guard.registry
        return registry.find(name).channel_if_open if name in registry else None


class Rule(NamedTuple):
    """What an RPC wants of its caller."""

    check: Callable[[GuardedCall, Any], None]
    administers: bool = False
    """Whether it is told in the audit log also if it is allowed."""
    lasts: bool = False
    """Whether it may wait or go on for long: then it ends once it is not allowed any more."""


def _nothing(_call: GuardedCall, _request: Any) -> None:
    """The service itself checks each message, or shows only what the caller may see."""


def _on_channel(*permissions: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout(*permissions, channel=request.channel)


def _named(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout(permission, channel=request.name)


def _in_own_txn(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout(permission, channel=call.require_own_txn(request.txn_id))


def _own_txn(call: GuardedCall, request: Any) -> None:
    call.require_own_txn(request.txn_id)


def _own_txns(call: GuardedCall, request: Any) -> None:
    for txn_id in set(request.txn_ids):
        call.require_own_txn(txn_id)


def _with_claim(call: GuardedCall, request: Any) -> None:
    call.require_throughout(Permission.READ, channel=request.channel)
    call.require_no_others_claim(request)


def _everywhere(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, _request: call.require_everywhere(permission)


RULES = {
    "BeginTxn": Rule(_on_channel(Permission.APPEND, Permission.TAKE)),
    "Put": Rule(_in_own_txn(Permission.APPEND)),
    "Take": Rule(_in_own_txn(Permission.TAKE), lasts=True),
    "Commit": Rule(_own_txns),
    "Rollback": Rule(_own_txn),
    "RenewTxn": Rule(_own_txn),
    "Append": Rule(_on_channel(Permission.APPEND)),
    "AppendStream": Rule(_nothing, lasts=True),
    "Consume": Rule(_nothing, lasts=True),
    "Claim": Rule(_with_claim, lasts=True),
    "Read": Rule(_with_claim, lasts=True),
    "Acknowledge": Rule(_with_claim),
    "Release": Rule(_with_claim),
    "FindSequence": Rule(_on_channel(Permission.DESCRIBE)),
    "CreateChannel": Rule(_named(Permission.ADMIN), administers=True),
    "UpdateChannel": Rule(_named(Permission.OPERATE), administers=True),
    "DeleteChannel": Rule(_named(Permission.ADMIN), administers=True),
    "ListChannels": Rule(_nothing),
    "GetChannel": Rule(_named(Permission.DESCRIBE)),
    "WatchChannels": Rule(_nothing, lasts=True),
    "PeekEvents": Rule(_on_channel(Permission.PEEK), lasts=True),
    "PurgeChannel": Rule(_named(Permission.OPERATE), administers=True),
    "ListComponents": Rule(_nothing),
    "WatchComponents": Rule(_nothing, lasts=True),
}
"""The rules of ChannelService and AdminService, by the names of their RPCs."""


def health_rule(channels_of: Callable[[str, str], Sequence[str]]) -> Rule:
    """Returns the rule for the health of anything but the server: who may describe it may know.

    `channels_of` returns the channels of a component, by its kind and name as the health service has them.
    """

    def check(call: GuardedCall, request: Any) -> None:
        kind, _, name = request.service.partition("/")
        if kind == "channels":
            call.require_throughout(Permission.DESCRIBE, channel=name)
        elif not any(call.may(Permission.DESCRIBE, channel) for channel in channels_of(kind, name)):
            call.require_everywhere(Permission.DESCRIBE)

    return Rule(check, lasts=True)


TOOLS = Rule(_everywhere(Permission.ADMIN), lasts=True)
"""The rule of reflection and channelz, which show all of the server."""
