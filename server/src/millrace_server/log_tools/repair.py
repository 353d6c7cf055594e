"""Repairs a damaged channel, after copying all of its files."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from re import fullmatch

from millrace.v1 import event_pb2
from millrace_server.channels.channel_file import CHANNEL_FILE, CHECKPOINTS_ONLY, ChannelFile, ChannelIdentity
from millrace_server.channels.config import CHANNEL_NAME_PATTERN
from millrace_server.channels.directories import LOCK_FILE, lock_directory
from millrace_server.channels.records import state_record
from millrace_server.log_tools import backup
from millrace_server.log_tools.backup import Copy, ToolContext, os_errors_as_refusals
from millrace_server.log_tools.layout import ChannelLayout, ToolError, UsageError, find_layout, segment_paths
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.repair_plan import Plan, make_plan
from millrace_server.log_tools.verify import Report, verify
from millrace_server.log_tools.view import open_view
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.disk import Disk, OsDisk
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Record, Submission
from millrace_server.wal.segments import SegmentFiles

_PUT_COUNT_MAX = 1_000_000
"""Sequences that one PUT record skips."""


@dataclass(slots=True)
class Repair:
    """A repair that was done, or would be."""

    steps: list[str] = field(default_factory=list)
    """A phrase for each; empty if nothing is wrong."""
    keep: Path | None = None
    """The copy of the files; None if nothing was changed."""
    report: Report | None = None
    """The channel afterwards; None if nothing was changed."""


def repair(layout: ChannelLayout, tools: ToolContext, *, keep: Path | None = None, applies: bool = False) -> Repair:
    """Repairs a channel that no server uses, or returns how it would.

    If it `applies` the steps, it first copies all files to `keep`, or next to the channel.

    Raises:
        DirectoryInUseError: A server uses the channel.
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
        DamagedError, UnavailableError: It cannot be repaired.
        ToolError: The copy failed, and nothing was changed; or the disk failed later.
    """
    with _locked(layout.directories):
        with open_view(layout, is_live=False) as view:
            plan = make_plan(view, verify(view, tools.codec, tools.progress), tools.codec)
        files = _rebuilt_files(layout)
        steps = plan.steps + [f"rewrite {path / CHANNEL_FILE}" for path in files]
        if not steps or not applies:
            return Repair(steps)
        kept = _keep(layout, keep, tools)
        try:
            _carry_out(plan, files)
            after = find_layout(layout.directories, layout.checkpoint_dir)
            if plan.needs_record:
                _write_record(after, plan, tools.codec)
        except ToolError as error:
            # A second repair could not know any more which sequences and epochs were granted.
            raise ToolError(f"{error}; before the next attempt, restore the original files from {kept}") from error
        with open_view(after, is_live=False) as view:
            return Repair(steps, kept, verify(view, tools.codec, tools.progress))


@contextmanager
def _locked(directories: Sequence[Path]) -> Iterator[None]:
    with ExitStack() as locks:
        for directory in directories:
            locks.callback(os.close, lock_directory(directory))
        yield


def _rebuilt_files(layout: ChannelLayout) -> dict[Path, ChannelFile]:
    """Returns new `channel.json` files for the directories without a readable one."""
    if not layout.problems:
        return {}
    identity = layout.identity or _new_identity(layout)
    holding = {path.parent for _, path in segment_paths(layout.directories)}
    count = max((file.count for file in layout.files.values()), default=0) or len(holding) or 1
    used = {file.index for file in layout.files.values()}
    free = [index for index in range(count) if index not in used]
    # Those with segments first: one without may have been for checkpoints only.
    nameless = sorted(layout.problems, key=lambda path: path not in holding)
    return {path: ChannelFile(identity, free.pop(0) if free else CHECKPOINTS_ONLY, count) for path in nameless}


def _new_identity(layout: ChannelLayout) -> ChannelIdentity:
    if not fullmatch(CHANNEL_NAME_PATTERN, layout.name):
        raise UsageError(
            f"{layout.directories[0]}: no file states the channel's name, and the directory's name is not a valid one; "
            "move its files into a directory that has the channel's name"
        )
    # Epochs count up from the creation time. Created now, so that none is granted again.
    return ChannelIdentity(layout.name, layout.log_id, layout.log_id, time.time_ns() // 1000)


def _keep(layout: ChannelLayout, keep: Path | None, tools: ToolContext) -> Path:
    """Copies all files and returns where."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    home = layout.directories[0].resolve()
    target = keep or home.with_name(f"{home.name}.before-repair-{stamp}")
    backup.check_outside(target, layout.directories)
    backup.make_empty_directory(target)
    copies: list[Copy] = []
    with ExitStack() as opened:
        for index, directory in enumerate(layout.directories):
            folder = target / str(index) if len(layout.directories) > 1 else target
            backup.make_empty_directory(folder)
            for path in sorted(directory.iterdir()):
                if path.is_file() and path.name != LOCK_FILE:
                    with os_errors_as_refusals("read", path):
                        file = opened.enter_context(closing(OsDisk().open(path)))
                        copies.append(Copy(ReadOnlyFile(file.read, file.size()), folder / path.name))
        backup.copy_files(tools.disk, copies, tools.progress)
    return target


