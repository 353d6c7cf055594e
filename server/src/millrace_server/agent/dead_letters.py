"""Dead letters: events that can go no further, kept in a channel with headers that say why."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from millrace.columns import ColumnsError
from millrace.dead_letters import DeadLetterField
from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.events import EventTable
from millrace_server.agent.rate_limited_log import Notices
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, EventTooLargeError, MillraceError, TxnCapacityError

UNSTORABLE_ERRORS = (EventTooLargeError, TxnCapacityError, ColumnsError, UnicodeEncodeError)
"""What is raised where events are too large for a channel, alone or together, or are none that can be encoded."""

_EVENTS_AT_ONCE = 100
_DIGEST_BYTES = 16


def dead_letters(table: EventTable, said: Mapping[str, str]) -> EventTable:
    """The events as dead letters.

    Args:
        table: The events; it stays as it is.
        said: What is told of them, by the names of `DeadLetterField`; when this is, is told besides.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    letters = EventTable(table.bodies, table.headers)
    letters.places = table.places
    told = {**said, DeadLetterField.TIME: now}
    letters.headers.update({DeadLetterField(key).header: value for key, value in told.items()})
    return letters


class DeadLetterBox:
    """Sets the events of a source or a sink aside that can go no further, or drops them where they can be kept nowhere.

    Args:
        registry: The channels.
        channel_name: Where they are kept; None: nowhere.
        component: The source or sink; it counts them.
        notices: Told of them.
    """

    def __init__(
        self, registry: ChannelRegistry, channel_name: str | None, component: Component, notices: Notices
    ) -> None:
        self._registry = registry
        self._channel_name = channel_name
        self._component = component
        self._notices = notices

    @property
    def is_there(self) -> bool:
        """Whether there is a channel for them."""
        return self._channel_name is not None

    async def set_aside(self, table: EventTable, stamp: Stamp, said: Mapping[str, str]) -> None:
        """Keeps events of a source for good, or drops them.

        Set aside again with the same stamp, they are kept once where their places in the batch are known.

        Args:
            table: The events.
            stamp: That of the batch that they came in.
            said: Why, and where: `reason`, and `channel` or `step`.

        Raises:
            MillraceError: They cannot be kept just now.
        """
        if self._channel_name is None:
            self._drop(table, said)
            return
        letters = dead_letters(table, {**said, DeadLetterField.SOURCE: self._component.name})
        identity = f"{stamp.producer_id}\n{_about(said)}"
        digest = hashlib.blake2b(identity.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        for start, stop in _runs(letters.places, letters.count):
            part = letters.part(start, stop)
            await self.keep(part, _stamp_of(part.places, f"dead-letter/{digest}", stamp), said)

    async def keep(self, letters: EventTable, stamp: Stamp | None, said: Mapping[str, str]) -> None:
        """Keeps dead letters for good; of these it drops each that is too large for the channel, and says so.

        Args:
            letters: What `dead_letters` has made of the events.
            stamp: With a number for each of them, so that none is kept twice; None: it is not known.
            said: What the log is told of them.

        Raises:
            MillraceError: They cannot be kept just now.
        """
        assert self._channel_name is not None, "asked before"
        try:
            receipt = await self._registry.get(self._channel_name).append(letters.stored(), stamp, also_draining=True)
        except UNSTORABLE_ERRORS as error:
            if letters.count == 1:
                self._drop(letters, {**said, "dead_letter_channel": f"{self._channel_name}: {error}"})
                return
            middle = letters.count // 2
            halves = (None, None) if stamp is None else _halved(stamp, middle)
            await self.keep(letters.part(0, middle), halves[0], said)
            await self.keep(letters.part(middle, letters.count), halves[1], said)
            return
        except BadArgumentError:
            if stamp is None:
                raise
            # The channel remembers so many separate numbers of one source, and no more: rather twice than never.
            await self.keep(letters, None, said)
            return
        except MillraceError as error:
            error.metadata.setdefault("channel", self._channel_name)
            raise
        if receipt.is_deduplicated:
            # An earlier try got as far as this.
            return
        self._component.note_outcome(EventOutcome.DEAD_LETTERED, letters.count)
        self._notices.tell(logging.WARNING, "events were set aside", _about(said), letters.count, **said)

    def _drop(self, table: EventTable, said: Mapping[str, str]) -> None:
        self._component.note_outcome(EventOutcome.DROPPED, table.count)
        largest = str(max(map(len, table.bodies)))
        self._notices.tell(
            logging.ERROR, "events were dropped", _about(said), table.count, largest_body_bytes=largest, **said
        )


def _about(said: Mapping[str, str]) -> str:
    return said.get("channel", said.get("step", ""))


def _runs(places: Sequence[int] | None, count: int) -> Iterator[tuple[int, int]]:
    """Ranges of indexes, each of events that were neighbours in their batch, and not too many."""
    places = range(count) if places is None else places
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(places), 1) if other != one + 1)]
    for start, stop in pairwise([*starts, count]):
        for at in range(start, stop, _EVENTS_AT_ONCE):
            yield at, min(at + _EVENTS_AT_ONCE, stop)


def _stamp_of(places: Sequence[int] | None, producer_id: str, batch: Stamp) -> Stamp | None:
    # Where a batch has more events than numbers, an event has no number of its own.
    if places is None or places[-1] >= batch.span:
        return None
    return Stamp(producer_id, batch.first + places[0], batch.first + places[-1])


def _halved(stamp: Stamp, count: int) -> tuple[Stamp, Stamp]:
    border = stamp.first + count
    return Stamp(stamp.producer_id, stamp.first, border - 1), Stamp(stamp.producer_id, border, stamp.last)
