"""A channel's log in a stream of an engine, as the tools read it. Importing this imports the engine's library."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.v1 import event_pb2
from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.dump import Document, DumpStart, RecordDecoder
from millrace_server.log_tools.export import Exported, write_events
from millrace_server.log_tools.layout import CHECKPOINT_NAMES, ChannelLayout
from millrace_server.log_tools.scanning import Damage, DamageKind, LogScan, SegmentSummary, ToolProgress
from millrace_server.log_tools.stream_view import StreamView
from millrace_server.log_tools.verify import CheckpointReport, CheckpointState, Report, compare_recoveries
from millrace_server.replication.groups import GroupBytes
from millrace_server.replication.messages import Message
from millrace_server.wal.reading import SegmentScanner
from millrace_server.wal.segments import LogCorruptError, Segment


@dataclass(frozen=True, slots=True)
class ReadableStream:
    """A log in a stream at one moment; see `ReadableFiles`."""

    view: StreamView

    @property
    def layout(self) -> ChannelLayout:
        return self.view.layout

    @property
    def torn_bytes(self) -> int:
        return 0

    def verify(self, progress: ToolProgress, *, decodes: bool) -> Report:
        report = Report(_Scan(self.view, progress, decodes=decodes).result())
        if not decodes:
            return report
        checkpoints = self.view.checkpoints()
        for index, name in enumerate(CHECKPOINT_NAMES):
            found = checkpoints[index] if index < len(checkpoints) else None
            state = CheckpointState.GOOD if found else CheckpointState.MISSING
            report.checkpoints.append(CheckpointReport(Path(name), state, found.position if found else None))
        starts = {name: [one] for name, one in zip(CHECKPOINT_NAMES, checkpoints, strict=False)}
        if self.view.chain.state.first_sequence <= 1:
            starts["no checkpoint"] = []
        if not starts:
            report.problems.append("the stream does not begin with its first message, and there is no valid checkpoint")
        recoveries = [(name, partial(self.view.recover, only)) for name, only in starts.items()]
        compare_recoveries(report, recoveries, self.view.recover)
        report.is_openable = report.recovered is not None
        return report

    def dump(self, start: DumpStart | None, *, shows_bodies: bool) -> Iterator[Document]:
        decoder = RecordDecoder(self.view.codec, shows_bodies=shows_bodies)
        first = start.segment_id if start else 0
        for sequence, item in self.view.items():
            if sequence < first:
                continue
            match item:
                case LogCorruptError():
                    yield {"segment": sequence, "position": 0, "damage": str(item)}
                case Message():
                    yield _message_document(sequence, item)
                case Segment():
                    scanner = SegmentScanner(item.file, item.header)
                    for record in scanner.records(GroupBytes.of(item).start):
                        yield decoder.document(sequence, scanner, record)

    def recover(self) -> Recovered:
        return self.view.recover()

    def export(self, path: Path, *, is_avro: bool) -> Exported:
        """Also raises LogCorruptError if the channel does not open, or an event cannot be read."""
        queue = self.view.recover().queue
        batches = (
            (one.first_sequence, event_pb2.EventColumns.FromString(bytes(one.window.columns()))) for one in queue
        )
        write_events(path, batches, is_avro=is_avro)
        return Exported(queue.event_count)


class _Scan:
    """Reads the groups of a stream in order."""

    def __init__(self, view: StreamView, progress: ToolProgress, *, decodes: bool) -> None:
        state = view.chain.state
        progress.begin("reading", state.byte_count)
        self._view = view
        self._progress = progress
        self._scan = LogScan(is_decoded=decodes)
        self._summary = SegmentSummary(state.first_sequence, view.chain.stream.name, state.byte_count)
        self._scan.segments.append(self._summary)
        # LSN of the next record; None where it is unknown.
        self._lsn: int | None = None

    def result(self) -> LogScan:
        is_empty = True
        for sequence, item in self._view.items():
            is_empty = False
            if isinstance(item, Segment):
                self._read(item)
            elif isinstance(item, LogCorruptError):
                self._add(DamageKind.RECORD, sequence, str(item))
        if is_empty:
            first_sequence = self._view.chain.state.first_sequence
            self._add(DamageKind.MISSING, first_sequence, "the stream holds no message, though one was the last")
        totals = self._scan.contents.totals
        self._summary.commit_count, self._summary.event_count = totals.commit_count, totals.event_count
        return self._scan

    def _read(self, group: Segment) -> None:
        where = f"message {group.segment_id}: "
        # Messages between groups may be missing, since older checkpoints are removed. Records may not.
        if self._lsn not in {None, group.header.first_lsn}:
            what = f"begins with LSN {group.header.first_lsn}; it must be {self._lsn}"
            self._add(DamageKind.MISSING, group.segment_id, f"{where}{what}, so messages before it are missing")
        content = GroupBytes.of(group)
        scanner = SegmentScanner(group.file, group.header)
        end, self._lsn = content.start, group.header.first_lsn
        for record in scanner.records(content.start):
            self._summary.record_count += 1
            if problem := self._scan.check(self._view.codec, scanner, group.segment_id, record):
                kind, what = problem
                self._add(kind, group.segment_id, f"{where}the record at byte {record.position} {what}")
            end, self._lsn = record.end, record.head.lsn + 1
        if end < content.size():
            self._add(DamageKind.RECORD, group.segment_id, f"{where}is damaged after byte {end}")
        self._progress.advance(len(content.content))

    def _add(self, kind: DamageKind, sequence: int, sentence: str) -> None:
        self._scan.contents.skip_damage()
        self._scan.damages.append(Damage(kind, sequence, 0, sentence))


def _message_document(sequence: int, message: Message) -> Document:
    return {
        "segment": sequence,
        "position": 0,
        "write_number": message.position.lsn,
        "kind": message.kind.name,
        "flags": [],
        "synced_position": 0,
        "payload_bytes": len(message.body),
        "message": {"epoch": message.epoch or sequence, "part": message.part, "part_count": message.part_count},
    }
