"""Checks whether a channel's files are valid and agree with each other."""

import enum
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from zlib import crc32

from millrace.wire_format import Buffer
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.log_columns import read_columns
from millrace_server.channels.records import first_needed_segment
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.channels.stamps import PRODUCERS_MAX
from millrace_server.channels.transaction import ENDED_MAX, EndedTxns, Outcome, TxnState
from millrace_server.errors import ChannelCorruptError
from millrace_server.log_tools.layout import CHECKPOINT_NAMES
from millrace_server.log_tools.scanning import LogScan, ToolProgress, scan_log
from millrace_server.log_tools.view import LogView
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import PREVIOUS, Checkpoint, CheckpointFiles
from millrace_server.wal.interfaces import Log
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError, SegmentFiles


class CheckpointState(enum.Enum):
    """Whether a checkpoint can be used."""

    MISSING = "missing"
    GOOD = "good"
    STALE = "stale"
    """It is valid, but segments that it needs have been removed; the server skips it."""
    DAMAGED = "damaged"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One of the two checkpoints."""

    path: Path
    state: CheckpointState
    position: LogPosition | None = None
    """Where replay begins with it; None if it cannot be read."""
    problem: str = ""


@dataclass(slots=True)
class Report:
    """The result of checking a channel's files."""

    scan: LogScan
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    recovered: Recovered | None = None
    """The channel as a server would recover it; None if it would not open, or if nothing was decoded."""
    is_openable: bool = False
    problems: list[str] = field(default_factory=list)
    """Problems besides the damages of the scan."""

    @property
    def sentences(self) -> list[str]:
        return [*(damage.sentence for damage in self.scan.damages), *self.problems]

    @property
    def is_good(self) -> bool:
        return not self.sentences


class LogSource:
    """Reads columns from a log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def read(self, stored: StoredColumns) -> Buffer:
        try:
            [raw] = read_columns(self._log, [stored])
        except LogCorruptError as error:
            raise ChannelCorruptError(str(error)) from error
        return raw


def verify(view: LogView, codec: PayloadCodec, progress: ToolProgress, *, decodes: bool = True) -> Report:
    """Reads a whole channel, and recovers it from each point from which a server might. Changes nothing.

    Unless `decodes`, only checksums are compared. Raises KeyMissingError if a key was not given, and
    UnknownVersionError at a segment of another version.
    """
    report = Report(scan_log(view, codec, progress, decodes=decodes))
    report.problems += view.layout.problems.values()
    for name in CHECKPOINT_NAMES:
        path = view.layout.checkpoint_dir / name
        exists = path in view.checkpoint_paths
        report.checkpoints.append(
            _check_checkpoint(view, codec, path)
            if exists and decodes
            else CheckpointReport(path, CheckpointState.UNCHECKED if exists else CheckpointState.MISSING)
        )
    report.problems += [
        f"{one.path.name}: {one.problem}" for one in report.checkpoints if one.state is CheckpointState.DAMAGED
    ]
    if decodes:
        starts = _starts(view, codec, progress, report)
        compare_recoveries(report, starts, partial(recover_without, view, codec))
        report.is_openable = report.recovered is not None and not view.layout.problems
    return report


def checkpoint_files(view: LogView, codec: PayloadCodec, others: Sequence[Path] = ()) -> CheckpointFiles:
    """Returns the checkpoints of a view, except for `others`."""
    layout = view.layout
    disk = view.disk.without(others)
    return CheckpointFiles(disk, layout.checkpoint_dir, layout.log_id, keeps_previous=True, codec=codec)


def _check_checkpoint(view: LogView, codec: PayloadCodec, path: Path) -> CheckpointReport:
    files = checkpoint_files(view, codec, [other for other in view.checkpoint_paths if other != path])
    checkpoint = next(files.valid_checkpoints(), None)
    if checkpoint is None:
        problem = "is damaged, or no checkpoint of this channel"
        return CheckpointReport(path, CheckpointState.DAMAGED, problem=problem)
    return _check_references(view, path, checkpoint)


def _check_references(view: LogView, path: Path, checkpoint: Checkpoint) -> CheckpointReport:
    message = pb.Checkpoint.FromString(checkpoint.state)
    position = checkpoint.position
    needed = first_needed_segment(message, position)
    first = view.segments[0].segment_id if view.segments else 0
    last = view.segments[-1].segment_id if view.segments else 0
    state, problem = CheckpointState.GOOD, ""
    if position.segment_id > last:
        state, problem = CheckpointState.DAMAGED, f"needs segment {position.segment_id}, and the log ends before it"
    elif needed < first:
        problem = f"needs segment {needed}, and the log begins after it"
        # A channel that stops keeping the previous checkpoint leaves its file behind.
        state = CheckpointState.STALE if path.name == PREVIOUS else CheckpointState.DAMAGED
    return CheckpointReport(path, state, position, problem)


def recover_from(view: LogView, codec: PayloadCodec, checkpoint: Path | None) -> Recovered:
    """Recovers a channel as a server would if it had only this checkpoint, or none."""
    return recover_without(view, codec, [path for path in view.checkpoint_paths if path != checkpoint])


def recover_without(view: LogView, codec: PayloadCodec, left_out: Sequence[Path] = ()) -> Recovered:
    """Recovers a channel as a server would without some of its checkpoints; raises LogCorruptError if that fails."""
    # The server's own recovery on a read-only disk, so that the tools come to the same result as the server.
    log = WriteAheadLog(SegmentFiles(view.disk, view.layout.directories, view.layout.log_id), codec)
    files = checkpoint_files(view, codec, left_out)
    return recover(log, files, LogSource(log), ReplayProgress(), read_only=True)


def _starts(
    view: LogView, codec: PayloadCodec, progress: ToolProgress, report: Report
) -> Iterator[tuple[str, Callable[[], Recovered]]]:
    starts: list[Path | None] = [one.path for one in report.checkpoints if one.state is CheckpointState.GOOD]
    if report.scan.first_loss is None:
        starts.append(None)
    progress.begin("recovering", view.byte_count * len(starts))
    for start in starts:
        yield start.name if start else "no checkpoint", partial(recover_from, view, codec, start)
        progress.advance(view.byte_count)


def compare_recoveries(
    report: Report, starts: Iterable[tuple[str, Callable[[], Recovered]]], recover_all: Callable[[], Recovered]
) -> None:
    """Recovers a channel from each start, the server's own last, and reports those with different results."""
    first = ""
    for name, recover_one in starts:
        try:
            recovered = recover_one()
        except LogCorruptError as error:
            _add_problem(report, f"the channel does not open with {name}: {error}")
            continue
        if report.recovered is None:
            first, report.recovered = name, recovered
        elif differing := differences(report.recovered, recovered):
            report.problems.append(
                f"recovery with {name} and with {first} gives different channels: {', '.join(differing)}"
            )
    if not report.is_good:
        report.recovered = None
        with suppress(LogCorruptError):
            report.recovered = recover_all()


