"""The queue of messages that are not stored yet."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple, Protocol

from millrace_server.agent.sources.syslog.framing import Frame

MESSAGES_MAX = 20_000
BYTES_MAX = 32 * 1024 * 1024
"""A queue of this size is full, until it is below half of both limits."""

_BATCH_BYTES_MAX = 1024 * 1024


class Origin(NamedTuple):
    """Where a message came from."""

    client_ip: str
    port: str
    """The local port."""


class Message(NamedTuple):
    """A message and its origin."""

    frame: Frame
    origin: Origin


class Receiver(Protocol):
    """Receives messages and can be paused."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class MessageQueue:
    """Messages in order of arrival.

    While it is full, its receivers are paused, so it exceeds its limits by at most one read of each. In the meantime,
    TCP senders wait, and UDP datagrams accumulate in the socket's receive buffer.
    """

    def __init__(self, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: deque[Message] = deque()
        self._byte_count = 0
        self._receivers: set[Receiver] = set()
        self._is_closed = False
        self._has_messages = asyncio.Event()
        self.is_full = False

    def __len__(self) -> int:
        return len(self._messages)

    def add_receiver(self, receiver: Receiver) -> None:
        self._receivers.add(receiver)
        if self.is_full:
            receiver.pause()

    def remove_receiver(self, receiver: Receiver) -> None:
        self._receivers.discard(receiver)

    def add(self, frames: Sequence[Frame], origin: Origin) -> None:
        """Adds messages. It never refuses them: paused receivers do not read."""
        self._messages.extend(map(Message, frames, repeat(origin)))
        self._byte_count += sum(len(frame.content) for frame in frames)
        if self._messages:
            self._has_messages.set()
        if not self.is_full and (len(self._messages) >= self._messages_max or self._byte_count >= self._bytes_max):
            self.is_full = True
            for receiver in tuple(self._receivers):
                receiver.pause()

    async def take(self, count_max: int, linger_seconds: float) -> list[Message]:
        """Removes and returns the oldest messages.

        Waits for the first message, and then until there are enough or `linger_seconds` have passed. Returns nothing
        once the queue is closed and empty.
        """
        while not self._messages and not self._is_closed:
            await self._wait_for_messages()
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                while len(self._messages) < count_max and not self.is_full and not self._is_closed:
                    await self._wait_for_messages()
        return self._remove_batch(count_max)

    async def _wait_for_messages(self) -> None:
        self._has_messages.clear()
        await self._has_messages.wait()

    def _remove_batch(self, count_max: int) -> list[Message]:
        taken: list[Message] = []
        byte_count = 0
        while self._messages and len(taken) < count_max and byte_count < _BATCH_BYTES_MAX:
            message = self._messages.popleft()
            byte_count += len(message.frame.content)
            taken.append(message)
        self._byte_count -= byte_count
        has_space = 2 * len(self._messages) <= self._messages_max and 2 * self._byte_count <= self._bytes_max
        if self.is_full and has_space:
            self.is_full = False
            for receiver in tuple(self._receivers):
                receiver.resume()
        return taken

    def open(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        """Ends waits for further messages."""
        self._is_closed = True
        self._has_messages.set()
