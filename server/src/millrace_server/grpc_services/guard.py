"""Authentication and authorization of calls: the one check that all RPCs pass.

Without a `Guard`, every caller may do everything; see `Call`.
"""

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
from millrace_server.access.quotas import UNBOUNDED, Bucket
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import shown
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ForbiddenError, MillraceError, UnauthenticatedError

_CERTIFICATE = "x509_pem_cert"
_ABOUT = ("channel", "name", "txn_id")

_EXPIRY_CHECK_SECONDS = 60.0
"""How late it is noticed that the clock was set past the expiry of credentials."""

_CACHE_SECONDS = 1.0
"""How long calls with the same credentials need no new check; less than any change may take to be in force."""

_CALLERS_MAX = 4_096

_APPEND_WAIT_SECONDS = 10.0
"""How long an append of a stream waits for its turn: less than a producer waits for its answer."""

_LOOK_SECONDS = 0.25
"""How often a waiting stream checks whether its quota has changed."""

Context = aio.ServicerContext[Any, Any]


class Call:
    """A call without authentication, whose caller may do everything; a context in which it is the current call."""

    identity = ""
    """The owner of the caller's transactions and claims; empty without authentication."""
    quota = UNBOUNDED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        return

    def check(self, request: Any) -> None:
        """Raises ForbiddenError, or that there is no such thing, unless the caller may make this request."""

    def note_refusal(self, error: MillraceError, request: Any) -> None:
        """Logs that a message of a stream was refused."""

    def admit(self, byte_count: int) -> None:
        """Counts a request; raises QuotaExceededError if it is too much, or if the caller has read too much."""

    async def receive(self, byte_count: int) -> None:
        """Waits until a message of a stream may be received; raises QuotaExceededError if that takes too long."""

    async def send(self, byte_count: int) -> None:
        """Waits until an answer of a stream may be sent."""

    def may(self, _permission: Permission, _channel: str) -> bool:
        """Whether the caller may do this."""
        return True

    def require(self, permissions: Sequence[Permission], channel: str) -> None:
        """Raises ForbiddenError unless the caller has one of the permissions."""

    def require_throughout(self, permissions: Sequence[Permission], channel: str) -> None:
        """Does the same, and ends the call with that error once no role allows it any more."""


ANYBODY = Call()
_CURRENT: ContextVar[Call] = ContextVar("call", default=ANYBODY)


def current_call() -> Call:
    """Returns the call that the current task serves."""
    return _CURRENT.get()


Authorizations = tuple[str | bytes, ...]
AUTHORIZATIONS: ContextVar[Authorizations] = ContextVar("authorizations", default=())
"""The authorization headers of the current call."""


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
        access.watch(self._check_again)

    def enter(self, rule: "Rule", name: str, context: Context) -> "GuardedCall":
        """Returns the call as a context; raises UnauthenticatedError unless the caller is authenticated."""
        # By its bytes: the next connection of an address may be another's, and names alone may be read in two ways.
        certificates = tuple(context.auth_context().get(_CERTIFICATE, ())) if self._has_certificates else ()
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


class GuardedCall(Call):
    """A call of an identity, until it ends. Once its token is not valid any more, it is ended with that error."""

    # There is one for each call, and most calls need no more than this.
    _request: Any = None
    _held: tuple[Sequence[Permission], str] | None = None
    _refusal: MillraceError | None = None
    _expiry: asyncio.TimerHandle | None = None

    def __init__(self, guard: Guard, rule: "Rule", name: str, peer: str, caller: Caller) -> None:
        self._guard = guard
        self._rule = rule
        self._name = name
        # gRPC's context crashes the process when it is asked for the peer of a call that was cancelled.
        self._peer = peer
        self._caller = caller
        self._rights, self.quota = caller.entitlements
        self.identity = caller.identity.name

    def __enter__(self) -> Self:
        _CURRENT.set(self)
        if self._rule.lasts:
            self._task = asyncio.current_task()
            self._guard.calls.add(self)
            self._await_expiry()
        return self

    def _await_expiry(self) -> None:
        """Checks again once the credentials expire, by a clock that may be set meanwhile."""
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
        if error is None and not self._rule.administers:
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
        about = {key: getattr(request, key) for key in _ABOUT if hasattr(request, key)}
        if isinstance(error, MillraceError):
            # The requests of a stream come later than this one.
            about |= error.metadata
        self._guard.audit.note(
            self._caller.identity,
            self._peer,
            self._name,
            error,
            about,
            administers=self._rule.administers,
        )

    def check(self, request: Any) -> None:
        self._request = request
        self._rule.check(self, request)

    def check_again(self) -> None:
        """Ends the call if its caller may not make it any more."""
        access = self._guard.access
        try:
            if access.identify(self._caller.credentials) != self._caller.identity:
                raise UnauthenticatedError("authorization: the token belongs to another identity now")
            self._rights, self.quota = access.entitlements_of(self._caller.identity)
            if self._held is not None:
                self.require(*self._held)
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
        if (answers := self.quota.answers) is not None and self._rule.reads:
            # The answer's size is not known yet: it counts once it is sent, and may leave the bucket in deficit.
            answers.admit(0)

    async def receive(self, byte_count: int) -> None:
        if (requests := self.quota.requests) is not None:
            if self._rule.finishes:
                requests.count(byte_count)
            else:
                await self._pass(requests, byte_count, requests.admit(byte_count, _APPEND_WAIT_SECONDS))

    async def send(self, byte_count: int) -> None:
        if (answers := self.quota.answers) is not None:
            seconds = answers.count(byte_count)
            if self._rule.reads:
                await self._pass(answers, byte_count, seconds)

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
        self._held = permissions, channel
        self.require(permissions, channel)

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
        # After a restart, the owners of ended transactions are unknown.
        knows_it = (
            owner == self.identity
            if owner
            else self.may(Permission.APPEND, channel) or self.may(Permission.TAKE, channel)
        )
        if not knows_it:
            directory.refuse_unknown(txn_id)
        return channel

    def require_to_keep(self, txn_id: str) -> None:
        """Does the same; raises ForbiddenError where no role allows any more what the transaction has done."""
        channel = self.require_own_txn(txn_id)
        put_count, take_count = self._guard.registry.transactions.find(txn_id).counts_of(txn_id)
        for permission, count in ((Permission.APPEND, put_count), (Permission.TAKE, take_count)):
            if count:
                self.require((permission,), channel)
        self.require((Permission.APPEND, Permission.TAKE), channel)

    def require_no_others_claim(self, request: Any) -> None:
        """Raises ChannelClaimedError where another identity has claimed the channel."""
        channel = self._open_channel(request.channel)
        claim = None if channel is None else channel.claims.claim
        if claim is None or claim.owner in ("", self.identity):
            return
        if request.HasField("epoch") and request.epoch != claim.epoch:
            # The call names another claim, which is over.
            return
        if getattr(request, "takeover", False):
            self.require((Permission.OPERATE,), request.channel)
        else:
            assert channel is not None, "a claim has a channel"
            channel.claims.refuse_if_claimed()

    def _open_channel(self, name: str) -> Channel | None:
        registry = self._guard.registry
        return registry.find(name).channel_if_open if name in registry else None


