"""Lanes: what keeps the order of keys while other keys go on.

Each channel has a gathering, with some lanes for events that have a key and one for those that have none. A key always
goes to the same lane, also in another process where it decides about the server.
"""

import math
from collections import deque

from millrace_client.producing.pages import Page

LANES = 32
"""As many batches with keys can be under way at once; a batch holds one or several."""


class Lane:
    """Events of some keys. While a batch holds it, nothing else of it is sent."""

    __slots__ = ("closed", "free_since", "index", "is_held", "is_only", "page")

    def __init__(self, index: int, *, is_only: bool = False) -> None:
        self.index = index
        """Its place among the lanes; -1 for the one of events without a key."""
        self.is_only = is_only
        """Whether all events of its channel are on it."""
        self.free_since = 0.0
        """When a batch let go of it last."""
        self.is_held = False
        self.page: Page | None = None
        """Takes what comes."""
        self.closed: deque[Page] = deque()
        """Pages before it, which take no more."""

    def waits_since(self, page: Page) -> float:
        """From when the delivery time of a page's events counts: from the first one on.

        On an only lane it begins when all before is settled; else a channel that empties slowly would have those behind
        fail although all goes on. Infinity: not yet.
        """
        if not self.is_only:
            return page.born
        return math.inf if self.is_held else max(page.born, self.free_since)

    @property
    def head(self) -> Page | None:
        """The oldest page."""
        return self.closed[0] if self.closed else self.page


class Gathering:
    """Events on their way to one channel."""

    __slots__ = ("bytes_max", "channel", "events_max", "is_ordered", "keyless", "lanes", "waiting")

    def __init__(self, channel: str, events_max: int, bytes_max: int, *, is_ordered: bool = False) -> None:
        self.channel = channel
        self.events_max = events_max
        """Of a batch; less than was configured where the channel has said that it takes less."""
        self.bytes_max = bytes_max
        """Likewise, of its encoded size, where a server has said so; an event that is larger goes alone."""
        self.is_ordered = is_ordered
        """Whether all events stay in the order of `send`, whatever their keys: then there is one lane for all."""
        self.keyless = Lane(0, is_only=True) if is_ordered else Lane(-1)
        self.lanes = [self.keyless] * LANES if is_ordered else [Lane(index) for index in range(LANES)]
        self.waiting: dict[Lane, Page] = {}
        """The lanes that have pages, and the oldest page of each."""
