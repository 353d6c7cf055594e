"""Real servers of one channel that one of them owns at a time, as if it were replicated, but without an engine."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from millrace_server.channels.channel_handle import ChannelHandle, Owner
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from tests.forward_targets import served
from tests.waiting import wait_until

T = TypeVar("T")

CHANNEL = "orders"


class OwnedServers:
    """Some servers in a thread, whose channel is one object: the first server owns it in the beginning.

    Attributes:
        addresses: Where they listen.
        named: The owner's address as each server tells it; by default the true one.
    """

    def __init__(self, scratch: Path, count: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="owned-servers")
        self._thread.start()
        self._registries: list[ChannelRegistry] = []
        self._stacks: list[AsyncExitStack] = []
        self.named: dict[int, str] = {}
        self._epoch = 0
        self.addresses: Sequence[str] = self._run(self._start(scratch, count))
        self.own(0)

    async def _start(self, scratch: Path, count: int) -> list[str]:
        addresses = []
        for index in range(count):
            registry = ChannelRegistry(message_bytes_max=1 << 24, open_transactions_max=100)
            if self._registries:
                # The channel's transactions are found at each owner.
                registry.transactions = self._registries[0].transactions
            registry.create(CHANNEL, MemoryChannelConfig(type="memory", capacity=10_000, transaction_capacity=10_000))
            stack = AsyncExitStack()
            directory = scratch / str(index)
            directory.mkdir()
            addresses.append(await stack.enter_async_context(served(registry, directory)))
            self._registries.append(registry)
            self._stacks.append(stack)
        self._channel = self._registries[0].get(CHANNEL)
        return addresses

    def own(self, index: int) -> None:
        """Makes a server the owner; the others stand by from their next call on."""
        self._epoch += 1
        self._loop.call_soon_threadsafe(self._own, index)

    def own_after_refusals(self, index: int, count: int) -> None:
        """Makes a server the owner once it has sent clients away so many more times."""
        enough = self.refusal_count(index) + count
        wait_until(lambda: self.refusal_count(index) >= enough)
        self.own(index)

    def _own(self, owner: int) -> None:
        for index, registry in enumerate(self._registries):
            handle: ChannelHandle = registry.find(CHANNEL)
            if index == owner:
                registry._channels[CHANNEL] = self._channel
                handle.mark_replaying()
                handle.mark_open(self._channel)
            else:
                registry._channels.pop(CHANNEL, None)
                handle._channel = None
                handle.mark_standing_by(partial(self._owner_as_told, index, owner))

    def _owner_as_told(self, index: int, owner: int) -> Owner:
        return Owner(self.named[index] if index in self.named else self.addresses[owner], self._epoch)

    @property
    def event_count(self) -> int:
        """The events that the channel holds."""
        return self._channel.event_count

    def stop(self, index: int) -> None:
        """Ends a server and all its connections."""
        self._run(self._stacks[index].aclose())

    def refusal_count(self, index: int) -> int:
        """How often a server has sent a client to another one."""
        return self._registries[index].refused["NOT_OWNER"]

    def close(self) -> None:
        """Ends all servers."""
        for index in range(len(self._stacks)):
            self.stop(index)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def owned_servers(scratch: Path, count: int = 2) -> Iterator[OwnedServers]:
    """Servers until the end of the block."""
    servers = OwnedServers(scratch, count)
    try:
        yield servers
    finally:
        servers.close()


def bodies(batches: Any) -> list[bytes]:
    """The bodies of all events of some batches."""
    return [event.body for batch in batches for event in batch]