class Rule(NamedTuple):
    """What an RPC requires of its caller."""

    check: Callable[[GuardedCall, Any], None]
    administers: bool = False
    """Whether the audit log has it even if it is allowed."""
    lasts: bool = False
    """Whether it may last long: then it ends once it is no longer allowed."""
    reads: bool = False
    """Whether its answers hold stored data: it waits or is refused while its caller is above the read quota."""
    finishes: bool = False
    """Whether it completes or renews earlier work, which no quota prevents."""


def _nothing(_call: GuardedCall, _request: Any) -> None:
    """The service itself checks each message, or shows only what the caller may see."""


def _on_channel(*permissions: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout(permissions, request.channel)


def _named(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout((permission,), request.name)


def _in_own_txn(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout((permission,), call.require_own_txn(request.txn_id))


def _own_txn(call: GuardedCall, request: Any) -> None:
    call.require_own_txn(request.txn_id)


def _keep_txn(call: GuardedCall, request: Any) -> None:
    call.require_to_keep(request.txn_id)


def _keep_txns(call: GuardedCall, request: Any) -> None:
    for txn_id in set(request.txn_ids):
        call.require_to_keep(txn_id)


def _with_claim(call: GuardedCall, request: Any) -> None:
    call.require_throughout((Permission.READ,), request.channel)
    call.require_no_others_claim(request)


def _everywhere(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, _request: call.require_everywhere(permission)


RULES = {
    "BeginTxn": Rule(_on_channel(Permission.APPEND, Permission.TAKE)),
    "Put": Rule(_in_own_txn(Permission.APPEND)),
    "Take": Rule(_in_own_txn(Permission.TAKE), lasts=True, reads=True),
    "Commit": Rule(_keep_txns, finishes=True),
    "Rollback": Rule(_own_txn, finishes=True),
    "RenewTxn": Rule(_keep_txn, finishes=True),
    "Append": Rule(_on_channel(Permission.APPEND)),
    "AppendStream": Rule(_nothing, lasts=True),
    "Consume": Rule(_nothing, lasts=True, reads=True, finishes=True),
    "Claim": Rule(_with_claim, lasts=True),
    "Read": Rule(_with_claim, lasts=True, reads=True),
    "Acknowledge": Rule(_with_claim, finishes=True),
    "Release": Rule(_with_claim, finishes=True),
    "FindSequence": Rule(_on_channel(Permission.DESCRIBE)),
    "CreateChannel": Rule(_named(Permission.ADMIN), administers=True),
    "UpdateChannel": Rule(_named(Permission.OPERATE), administers=True),
    "DeleteChannel": Rule(_named(Permission.ADMIN), administers=True),
    "ListChannels": Rule(_nothing, reads=True),
    "GetChannel": Rule(_named(Permission.DESCRIBE)),
    "WatchChannels": Rule(_nothing, lasts=True, reads=True),
    "PeekEvents": Rule(_on_channel(Permission.PEEK), lasts=True, reads=True),
    "PurgeChannel": Rule(_named(Permission.OPERATE), administers=True),
    "ListComponents": Rule(_nothing, reads=True),
    "WatchComponents": Rule(_nothing, lasts=True, reads=True),
}
"""The rules of ChannelService and AdminService, by the names of their RPCs."""


def health_rule(channels_of: Callable[[str, str], Sequence[str]]) -> Rule:
    """Returns the rule for the health of channels and components, which needs `describe`.

    `channels_of` returns the channels of a component, by its kind and name as the health service has them.
    """

    def check(call: GuardedCall, request: Any) -> None:
        kind, _, name = request.service.partition("/")
        if kind == "channels":
            call.require_throughout((Permission.DESCRIBE,), name)
        elif not any(call.may(Permission.DESCRIBE, channel) for channel in channels_of(kind, name)):
            call.require_everywhere(Permission.DESCRIBE)

    return Rule(check, lasts=True)


TOOLS = Rule(_everywhere(Permission.ADMIN), lasts=True)
"""The rule of reflection and channelz, which show all of the server."""
