"""The invariants of a spillable channel, and the places of its events."""

from millrace_server.channels.channel import Channel
from millrace_server.channels.spillable import SpillableCommitter
from tests.channel_events import check_accounts, numbered


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
