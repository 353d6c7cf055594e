"""Waking tasks that wait for something to change."""

import asyncio


class Bell:
    """Wakes all that wait; each looks for itself whether what it waits for has come. For one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wakes all that wait now."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, give_up_at: float | None) -> bool:
        """Waits for the next ring.

        Args:
            give_up_at: When to stop waiting, on the loop's clock. None: never.

        Returns:
            False where the time is over.
        """
        loop = asyncio.get_running_loop()
        if give_up_at is not None and give_up_at <= loop.time():
            return False
        waiter = loop.create_future()
        self._waiting.add(waiter)
        timer = None if give_up_at is None else loop.call_at(give_up_at, _end, waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()
        return True


def _end(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