def _add_problem(report: Report, sentence: str) -> None:
    """Adds a problem unless the scan has reported it already."""
    if not any(sentence.endswith(known) or known.startswith(sentence) for known in report.sentences):
        report.problems.append(sentence)


def differences(one: Recovered, other: Recovered, *, compares_segments: bool = True) -> list[str]:
    """Returns how two recoveries of a channel differ; with `compares_segments`, also in the segments of events."""
    found: list[str] = []
    if batches_of(one, has_segments=compares_segments) != batches_of(other, has_segments=compares_segments):
        found.append(f"it holds {one.queue.event_count} events and {other.queue.event_count}")
    if one.next_sequence != other.next_sequence:
        found.append(f"its next sequence is {one.next_sequence} and {other.next_sequence}")
    if _ledgers_differ(one, other):
        found.append("it has accepted other numbers of its producers")
    if _endings_differ(one.ended, other.ended):
        found.append("other transactions were committed")
    if one.claim != other.claim:
        found.append(f"its claim is {one.claim} and {other.claim}")
    return found


def batches_of(recovered: Recovered, *, has_segments: bool = True) -> Sequence[tuple[int, int, int, int, int]]:
    """Returns a queue as contiguous ranges.

    Each has its first and end sequence, its segment, the bytes of its bodies, and a checksum of the commit times.
    Batches cannot be compared, since where the recovery began decides which small ones form a run.
    """
    ranges: list[tuple[int, int, int, int, int]] = []
    for batch in recovered.queue:
        location = batch.window.stored.location
        assert location is not None, "what is recovered is in the log"
        first, body_bytes = batch.first_sequence, batch.window.body_bytes
        segment_id = location.segment_id if has_segments else 0
        checksum = 0
        if ranges and ranges[-1][1:3] == (first, segment_id):
            first, _, _, body_bytes_before, checksum = ranges.pop()
            body_bytes += body_bytes_before
        times = [batch.first_time + offset for offset in batch.commit_offsets()] or [batch.first_time] * batch.count
        checksum = crc32(array("Q", times), checksum)
        ranges.append((first, batch.end_sequence, segment_id, body_bytes, checksum))
    return ranges


def _ledgers_differ(one: Recovered, other: Recovered) -> bool:
    mine, theirs = dict(one.ledger.producers()), dict(other.ledger.producers())
    if len(mine) >= PRODUCERS_MAX or len(theirs) >= PRODUCERS_MAX:
        # Which producers were forgotten depends on where replay began.
        return any(mine[name] != theirs[name] for name in mine.keys() & theirs.keys())
    return mine != theirs


def _endings_differ(one: EndedTxns, other: EndedTxns) -> bool:
    mine, theirs = dict(one.items()), dict(other.items())
    if any(_result(mine[txn_id]) != _result(theirs[txn_id]) for txn_id in mine.keys() & theirs.keys()):
        return True
    if len(mine) >= ENDED_MAX or len(theirs) >= ENDED_MAX:
        return False
    # Rollbacks are logged only if the disk has space, so only committed transactions must agree.
    known = mine | theirs
    return any(known[txn_id].state is TxnState.COMMITTED for txn_id in mine.keys() ^ theirs.keys())


def _result(outcome: Outcome) -> tuple[object, object]:
    return outcome.state, outcome.receipt
