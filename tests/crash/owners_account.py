"""What must hold for a channel that one of several servers owns at a time, whose former owners may not know it yet."""

from collections.abc import Collection, Iterable, Sequence

from tests.crash.kill_account import Event, KillAccount


class OwnersAccount(KillAccount):
    """The account of all events of a channel.

    Attributes:
        newest: The last event whose commit got its sequence.
        served: The responses with events.
        view_count: How often the whole channel was compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest: Event = (0, b"")
        self.served = 0
        self.view_count = 0
        self._removals: dict[bytes, int] = {}
        """How many events had been removed before each."""
        self._found: list[bytes] = []

    @property
    def removed_count(self) -> int:
        """How many events are removed permanently."""
        return len(self._removals)

    def stores(self, bodies: Sequence[bytes], first_sequence: int = 0) -> None:
        """These are stored; a first sequence of 0 does not say where."""
        super().stores(bodies, first_sequence)
        if first_sequence:
            self.newest = max(self.newest, (first_sequence + len(bodies) - 1, bodies[-1]))

    def removes(self, bodies: Iterable[bytes]) -> None:
        """These are removed permanently."""
        bodies = list(bodies)
        super().removes(bodies)
        for body in bodies:
            self._removals[body] = len(self._removals)

    def serves(self, events: Iterable[Event], removed_count: int) -> list[bytes]:
        """These were taken; returns the bodies.

        Their server owned the channel after so many events had been removed. One that was overtaken before would still
        have what others have removed.
        """
        events = list(events)
        self.sees(events)
        self.served += 1
        stale = [body for _, body in events if self._removals.get(body, removed_count) < removed_count]
        assert not stale, f"served by an owner that was overtaken: {stale[:5]}"
        return [body for _, body in events]

    def shows(self, events: Sequence[Event], newest: Event) -> None:
        """These were in the channel, from the newest event on that was stored before they were asked for.

        Its sequence is 0 if none was stored by then.
        """
        self.sees(events)
        self.served += 1
        if newest[0]:
            assert newest in events[:1], f"shown by an owner that was overtaken: {events[:1]} where {newest} is"

    def views(self, queued: Sequence[Event], stored: Collection[bytes]) -> None:
        """These are all events of a channel from which none is removed; so many were stored before."""
        assert [sequence for sequence, _ in queued] == list(range(1, len(queued) + 1)), "there are gaps"
        self.sees(queued)
        bodies = [body for _, body in queued]
        assert bodies[: len(self._found)] == self._found, "the log that an earlier owner had has changed"
        lost = set(stored).difference(bodies)
        assert not lost, f"acknowledged, and lost: {sorted(lost)[:5]}"
        self._found = bodies
        self.view_count += 1
