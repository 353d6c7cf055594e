"""What must hold for a channel whose server is killed repeatedly.

Every event has a body of its own. The account records the fate of each event as far as responses show it: a pending
call is doubtful until the channel itself, or the response to the call's repeat, settles it.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence

Event = tuple[int, bytes]


class KillAccount:
    """The account of all events of one channel, in which events expire after `retention_seconds`, if given."""

    def __init__(self, retention_seconds: float | None = None) -> None:
        self._retention_seconds = retention_seconds
        self.sent: dict[bytes, float] = {}
        """All events that may ever be found, and when they were sent, by the clock that tells the server their age."""
        self.stored: set[bytes] = set()
        """Committed, according to a response or to the channel."""
        self.refused: set[bytes] = set()
        """Events of transactions that were not committed and never will be."""
        self.removed: set[bytes] = set()
        """Taken or acknowledged, with a response."""
        self.doubtful: Counter[bytes] = Counter()
        """Taken or acknowledged without a response; a count, since events may be taken again after a kill."""
        self.found: dict[bytes, int] = {}
        """The events queued after the server's start, with their sequences."""
        self._sequences: dict[int, bytes] = {}
        self._places: dict[bytes, int] = {}

    # Reports of callers.

    def sends(self, bodies: Iterable[bytes]) -> None:
        """These may be stored from now on."""
        self.sent.update(dict.fromkeys(bodies, time.time()))

    def stores(self, bodies: Sequence[bytes], first_sequence: int = 0) -> None:
        """These are stored; a first sequence of 0 does not say where."""
        self.stored.update(bodies)
        if first_sequence:
            self.sees(enumerate(bodies, start=first_sequence))

    def refuses(self, bodies: Iterable[bytes]) -> None:
        """These are not stored, and never will be."""
        bodies = set(bodies)
        assert not bodies & self.stored, f"stored, and said not to be: {bodies & self.stored}"
        self.refused |= bodies

    def sees(self, events: Iterable[Event]) -> None:
        """These events have these sequences, permanently."""
        for sequence, body in events:
            assert body in self.sent, f"{body!r} was never sent"
            assert body not in self.refused, f"{body!r} was never committed"
            other = self._sequences.setdefault(sequence, body)
            assert other == body, f"sequence {sequence} was {other!r} and is {body!r}"
            place = self._places.setdefault(body, sequence)
            assert place == sequence, f"{body!r} has sequences {place} and {sequence}"
            self.stored.add(body)

    def delivers(self, events: Iterable[Event]) -> list[bytes]:
        """These were taken or read; returns the bodies."""
        events = list(events)
        self.sees(events)
        bodies = [body for _, body in events]
        came_back = self.removed.intersection(bodies)
        assert not came_back, f"taken for good, and delivered again: {came_back}"
        return bodies

    def doubts(self, bodies: Iterable[bytes]) -> None:
        """A call that removes these begins."""
        self.doubtful.update(bodies)

    def removes(self, bodies: Iterable[bytes]) -> None:
        """These are removed permanently."""
        bodies = set(bodies)
        twice = bodies & self.removed
        assert not twice, f"removed twice: {twice}"
        self.removed |= bodies
        self.keeps(bodies)

    def keeps(self, bodies: Iterable[bytes]) -> None:
        """These are no longer doubtful for one of the callers."""
        for body in bodies:
            self.doubtful[body] -= 1
            if self.doubtful[body] <= 0:
                del self.doubtful[body]

    def was_not_removed(self, bodies: Iterable[bytes]) -> None:
        """These were in the channel when the server had started, so the removal never happened."""
        gone = set(bodies) - self.found.keys() - self.removed - self.doubtful.keys()
        gone -= self._old(gone)
        assert not gone, f"said to be there, and gone: {gone}"

    # Reports of the channel.

    def reconcile(self, queued: Sequence[Event], next_sequence: int) -> None:
        """Compares the queued events, while nothing is taken, with the responses."""
        sequences = [sequence for sequence, _ in queued]
        assert sequences == sorted(set(sequences)), "the queue is not in order"
        self.sees(queued)
        self.found = {body: sequence for sequence, body in queued}
        came_back = self.removed & self.found.keys()
        assert not came_back, f"taken for good, and back: {came_back}"
        lost = self.stored - self.removed - self.doubtful.keys() - self.found.keys()
        # These may come back for a moment, where the removal of what has expired was not on the disk yet.
        lost -= self._old(lost)
        assert not lost, f"acknowledged, and lost: {lost}"
        assert max(self._sequences, default=0) < next_sequence

    def _old(self, bodies: Iterable[bytes]) -> set[bytes]:
        """Those that may have expired by now."""
        if self._retention_seconds is None:
            return set()
        limit = time.time() - self._retention_seconds
        return {body for body in bodies if self.sent[body] < limit}

    def settle_by_channel(self, bodies: Iterable[bytes]) -> None:
        """The channel, as it was found, shows whether these were removed."""
        for body in bodies:
            if body in self.found:
                self.keeps([body])
            else:
                self.removes([body])

    def close(self, next_sequence: int) -> None:
        """Checks after a complete drain that each event was there exactly once, without a gap."""
        assert not self.doubtful, self.doubtful
        assert self.removed == self.stored
        assert sorted(self._sequences) == list(range(1, next_sequence)), "there are gaps"
        for producer_id in {body.split(b":")[0] for body in self.stored if body.startswith(b"p")}:
            numbers = [
                int(body.split(b":")[1])
                for _, body in sorted(self._sequences.items())
                if body.startswith(producer_id + b":")
            ]
            assert numbers == list(range(len(numbers))), f"{producer_id!r}: out of order, or not exactly once"
