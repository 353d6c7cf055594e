"""Lanes: what keeps the order of keys while other keys go on.

Each channel has a gathering, with some lanes for events that have a key and one for those that have none. A key always
goes to the same lane, also in another process where it decides about the server.
"""

from collections import deque

from millrace_client.producing.pages import Page

LANES = 32
"""As many batches with keys can be under way at once; a batch holds one or several."""


class Lane:
    """Events of some keys. While a batch holds it, nothing else of it is sent."""

    __slots__ = ("closed", "index", "is_held", "page")

    def __init__(self, index: int) -> None:
        self.index = index
        """Its place among the lanes; -1 for the one of events without a key."""
        self.is_held = False
        self.page: Page | None = None
        """Takes what comes."""
        self.closed: deque[Page] = deque()
        """Pages before it, which take no more."""

    @property
    def head(self) -> Page | None:
        """The oldest page."""
        return self.closed[0] if self.closed else self.page


class Gathering:
    """Events on their way to one channel."""

    __slots__ = ("channel", "events_max", "keyless", "lanes", "waiting")

    def __init__(self, channel: str, events_max: int) -> None:
        self.channel = channel
        self.events_max = events_max
        """Of a batch; less than was configured where the channel has said that it takes less."""
        self.lanes = [Lane(index) for index in range(LANES)]
        self.keyless = Lane(-1)
        self.waiting: dict[Lane, Page] = {}
        """The lanes that have pages, and the oldest page of each."""
