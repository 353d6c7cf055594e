"""Messages that have come and are not stored yet."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple, Protocol

from millrace_server.agent.sources.syslog.framing import Frame

MESSAGES_MAX = 20_000
BYTES_MAX = 32 * 1024 * 1024
"""A backlog of so much is full; it has room again below half of both."""

_BATCH_BYTES_MAX = 1024 * 1024


class Origin(NamedTuple):
    """Where messages came from."""

    client_ip: str | None
    """None where the sender was gone before anybody could look."""
    port: str
    """The port here on which they came."""


class Message(NamedTuple):
    """A message, and where it came from."""

    frame: Frame
    origin: Origin


class Tap(Protocol):
    """What brings messages, and can be closed for a while."""

    def pause(self) -> None:
        """Reads nothing more for now."""

    def resume(self) -> None:
        """Reads on."""


class Backlog:
    """Messages in the order in which they came.

    While it is full its taps are closed, so that it holds no more than its limits and what one of them had read just
    then. TCP's senders then wait, and UDP's datagrams pile up in the system.
    """

    def __init__(self, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: deque[Message] = deque()
        self._byte_count = 0
        self._taps: set[Tap] = set()
        self._is_closed = False
        self._news = asyncio.Event()
        self.is_full = False

    def __len__(self) -> int:
        return len(self._messages)

    def add_tap(self, tap: Tap) -> None:
        """Closes and opens a tap from now on."""
        self._taps.add(tap)
        if self.is_full:
            tap.pause()

    def remove_tap(self, tap: Tap) -> None:
        """Leaves a tap alone that has gone."""
        self._taps.discard(tap)

    def add(self, frames: Sequence[Frame], origin: Origin) -> None:
        """Takes what a tap has read. It never refuses: a tap that is closed reads nothing."""
        self._messages.extend(map(Message, frames, repeat(origin)))
        self._byte_count += sum(len(frame.content) for frame in frames)
        if self._messages:
            self._news.set()
        if not self.is_full and (len(self._messages) >= self._messages_max or self._byte_count >= self._bytes_max):
            self.is_full = True
            for tap in tuple(self._taps):
                tap.pause()

    async def take(self, count_max: int, linger_seconds: float) -> list[Message]:
        """Takes the oldest messages out.

        Waits for the first one, and then until there are enough or the time is over. None once it is closed and empty.
        """
        while not self._messages and not self._is_closed:
            await self._wait_for_news()
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                while len(self._messages) < count_max and not self.is_full and not self._is_closed:
                    await self._wait_for_news()
        return self._take_out(count_max)

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _take_out(self, count_max: int) -> list[Message]:
        taken: list[Message] = []
        byte_count = 0
        while self._messages and len(taken) < count_max and byte_count < _BATCH_BYTES_MAX:
            message = self._messages.popleft()
            byte_count += len(message.frame.content)
            taken.append(message)
        self._byte_count -= byte_count
        has_room = 2 * len(self._messages) <= self._messages_max and 2 * self._byte_count <= self._bytes_max
        if self.is_full and has_room:
            self.is_full = False
            for tap in tuple(self._taps):
                tap.resume()
        return taken

    def open(self) -> None:
        """Messages may come."""
        self._is_closed = False

    def close(self) -> None:
        """No more messages will come, so nobody waits for them."""
        self._is_closed = True
        self._news.set()
