"""The rule of each RPC: what it requires of its caller."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from millrace_server.access.permissions import Permission
from millrace_server.channels.claims import Claim
from millrace_server.grpc_services.guard import GuardedCall, Rule
from millrace_server.grpc_services.txn_owners import permissions_to_keep


def _nothing(_call: GuardedCall, _request: Any) -> None:
    """The service itself checks each message, or shows only what the caller may see."""


def _on_channel(*permissions: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout(permissions, request.channel)


def _named(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    return lambda call, request: call.require_throughout((permission,), request.name)


# Transactions and claims belong to an identity.


def _begin_txn(call: GuardedCall, request: Any) -> None:
    call.require((Permission.APPEND, Permission.TAKE), request.channel)
    call.use_txn()


def _in_own_txn(permission: Permission) -> Callable[[GuardedCall, Any], None]:
    def check(call: GuardedCall, request: Any) -> None:
        call.require_throughout((permission,), _channel_of_own(call, request.txn_id, request.channel))

    return check


def _own_txn(call: GuardedCall, request: Any) -> None:
    _channel_of_own(call, request.txn_id, request.channel)


def _channel_of_own(call: GuardedCall, txn_id: str, named: str) -> str:
    """Returns the channel of the caller's own transaction; another's does not exist for it.

    `named` is the channel that the caller has named; empty if none.
    """
    directory = call.registry.transactions
    # It learns nothing of channels that it may not use.
    is_its_own = named and (call.may(Permission.APPEND, named) or call.may(Permission.TAKE, named))
    transactions = directory.find(txn_id, named if is_its_own else "")
    owner = transactions.owner_of(txn_id)
    channel = transactions.name
    # After a restart, the owners of ended transactions are unknown.
    knows_it = (
        owner == call.identity if owner else call.may(Permission.APPEND, channel) or call.may(Permission.TAKE, channel)
    )
    if not knows_it:
        call.note_foreign_owner(owner)
        directory.refuse_unknown(txn_id)
    call.use_txn()
    return channel


def _keep_txn(call: GuardedCall, request: Any) -> None:
    _require_all(call, _needs_of(call, request.txn_id, request.channel))


def _keep_txns(call: GuardedCall, request: Any) -> None:
    call.hold(
        _require_all, {need for txn_id in set(request.txn_ids) for need in _needs_of(call, txn_id, request.channel)}
    )


def _needs_of(call: GuardedCall, txn_id: str, named: str) -> Iterator[tuple[Sequence[Permission], str]]:
    """Yields the permissions, one of each group, that the caller needs to keep its transaction, and the channel."""
    channel = _channel_of_own(call, txn_id, named)
    counts = call.registry.transactions.find(txn_id).counts_of(txn_id)
    return ((permissions, channel) for permissions in permissions_to_keep(*counts))


def _require_all(call: GuardedCall, needs: Iterable[tuple[Sequence[Permission], str]]) -> None:
    for permissions, channel in needs:
        call.require(permissions, channel)


def _end_txn(call: GuardedCall, request: Any) -> None:
    """Raises ForbiddenError unless the caller may operate a transaction's channel.

    For callers who may not list it, the transaction does not exist.
    """
    directory = call.registry.transactions
    channel = directory.find(request.txn_id).name
    if not (call.may(Permission.DESCRIBE, channel) or call.may(Permission.OPERATE, channel)):
        directory.refuse_unknown(request.txn_id)
    owner = directory.find(request.txn_id).owner_of(request.txn_id)
    if owner != call.identity:
        call.note_foreign_owner(owner)
    call.require((Permission.OPERATE,), channel)


def _with_claim(call: GuardedCall, request: Any) -> None:
    call.require_throughout((Permission.READ,), request.channel)
    _refuse_others_claim(call, request)


def _refuse_others_claim(call: GuardedCall, request: Any) -> None:
    """Raises ChannelClaimedError where another identity has claimed the channel."""
    claim = _others_claim(call, request)
    if claim is None:
        return
    if getattr(request, "takeover", False):
        call.note_foreign_owner(claim.owner)
        call.require((Permission.OPERATE,), request.channel)
    else:
        call.registry.get(request.channel).claims.refuse_if_claimed()


def _release_claim(call: GuardedCall, request: Any) -> None:
    call.require_throughout((Permission.OPERATE,), request.channel)
    if (claim := _others_claim(call, request)) is not None:
        call.note_foreign_owner(claim.owner)


def _others_claim(call: GuardedCall, request: Any) -> Claim | None:
    """Returns another identity's claim on the channel, unless the call names the epoch of a claim that is over."""
    channel = call.registry.find(request.channel).channel_if_open if request.channel in call.registry else None
    claim = None if channel is None else channel.claims.claim
    if claim is None or claim.owner in ("", call.identity):
        return None
    return None if request.HasField("epoch") and request.epoch != claim.epoch else claim


RULES = {
    "BeginTxn": Rule(_begin_txn),
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
    "RetryComponent": Rule(_nothing, administers=True),
    "ListTransactions": Rule(_nothing, reads=True),
    "EndTransaction": Rule(_end_txn, administers=True),
    "ReleaseClaim": Rule(_release_claim, administers=True),
    "ListProducers": Rule(_nothing, reads=True),
    "ForgetProducer": Rule(_on_channel(Permission.OPERATE), administers=True),
    "ListConsumers": Rule(_nothing, reads=True),
    "MoveChannel": Rule(_named(Permission.OPERATE), administers=True),
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


TOOLS = Rule(lambda call, _request: call.require_everywhere(Permission.ADMIN), lasts=True)
"""The rule of reflection and channelz, which show all of the server."""
