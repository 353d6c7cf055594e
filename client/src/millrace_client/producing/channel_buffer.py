"""The events of one channel that are in no batch yet, in buckets that keep the order of keys.

A key always goes to the same bucket, also in another process, where the bucket decides about the server.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator

from millrace_client.producing.pages import Page

BUCKETS = 32
"""The maximum number of batches with keys that can be in progress at once; a batch holds one bucket or several."""


class OrderingBucket:
    """Events of some keys. While a batch in progress holds the bucket, none of its other events are sent."""

    __slots__ = ("closed", "index", "is_held", "is_only", "page", "released_at")

    def __init__(self, index: int, *, is_only: bool = False) -> None:
        self.index = index
        """Its index among the buckets; -1 for the bucket of events without a key."""
        self.is_only = is_only
        """Whether it holds all events of its channel."""
        self.released_at = 0.0
        """When a batch released it last."""
        self.is_held = False
        self.page: Page | None = None
        """The page that new events are added to."""
        self.closed: deque[Page] = deque()
        """Pages before it, which are complete."""

    def timed_from(self, page: Page) -> float:
        """Returns when the delivery time of a page's events begins: with the first of them.

        In an only bucket it begins when everything before is settled; otherwise the last events of a channel that
        empties slowly would fail although it makes progress. Infinity: not yet.
        """
        if not self.is_only:
            return page.created_at
        return math.inf if self.is_held else max(page.created_at, self.released_at)

    @property
    def head(self) -> Page | None:
        return self.closed[0] if self.closed else self.page


class ChannelBuffer:
    """The buckets of one channel. Guarded by the accumulator's lock."""

    __slots__ = ("buckets", "bytes_max", "channel", "events_max", "is_ordered", "keyless", "waiting")

    def __init__(self, channel: str, events_max: int, bytes_max: int, *, is_ordered: bool = False) -> None:
        self.channel = channel
        self.events_max = events_max
        """The maximum number of events of a batch; less than configured after the channel refused as many."""
        self.bytes_max = bytes_max
        """The maximum number of bytes of a batch; less than configured after a server refused as many. A larger event
        goes alone."""
        self.is_ordered = is_ordered
        """Whether all events keep the order of `send`, regardless of their keys: then one bucket holds them all."""
        self.keyless = OrderingBucket(0, is_only=True) if is_ordered else OrderingBucket(-1)
        self.buckets = [self.keyless] * BUCKETS if is_ordered else [OrderingBucket(index) for index in range(BUCKETS)]
        self.waiting: dict[OrderingBucket, Page] = {}
        """The buckets that have pages, and the oldest page of each."""

    def free_pages(self) -> Iterator[Page]:
        """Yields the oldest page of each bucket that no batch holds."""
        return (page for bucket, page in self.waiting.items() if not bucket.is_held)

    def pop_page(self, bucket: OrderingBucket) -> None:
        if bucket.closed:
            bucket.closed.popleft()
        else:
            bucket.page = None
        # Inserted again rather than replaced, so that the buckets stay in the order of what they wait for.
        del self.waiting[bucket]
        if (head := bucket.head) is not None:
            self.waiting[bucket] = head

    def take_batch(
        self, due_before: float, keys_max: int, accepts: Callable[[OrderingBucket], bool]
    ) -> tuple[list[Page], list[OrderingBucket]]:
        """Removes the pages of the next batch; see `Accumulator.take_batch`."""
        free = [
            (page.created_at, bucket.index, bucket, page)
            for bucket, page in self.waiting.items()
            if not bucket.is_held and accepts(bucket)
        ]
        free.sort()
        first = next((entry for entry in free if entry[2].closed or entry[0] <= due_before), None)
        if first is None:
            return [], []
        free.remove(first)
        chosen = [first[2:]]
        self._fill(chosen, [entry[2:] for entry in free], keys_max)
        held = [bucket for bucket, _ in chosen if bucket.index >= 0]
        for bucket in held:
            bucket.is_held = True
        for bucket, _page in chosen:
            self.pop_page(bucket)
        return [page for _, page in chosen], held

    def _fill(
        self, chosen: list[tuple[OrderingBucket, Page]], others: list[tuple[OrderingBucket, Page]], keys_max: int
    ) -> None:
        """Adds pages that fit, due or not: they would be the next batch, and their buckets are free now."""
        [(_, first)] = chosen
        names = set(first.columns)
        count_left = self.events_max - len(first.bodies)
        bytes_left = self.bytes_max - first.encoded_bytes
        for bucket, page in others:
            if count_left <= 0:
                return
            fits = len(page.bodies) <= count_left and page.encoded_bytes <= bytes_left
            if fits and len(names | page.columns.keys()) <= keys_max:
                chosen.append((bucket, page))
                names |= page.columns.keys()
                count_left -= len(page.bodies)
                bytes_left -= page.encoded_bytes

    def take_expired(self, timed_before: float) -> Iterator[Page]:
        """Removes and yields the pages whose delivery time began so long ago."""
        for bucket in list(self.waiting):
            while (page := bucket.head) is not None and bucket.timed_from(page) <= timed_before:
                self.pop_page(bucket)
                yield page
