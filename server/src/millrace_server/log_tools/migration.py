"""Moves a channel that no server uses from files into a stream of an engine, and back.

At any moment, a server can open at most one of the two. A stream is marked until it is complete, and no server opens a
marked stream; files are written under another name. After the copy was compared with the original, files that were
moved are renamed to `NAME.migrated`, with a mark in their place, and a stream that was moved stays marked. An
interrupted migration is run again: it continues if the copy was complete, and starts over otherwise.
"""

import asyncio
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from millrace_server.channels.channel_file import CHECKPOINTS_ONLY, ChannelFile, ChannelIdentity
from millrace_server.channels.directories import locked_directories
from millrace_server.channels.recovery import Recovered
from millrace_server.files import make_directories, sync_directory
from millrace_server.histograms import Histograms
from millrace_server.log_tools.backup import os_errors_as_tool_errors
from millrace_server.log_tools.layout import (
    DamagedError,
    FilesPlace,
    NoSpaceError,
    UnavailableError,
    UsageError,
    find_layout,
)
from millrace_server.log_tools.log_copy import check_same, contents_of, write_log, write_new_files
from millrace_server.log_tools.stream_view import StreamView
from millrace_server.log_tools.verify import recover_without
from millrace_server.log_tools.view import open_view
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import Engine
from millrace_server.replication.lease_bucket import JetStreamBucket
from millrace_server.replication.owner_entries import Holder, Member, channel_key, session_key
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_log import StreamLog
from millrace_server.replication.stream_reading import StreamMissingError, StreamState
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import LogCorruptError, SegmentFiles
from millrace_server.wal.writer_threads import WriterThreads

COPYING, COPIED = "copying from files", "copied from files"
MOVING, MOVED = "moving to files", "moved to files"
"""The marks of a stream."""

_ADDRESS = "millraced migrate"
_ID_BYTES = 16
_POLL_SECONDS = 0.2
_STREAM_SHARE = 1.5
"""The recommended size of a stream, as a multiple of its events' size; see docs/replicated.md."""
_MIGRATED = ".migrated"
# Channel names cannot contain a tilde, so these never clash with the directory of another channel.
_UNFINISHED = ".migrating~"
_REMOVED = ".removed~"


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a channel in a stream is, or will be."""

    name: str
    engine: Engine
    limits: StreamLimits
    codec: PayloadCodec

    @property
    def stream(self) -> Stream:
        return Stream(self.engine, self.name, self.limits)

    def state(self) -> StreamState | None:
        """Returns the stream's state, or None if there is no stream; raises EngineError."""
        try:
            return self.engine.call(self.stream.state()).result()
        except StreamMissingError:
            return None

    def mark(self, migration: str) -> None:
        self.engine.call(self.stream.mark(migration)).result()

    def view(self, state: StreamState) -> StreamView:
        return StreamView(self.name, Chain(self.engine, self.stream, state), self.codec)


def into_stream(source: FilesPlace, target: StreamPlace) -> int:
    """Moves a channel from files into a stream; returns the number of its events.

    Raises:
        DirectoryInUseError, UnavailableError: A server uses the channel, or the engine does not respond.
        UsageError: There is no such channel, the stream holds another one, or its configured size is too small.
        DamagedError: The files are damaged, or the stream returns other bytes than were written.
    """
    state = target.state()
    if state is not None and state.migration == COPIED and not all(map(_holds_channel, source.directories)):
        # The copy is complete; an earlier run was interrupted while it moved the files aside.
        return _finish_stream(source, target, state)
    if state is not None and not state.migration and all(_was_moved(path, state) for path in source.directories):
        # An earlier run has finished.
        return _recovered(target, state).queue.event_count
    if missing := [path for path in source.directories if not path.is_dir()]:
        raise UsageError(f"{missing[0]}: does not exist")
    with locked_directories(source.directories):
        layout = find_layout(source.directories, source.checkpoint_dir)
        identity = layout.identity
        if identity is None:
            raise DamagedError(f"{layout.directories[0]}: no file states which channel this is; repair it first")
        with open_view(layout, is_live=False) as view:
            try:
                recovered = recover_without(view, source.codec)
            except LogCorruptError as error:
                raise DamagedError(f"{error}; repair the channel first") from error
            _check_target(target, state, identity)
            if state is not None:
                target.engine.call(target.stream.delete()).result()
            creating = target.stream.create(identity.channel_id, identity.made_at_microseconds, COPYING)
            _fill_stream(target, target.engine.call(creating).result(), recovered)
        target.mark(COPIED)
        filled = target.state()
        assert filled is not None, "it was created"
        return _finish_stream(source, target, filled)


