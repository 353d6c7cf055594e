"""Checks whether a channel's stream is valid, shows it message by message, and exports its events."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from millrace.v1 import event_pb2
from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.channels.replay import ContradictionError
from millrace_server.log_tools.dump import Document, RecordDecoder
from millrace_server.log_tools.export import new_event_file
from millrace_server.log_tools.scanning import (
    Damage,
    DamageKind,
    LogScan,
    SegmentSummary,
    ToolProgress,
    decode_payload,
    key_id_of,
)
from millrace_server.log_tools.stream_view import Damaged, Marker, StreamView
from millrace_server.log_tools.verify import CheckpointReport, CheckpointState, Report, compare_recoveries
from millrace_server.replication.groups import GroupBytes
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.log import LogRecord
from millrace_server.wal.reading import ScannedRecord, SegmentScanner
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError, Segment

_NAMES = (NEWEST, PREVIOUS)


def verify_stream(view: StreamView, progress: ToolProgress, *, decodes: bool = True) -> Report:
    """Reads all of a stream, and recovers its channel from each point from which a server might.

    Unless `decodes`, only checksums are compared. Raises KeyMissingError and UnknownVersionError.
    """
    report = Report(_Scan(view, progress, decodes=decodes).result())
    if not decodes:
        return report
    checkpoints = view.checkpoints()
    for index, name in enumerate(_NAMES):
        found = checkpoints[index] if index < len(checkpoints) else None
        state = CheckpointState.GOOD if found else CheckpointState.MISSING
        report.checkpoints.append(CheckpointReport(Path(name), state, found.position if found else None))
    _compare_recoveries(view, report)
    report.is_openable = report.recovered is not None
    return report


def _compare_recoveries(view: StreamView, report: Report) -> None:
    starts = {name: [one] for name, one in zip(_NAMES, view.checkpoints(), strict=False)}
    if view.chain.state.first_sequence <= 1:
        starts["no checkpoint"] = []
    if not starts:
        report.problems.append("the stream does not begin with its first message, and there is no valid checkpoint")
    recoveries = [(name, partial(view.recover, checkpoints)) for name, checkpoints in starts.items()]
    compare_recoveries(report, recoveries, view.recover)


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
        last = self._view.chain.state.first_sequence - 1
        for item in self._view.items():
            if isinstance(item, Segment):
                self._read(item)
                last = item.segment_id
            else:
                last = item.sequence
                if isinstance(item, Damaged):
                    self._add(DamageKind.RECORD, item.sequence, item.sentence)
        if last < self._view.chain.state.first_sequence:
            self._add(DamageKind.MISSING, last + 1, "the stream holds no message, though one was the last")
        totals = self._scan.contents.totals
        self._summary.commit_count, self._summary.event_count = totals.commit_count, totals.event_count
        return self._scan

    def _read(self, group: Segment) -> None:
        # Messages between groups may be missing: older checkpoints are removed. Records may not.
        if self._lsn not in {None, group.header.first_lsn}:
            what = (
                f"begins with LSN {group.header.first_lsn}; it must be {self._lsn}, so messages before it are missing"
            )
            self._add(DamageKind.MISSING, group.segment_id, f"message {group.segment_id}: {what}")
        content = GroupBytes.of(group)
        scanner = SegmentScanner(group.file, group.header)
        end, self._lsn = content.start, group.header.first_lsn
        for record in scanner.records(content.start):
            self._read_record(group, scanner, record)
            end, self._lsn = record.end, record.head.lsn + 1
        if end < content.size():
            self._add(DamageKind.RECORD, group.segment_id, f"message {group.segment_id}: is damaged after byte {end}")
        self._progress.advance(len(content.content))

    def _read_record(self, group: Segment, scanner: SegmentScanner, record: ScannedRecord) -> None:
        self._summary.record_count += 1
        if (key_id := key_id_of(record)) is not None:
            self._scan.key_ids.add(key_id)
        if not self._scan.is_decoded:
            return
        where = f"message {group.segment_id}: the record at byte {record.position}"
        location = Location(group.segment_id, record.position, record.head.payload_length)
        try:
            payload = decode_payload(self._view.codec, scanner, record)
            self._scan.contents.apply(LogRecord(record.head.kind, record.head.flags, location, lambda: payload))
        except LogCorruptError as error:
            self._add(DamageKind.UNDECODABLE, group.segment_id, f"{where} is damaged: {error}")
        except ContradictionError as error:
            self._add(DamageKind.CONTENT, group.segment_id, f"{where} {error}")

    def _add(self, kind: DamageKind, sequence: int, sentence: str) -> None:
        self._scan.contents.skip_damage()
        self._scan.damages.append(Damage(kind, sequence, 0, sentence))


def dump_stream(view: StreamView, start: int = 0, *, shows_bodies: bool = False) -> Iterator[Document]:
    """Yields what each record and each other message says, from a message on; damage is reported and skipped."""
    decoder = RecordDecoder(view.codec, shows_bodies=shows_bodies)
    for item in view.items():
        if isinstance(item, Damaged):
            if item.sequence >= start:
                yield {"segment": item.sequence, "position": 0, "damage": item.sentence}
        elif isinstance(item, Marker):
            if item.sequence >= start:
                yield _marker_document(item)
        elif item.segment_id >= start:
            scanner = SegmentScanner(item.file, item.header)
            for record in scanner.records(GroupBytes.of(item).start):
                yield decoder.document(item.segment_id, scanner, record)


def _marker_document(marker: Marker) -> Document:
    message = marker.message
    return {
        "segment": marker.sequence,
        "position": 0,
        "write_number": message.position.lsn,
        "kind": message.kind.name,
        "flags": [],
        "synced_position": 0,
        "payload_bytes": len(message.body),
        "message": {"epoch": message.epoch or marker.sequence, "part": message.part, "part_count": message.part_count},
    }


def export_stream(view: StreamView, path: Path, *, is_avro: bool) -> int:
    """Writes the events in the channel to a new file, by their sequences; returns their number.

    Raises:
        LogCorruptError: The channel does not open, or an event cannot be read.
        ToolError, UsageError: The file cannot be written.
    """
    recovered = view.recover()
    with new_event_file(path, is_avro=is_avro) as writer:
        for batch in recovered.queue:
            columns = event_pb2.EventColumns.FromString(bytes(batch.window.columns()))
            writer.write(EventChunk(batch.first_sequence, columns), range(columns.count))
    return recovered.queue.event_count
