"""The replay of selected dead letters: each returns to its channel exactly once."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from millrace.columns import columns_from_events
from millrace_client.dead_letters import DeadLetter, letter_of
from millrace_client.dead_letters.targets import NUMBERS_OF_A_PRODUCER
from millrace_client.events import Event
from millrace_server.access.permissions import Permission
from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import SHARED_PREFIX, Stamp
from millrace_server.errors import EventTooLargeError, MillraceError, TxnCapacityError
from millrace_server.grpc_services.call import Call


class _Run(NamedTuple):
    """Letters with consecutive sequences for one channel; one commit stores them."""

    target: str
    letters: Sequence[DeadLetter]

    @property
    def sequences(self) -> range:
        return range(self.letters[0].sequence, self.letters[-1].sequence + 1)


class Replay:
    """Moves dead letters out of a channel.

    They are stored under the stamps that `millrace dead-letter replay` uses, before they are removed. So a replay that
    was interrupted is completed by another one, and no letter is stored twice in a channel.
    """

    def __init__(self, registry: ChannelRegistry, channel: Channel, target: str | None, call: Call) -> None:
        """`target`: the channel for all of them; None: for each the one that it came from, or was meant for."""
        self._registry = registry
        self._channel = channel
        self._target = target
        self._call = call
        self._replayed = Counter[str]()
        self._left: dict[int, str] = {}

    async def run(self, sequences: Sequence[int]) -> dict[str, Any]:
        """Replays the letters with these sequences; returns how many went to each channel, and why others stay.

        Raises:
            ForbiddenError: The caller may not append to one of the channels.
            MillraceError: They cannot be taken; those that were stored are not stored again by a repeat.
        """
        async with self._channel.taking(sequences) as taking:
            # All are checked before the first is stored. They are started in order, which keeps their order; their
            # commits share a sync.
            await asyncio.gather(*map(self._store, list(_runs(self._returning(taking.events)))))
            taking.kept.update(self._left)
            found = {event.first_sequence for event in taking.events}
        self._left |= dict.fromkeys(set(sequences) - found, "it is not in the channel, or a transaction holds it")
        return {
            "replayed": dict(self._replayed),
            "left": [{"sequence": sequence, "reason": reason} for sequence, reason in sorted(self._left.items())],
        }

    def _returning(self, events: Sequence[StoredBatch]) -> Iterator[tuple[str, DeadLetter]]:
        """Yields the letters that can be replayed, each with its channel; notes why others stay.

        Raises ForbiddenError if the caller may not append to a channel, whether or not it exists.
        """
        for event in sorted(events, key=lambda event: event.first_sequence):
            [(headers, body)] = event.window.rows()
            letter = letter_of(Event(body, headers, event.first_sequence))
            target = self._target or (letter.origin if letter is not None else "")
            if letter is None:
                self._left[event.first_sequence] = "it is not a dead letter"
            elif not target:
                self._left[letter.sequence] = "it has no header with its channel; name one"
            elif target == self._channel.name:
                self._left[letter.sequence] = f"it came from {target} itself; name another channel"
            elif not self._exists(target):
                self._left[letter.sequence] = f"the server has no channel {target}; create it, or name another"
            else:
                yield target, letter

    def _exists(self, target: str) -> bool:
        self._call.require((Permission.APPEND,), target)
        return target in self._registry

    async def _store(self, run: _Run) -> None:
        first, last = run.sequences[0], run.sequences[-1]
        producer_id = f"{SHARED_PREFIX}{self._channel.channel_id}/{first // NUMBERS_OF_A_PRODUCER}"
        try:
            rows = [(letter.own_headers(), letter.event.body) for letter in run.letters]
            columns = [StoredColumns.of(one) for one in columns_from_events(rows)]
            await self._registry.get(run.target).appends.append(columns, Stamp(producer_id, first, last))
        except (EventTooLargeError, TxnCapacityError) as error:
            if len(run.letters) == 1:
                self._left[first] = f"{run.target} cannot hold it: {error}"
                return
            middle = len(run.letters) // 2
            await self._store(run._replace(letters=run.letters[:middle]))
            await self._store(run._replace(letters=run.letters[middle:]))
        except MillraceError as error:
            self._left |= dict.fromkeys(run.sequences, f"{run.target} did not accept it: {error}")
        else:
            self._replayed[run.target] += len(run.letters)


def _runs(letters: Iterator[tuple[str, DeadLetter]]) -> Iterator[_Run]:
    """Splits letters into runs that one stamp can cover: consecutive sequences under one producer's id."""

    def place(numbered: tuple[int, tuple[str, DeadLetter]]) -> tuple[str, int, int]:
        index, (target, letter) = numbered
        return target, letter.sequence - index, letter.sequence // NUMBERS_OF_A_PRODUCER

    for (target, _, _), group in groupby(enumerate(letters), place):
        yield _Run(target, [letter for _, (_, letter) in group])
