"""What a channel refuses because it is too much, and how much one answer holds."""

from collections.abc import Sequence

from millrace_server.channels.batches import Form, StoredColumns
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.queue import Portion
from millrace_server.errors import BytesFullError, EventTooLargeError, TxnCapacityError

_UNLIMITED_BYTES = 1 << 62
_CROWDED_RETRY_DELAY_SECONDS = 1.0
_ROWS_MAX = 10_000
_ROWS_BYTES_MAX = 8 << 20


class ChannelLimits:
    """Refuses requests that are too large for a channel.

    Args:
        config: The channel's.
        answer_bytes_max: Bytes that the events of one answer may have.
    """

    def __init__(self, config: ChannelConfig, answer_bytes_max: int) -> None:
        self._transaction_capacity = config.transaction_capacity
        self._body_bytes_max = config.body_bytes_max
        self._open_body_bytes_max = config.open_body_bytes_max
        self._answer_bytes_max = answer_bytes_max

    def refuse_too_large(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one event could not be stored, or not be fetched."""
        body_bytes_max = self._body_bytes_max
        for stored in batches:
            # No body is larger than all of them together, which is known without a look at any.
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise EventTooLargeError(
                    f"events: a body has {stored.largest_body_bytes} bytes; the channel holds {body_bytes_max} in all"
                )
            if (index := stored.first_index_above(self._answer_bytes_max)) is not None:
                raise EventTooLargeError(
                    f"events[{index}]: with its headers it would not fit an answer, which holds "
                    f"{self._answer_bytes_max} bytes"
                )

    def refuse_above_open_bytes(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one body has more bytes than all that is put at once may have."""
        body_bytes_max = self._open_body_bytes_max
        for stored in batches:
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise EventTooLargeError(
                    f"events: a body has {stored.largest_body_bytes} bytes; the channel takes {body_bytes_max} at once"
                )

    def refuse_too_much(self, put_count: int, body_bytes: int) -> None:
        """Raises TxnCapacityError where a transaction would put more events or bytes of bodies than it may."""
        if put_count > self._transaction_capacity:
            raise TxnCapacityError(
                f"the transaction would put {put_count} events; transaction_capacity is {self._transaction_capacity}"
            )
        if body_bytes > self._open_body_bytes_max:
            raise TxnCapacityError(
                f"the transaction would put {body_bytes} body bytes; the channel takes {self._open_body_bytes_max} at "
                "once"
            )

    def refuse_crowding(self, open_body_bytes: int, body_bytes: int) -> None:
        """Bounds what transactions hold that nobody may ever commit; it is counted apart from what is committed."""
        if open_body_bytes + body_bytes > self._open_body_bytes_max:
            raise BytesFullError(
                f"open transactions hold {open_body_bytes} body bytes, and {body_bytes} more are above what they may "
                f"hold together, {self._open_body_bytes_max}; put again when some have ended",
                retry_delay_seconds=_CROWDED_RETRY_DELAY_SECONDS,
            )

    def taking_room(self, take_count: int, txn_id: str) -> int:
        """How many more events a transaction may take; raises TxnCapacityError where there are none."""
        room = self._transaction_capacity - take_count
        if room <= 0:
            raise TxnCapacityError(
                f"the transaction has taken {take_count} events, all that transaction_capacity allows; "
                "commit it or roll it back",
                txn_id=txn_id,
            )
        return room

    def portion(self, form: Form, events_wanted: int, body_bytes_wanted: int, events_max: int) -> Portion:
        """What one answer holds.

        Args:
            form: How it is encoded.
            events_wanted: What the caller asks for; 0: as many as may be.
            body_bytes_wanted: Likewise.
            events_max: As many as may be.
        """
        answer_bytes_max = self._answer_bytes_max
        if form is Form.ROWS:
            # Rows are made one by one, and meanwhile nobody else is served: so an answer in rows is a small one.
            events_max = min(events_max, _ROWS_MAX)
            answer_bytes_max = min(answer_bytes_max, _ROWS_BYTES_MAX)
        return Portion(
            events_max=min(events_wanted or events_max, events_max),
            body_bytes_max=body_bytes_wanted or _UNLIMITED_BYTES,
            answer_bytes_max=answer_bytes_max,
            form=form,
        )