def _carry_out(plan: Plan, files: dict[Path, ChannelFile]) -> None:
    # Checkpoints first: none may refer to a segment that is removed.
    disk = OsDisk()
    for path in plan.checkpoints:
        _remove(disk, path)
    for path, head in plan.headers.items():
        with os_errors_as_refusals("write", path), closing(disk.open(path, writable=True)) as file:
            file.write([head], 0)
            file.sync()
    for path in plan.segments:
        _remove(disk, path)
    for path, length in plan.lengths.items():
        with os_errors_as_refusals("cut", path), closing(disk.open(path, writable=True)) as file:
            file.truncate(length)
            file.sync()
    for directory, described in files.items():
        with os_errors_as_refusals("write", directory / CHANNEL_FILE):
            described.write(directory)


def _remove(disk: Disk, path: Path) -> None:
    with os_errors_as_refusals("remove", path):
        disk.unlink(path)
        disk.sync_directory(path.parent)


def _write_record(layout: ChannelLayout, plan: Plan, codec: PayloadCodec) -> None:
    """Writes the records that keep lost sequences and epochs from being granted again."""
    data_dirs = [path for path in layout.directories if layout.files[path].index != CHECKPOINTS_ONLY]
    log = WriteAheadLog(SegmentFiles(OsDisk(), data_dirs, layout.log_id), codec)
    ended: Future[Exception | None] = Future()

    def done(_submission: Submission, error: Exception | None) -> None:
        ended.set_result(error)

    with closing(log), os_errors_as_refusals("write", data_dirs[0]):
        for _ in log.replay():
            # Replay to the end truncates the tail and makes the log writable.
            pass
        log.start(lambda call: call())
        log.submit(_last_records(plan), needs_sync=True, begins_segment=not plan.has_log, done=done)
        if (error := ended.result()) is not None:
            raise ToolError(f"cannot write to the log: {error}") from error


def _last_records(plan: Plan) -> list[Record]:
    if not plan.has_log:
        state = pb.State(next_sequence=plan.next_sequence, claim=plan.claim, last_commit_time=plan.last_commit_time)
        return [state_record(state)]
    records: list[Record] = []
    if plan.claim is not None:
        records.append((Kind.CLAIM, [plan.claim.SerializeToString()]))
    if plan.skips_sequences:
        records += skipping_records(plan.recovered.next_sequence, plan.next_sequence, plan.last_commit_time)
    return records


def skipping_records(next_sequence: int, wanted: int, commit_time: int = 0) -> list[Record]:
    """Returns a commit that puts empty events up to a sequence and takes them at once."""
    commit = pb.Commit(first_sequence=next_sequence, take_records=1, commit_time=commit_time)
    take = pb.Take()
    records: list[Record] = []
    for first in range(next_sequence, wanted, _PUT_COUNT_MAX):
        count = min(_PUT_COUNT_MAX, wanted - first)
        payload = event_pb2.EventColumns(count=count, body_sizes=[0] * count).SerializeToString()
        records.append((Kind.PUT, [payload]))
        commit.put_counts.append(count)
        commit.put_body_bytes.append(0)
        commit.put_raw_bytes.append(len(payload))
        take.first_sequences.append(first)
        take.counts.append(count)
        take.body_bytes.append(0)
    return [*records, (Kind.TAKE, [take.SerializeToString()]), (Kind.COMMIT, [commit.SerializeToString()])]
