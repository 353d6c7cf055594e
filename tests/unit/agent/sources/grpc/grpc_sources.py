"""Sources of type `grpc` in this process, behind an entrance that tests append to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.selectors import MultiplexingConfig
from millrace_server.agent.sources.grpc.source import GrpcSource
from millrace_server.agent.sources.source import SourceContext
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Receipt
from millrace_server.channels.entrance import Entrance
from millrace_server.channels.transactions import TxnDirectory
from tests.channel_events import RESPONSE_BYTES_MAX, stored_rows

NAME = "in"
STORED = Receipt()
REPEATED = Receipt(is_deduplicated=True)
BY_KIND = MultiplexingConfig(type="multiplexing", header="kind", mapping={"a": ["a"], "b": ["b"], "both": ["a", "b"]})


def entrance_of(directory: TxnDirectory | None = None) -> Entrance:
    """An entrance, which no source has opened yet."""
    return Entrance(NAME, directory or TxnDirectory(1_000), RESPONSE_BYTES_MAX)


@asynccontextmanager
async def opened_entrance(writer: ChannelWriter, entrance: Entrance | None = None) -> AsyncIterator[Channel]:
    """Runs a source with this writer; yields what callers append to."""
    entrance = entrance or entrance_of()
    running = asyncio.create_task(GrpcSource(SourceContext(NAME, Path(), None, entrance)).run(writer))
    # It opens its entrance at once.
    await asyncio.sleep(0)
    try:
        yield entrance.accepting()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def of_kinds(**kinds: str) -> StoredColumns:
    """Events whose bodies are the names, each with its kind; as columns of one request."""
    return stored_rows(({"kind": kind}, name.encode()) for name, kind in kinds.items())


def both(bodies: list[bytes]) -> dict[str, list[bytes]]:
    """What both channels hold if they hold the same."""
    return {"a": bodies, "b": bodies}
