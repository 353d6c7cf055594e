"""Failover: the choice of a group's active sink."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

HANDOVER_SECONDS_MAX = 10.0
"""How long a preempted sink may take to settle its open deliveries."""


class Preemptible(Protocol):
    """A sink that may have to yield to one with a higher priority."""

    def close_reader(self) -> None:
        """Ends it gracefully: it gets no more deliveries."""

    def cancel(self) -> None:
        """Ends it at once; its open deliveries are nacked."""


class Failover:
    """Keeps one sink of a group active: the healthy one with the highest priority. Priority 0 is the highest.

    A sink that has failed is skipped until it is ready again, and until all other healthy sinks have been active or one
    of them has made progress: otherwise two sinks that fail slowly would keep a third from ever being tried. It does
    not wait for a sink that is still opening, which may take until a connection times out. A ready sink with a higher
    priority preempts the active one, so that two are never active at the same time.
    """

    def __init__(self, sinks: Sequence[Preemptible]) -> None:
        self._sinks = sinks
        self._is_down = [False] * len(sinks)
        self._is_opening = [False] * len(sinks)
        self._has_failed = [False] * len(sinks)
        """Since the last progress."""
        self._active: int | None = None
        self._changed = asyncio.Event()

    def has_failed(self, priority: int) -> bool:
        return self._has_failed[priority]

    def is_first(self, priority: int) -> bool:
        """Whether no other healthy sink precedes it."""
        has_failed = self._has_failed[priority]
        return not any(
            (other_has_failed, other) < (has_failed, priority)
            for other, other_has_failed in enumerate(self._has_failed)
            if not (self._is_down[other] or (has_failed and self._is_opening[other]))
        )

    async def wait_until_first(self, priority: int) -> None:
        """Waits until a sink may open."""
        while not self.is_first(priority):
            await self._changed.wait()
        self._is_opening[priority] = True
        self._notify()

    async def acquire(self, priority: int) -> bool:
        """Makes a ready sink the active one, unless it already is; returns False if another one precedes it."""
        self._is_down[priority] = self._is_opening[priority] = False
        while self._active != priority:
            if not self.is_first(priority):
                return False
            if self._active is None:
                self._active = priority
            else:
                await self._preempt(self._active)
        return True

    def record_progress(self) -> None:
        """Records that the active sink has settled a delivery, or that its channel is empty."""
        if any(self._has_failed):
            self._forget_failures()

    def _forget_failures(self) -> None:
        self._has_failed = [False] * len(self._sinks)
        self._notify()

    async def _preempt(self, priority: int) -> None:
        self._sinks[priority].close_reader()
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_SECONDS_MAX):
                await self._wait_until_released(priority)
        if self._active == priority:
            self._sinks[priority].cancel()
            await self._wait_until_released(priority)

    async def _wait_until_released(self, priority: int) -> None:
        while self._active == priority:
            await self._changed.wait()

    def release(self, priority: int, *, has_failed: bool) -> None:
        self._is_down[priority] = self._has_failed[priority] = has_failed
        self._is_opening[priority] = False
        if self._active == priority:
            self._active = None
        if all(self._has_failed):
            self._forget_failures()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
