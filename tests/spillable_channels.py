"""Spillable channels on a simulated disk, their invariants, and the places of their events."""

from dataclasses import dataclass, field
from typing import Any

from millrace_server.channels.channel import Channel
from millrace_server.channels.spillable import SpillableCommitter
from tests.channel_events import check_accounts, numbered
from tests.simulated_channels import DATA, SimulatedChannel, open_simulated_channel, small_spillable_limits
from tests.simulated_disk import SimulatedDisk


@dataclass
class Opened:
    """Spillable channels on one disk, one after the other.

    Attributes:
        now: The one that is open.
    """

    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk([DATA]))
    now: SimulatedChannel = field(init=False)

    async def open(self, **limits: Any) -> Channel:
        """Opens the channel with these limits; see `small_spillable_limits`."""
        self.now = await open_simulated_channel(self.disk, small_spillable_limits(**limits))
        return self.now.channel

    async def stop_and_open(self, **limits: Any) -> Channel:
        """Closes the channel as a server that stops does."""
        await self.now.close()
        return await self.open(**limits)

    async def kill(self, **limits: Any) -> Channel:
        """Kills the process; everything written stays."""
        self.now.abandon()
        self.disk = self.disk.copy()
        return await self.open(**limits)

    async def cut_power(self, **limits: Any) -> Channel:
        """Cuts the power; everything synced stays."""
        self.now.abandon()
        self.disk = self.disk.crashed(1)
        return await self.open(**limits)

    def remove_checkpoints(self) -> None:
        """Removes the checkpoints from the disk."""
        for path in self.disk.paths():
            if path.name.startswith("checkpoint"):
                self.disk.remove(path)

    def written_since(self, call_count: int) -> list[str]:
        """The calls that changed the disk after the first `call_count` ones."""
        return [call.kind for call in self.disk.calls[call_count:] if call.kind not in {"read", "free_bytes"}]


def in_memory(channel: Channel) -> list[int]:
    """The sequences of events that are in memory only, taken ones included."""
    return _sequences(channel, in_log=False)


def in_log(channel: Channel) -> list[int]:
    """The sequences of the events that the log has."""
    return _sequences(channel, in_log=True)


def _sequences(channel: Channel, *, in_log: bool) -> list[int]:
    held = [batch for batch in channel._contents.held_batches() if batch.is_in_log is in_log]
    return sorted(sequence for sequence, _ in numbered(held))


def check_share(channel: Channel) -> None:
    """Asserts that a channel's counters equal a fresh count; no call may be in progress."""
    check_accounts(channel)
    assert isinstance(channel._core.committer, SpillableCommitter)
    share, contents = channel._core.committer.tier, channel._contents
    held = [batch for batch in contents.held_batches() if not batch.is_in_log]
    assert share.event_count == sum(batch.count for batch in held)
    assert share.body_bytes == sum(batch.window.body_bytes for batch in held)
    assert share.log_event_count == contents.capacity.event_count - share.event_count
    columns = {id(batch.window.stored) for batch in held}
    assert {id(stored) for stored in share._unlogged} <= columns, "nothing is remembered of what has left"
    for held_commit in share._unlogged.values():
        for stored, count in held_commit.event_counts.items():
            assert count == sum(batch.count for batch in held if batch.window.stored is stored)
