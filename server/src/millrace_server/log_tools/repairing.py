"""Makes a damaged channel open again, after a copy of all its files was made."""

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
from millrace_server.channels.directory_lock import LOCK_FILE, lock_directory
from millrace_server.channels.names import CHANNEL_NAME_PATTERN
from millrace_server.channels.records import state_record
from millrace_server.log_tools.backing_up import BackupTools, refuse_inside
from millrace_server.log_tools.copying import Copy, copy_files, make_empty_directory, told
from millrace_server.log_tools.errors import ToolError, UsageError
from millrace_server.log_tools.frozen_disk import FrozenFile
from millrace_server.log_tools.places import LogPlaces, find_places, segment_paths
from millrace_server.log_tools.repair_plan import Plan, make_plan
from millrace_server.log_tools.verifying import Report, verify
from millrace_server.log_tools.view import take_view
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.disk import Disk, OsDisk
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Record, Submission
from millrace_server.wal.segments import SegmentFiles

_PUT_COUNT_MAX = 1_000_000
"""Sequences that one record skips."""


@dataclass(slots=True)
class Repair:
    """What was done, or would be."""

    steps: list[str] = field(default_factory=list)
    """A phrase each; none where nothing is wrong."""
    keep: Path | None = None
    """Where the copy is; None where nothing was changed."""
    report: Report | None = None
    """The channel afterwards; None where nothing was changed."""


def repair(places: LogPlaces, tools: BackupTools, *, keep: Path | None = None, is_agreed: bool = False) -> Repair:
    """Repairs a channel that no server uses, or tells how it would.

    Args:
        places: The channel.
        tools: How. Its disk is where copies go.
        keep: Where all files are copied to before anything is changed; beside the channel unless given.
        is_agreed: Whether to do it.

    Raises:
        DirectoryInUseError: A server uses the channel.
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
        DamagedError, UnavailableError: It cannot be repaired.
        ToolError: The copy could not be made, and nothing was changed; or the disk failed later on.
    """
    with _locked(places.directories):
        with take_view(places, waits=False) as view:
            plan = make_plan(view, verify(view, tools.codec, tools.progress), tools.codec)
        files = _rebuilt_files(places)
        steps = plan.steps + [f"write {path / CHANNEL_FILE} anew" for path in files]
        if not steps or not is_agreed:
            return Repair(steps)
        kept = _keep(places, keep, tools)
        try:
            _carry_out(plan, files)
            after = find_places(places.directories, places.checkpoint_dir)
            if plan.needs_record:
                _write_record(after, plan, tools.codec)
        except ToolError as error:
            # What is gone by now tells a second repair no more which sequences were granted.
            raise ToolError(f"{error}; first bring back the files as they were: they are in {kept}") from error
        with take_view(after, waits=False) as view:
            return Repair(steps, kept, verify(view, tools.codec, tools.progress))


@contextmanager
def _locked(directories: Sequence[Path]) -> Iterator[None]:
    with ExitStack() as locks:
        for directory in directories:
            locks.callback(os.close, lock_directory(directory))
        yield


def _rebuilt_files(places: LogPlaces) -> dict[Path, ChannelFile]:
    """What the directories are to say of themselves that say nothing, or nothing that can be read."""
    if not places.problems:
        return {}
    identity = places.identity or _new_identity(places)
    holding = {path.parent for _, path in segment_paths(places.directories)}
    count = max((file.count for file in places.files.values()), default=0) or len(holding) or 1
    used = {file.index for file in places.files.values()}
    free = [index for index in range(count) if index not in used]
    # One without segments may be there for checkpoints only.
    nameless = sorted(places.problems, key=lambda path: path not in holding)
    return {path: ChannelFile(identity, free.pop(0) if free else CHECKPOINTS_ONLY, count) for path in nameless}


def _new_identity(places: LogPlaces) -> ChannelIdentity:
    if not fullmatch(CHANNEL_NAME_PATTERN, places.name):
        raise UsageError(
            f"{places.directories[0]}: nothing tells the channel's name, and the directory's name is none; move its "
            "files into a directory that has the channel's name"
        )
    # Made now, so that no epoch is granted again.
    return ChannelIdentity(places.name, places.log_id, places.log_id, time.time_ns() // 1000)


def _keep(places: LogPlaces, keep: Path | None, tools: BackupTools) -> Path:
    """Copies all files before anything is changed."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    home = places.directories[0].resolve()
    target = keep or home.with_name(f"{home.name}.before-repair-{stamp}")
    refuse_inside(target, places.directories)
    make_empty_directory(target)
    copies: list[Copy] = []
    with ExitStack() as opened:
        for index, directory in enumerate(places.directories):
            folder = target / str(index) if len(places.directories) > 1 else target
            make_empty_directory(folder)
            for path in sorted(directory.iterdir()):
                if path.is_file() and path.name != LOCK_FILE:
                    with told("read", path):
                        file = opened.enter_context(closing(OsDisk().open(path)))
                        copies.append(Copy(FrozenFile(file.read, file.size()), folder / path.name))
        copy_files(tools.disk, copies, tools.progress)
    return target


def _carry_out(plan: Plan, files: dict[Path, ChannelFile]) -> None:
    # Checkpoints first: none is to point at what goes.
    disk = OsDisk()
    for path in plan.checkpoints:
        _remove(disk, path)
    for path, head in plan.headers.items():
        with told("write", path), closing(disk.open(path, writable=True)) as file:
            file.write([head], 0)
            file.sync()
    for path in plan.segments:
        _remove(disk, path)
    for path, length in plan.lengths.items():
        with told("cut", path), closing(disk.open(path, writable=True)) as file:
            file.truncate(length)
            file.sync()
    for directory, described in files.items():
        with told("write", directory / CHANNEL_FILE):
            described.write(directory)


def _remove(disk: Disk, path: Path) -> None:
    with told("remove", path):
        disk.unlink(path)
        disk.sync_directory(path.parent)


def _write_record(places: LogPlaces, plan: Plan, codec: PayloadCodec) -> None:
    """Writes what keeps sequences and epochs that were given up from being granted again."""
    data_dirs = [path for path in places.directories if places.files[path].index != CHECKPOINTS_ONLY]
    log = WriteAheadLog(SegmentFiles(OsDisk(), data_dirs, places.log_id), codec)
    ended: Future[None] = Future()

    def done(_submission: Submission, error: Exception | None) -> None:
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    with closing(log), told("write", data_dirs[0]):
        for _ in log.replay():
            # Read to its end, it is cut there and can be written behind.
            pass
        log.start(lambda call: call())
        log.submit(_last_records(plan), needs_sync=True, begins_segment=not plan.has_log, done=done)
        try:
            ended.result()
        except Exception as error:
            raise ToolError(f"cannot write to the log: {error}") from error


def _last_records(plan: Plan) -> list[Record]:
    if not plan.has_log:
        return [state_record(pb.State(next_sequence=plan.next_sequence, claim=plan.claim))]
    records: list[Record] = []
    if plan.claim is not None:
        records.append((Kind.CLAIM, [plan.claim.SerializeToString()]))
    if plan.skips_sequences:
        records += skipping_records(plan.recovered.next_sequence, plan.next_sequence)
    return records


def skipping_records(next_sequence: int, wanted: int) -> list[Record]:
    """A commit that puts empty events up to a sequence, and takes them at once."""
    commit = pb.Commit(first_sequence=next_sequence, take_records=1)
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
