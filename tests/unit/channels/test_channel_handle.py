import asyncio

import pytest
import structlog

from millrace_server.channels.channel_handle import ChannelHandle, ChannelState, Owner
from millrace_server.channels.committer import MemoryCommitter
from millrace_server.channels.log_store import LogStore
from millrace_server.errors import (
    ChannelCorruptError,
    ChannelLogFailedError,
    DiskFullError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
)
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.payload_codec import KeyMismatchError, KeyMissingError
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import limits_of, open_channel
from tests.waiting import until


class FakeStore(LogStore):
    """A store of which only the damage is known."""

    def __init__(self) -> None:
        self.told_fault: MillraceError | None = None

    @property
    def fault(self) -> MillraceError | None:
        return self.told_fault


class FakeCommits(MemoryCommitter):
    """Commits that fail or stall as a test requires."""

    fault: MillraceError | None = None
    is_stalled = False


class Host:
    """A hosted channel, and the names passed to its watcher."""

    def __init__(self) -> None:
        self.notified: list[str] = []
        self.channel = ChannelHandle("orders", limits_of(capacity=7), self.notified.append)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def commits(host: Host) -> FakeCommits:
    """The committer of the channel, which is open."""
    channel = open_channel()
    channel._core.committer = commits = FakeCommits(channel._contents)
    host.channel.mark_open(channel)
    return commits


@pytest.fixture
async def store(host: Host, commits: FakeCommits) -> FakeStore:
    """The store of the channel, which is open."""
    host.channel.store = store = FakeStore()
    return store


async def test_channel_that_is_not_open_yet_is_replaying(host: Host) -> None:
    """Calls are refused with the progress and a delay; the configuration is known."""
    hosted = host.channel
    hosted.progress.bytes_done, hosted.progress.bytes_total = 1, 4
    assert (hosted.state, hosted.trouble, hosted.replayed_fraction) == (ChannelState.REPLAYING, "", 0.25)
    assert (hosted.config.capacity, hosted.channel_if_open, hosted.opened.is_set()) == (7, None, False)
    with pytest.raises(ReplayingError, match="'orders' is replaying its log, 25% so far") as refused:
        _ = hosted.channel
    assert refused.value.retry_delay_seconds == 0.5
    assert refused.value.metadata == {"channel": "orders"}


async def test_channel_of_another_server_names_its_owner(host: Host) -> None:
    """Calls are refused with the owner's address, or with a delay while there is none; then this server takes over."""
    hosted, owners = host.channel, iter([Owner("mill-2:7070", 7), Owner("", 0)])
    hosted.mark_standing_by(lambda: next(owners))
    assert (hosted.state, hosted.trouble, hosted.opened.is_set()) == (ChannelState.STANDING_BY, "", True)
    with pytest.raises(NotOwnerError, match="'orders' is owned by mill-2:7070; this server stands by") as refused:
        _ = hosted.channel
    assert refused.value.metadata == {"channel": "orders", "address": "mill-2:7070", "epoch": "7"}
    assert refused.value.retry_delay_seconds is None
    with pytest.raises(NotOwnerError, match="is owned by another server") as refused:
        _ = hosted.channel
    assert refused.value.retry_delay_seconds == 0.2
    hosted.mark_standing_by(lambda: Owner("", 0), lambda: "the engine does not respond")
    assert (hosted.trouble, hosted.is_troubled) == ("the engine does not respond", True)
    with pytest.raises(NotOwnerError, match="this server stands by: the engine does not respond"):
        _ = hosted.channel
    hosted.mark_replaying()
    assert (hosted.state, hosted.owner, hosted.opened.is_set()) == (ChannelState.REPLAYING, None, False)
    assert hosted.trouble == ""
    assert host.notified == ["orders", "orders", "orders"]