def _check_target(target: StreamPlace, state: StreamState | None, identity: ChannelIdentity) -> None:
    """Raises UsageError if the stream holds anything but an unfinished or a former copy of this channel."""
    if state is None:
        return
    if not state.migration:
        raise UsageError(f"stream {target.stream.name} exists; delete its channel, or name another one")
    if state.channel_id != identity.channel_id:
        raise UsageError(f"stream {target.stream.name} is of another channel, {state.channel_id.hex()}; delete it")
    if state.migration == MOVING:
        raise UsageError(f"stream {target.stream.name} is being moved to files; finish that first")


def _fill_stream(target: StreamPlace, state: StreamState, recovered: Recovered) -> None:
    chain = Chain(target.engine, target.stream, state)
    chain.fence(_ADDRESS)
    log = StreamLog(chain, target.codec)
    if any(True for _ in log.replay()):
        raise DamagedError(f"stream {target.stream.name}: holds records, although it is new")
    log.start(WriterThreads(), Histograms())
    try:
        asyncio.run(write_log(log, *contents_of(recovered)))
    except NoSpaceError as error:
        needed = sum(len(bytes(batch.window.columns())) for batch in recovered.queue)
        raise UsageError(
            f"stream {target.stream.name}: stream_bytes_max is {target.limits.stream_bytes_max}, and the events alone "
            f"need {needed} bytes; set it to at least {needed * _STREAM_SHARE:.0f}: {error}"
        ) from error
    finally:
        log.close()
    written = target.state()
    assert written is not None, "it was written"
    check_same(recovered, _recovered(target, written), f"stream {target.stream.name}")


def _finish_stream(source: FilesPlace, target: StreamPlace, state: StreamState) -> int:
    identity = ChannelIdentity(target.name, state.channel_id, state.channel_id, state.made_at_microseconds)
    mark = ChannelFile(identity, CHECKPOINTS_ONLY, 0, moved_to=f"stream {target.stream.name}")
    for path in source.directories:
        if not _was_moved(path, state):
            _move_aside(path, mark)
    # A former stream of this name may have had higher epochs.
    _forget_owner(target)
    event_count = _recovered(target, state).queue.event_count
    target.mark("")
    return event_count


def _move_aside(path: Path, mark: ChannelFile) -> None:
    """Renames a directory, and creates one in its place that states where the channel is."""
    marked = path.with_name(path.name + _UNFINISHED)
    aside = path.with_name(path.name + _MIGRATED)
    if aside.exists():
        aside = path.with_name(f"{aside.name}-{time.time_ns()}")
    with os_errors_as_tool_errors("rename", path):
        shutil.rmtree(marked, ignore_errors=True)
        make_directories(marked)
        mark.write(marked)
        if path.exists():
            _rename(path, aside)
        _rename(marked, path)


def _holds_channel(path: Path) -> bool:
    """Whether a directory exists and is not the mark of a channel that was moved."""
    return path.exists() and not ((file := ChannelFile.read(path)) and file.moved_to)


def _was_moved(path: Path, state: StreamState) -> bool:
    """Whether a directory is the mark of a stream's channel."""
    file = ChannelFile.read(path)
    return file is not None and bool(file.moved_to) and file.identity.channel_id == state.channel_id


