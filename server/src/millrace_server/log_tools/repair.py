"""Repairs a damaged channel, after copying all of its files.

A damaged log is not modified: the readable part is written as a new log, which replaces it. Other repairs need no new
log: damaged checkpoints are removed, since the log has everything that was in them, and a missing `channel.json` is
rebuilt from the segments and the other directories.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from re import fullmatch

from millrace_server.channels.channel_file import CHANNEL_FILE, CHECKPOINTS_ONLY, ChannelFile, ChannelIdentity
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.config import CHANNEL_NAME_PATTERN
from millrace_server.channels.directories import KEPT_INFIX, LOCK_FILE, REPAIRED, finish_repair, locked_directories
from millrace_server.channels.records import State
from millrace_server.log_tools import backup
from millrace_server.log_tools.backup import Copy, ToolContext, os_errors_as_tool_errors
from millrace_server.log_tools.event_index import shown_ranges
from millrace_server.log_tools.layout import (
    ChannelLayout,
    DamagedError,
    ToolError,
    UnavailableError,
    UsageError,
    find_layout,
    segment_paths,
)
from millrace_server.log_tools.log_copy import Part, state_of, write_new_files
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.salvage import PieceReader, Salvage, salvage
from millrace_server.log_tools.scanning import DamageKind
from millrace_server.log_tools.verify import CheckpointState, Report, differences, recover_from, verify
from millrace_server.log_tools.view import LogView, open_view
from millrace_server.wal.disk import Disk, OsDisk
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError, SegmentFiles


@dataclass(slots=True)
class Repair:
    """A repair that was done, or that would be done."""

    steps: list[str] = field(default_factory=list)
    """A phrase for each step; empty if nothing is damaged."""
    salvage: Salvage | None = None
    """The contents of the new log; None if the log stays unchanged."""
    keep: Path | None = None
    """The copy of the files; None if nothing was changed."""
    report: Report | None = None
    """The channel afterwards; None if nothing was changed."""


def repair(layout: ChannelLayout, tools: ToolContext, *, keep: Path | None = None, applies: bool = False) -> Repair:
    """Repairs a channel that no server uses, or only returns the steps.

    With `applies`, all files are first copied to `keep`, by default next to the channel. If the repair is interrupted,
    the channel is either unchanged or repaired.

    Raises:
        DirectoryInUseError: A server uses the channel.
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
        DamagedError, UnavailableError: It cannot be repaired.
        ToolError: The copy or the new log could not be written, and nothing was changed; or the disk failed later.
    """
    with locked_directories(layout.directories):
        with open_view(layout, is_live=False) as view:
            done, checkpoints = _plan(view, tools)
            files = _rebuilt_files(layout)
            done.steps += [f"rewrite {path / CHANNEL_FILE}" for path in files]
            if not done.steps or not applies:
                return done
            done.keep = _keep(layout, keep, tools)
            files = {**layout.files, **files}
            if done.salvage is not None:
                _write_log(view, done.salvage, files, tools)
        for path in checkpoints:
            _remove(tools.disk, path)
        first_id = done.salvage.next_segment_id if done.salvage else 0
        # A new log lacks no events from memory.
        has_memory = layout.has_memory and not first_id
        marked = {path: replace(file, repaired_from=first_id, has_memory=has_memory) for path, file in files.items()}
        for path, file in marked.items():
            if file != layout.files.get(path):
                with os_errors_as_tool_errors("write", path / CHANNEL_FILE):
                    file.write(path)
        finish_repair(marked)
        with open_view(find_layout(layout.directories, layout.checkpoint_dir), is_live=False) as view:
            done.report = verify(view, tools.codec, tools.progress)
    return done


def _plan(view: LogView, tools: ToolContext) -> tuple[Repair, list[Path]]:
    """Returns the repair and the checkpoints that are to be removed."""
    report = verify(view, tools.codec, tools.progress)
    for damage in report.scan.damages:
        if damage.kind is DamageKind.UNDECODABLE:
            raise UnavailableError(
                f"{damage.sentence}; its checksum matches, so someone has changed it; no data is given up for it"
            )
        if damage.kind is DamageKind.FOREIGN:
            raise DamagedError(
                f"{damage.sentence}; move away what does not belong here, or give it the name of its own segment, then "
                "start again"
            )
    # The log is also damaged if a valid checkpoint needs segments that are gone, or covers more than the log has.
    knows_more = any(
        (one.state is CheckpointState.DAMAGED and one.position is not None)
        or (one.state is CheckpointState.GOOD and _is_unusable(view, tools.codec, one.path))
        for one in report.checkpoints
    )
    if report.scan.damages or knows_more or _is_unusable(view, tools.codec, None):
        found = salvage(view, tools.codec)
        return Repair([*_steps(found)], found), []
    damaged = [one for one in report.checkpoints if one.problem]
    return Repair([f"remove {one.path.name}, which {one.problem}" for one in damaged]), [one.path for one in damaged]


def _is_unusable(view: LogView, codec: PayloadCodec, checkpoint: Path | None) -> bool:
    """Whether recovery from a valid checkpoint, or from the log alone, fails or differs from that of the whole log."""
    try:
        return bool(differences(recover_from(view, codec, None), recover_from(view, codec, checkpoint)))
    except LogCorruptError:
        return True


def _steps(found: Salvage) -> Iterator[str]:
    yield f"rewrite the log with the {found.event_count} readable events of the channel"
    if found.lost:
        yield f"give up {found.lost_sentence}"
    if found.redelivered:
        yield f"keep sequences {shown_ranges(found.redelivered)}, although the lost records may have consumed them"
    if found.is_renumbered:
        if found.pieces:
            yield "number the events from 1 on, since no record states their sequences"
        else:
            begin = found.recovered.next_sequence
            yield f"continue with sequence {begin}, since no record states which sequences were used"
        yield "forget all stamps: repeats of any event are stored again"
    elif found.unstamped:
        yield f"forget the stamps of sequences {shown_ranges(found.unstamped)}: repeats of these are stored again"
    if found.is_doubtful:
        yield "end the claim, so that no epoch is granted twice"


def _rebuilt_files(layout: ChannelLayout) -> dict[Path, ChannelFile]:
    """Returns new `channel.json` files for the directories without a readable one."""
    if not layout.problems:
        return {}
    identity = layout.identity or _new_identity(layout)
    holding = {path.parent for _, path in segment_paths(layout.directories)}
    count = max((file.count for file in layout.files.values()), default=0) or len(holding) or 1
    used = {file.index for file in layout.files.values()}
    free = [index for index in range(count) if index not in used]
    # Those with segments first: one without segments may have held only checkpoints.
    nameless = sorted(layout.problems, key=lambda path: path not in holding)
    return {path: ChannelFile(identity, free.pop(0) if free else CHECKPOINTS_ONLY, count) for path in nameless}


def _new_identity(layout: ChannelLayout) -> ChannelIdentity:
    if not fullmatch(CHANNEL_NAME_PATTERN, layout.name):
        raise UsageError(
            f"{layout.directories[0]}: no file states the channel's name, and the directory's name is not a valid one; "
            "move its files into a directory that has the channel's name"
        )
    # Epochs count up from the creation time, so with the current time none is granted twice.
    return ChannelIdentity(layout.name, layout.log_id, layout.log_id, time.time_ns() // 1000)


def _keep(layout: ChannelLayout, keep: Path | None, tools: ToolContext) -> Path:
    """Copies all files and returns where."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    home = layout.directories[0].resolve()
    target = keep or home.with_name(f"{home.name}{KEPT_INFIX}{stamp}")
    backup.check_outside(target, layout.directories)
    backup.make_empty_directory(target)
    copies: list[Copy] = []
    with ExitStack() as opened:
        for index, directory in enumerate(layout.directories):
            folder = target / str(index) if len(layout.directories) > 1 else target
            backup.make_empty_directory(folder)
            for path in sorted(directory.iterdir()):
                if path.is_file() and path.name != LOCK_FILE:
                    with os_errors_as_tool_errors("read", path):
                        file = opened.enter_context(closing(OsDisk().open(path)))
                        copies.append(Copy(ReadOnlyFile(file.read, file.size()), folder / path.name))
        backup.copy_files(tools.disk, copies, tools.progress)
    return target


