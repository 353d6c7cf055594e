"""Dead letters: events that cannot be delivered, which are stored in a channel with headers that say why."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from millrace.columns import ColumnsError
from millrace.dead_letters import DeadLetterField, letter_headers
from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.events import EventTable, part_of
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, EventTooLargeError, MillraceError, TxnCapacityError

UNSTORABLE_ERRORS = (EventTooLargeError, TxnCapacityError, ColumnsError, UnicodeEncodeError)
"""Errors of events that are too large for a channel, alone or together, or that cannot be encoded."""

_EVENTS_PER_APPEND_MAX = 100
_DIGEST_BYTES = 16


def as_dead_letters(table: EventTable, fields: Mapping[str, str]) -> EventTable:
    """Returns a copy of the events with headers for the current time and the fields; see `DeadLetterField`."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    about = {DeadLetterField(key): value for key, value in {**fields, DeadLetterField.TIME: now}.items()}
    letters = EventTable.of_rows((letter_headers(headers, about), body) for headers, body in table.rows())
    letters.batch_indexes = table.batch_indexes
    return letters


class DeadLetterWriter:
    """Stores the dead letters of a source or a sink."""

    def __init__(
        self, registry: ChannelRegistry, channel_name: str | None, component: Component, log: RateLimitedLog
    ) -> None:
        self._registry = registry
        self._channel_name = component.dead_letter_channel = channel_name
        self._component = component
        self._log = log

    @property
    def has_channel(self) -> bool:
        return self._channel_name is not None

    async def write_or_drop(self, table: EventTable, stamp: Stamp | None, fields: Mapping[str, str]) -> None:
        """Stores events of a source durably, or drops those that are too large. Raises MillraceError to try later.

        A repeat with the stamp of their batch stores no second copy, provided that the events' indexes in the batch are
        known. The fields are `reason`, and `channel` or `step`.
        """
        letters = as_dead_letters(table, {**fields, DeadLetterField.SOURCE: self._component.name})
        if stamp is None:
            await self._write_or_drop(letters, None, fields)
            return
        identity = f"{stamp.producer_id}\n{_place_of(fields)}"
        digest = hashlib.blake2b(identity.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        for start, stop in _contiguous_ranges(letters.batch_indexes, letters.count):
            part = letters.part(start, stop)
            await self._write_or_drop(part, _stamp_of(part.batch_indexes, f"dead-letter/{digest}", stamp), fields)

    async def _write_or_drop(self, letters: EventTable, stamp: Stamp | None, fields: Mapping[str, str]) -> None:
        try:
            await self.write(letters, stamp, fields)
        except UNSTORABLE_ERRORS as error:
            if letters.count == 1:
                self.drop(letters, {**fields, "dead_letter_channel": f"{self._channel_name}: {error}"})
                return
            middle = letters.count // 2
            for start, stop in ((0, middle), (middle, letters.count)):
                if stamp is None:
                    await self._write_or_drop(letters.part(start, stop), None, fields)
                else:
                    await self._write_or_drop(*part_of(letters, stamp, start, stop), fields)

    async def write(self, letters: EventTable, stamp: Stamp | None, fields: Mapping[str, str]) -> None:
        """Stores dead letters durably.

        The stamp, if known, has one number for each of them, so that none is stored twice. Raises MillraceError if they
        cannot be stored now, one of `UNSTORABLE_ERRORS` if they are too large for the channel.
        """
        assert self._channel_name is not None, "the caller has checked this"
        try:
            receipt = await self._registry.get(self._channel_name).appends.append(
                letters.stored(), stamp, also_draining=True
            )
        except BadArgumentError:
            if stamp is None:
                raise
            # The channel remembers a limited number of separate ranges for a producer, and refuses more: better store
            # the events twice than not at all.
            await self.write(letters, None, fields)
            return
        except MillraceError as error:
            error.metadata.setdefault("channel", self._channel_name)
            raise
        if receipt.is_deduplicated:
            # An earlier attempt has stored and counted them.
            return
        self._component.record_outcome(EventOutcome.DEAD_LETTERED, letters.count)
        self._log.log(logging.WARNING, "events were set aside", _place_of(fields), letters.count, **fields)

    def drop(self, table: EventTable, fields: Mapping[str, str]) -> None:
        """Counts and logs events that cannot be stored anywhere; the fields are those of `write_or_drop`."""
        self._component.record_outcome(EventOutcome.DROPPED, table.count)
        largest = str(max(map(len, table.bodies)))
        self._log.log(
            logging.ERROR, "events were dropped", _place_of(fields), table.count, largest_body_bytes=largest, **fields
        )


def _place_of(fields: Mapping[str, str]) -> str:
    return fields.get("channel", fields.get("step", ""))


def _contiguous_ranges(batch_indexes: Sequence[int] | None, count: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of indexes, each of a limited number of events that were adjacent in their batch."""
    batch_indexes = range(count) if batch_indexes is None else batch_indexes
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(batch_indexes), 1) if other != one + 1)]
    for start, stop in pairwise([*starts, count]):
        for at in range(start, stop, _EVENTS_PER_APPEND_MAX):
            yield at, min(at + _EVENTS_PER_APPEND_MAX, stop)


def _stamp_of(batch_indexes: Sequence[int] | None, producer_id: str, batch: Stamp) -> Stamp | None:
    # In a batch with more events than numbers, events do not have a number each.
    if batch_indexes is None or batch_indexes[-1] >= batch.span:
        return None
    return Stamp(producer_id, batch.first + batch_indexes[0], batch.first + batch_indexes[-1])
