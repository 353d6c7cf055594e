"""Owners of open transactions, which lose these when they may not keep them any more."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from millrace_server.access.control import AccessControl, Credentials, Identity
from millrace_server.access.permissions import Permission
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.transaction import Transaction

_CHECK_SECONDS = 1.0


def permissions_to_keep(put_count: int, take_count: int) -> list[Sequence[Permission]]:
    """Returns the permissions that the owner of a transaction needs: one of each group."""
    used = ((Permission.APPEND, put_count), (Permission.TAKE, take_count))
    return [(permission,) for permission, count in used if count] or [(Permission.APPEND, Permission.TAKE)]


class TxnOwners:
    """Rolls back the transactions of identities whose credentials are not valid any more, or whose roles changed."""

    def __init__(self, access: AccessControl, registry: ChannelRegistry) -> None:
        self._access = access
        self._registry = registry
        self._proofs: dict[str, tuple[Identity, Credentials]] = {}

    def note_use(self, identity: Identity, credentials: Credentials) -> None:
        """Notes that an identity with these credentials begins or uses a transaction."""
        known = self._proofs.get(identity.name)
        # Several machines may share an identity, each with credentials of its own: the longest-lived ones count.
        if known is None or known[0].expiry_time < identity.expiry_time:
            self._proofs[identity.name] = identity, credentials

    async def follow(self) -> None:
        """Rolls back transactions once the credentials of their owners expire, until it is cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            is_owner = self._registry.transactions.is_owner
            self._proofs = {name: proof for name, proof in self._proofs.items() if is_owner(name)}
            now = time.time()
            if any(identity.expiry_time <= now for identity, _ in self._proofs.values()):
                self.roll_back_revoked()

    def roll_back_revoked(self) -> None:
        """Rolls back what may not be kept any more, and has all calls checked again that wait for space."""
        self._proofs = {
            name: (identity, credentials)
            for name, (identity, credentials) in self._proofs.items()
            if self._access.still_proves(credentials, name)
        }
        for channel in self._registry.all_with_transactions():
            channel.transactions.roll_back_unless(partial(self._may_keep, channel.name))

    def _may_keep(self, channel: str, txn: Transaction) -> bool:
        if (proof := self._proofs.get(txn.origin.identity)) is None:
            return False
        rights = self._access.rights_of(proof[0])
        needed = permissions_to_keep(txn.put_count, txn.take_count)
        return all(any(rights.may(one, channel) for one in group) for group in needed)
