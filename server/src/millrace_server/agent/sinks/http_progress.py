"""Which events a receiver has, although they have not left their channel yet."""

from collections.abc import Iterator, Sequence

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

_INTERVALS_MAX = 1_000


class HttpProgress:
    """Remembers how the requests for a channel's events ended, for as long as the process lives.

    Args:
        is_single: Whether each request has one event.
    """

    def __init__(self, *, is_single: bool) -> None:
        self._is_single = is_single
        self._channel_id = ""
        self._accepted = IntervalSet()
        self._in_doubt: tuple[int, int] | None = None

    def requests(self, channel_id: str, batches: Sequence[StoredBatch]) -> Iterator[Sequence[StoredBatch]]:
        """The events that are to be sent, cut into requests.

        Events that the receiver has are left out. A request that was sent without an answer comes again with the same
        events, where they are there, so that the receiver knows it by its key.
        """
        if channel_id != self._channel_id or len(self._accepted) > _INTERVALS_MAX:
            self._channel_id = channel_id
            self._accepted = IntervalSet()
            self._in_doubt = None
        rest = [part for batch in batches for part in self._unaccepted(batch)]
        if self._is_single:
            yield from ((batch.part(index, index + 1),) for batch in rest for index in range(batch.count))
            return
        repeated, new = self._cut_at_doubt(rest)
        yield from (part for part in (repeated, new) if part)

    def _unaccepted(self, batch: StoredBatch) -> Iterator[StoredBatch]:
        for first, last in self._accepted.gaps(batch.first_sequence, batch.end_sequence - 1):
            yield batch.between(first, last + 1)

    def _cut_at_doubt(self, rest: Sequence[StoredBatch]) -> tuple[Sequence[StoredBatch], Sequence[StoredBatch]]:
        if not rest or self._in_doubt is None:
            return (), rest
        first, last = self._in_doubt
        if rest[0].first_sequence != first or rest[-1].end_sequence <= last:
            return (), rest
        repeated = [part.between(first, last + 1) for part in rest if part.first_sequence <= last]
        new = [part.between(last + 1, part.end_sequence) for part in rest if part.end_sequence > last + 1]
        return repeated, new

    def begins(self, request: Sequence[StoredBatch]) -> None:
        """A request is sent; whether its events arrive is not known."""
        self._in_doubt = (request[0].first_sequence, request[-1].end_sequence - 1)

    def note_refused(self) -> None:
        """The receiver has answered that it has none of the request's events."""
        self._in_doubt = None

    def note_accepted(self, request: Sequence[StoredBatch]) -> None:
        """The receiver has the request's events."""
        self._in_doubt = None
        for batch in request:
            self._accepted.add(batch.first_sequence, batch.end_sequence - 1)
