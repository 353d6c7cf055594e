"""Channels on a real disk for tests of the tools: created as by a server, closed, damaged, and opened again."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.config import FileChannelConfig, LogChannelConfig, SpillableChannelConfig
from millrace_server.channels.recovery import Recovered
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.cli import app
from millrace_server.log_tools.backup import ToolContext
from millrace_server.log_tools.layout import ChannelLayout, find_layout
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import Report, batches_of, recover_without
from millrace_server.log_tools.verify import verify as verify_view
from millrace_server.log_tools.view import open_view
from millrace_server.wal import group_writer
from millrace_server.wal.format import SegmentHeader
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.reading import SegmentScanner
from tests.channel_events import append, begin, begin_with_takes, numbered

NAME = "orders"
TOOLS = ToolContext(PayloadCodec(), ToolProgress())


def limits_of(**limits: Any) -> LogChannelConfig:
    """A configuration with small segments and checkpoints only at the end; spillable if it has memory."""
    usual: dict[str, Any] = {"min_free_bytes": 0, "checkpoint_interval_seconds": 3600.0}
    config: LogChannelConfig = FileChannelConfig(type="file", **usual)
    if "memory_capacity" in limits:
        config = SpillableChannelConfig(type="spillable", **usual)
    return config.model_copy(update={"segment_bytes_max": 700, **limits})


@asynccontextmanager
async def open_channel(base: Path, name: str = NAME, **limits: Any) -> AsyncIterator[Channel]:
    """A channel that a registry opens, until the end of the block."""
    async with open_hosted(base, name, **limits) as handle:
        yield handle.channel


@asynccontextmanager
async def open_hosted(
    base: Path, name: str = NAME, *, sync_point_seconds: float = 3600.0, **limits: Any
) -> AsyncIterator[ChannelHandle]:
    """The same, with the registry's handle.

    By default its log has a SYNC_POINT only at its end: one wherever it was idle would move its other records.
    """
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100, channels_dir=base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", sync_point_seconds)
        handle = registry.create(name, limits_of(**limits))
        try:
            await handle.opened.wait()
            yield handle
        finally:
            await registry.close()


async def fill(channel: Channel, rounds: int = 6, first_round: int = 0) -> None:
    """Makes puts, takes, stamps and transactions, so that about half of the events stay."""
    for number in range(first_round, first_round + rounds):
        stamp = Stamp("producer", 10 * number, 10 * number + 9)
        await append(channel, *[b"%d of round %d" % (index, number) for index in range(10)], stamp=stamp)
        txn_id = await begin_with_takes(channel, 4)
        await channel.transactions.commit([txn_id], None)
        channel.transactions.rollback(begin(channel))


async def _make(base: Path, name: str, limits: dict[str, Any], rounds: int) -> None:
    async with open_channel(base, name, **limits) as channel:
        # Taken and uncommitted events keep the first segment.
        await append(channel, *[b"%d of the first" % index for index in range(10)])
        txn_id = await begin_with_takes(channel, 2)
        await fill(channel, rounds)
        channel.transactions.rollback(txn_id)
        await channel.claim("reader", 30.0, takeover=False)
        await append(channel, b"last")


def make_channel(base: Path, name: str = NAME, *, rounds: int = 6, **limits: Any) -> Path:
    """A closed channel of several segments; returns its directory.

    Its first segment has STATE, PUT and COMMIT of 10 events, then for each round PUT and COMMIT of 10 events, TAKE and
    COMMIT of 4, and ROLLBACK. The last event is in a PUT of its own.
    """
    asyncio.run(_make(base, name, limits, rounds))
    return base / name


async def _opened(base: Path, name: str, limits: dict[str, Any]) -> tuple[list[tuple[int, bytes]], int]:
    async with open_channel(base, name, **limits) as channel:
        events = numbered(list(channel._contents.queue))
        receipt = await append(channel, b"new")
        return events, receipt.first_sequence


def opened_again(base: Path, name: str = NAME, **limits: Any) -> tuple[list[tuple[int, bytes]], int]:
    """Puts one more event as a server; returns the events found and the sequence of the new one."""
    return asyncio.run(_opened(base, name, limits))


@dataclass(frozen=True)
class DurableState:
    """The state of a channel."""

    batches: Sequence[object]
    next_sequence: int
    producers: dict[str, list[tuple[int, int]]]
    claim: object
    ended: list[str] = field(default_factory=list)


def durable_state(recovered: Recovered) -> DurableState:
    """The state of a channel that must not change."""
    producers = dict(recovered.ledger.producers())
    return DurableState(
        batches_of(recovered), recovered.next_sequence, producers, recovered.claim, sorted(recovered.ended)
    )


def durable_state_of(*directories: Path, codec: PayloadCodec | None = None) -> DurableState:
    """The state in which a server would open the channel."""
    with open_view(find_layout(directories), is_live=False) as view:
        return durable_state(recover_without(view, codec or PayloadCodec()))


def verified(*directories: Path, codec: PayloadCodec | None = None) -> Report:
    """The problems of a closed channel."""
    with open_view(find_layout(directories), is_live=False) as view:
        return verify_view(view, codec or PayloadCodec(), ToolProgress())


def layout_of(*directories: Path) -> ChannelLayout:
    """The layout of a channel."""
    return find_layout(directories)


def run(*arguments: str | Path) -> Result:
    """Runs `millraced`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def segments(directory: Path) -> list[Path]:
    """The segments of a directory, the oldest first."""
    return sorted(directory.glob("segment-*.log"))


def flip(path: Path, position: int, bit: int = 1) -> None:
    """Flips a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= bit
    path.write_bytes(content)


def copied(directory: Path, target: Path) -> Path:
    """A copy of a channel's directory, to be damaged."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    (target / "lock").unlink(missing_ok=True)
    return target


def contents(*directories: Path) -> dict[Path, bytes]:
    """All files except the locks."""
    return {
        path: path.read_bytes()
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def positions(segment: Path) -> list[int]:
    """The positions of a segment's records."""
    content = segment.read_bytes()
    header = SegmentHeader.decode(content)
    scanner = SegmentScanner(ReadOnlyFile.of(content), header)
    return [record.position for record in scanner.records()]


def log_end(directory: Path) -> int:
    """Returns the position of the last SYNC_POINT: damage there is truncated like a torn tail, and loses nothing."""
    return positions(segments(directory)[-1])[-1]
