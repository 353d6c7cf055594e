"""Which of several servers a line goes to: the same one each time that the input is read."""

from collections.abc import Sequence
from zlib import crc32

from millrace_client import Event
from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked


class LineRouting:
    """Spreads lines over servers: by their key, or in turn by their number.

    It looks at nothing else, not at how the servers are. So whoever resumes a put finds each line's server again, and
    its number there: how many lines of the input came before it to that server.

    Args:
        endpoints: The servers. Where they are addresses, a key's is the one that a `Producer` with by-key routing
            gives it while all are well.
        key_header: The header whose value is the key; None: there are no keys. Events without it go in turn.
    """

    def __init__(self, endpoints: Sequence[str], key_header: str | None) -> None:
        self.server_count = len(endpoints)
        """How many there are."""
        self._key_header = key_header
        self._homes = [endpoints.index(ranked(lane, endpoints)[0]) for lane in range(BUCKETS)]

    def places(self, events: Sequence[Event | bytes], first_line: int) -> list[Sequence[int]]:
        """For each server the places of its events among these, in order.

        Args:
            events: Of lines that follow each other.
            first_line: How many lines were before them.
        """
        if self.server_count == 1:
            return [range(len(events))]
        found: list[list[int]] = [[] for _ in range(self.server_count)]
        for place, event in enumerate(events):
            found[self._server_of(event, first_line + place)].append(place)
        return [*found]

    def _server_of(self, event: Event | bytes, line: int) -> int:
        if self._key_header is not None and isinstance(event, Event):
            key = event.headers.get(self._key_header)
            if key is not None:
                return self._homes[crc32(key.encode()) % BUCKETS]
        return line % self.server_count
