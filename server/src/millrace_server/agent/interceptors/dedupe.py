"""The interceptor `dedupe`, which drops events that have come before."""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Literal

from pydantic import Field

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import (
    Interceptor,
    InterceptorConfig,
    RememberingInterceptor,
    Screened,
)

_KEY_BYTES = 16


class DedupeConfig(InterceptorConfig):
    """Drops an event if another one with the same key is already stored, or precedes it in the same batch.

    Keys are remembered once the batch is stored, so that a batch that could not be stored is not mistaken for a
    duplicate of itself. They are kept only in memory, separately by each source: after a restart of the server or the
    source, duplicates of earlier events pass. Duplicates in batches that are stored concurrently, as by the source
    `http`, pass as well. Dropped events are counted.
    """

    type: Literal["dedupe"]
    """Drops events whose key has occurred within a window."""

    header: str | None = None
    """The header with the key; an event without the header always passes. None: the body is the key."""

    window_events: int = Field(100_000, ge=1, le=10_000_000)
    """The number of keys that are remembered; the oldest are forgotten first. A key takes about 130 bytes of memory."""

    window_seconds: float = Field(600.0, gt=0, le=604_800, allow_inf_nan=False)
    """A key is forgotten this long after its event was stored."""

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _Dedupe(self, context.monotonic)


class _Dedupe(RememberingInterceptor):
    def __init__(self, config: DedupeConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        # Batches are stored on the event loop while others pass on a thread; appending to a deque is atomic.
        self._news: deque[tuple[float, Iterable[bytes]]] = deque()
        self._times: dict[bytes, float] = {}
        """When the event with each key was stored, in order."""

    def screen(self, table: EventTable) -> Screened:
        self._learn()
        self._forget()
        fresh: dict[bytes, None] = {}
        mask = []
        for key in self._keys(table):
            is_passed = key is None or (key not in self._times and key not in fresh)
            mask.append(is_passed)
            if is_passed and key is not None:
                fresh[key] = None
        return Screened(table if all(mask) else table.chosen(mask), partial(self._note_stored, fresh))

    def _keys(self, table: EventTable) -> Iterable[bytes | None]:
        if self._config.header is None:
            return map(_key_of, table.bodies)
        values = table.values(self._config.header)
        return (None if value is None else _key_of(value.encode(errors="replace")) for value in values)

    def _note_stored(self, keys: Iterable[bytes]) -> None:
        self._news.append((self._clock(), keys))

    def _learn(self) -> None:
        times = self._times
        while self._news:
            now, keys = self._news.popleft()
            for key in keys:
                # Concurrent batches may have had the same key; it moves to the end.
                times.pop(key, None)
                times[key] = now

    def _forget(self) -> None:
        expired_at = self._clock() - self._config.window_seconds
        excess = len(self._times) - self._config.window_events
        old = []
        for index, (key, time) in enumerate(self._times.items()):
            if index >= excess and time > expired_at:
                break
            old.append(key)
        for key in old:
            del self._times[key]


def _key_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=_KEY_BYTES).digest()