def _remove_mark(path: Path) -> None:
    removed = path.with_name(path.name + _REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    # Renamed first, since a directory that has lost its mark would make a second run fail.
    _rename(path, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _rename(path: Path, target: Path) -> None:
    path.rename(target)
    sync_directory(target.parent)


def _recovered(place: StreamPlace, state: StreamState) -> Recovered:
    try:
        return place.view(state).recover()
    except LogCorruptError as error:
        raise DamagedError(str(error)) from error


def into_files(source: StreamPlace, target: FilesPlace) -> int:
    """Moves a channel from a stream into files; returns the number of its events.

    Raises:
        UnavailableError: A server owns the channel, or the engine does not respond.
        UsageError: There is no such channel, or something else is where the files are to be.
        DamagedError: The stream is damaged, or the disk returns other bytes than were written.
    """
    state = source.state()
    if state is None:
        raise UsageError(f"stream {source.stream.name}: does not exist")
    if state.migration in {COPYING, COPIED}:
        raise UsageError(f"stream {source.stream.name} is being filled from files; finish that first")
    home = target.data_dirs[0]
    is_to_be_written = not home.exists() or _was_moved(home, state)
    if is_to_be_written and state.migration == MOVED:
        raise UsageError(f"stream {source.stream.name} was moved to files already, and there are none in {home}")
    if is_to_be_written:
        _write_files(source, target, state)
    layout = find_layout([home])
    if layout.identity is None or layout.identity.channel_id != state.channel_id:
        raise UsageError(f"{home}: does not hold the channel of stream {source.stream.name}; move it away")
    if not state.migration and ((now := source.state()) is None or now.migration != MOVING):
        # Both can be opened, and either may have events that the other lacks.
        raise UsageError(f"{home} and stream {source.stream.name} both hold the channel; move one of them away")
    source.mark(MOVED)
    with open_view(layout, is_live=False) as view:
        return recover_without(view, target.codec).queue.event_count


def _write_files(source: StreamPlace, target: FilesPlace, state: StreamState) -> None:
    _refuse_owner(source)
    source.mark(MOVING)
    # From now on no server opens the stream, and one that may still own it cannot append.
    chain = Chain(source.engine, source.stream, state)
    chain.fence(_ADDRESS)
    fenced = source.state()
    assert fenced is not None, "it was fenced"
    recovered = _recovered(source, fenced)
    home = target.data_dirs[0]
    unfinished = home.with_name(home.name + _UNFINISHED)
    with os_errors_as_tool_errors("write", unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)
        make_directories(unfinished)
        log_id = secrets.token_bytes(_ID_BYTES)
        identity = ChannelIdentity(source.name, state.channel_id, log_id, state.made_at_microseconds)
        ChannelFile(identity, 0, 1).write(unfinished)
        log = WriteAheadLog(SegmentFiles(OsDisk(), [unfinished], log_id), target.codec)
        asyncio.run(write_new_files(log, *contents_of(recovered)))
        with open_view(find_layout([unfinished]), is_live=False) as view:
            check_same(recovered, recover_without(view, target.codec), str(unfinished))
        now = source.state()
        if now is None or now.last_sequence != fenced.last_sequence:
            # It opened the stream just before that was marked.
            raise UnavailableError(
                f"a server has taken over channel {source.name} in the meantime; stop it, then run it again"
            )
        for path in target.directories:
            if _was_moved(path, state):
                _remove_mark(path)
        _rename(unfinished, home)


# Owners.


def _refuse_owner(place: StreamPlace) -> None:
    """Raises UnavailableError if a running server owns the channel; waits until its lease is renewed or has expired."""

    async def find() -> str:
        bucket = await JetStreamBucket.opened(place.engine, place.limits.replicas)
        entry = await bucket.read(channel_key(place.name))
        holder = Holder.decoded(entry.value) if entry else Holder()
        if not holder.session:
            return ""
        first = await bucket.read(session_key(holder.session))
        if first is None or (member := Member.decoded(first.value)).is_ended:
            return ""
        give_up_at = time.monotonic() + member.silence_seconds_max
        while True:
            # Looks once more at the end, even if this process stood still until then.
            is_over = time.monotonic() >= give_up_at
            again = await bucket.read(session_key(holder.session))
            if again is None or Member.decoded(again.value).is_ended:
                return ""
            if again.revision != first.revision:
                return holder.address
            if is_over:
                return ""
            await asyncio.sleep(_POLL_SECONDS)

    if address := asyncio.run(find()):
        raise UnavailableError(f"the server at {address} owns channel {place.name}; stop all servers that have it")


def _forget_owner(place: StreamPlace) -> None:
    async def forget() -> None:
        bucket = await JetStreamBucket.opened(place.engine, place.limits.replicas)
        key = channel_key(place.name)
        entry = await bucket.read(key)
        if entry is not None:
            await bucket.write(key, Holder().encoded(), entry.revision)

    asyncio.run(forget())
