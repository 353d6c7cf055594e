"""Tells whether a channel's files are what they must be."""

import enum
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from millrace.wire_format import Buffer
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.channels.stamps import PRODUCERS_MAX
from millrace_server.channels.transactions import ENDED_MAX, EndedTxns, Outcome, TxnState
from millrace_server.log_tools.frozen_disk import FrozenDisk
from millrace_server.log_tools.places import CHECKPOINT_NAMES
from millrace_server.log_tools.progress import ToolProgress
from millrace_server.log_tools.survey import Survey, survey_log
from millrace_server.log_tools.view import LogView
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import PREVIOUS, Checkpoint, CheckpointFiles
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError, SegmentFiles


class CheckpointState(enum.Enum):
    """What a checkpoint is good for."""

    MISSING = "missing"
    GOOD = "good"
    STALE = "stale"
    """It holds together, but the log has gone on without what it needs; the server passes it over."""
    DAMAGED = "damaged"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One of the two checkpoints."""

    path: Path
    state: CheckpointState
    position: LogPosition | None = None
    """Where replay begins with it; None where it cannot be read."""
    channel_state: pb.State | None = None
    """How the channel stood there, but for its events."""
    first_needed_segment: int = 0
    """The oldest segment that has anything of it."""
    problem: str = ""


@dataclass(slots=True)
class Report:
    """All that there is to say about a channel's files."""

    survey: Survey
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    recovered: Recovered | None = None
    """The channel as the server would find it; None where its log would not open, or nothing was opened."""
    is_openable: bool = False
    """Whether a server opens the channel."""
    problems: list[str] = field(default_factory=list)
    """What is wrong beside the damages of the survey."""

    @property
    def sentences(self) -> list[str]:
        """All that is wrong."""
        return [*(damage.sentence for damage in self.survey.damages), *self.problems]

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.sentences


class LogSource:
    """Reads columns back from a log."""

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log

    def read(self, stored: StoredColumns) -> Buffer:
        """The columns as they came."""
        assert stored.location is not None
        return self._log.read(stored.location)


def verify(view: LogView, codec: PayloadCodec, progress: ToolProgress, *, opens: bool = True) -> Report:
    """Reads all that a channel has, and recovers it from each place from which the server might. Changes nothing.

    Args:
        view: The channel's files.
        codec: Opens payloads.
        progress: Told how far it is.
        opens: Whether payloads are opened; else only checksums are compared.

    Raises:
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
    """
    report = Report(survey_log(view, codec, progress, opens=opens))
    report.problems += view.places.problems.values()
    for name in CHECKPOINT_NAMES:
        path = view.places.checkpoint_dir / name
        is_there = path in view.checkpoint_paths
        report.checkpoints.append(
            _check_checkpoint(view, codec, path)
            if is_there and opens
            else CheckpointReport(path, CheckpointState.UNCHECKED if is_there else CheckpointState.MISSING)
        )
    report.problems += [
        f"{one.path.name}: {one.problem}" for one in report.checkpoints if one.state is CheckpointState.DAMAGED
    ]
    if opens:
        _compare_recoveries(view, codec, progress, report)
    return report


def _check_checkpoint(view: LogView, codec: PayloadCodec, path: Path) -> CheckpointReport:
    others = [other for other in view.checkpoint_paths if other != path]
    files = CheckpointFiles(
        view.disk.without(others),
        view.places.checkpoint_dir,
        view.places.log_id,
        keeps_previous=True,
        codec=codec,
    )
    checkpoint = next(files.good_ones(), None)
    if checkpoint is None:
        return CheckpointReport(path, CheckpointState.DAMAGED, problem="is damaged, or no checkpoint of this channel")
    return _judged(view, path, checkpoint)


def _judged(view: LogView, path: Path, checkpoint: Checkpoint) -> CheckpointReport:
    message = pb.Checkpoint.FromString(checkpoint.state)
    position = checkpoint.position
    needed = min([*message.batches.segment_ids, position.segment_id])
    first = view.segments[0].segment_id if view.segments else 0
    last = view.segments[-1].segment_id if view.segments else 0
    state, problem = CheckpointState.GOOD, ""
    if position.segment_id > last:
        state, problem = CheckpointState.DAMAGED, f"needs segment {position.segment_id}, and the log ends before it"
    elif needed < first:
        problem = f"needs segment {needed}, and the log begins behind it"
        # The one before may have been left there when it was not to be kept any more.
        state = CheckpointState.STALE if path.name == PREVIOUS else CheckpointState.DAMAGED
    return CheckpointReport(path, state, position, message.state, needed, problem)


