"""Whose transaction is whose: transaction ids are one namespace for the server."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace_server.channels.names import check_identifier
from millrace_server.channels.transactions import TxnLimit
from millrace_server.errors import TxnNotFoundError, TxnStateError

if TYPE_CHECKING:
    from millrace_server.channels.channel import Channel


def _is_sure() -> None:
    """All channels are known."""


class TxnDirectory:
    """Finds the channel of each transaction that any channel knows, open or ended.

    Args:
        open_transactions_max: Transactions that may be open in all channels together.
        refuse_while_unsure: Raises while a channel may know transactions and is not asked yet.
    """

    def __init__(self, open_transactions_max: int, refuse_while_unsure: Callable[[], None] = _is_sure) -> None:
        self._refuse_while_unsure = refuse_while_unsure
        self._channels: dict[str, Channel] = {}
        self.limit = TxnLimit("the server", lambda: open_transactions_max)

    def add(self, txn_id: str, channel: "Channel") -> None:
        """Enters a transaction that a channel begins.

        Raises:
            TxnStateError: Another channel knows a transaction of this id.
        """
        if (owner := self._channels.setdefault(txn_id, channel)) is not channel:
            raise TxnStateError(
                f"txn_id: belongs to a transaction of channel {owner.name!r}, not {channel.name!r}; use another",
                txn_id=txn_id,
            )

    def remove(self, txn_id: str, channel: "Channel") -> None:
        """Strikes a transaction that a channel has forgotten."""
        if self._channels.get(txn_id) is channel:
            del self._channels[txn_id]

    def channel_of(self, txn_id: str) -> "Channel":
        """The channel that knows the transaction.

        Raises:
            BadArgumentError: No transaction can have this id.
            ReplayingError: It is not known yet whether one does.
            TxnNotFoundError: None does.
        """
        try:
            return self._channels[txn_id]
        except KeyError:
            check_identifier("txn_id", txn_id)
            self._refuse_while_unsure()
            raise TxnNotFoundError(
                "no transaction of this id is known: it was never begun, ended long ago, or the server was restarted",
                txn_id=txn_id,
            ) from None

    def common_channel_of(self, txn_ids: list[str]) -> "Channel":
        """The channel that knows all of these transactions.

        Raises:
            TxnNotFoundError: One of them is not known.
            TxnStateError: They belong to different channels.
        """
        channel = self.channel_of(txn_ids[0])
        for txn_id in txn_ids:
            if (other := self.channel_of(txn_id)) is not channel:
                raise TxnStateError(
                    f"txn_ids: belong to different channels, {channel.name!r} and {other.name!r}; commit them apart",
                    txn_id=txn_id,
                )
        return channel
