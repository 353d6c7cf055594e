"""The result of a take, for asyncio."""

from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any

from millrace_client.events import Batch


class Taking(Coroutine[Any, Any, list[Batch]]):
    """A take in progress: `await` returns its batches, and `async for` iterates over them."""

    def __init__(self, take: Coroutine[Any, Any, list[Batch]]) -> None:
        self._take = take

    async def __aiter__(self) -> AsyncIterator[Batch]:
        for batch in await self._take:
            yield batch

    def __await__(self) -> Generator[Any, Any, list[Batch]]:
        return self._take.__await__()

    # A whole coroutine, so that `asyncio.create_task` takes it.

    def send(self, value: Any) -> Any:
        return self._take.send(value)

    def throw(self, *error: Any) -> Any:
        return self._take.throw(*error)

    def close(self) -> None:
        self._take.close()