def recover_from(view: LogView, codec: PayloadCodec, checkpoint: Path | None) -> Recovered:
    """A channel as the server would find it with this checkpoint, or with none.

    Raises:
        LogCorruptError: It would not open.
    """
    others = [path for path in view.checkpoint_paths if path != checkpoint]
    return _recover(view, codec, view.disk.without(others))


def recover_as_found(view: LogView, codec: PayloadCodec) -> Recovered:
    """A channel as the server would find it.

    Raises:
        LogCorruptError: It would not open.
    """
    return _recover(view, codec, view.disk)


def _recover(view: LogView, codec: PayloadCodec, disk: FrozenDisk) -> Recovered:
    places = view.places
    log = WriteAheadLog(SegmentFiles(disk, places.directories, places.log_id), codec)
    files = CheckpointFiles(disk, places.checkpoint_dir, places.log_id, keeps_previous=True, codec=codec)
    return recover(log, files, LogSource(log), ReplayProgress(), settles=False)


def _compare_recoveries(view: LogView, codec: PayloadCodec, progress: ToolProgress, report: Report) -> None:
    starts: list[Path | None] = [one.path for one in report.checkpoints if one.state is CheckpointState.GOOD]
    if report.survey.first_loss is None:
        starts.append(None)
    progress.begin("recovering", view.byte_count * len(starts))
    first: tuple[str, Recovered] | None = None
    for start in starts:
        name = start.name if start else "no checkpoint"
        try:
            recovered = recover_from(view, codec, start)
        except LogCorruptError as error:
            _tell_new(report, f"the channel does not open with {name}: {error}")
        else:
            if first is None:
                first = name, recovered
                report.recovered = recovered
            elif differing := differences(first[1], recovered):
                report.problems.append(
                    f"the channel with {name} is another one than with {first[0]}: {', '.join(differing)}"
                )
        progress.advance(view.byte_count)
    if not report.is_good:
        report.recovered = None
        with suppress(LogCorruptError):
            report.recovered = recover_as_found(view, codec)
    report.is_openable = report.recovered is not None and not view.places.problems


def _tell_new(report: Report, sentence: str) -> None:
    """Tells what the survey has not told already."""
    if not any(sentence.endswith(known) or known.startswith(sentence) for known in report.sentences):
        report.problems.append(sentence)


def differences(one: Recovered, other: Recovered) -> list[str]:
    """In what two recoveries of one channel differ."""
    found: list[str] = []
    if batches_of(one) != batches_of(other):
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


def batches_of(recovered: Recovered) -> Sequence[tuple[int, object, int, int, int]]:
    """Each batch of a queue: its first sequence, its place, and what of the record there it is."""
    return [
        (batch.first_sequence, window.stored.location, window.start, window.stop, window.body_bytes)
        for batch in recovered.queue
        for window in [batch.window]
    ]


def _ledgers_differ(one: Recovered, other: Recovered) -> bool:
    mine, theirs = dict(one.ledger.producers()), dict(other.ledger.producers())
    if len(mine) >= PRODUCERS_MAX or len(theirs) >= PRODUCERS_MAX:
        # Which are forgotten may depend on where reading began.
        return any(mine[name] != theirs[name] for name in mine.keys() & theirs.keys())
    return mine != theirs


def _endings_differ(one: EndedTxns, other: EndedTxns) -> bool:
    mine, theirs = dict(one.items()), dict(other.items())
    if any(_differ(mine[txn_id], theirs[txn_id]) for txn_id in mine.keys() & theirs.keys()):
        return True
    if len(mine) >= ENDED_MAX or len(theirs) >= ENDED_MAX:
        return False
    # That a rollback is known rests on a record for which the disk may have had no room.
    known = mine | theirs
    return any(known[txn_id].state is TxnState.COMMITTED for txn_id in mine.keys() ^ theirs.keys())


def _differ(one: Outcome, other: Outcome) -> bool:
    return (one.state, one.receipt) != (other.state, other.receipt)
