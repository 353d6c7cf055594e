"""What the channels of a source get of a batch."""

from collections.abc import Callable, Container, Mapping, Sequence

from millrace_server.agent.dead_letters import UNSTORABLE_ERRORS
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors.selector import Choice
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel


class ChannelBatch:
    """Events for one channel or several; encoded once.

    Attributes:
        table: The events.
    """

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self._encoded: list[StoredColumns] | None = None

    def batches(self) -> list[StoredColumns]:
        """The events as a channel keeps them. Each channel remembers for itself where they lie in its log.

        Raises:
            ColumnsError, UnicodeEncodeError: Some event cannot be encoded.
        """
        if self._encoded is None:
            self._encoded = self.table.stored()
        return [StoredColumns(stored.raw, stored.count, stored.body_bytes) for stored in self._encoded]

    def unencodable(self) -> dict[int, str]:
        """The events that are none that can be encoded: for each index in the table why."""
        return _refused(self, lambda _batches: None)

    def unstorable(self, channel: Channel) -> dict[int, str]:
        """The events that a channel could never take, not even alone: for each index in the table why."""
        return _refused(self, channel.refuse_unstorable)

    def without(self, indexes: Container[int]) -> "ChannelBatch":
        """The other events."""
        return ChannelBatch(self.table.chosen([index not in indexes for index in range(self.table.count)]))


def _refused(batch: ChannelBatch, check: Callable[[Sequence[StoredColumns]], None]) -> dict[int, str]:
    """The events that fail a check, also alone, found by halving."""
    try:
        check(batch.batches())
    except UNSTORABLE_ERRORS as error:
        count = batch.table.count
        if count == 1:
            return {0: str(error)}
        first = _refused(ChannelBatch(batch.table.part(0, count // 2)), check)
        second = _refused(ChannelBatch(batch.table.part(count // 2, count)), check)
        return first | {index + count // 2: reason for index, reason in second.items()}
    return {}


NOTHING = ChannelBatch(EventTable([]))
"""No events."""


def channel_batches_of(table: EventTable, choices: Mapping[str, Choice]) -> dict[str, ChannelBatch]:
    """For each channel that gets any events of a table its batch."""
    whole = ChannelBatch(table)
    batches = {}
    for name, choice in choices.items():
        if choice is True or (choice and all(choice)):
            batches[name] = whole
        elif choice and any(choice):
            batches[name] = ChannelBatch(table.chosen(choice))
    return batches


def unrouted_count(table: EventTable, choices: Mapping[str, Choice]) -> int:
    """How many events of a table go to no channel."""
    masks: list[Sequence[bool]] = []
    for choice in choices.values():
        if choice is True:
            return 0
        if choice:
            masks.append(choice)
    if not masks:
        return table.count
    return sum(not any(goes) for goes in zip(*masks, strict=True))
