"""A sink of type `files` on a channel in memory, for tests; and reading its output."""

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import zstandard

from millrace.columns import columns_from_events
from millrace_server.agent.channel_reader import ChannelReader, ReaderLimits
from millrace_server.agent.components import Component, ComponentKind, Components
from millrace_server.agent.sinks.files.config import FilesSinkConfig
from millrace_server.agent.sinks.files.event_files import EventFiles
from millrace_server.agent.sinks.files.sink import FilesSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig, MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry

CHANNEL = "orders"
SINK = "archive"

Row = tuple[Mapping[str, str], bytes]


def config_of(path: Path | str, **settings: Any) -> FilesSinkConfig:
    """A configuration as read from the settings file."""
    table = {"type": "files", "channel": CHANNEL, "path": str(path), **settings}
    return FilesSinkConfig.model_validate(table, strict=True)


def rows_of(bodies: Iterable[bytes], **headers: str) -> list[Row]:
    """Returns events that all have the same headers."""
    return [(headers, body) for body in bodies]


def stored_of(rows: Iterable[Row]) -> list[StoredColumns]:
    """Returns events as channels store them."""
    return [StoredColumns.of(columns) for columns in columns_from_events(rows)]


def raw_of(rows: Iterable[Row]) -> bytes:
    """Events as one batch's columns."""
    [columns] = columns_from_events(rows)
    return columns.SerializeToString()


class SinkBench:
    """A channel and a sink that empties it.

    Attributes:
        channel: The channel.
        reader: The reader of the sink's newest run.
        component: The state that the sink reports.
    """

    def __init__(self, config: FilesSinkConfig, directory: Path, channel_config: ChannelConfig | None = None) -> None:
        self.config = config
        self._place = SinkContext(SINK, directory)
        self._registry = ChannelRegistry(message_bytes_max=64 << 20, open_transactions_max=10_000)
        limits = channel_config or MemoryChannelConfig(
            type="memory", capacity=100_000, transaction_capacity=10_000, keep_alive_seconds=5.0
        )
        self._registry.create(CHANNEL, limits)
        self.channel: Channel = self._registry.get(CHANNEL)
        self.component: Component = Components().add(ComponentKind.SINK, SINK, "files")
        self.reader = self._make_reader()

    def _make_reader(self) -> ChannelReader:
        limits = ReaderLimits(self.config.batch_events_max, self.config.deliveries_max, None)
        return ChannelReader(self._registry, CHANNEL, limits, self.component)

    async def put(self, *batches: Iterable[Row]) -> None:
        """Commits each batch of events separately."""
        for rows in batches:
            await self.channel.appends.append(stored_of(rows), None)

    @property
    def unsettled(self) -> int:
        """Events that are in the channel, taken or not."""
        return self.channel._contents.capacity.event_count

    async def until_settled(self) -> None:
        """Waits until the channel is empty."""
        while self.unsettled:  # noqa: ASYNC110 - a channel sends no notification when it is empty
            await asyncio.sleep(0.005)

    async def drain(self) -> None:
        """Runs the sink until everything is written; raises its error."""
        async with self.running() as run:
            self.reader.request_flush()
            emptied = asyncio.create_task(self.until_settled())
            await asyncio.wait({run, emptied}, return_when=asyncio.FIRST_COMPLETED)
            emptied.cancel()
            self.reader.close()
            await run

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[asyncio.Task[None]]":
        """Runs the sink; cancels it at the end and nacks its open deliveries, as a server does."""
        sink = self.config.make(self._place)
        run = asyncio.create_task(sink.run(self.reader))
        try:
            yield run
        finally:
            run.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await run
            self.reader.nack_all()
            self.reader = self._make_reader()


def files_below(root: Path) -> list[Path]:
    """Returns all finished files, sorted by path."""
    return [path for path in _below(root) if ".millrace" not in path.parts]


def unfinished_below(root: Path) -> list[Path]:
    """Returns the files in staging directories."""
    return [path for path in _below(root) if ".millrace" in path.parts]


def _below(root: Path) -> list[Path]:
    # Unlike a glob, a walk continues if a directory is removed in the meantime.
    return sorted(Path(directory, name) for directory, _, names in os.walk(root) for name in names)


def unpacked(path: Path) -> bytes:
    """Returns a file's content, decompressed."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(content)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return content


def lines_below(root: Path) -> list[bytes]:
    """Returns the lines of all finished files."""
    return [line for path in files_below(root) for line in unpacked(path).splitlines()]


def make_event_files(config: FilesSinkConfig, directory: Path) -> EventFiles:
    """Returns the files of the sink's thread, not open yet."""
    sink = config.make(SinkContext(SINK, directory))
    assert isinstance(sink, FilesSink)
    return sink._make_files()