async def test_channel_that_is_open_is_the_channel(host: Host) -> None:
    """The handle shows the configuration in force and notifies its watchers."""
    channel = open_channel(capacity=100)
    host.channel.mark_open(channel)
    assert (host.channel.state, host.channel.trouble, host.channel.fault) == (ChannelState.OPEN, "", None)
    assert host.channel.channel is channel is host.channel.channel_if_open
    assert (host.channel.config.capacity, host.channel.replayed_fraction) == (100, 1)
    assert host.channel.opened.is_set()
    assert host.notified == ["orders"]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (LogCorruptError("segment 1: byte 64"), ChannelState.CORRUPT, "CORRUPT"),
        (UnknownVersionError("version 9"), ChannelState.CORRUPT, "CORRUPT"),
        (ChannelCorruptError("byte 64"), ChannelState.CORRUPT, "CORRUPT"),
        (KeyMissingError("old"), ChannelState.LOG_FAILED, "LOG_FAILED"),
        (KeyMismatchError("old"), ChannelState.LOG_FAILED, "LOG_FAILED"),
        (DiskFullError("full"), ChannelState.LOG_FAILED, "LOG_FAILED"),
        (OSError(5, "Input/output error"), ChannelState.LOG_FAILED, "LOG_FAILED"),
        (ZeroDivisionError("ours"), ChannelState.LOG_FAILED, "LOG_FAILED"),
    ],
)
async def test_channel_that_cannot_be_opened_reports_it(
    host: Host, error: Exception, state: ChannelState, reason: str
) -> None:
    """The server's log has the reason with paths and keys, which clients do not see."""
    with structlog.testing.capture_logs() as logs:
        host.channel.mark_failed(error)
    assert logs[0]["error"] == str(error)
    assert (host.channel.state, host.channel.opened.is_set(), host.notified) == (state, True, ["orders"])
    assert "cannot be opened" in host.channel.trouble
    assert str(error) not in host.channel.trouble
    with pytest.raises((ChannelCorruptError, ChannelLogFailedError)) as refused:
        _ = host.channel.channel
    assert (refused.value.reason, refused.value.metadata) == (reason, {"channel": "orders"})


async def test_channel_with_a_damaged_log_is_corrupt_and_open(host: Host, store: FakeStore) -> None:
    """Undamaged events are still available."""
    hosted = host.channel
    store.told_fault = ChannelCorruptError("cannot be read back")
    assert hosted.state is ChannelState.CORRUPT
    assert hosted.trouble == "cannot be read back"
    assert hosted.channel is hosted.channel_if_open
    with structlog.testing.capture_logs() as logs:
        hosted.report_change("segment 1: byte 64")
    assert [(one["log_level"], one["reason"]) for one in logs] == [("error", "segment 1: byte 64")]
    assert host.notified == ["orders", "orders"]


async def test_channel_whose_log_fails_reports_it(host: Host, commits: FakeCommits, store: FakeStore) -> None:
    """That counts before any damage."""
    store.told_fault = ChannelCorruptError("cannot be read back")
    commits.fault = ChannelLogFailedError("it has failed")
    assert (host.channel.state, host.channel.trouble) == (ChannelState.LOG_FAILED, "it has failed")


async def test_channel_whose_disk_does_not_respond_is_stalled_until_it_does(host: Host, commits: FakeCommits) -> None:
    """The stall is reported as a fault, and its end as information."""
    hosted = host.channel
    commits.is_stalled = True
    assert (hosted.state, hosted.fault) == (ChannelState.STALLED, None)
    assert hosted.trouble == "the disk does not respond; commits wait for it"
    with structlog.testing.capture_logs() as logs:
        hosted.report_change("it waits")
        commits.is_stalled = False
        hosted.report_change("it goes on")
    assert [one["log_level"] for one in logs] == ["error", "info"]
    assert hosted.state is ChannelState.OPEN


async def test_log_progress_logs_now_and_then(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log entries end when the channel is open."""
    monkeypatch.setattr("millrace_server.channels.channel_handle._PROGRESS_SECONDS", 0.01)
    hosted = host.channel
    hosted.progress.bytes_total = 200
    with structlog.testing.capture_logs() as logs:
        hosted.log_progress_later()
        for count in (1, 2):
            hosted.progress.bytes_done += 50
            await until(lambda: len(logs) >= count)  # noqa: B023 - called before the next one
        hosted.mark_open(open_channel())
        count = len(logs)
        await asyncio.sleep(0.05)
    assert len(logs) == count
    assert {one["percent"] for one in logs} >= {25, 50}
    assert logs[0]["event"] == "replaying"
