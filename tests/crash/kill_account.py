"""What must be true of a channel whose server is killed again and again.

Every event has a body that no other has. The account knows of each what has become of it, as far as answers tell: what
was not answered is doubtful until the channel itself, or the answer to the call's repeat, settles it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

Event = tuple[int, bytes]


class KillAccount:
    """All events of one channel."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        """All that may ever be found."""
        self.stored: set[bytes] = set()
        """Committed, as an answer or the channel says."""
        self.refused: set[bytes] = set()
        """Of transactions that were not committed, and never will be."""
        self.removed: set[bytes] = set()
        """Taken or acknowledged, and answered so."""
        self.doubtful: Counter[bytes] = Counter()
        """Taken or acknowledged, and not answered; by how many, since what came back after a kill may be taken anew."""
        self.found: dict[bytes, int] = {}
        """What was queued when the server had started, with sequences."""
        self._sequences: dict[int, bytes] = {}
        self._places: dict[bytes, int] = {}

    # What callers tell.

    def sends(self, bodies: Iterable[bytes]) -> None:
        """These may be stored from now on."""
        self.sent.update(bodies)

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
        """Each event has its sequence, and each sequence its event, for ever."""
        for sequence, body in events:
            assert body in self.sent, f"{body!r} was never sent"
            assert body not in self.refused, f"{body!r} was never committed"
            other = self._sequences.setdefault(sequence, body)
            assert other == body, f"sequence {sequence} was {other!r} and is {body!r}"
            place = self._places.setdefault(body, sequence)
            assert place == sequence, f"{body!r} has sequences {place} and {sequence}"
            self.stored.add(body)

    def delivers(self, events: Iterable[Event]) -> list[bytes]:
        """Somebody has taken or read these; returns the bodies."""
        events = list(events)
        self.sees(events)
        bodies = [body for _, body in events]
        came_back = self.removed.intersection(bodies)
        assert not came_back, f"taken for good, and delivered again: {came_back}"
        return bodies

    def doubts(self, bodies: Iterable[bytes]) -> None:
        """Somebody is about to remove these."""
        self.doubtful.update(bodies)

    def removes(self, bodies: Iterable[bytes]) -> None:
        """These are gone for good."""
        bodies = set(bodies)
        twice = bodies & self.removed
        assert not twice, f"removed twice: {twice}"
        self.removed |= bodies
        self.keeps(bodies)

    def keeps(self, bodies: Iterable[bytes]) -> None:
        """These are not doubtful any more, for one of those to whom they were."""
        for body in bodies:
            self.doubtful[body] -= 1
            if self.doubtful[body] <= 0:
                del self.doubtful[body]

    def was_not_removed(self, bodies: Iterable[bytes]) -> None:
        """Whose removal is said to have never happened was there when the server had started."""
        gone = set(bodies) - self.found.keys() - self.removed - self.doubtful.keys()
        assert not gone, f"said to be there, and gone: {gone}"

    # What the channel tells.

    def reconcile(self, queued: Sequence[Event], next_sequence: int) -> None:
        """Holds what is queued, while nothing is taken, against what was answered."""
        sequences = [sequence for sequence, _ in queued]
        assert sequences == sorted(set(sequences)), "the queue is not in order"
        self.sees(queued)
        self.found = {body: sequence for sequence, body in queued}
        came_back = self.removed & self.found.keys()
        assert not came_back, f"taken for good, and back: {came_back}"
        lost = self.stored - self.removed - self.doubtful.keys() - self.found.keys()
        assert not lost, f"acknowledged, and lost: {lost}"
        assert max(self._sequences, default=0) < next_sequence

    def settle_by_channel(self, bodies: Iterable[bytes]) -> None:
        """Whether these were removed is seen from the channel, as it was found."""
        for body in bodies:
            if body in self.found:
                self.keeps([body])
            else:
                self.removes([body])

    def close(self, next_sequence: int) -> None:
        """Everything was drained: each event was there exactly once, without a gap."""
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
