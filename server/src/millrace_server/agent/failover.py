"""Whose turn it is in a group where one sink at a time works."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

RETIRING_SECONDS_MAX = 10.0
"""How long a better sink waits for the one before it to end what it has in hand."""


class Retiring(Protocol):
    """A sink that may have to give up its turn."""

    def retire(self) -> None:
        """Has it end its work in order: it takes nothing more."""

    def cut_off(self) -> None:
        """Has it end its work at once, giving back what it has in hand."""


class Succession:
    """Gives the turn to the best sink that is well; sinks are told by their rank, 0 the best.

    One that has failed is passed over until it says that it is ready again, and until all others that are well have had
    their turn, or one of them has got something done: else two that fail slowly would keep a third from ever trying.
    Whoever has the turn when a better one is ready gives it up first: two never work at the same time.
    """

    def __init__(self, sinks: Sequence[Retiring]) -> None:
        self._sinks = sinks
        self._is_down = [False] * len(sinks)
        self._has_failed = [False] * len(sinks)
        """Since something was done last."""
        self._active: int | None = None
        self._changed = asyncio.Event()

    def has_failed(self, rank: int) -> bool:
        """Whether its last turn ended so, and nobody has got anything done since."""
        return self._has_failed[rank]

    def is_wanted(self, rank: int) -> bool:
        """Whether no other that is well comes before it."""
        return not any(
            not is_down and (self._has_failed[other], other) < (self._has_failed[rank], rank)
            for other, is_down in enumerate(self._is_down)
        )

    async def wait_wanted(self, rank: int) -> None:
        """Waits until no other that is well comes before it."""
        while not self.is_wanted(rank):
            await self._changed.wait()

    async def begin(self, rank: int) -> bool:
        """Takes the turn for a sink that is ready to work; one that has it keeps it.

        Returns:
            False where another one comes before it.
        """
        self._is_down[rank] = False
        while self._active != rank:
            if not self.is_wanted(rank):
                return False
            if self._active is None:
                self._active = rank
                self._has_failed[rank] = False
            else:
                await self._oust(self._active)
        return True

    def note_progress(self) -> None:
        """Whoever has the turn has got something done, or has nothing to do."""
        if any(self._has_failed):
            self._begin_round()

    def _begin_round(self) -> None:
        self._has_failed = [False] * len(self._sinks)
        self._tell_change()

    async def _oust(self, rank: int) -> None:
        self._sinks[rank].retire()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETIRING_SECONDS_MAX):
                await self._wait_until_left(rank)
        if self._active == rank:
            self._sinks[rank].cut_off()
            await self._wait_until_left(rank)

    async def _wait_until_left(self, rank: int) -> None:
        while self._active == rank:
            await self._changed.wait()

    def leave(self, rank: int, *, has_failed: bool) -> None:
        """A sink has ended its work."""
        self._is_down[rank] = self._has_failed[rank] = has_failed
        if self._active == rank:
            self._active = None
        if all(self._has_failed):
            self._begin_round()
        self._tell_change()

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