def _remove(disk: Disk, path: Path) -> None:
    with os_errors_as_tool_errors("remove", path):
        disk.unlink(path)
        disk.sync_directory(path.parent)


def _write_log(view: LogView, found: Salvage, files: dict[Path, ChannelFile], tools: ToolContext) -> None:
    """Writes the new log below the directories, and checks that it has all that it should have."""
    by_index = sorted((file.index, path) for path, file in files.items() if file.index != CHECKPOINTS_ONLY)
    directories = [path / REPAIRED for _, path in by_index]
    for directory in directories:
        with os_errors_as_tool_errors("write", directory):
            # An interrupted attempt may have left one.
            shutil.rmtree(directory, ignore_errors=True)
            backup.make_empty_directory(directory)
    layout = replace(view.layout, directories=tuple(directories), checkpoint_dir=directories[0], files={}, problems={})
    follows = LogPosition(found.next_segment_id - 1, 0, found.next_lsn)
    codec = _codec_like(tools.codec, found)
    log = WriteAheadLog(SegmentFiles(tools.disk, directories, layout.log_id), codec, follows=follows)
    with os_errors_as_tool_errors("write", directories[0]):
        try:
            asyncio.run(write_new_files(log, _new_state(found), _parts(found, PieceReader(view, tools.codec))))
        except ToolError as error:
            raise type(error)(f"{error}; nothing was changed") from error
    with open_view(layout, is_live=False) as written:
        after = verify(written, codec, tools.progress)
    if after.recovered is None or not after.is_good or after.recovered.queue.event_count != found.event_count:
        raise DamagedError(f"{directories[0]}: the disk returns other bytes than were written")


def _codec_like(codec: PayloadCodec, found: Salvage) -> PayloadCodec:
    """Returns a codec that encodes like the newest records, so that encrypted events stay encrypted."""
    return replace(
        codec,
        active_key_id=codec.active_key_id or found.key_id,
        compresses=codec.compresses or found.is_compressed,
    )


def _new_state(found: Salvage) -> State:
    first_sequence = found.pieces[0].first_sequence if found.pieces else None
    state = state_of(found.recovered, first_sequence, found.pieces[-1].last_sequence + 1 if found.pieces else 0)
    if not found.is_doubtful:
        return state
    # Epochs are microseconds since 1970 or higher, so with the current time none is granted twice.
    epoch = max(time.time_ns() // 1000, state.claim.epoch if state.claim else 0)
    reader_id = state.claim.reader_id if state.claim else ""
    return replace(state, claim=ClaimRecord(reader_id, epoch, 0.0, has_ended=True))


def _parts(found: Salvage, reader: PieceReader) -> Iterator[Part]:
    for piece in found.pieces:
        columns = reader.read(piece)
        if columns is None:
            raise DamagedError(f"sequence {piece.first_sequence} can no longer be read")
        first_time, offsets = piece.commit_times
        yield piece.first_sequence, columns, [first_time + offset for offset in offsets or [0] * piece.event_count]
