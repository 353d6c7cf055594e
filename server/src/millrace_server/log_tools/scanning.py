"""Scans a whole log and reports all damage, and which sequences it affects."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from millrace_server.channels.replay import ContradictionError
from millrace_server.log_tools.contents_check import ContentsCheck, Totals
from millrace_server.log_tools.view import LogView, SegmentView
from millrace_server.wal.format import (
    SEGMENT_HEADER_BYTES,
    Flags,
    FormatError,
    Kind,
    SegmentHeader,
    UnknownVersionError,
)
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.reading import Gap, ScannedRecord, SegmentScanner
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError


class ToolProgress:
    """The progress of a tool; this one is not shown."""

    def begin(self, label: str, total_bytes: int) -> None:
        """Begins the next part of the work."""

    def advance(self, byte_count: int) -> None:
        """Counts finished bytes."""


class DamageKind(enum.Enum):
    """What is wrong at a position."""

    RECORD = "record"
    """A record is missing or invalid."""
    CONTENT = "content"
    """A record whose checksums match contradicts itself or earlier records."""
    UNDECODABLE = "sealed"
    """A payload whose checksum matches cannot be decoded, although its key decrypts others: it was changed."""
    MISSING = "missing"
    """A segment does not exist."""
    FOREIGN = "foreign"
    """A segment belongs to another channel, or exists twice."""
    HEADER = "header"
    """Only the segment's header is damaged. It can be rebuilt."""
    TOO_LONG = "too long"
    """Bytes follow the segment's end. They can be cut off."""


LOSSLESS = {DamageKind.HEADER, DamageKind.TOO_LONG}
"""Damage that a repair fixes without losing anything."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage at one position of a log."""

    kind: DamageKind
    segment_id: int
    position: int
    """Byte offset in the segment."""
    sentence: str
    synced_up_to: int | None = None
    """The synced length of the segment, if known."""
    end: int | None = None
    """Position of the next valid record in the segment; None if there is none."""


@dataclass(slots=True)
class SegmentSummary:
    """The contents of one segment; `event_count` counts the events that its commits put."""

    segment_id: int
    name: str
    byte_count: int
    record_count: int = 0
    commit_count: int = 0
    event_count: int = 0


@dataclass(slots=True)
class LogScan:
    """The contents of a log, and its damage."""

    segments: list[SegmentSummary] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    """In the order of the log."""
    key_ids: set[str] = field(default_factory=set)
    """Keys that encrypted something in it."""
    is_decoded: bool = True
    """Whether payloads were decoded; otherwise only checksums were compared."""
    contents: ContentsCheck = field(default_factory=ContentsCheck)

    @property
    def first_loss(self) -> Damage | None:
        """The first damage that cannot be repaired without a loss."""
        return next((damage for damage in self.damages if damage.kind not in LOSSLESS), None)

    def check(
        self, codec: PayloadCodec, scanner: SegmentScanner, segment_id: int, record: ScannedRecord
    ) -> tuple[DamageKind, str] | None:
        """Adds a record to the contents; returns what is wrong with it, if anything."""
        if (key_id := key_id_of(record)) is not None:
            self.key_ids.add(key_id)
        if not self.is_decoded:
            return None
        found = log_record(codec, scanner, segment_id, record)
        try:
            payload = found.payload
            self.contents.apply(found._replace(decode=lambda: payload))
        except LogCorruptError as error:
            return DamageKind.UNDECODABLE, f"is damaged: {error}"
        except ContradictionError as error:
            return DamageKind.CONTENT, str(error)
        return None


def scan_log(view: LogView, codec: PayloadCodec, progress: ToolProgress, *, decodes: bool = True) -> LogScan:
    """Reads all of a log. If `decodes`, payloads are decoded and compared with each other, which needs their keys.

    Raises KeyMissingError if a key was not given, and UnknownVersionError at a segment of another version.
    """
    scan = _LogScanner(view, codec, progress, LogScan(is_decoded=decodes))
    progress.begin("reading", view.byte_count)
    for segment, following in zip_longest(view.segments, view.segments[1:]):
        scan.read(segment, following)
    return scan.result


class _LogScanner:
    """Reads the segments of a log in order."""

    def __init__(self, view: LogView, codec: PayloadCodec, progress: ToolProgress, result: LogScan) -> None:
        self._view = view
        self._codec = codec
        self._progress = progress
        self.result = result
        self._last_id: int | None = None
        # LSN of the next record; None after damage, where it is unknown.
        self._lsn: int | None = None
        # The contents before the current record.
        self._before = Totals()

    def read(self, segment: SegmentView, following: SegmentView | None) -> None:
        summary = SegmentSummary(segment.segment_id, segment.path.name, segment.file.size())
        self.result.segments.append(summary)
        if not self._is_next(segment):
            return
        header = self._header(segment)
        if header is not None and self._lsn not in {None, header.first_lsn}:
            self._report(DamageKind.CONTENT, segment, 0, f"begins with LSN {header.first_lsn}; it must be {self._lsn}")
        end = self._read_records(segment, summary, self._synced_length(segment, following))
        if following is not None and end < segment.file.size():
            what = f"{segment.file.size() - end} bytes follow its end at byte {end}"
            self._report(DamageKind.TOO_LONG, segment, end, what)

    def _is_next(self, segment: SegmentView) -> bool:
        """Returns whether a segment is part of the log, after reporting what is missing before it."""
        if segment.segment_id == self._last_id:
            what = f"exists twice; move away the one that does not belong here: {segment.path}"
            self._report(DamageKind.FOREIGN, segment, 0, what)
            return False
        if self._last_id is not None and segment.segment_id != self._last_id + 1:
            first, last = self._last_id + 1, segment.segment_id - 1
            missing = str(first) if first == last else f"{first} to {last}"
            sentence = f"segment {missing} is missing: {segment.path.name} is the next one that exists"
            self._add(Damage(DamageKind.MISSING, first, 0, sentence))
            self._lsn = None
        self._last_id = segment.segment_id
        return True

    def _header(self, segment: SegmentView) -> SegmentHeader | None:
        try:
            header = SegmentHeader.decode(segment.file.read(SEGMENT_HEADER_BYTES, 0))
        except UnknownVersionError as error:
            raise UnknownVersionError(f"{segment.path.name}: {error}") from None
        except FormatError as error:
            self._report(DamageKind.HEADER, segment, 0, str(error))
            return None
        log_id = self._view.layout.log_id
        if (header.channel_id, header.segment_id) != (log_id, segment.segment_id):
            claimed = f"its header says that it is segment {header.segment_id} of channel {header.channel_id.hex()}"
            what = f"{claimed}; it must be segment {segment.segment_id} of {log_id.hex()}"
            self._report(DamageKind.FOREIGN, segment, 0, what)
            return None
        return header

    def _synced_length(self, segment: SegmentView, following: SegmentView | None) -> int:
        """Returns how much of the segment must be valid."""
        if following is None and self._view.is_damaged:
            # The view includes the preallocated zeros after the records, so the file's size is not the synced length.
            # A segment gets its name only after its first record was synced.
            evidence = self._view.scanner(segment).synced_position_behind(SEGMENT_HEADER_BYTES)
            return evidence or SEGMENT_HEADER_BYTES + 1
        if following is None or following.segment_id != segment.segment_id + 1:
            return segment.file.size()
        try:
            return SegmentHeader.decode(following.file.read(SEGMENT_HEADER_BYTES, 0)).previous_length
        except FormatError:
            return segment.file.size()

    def _read_records(self, segment: SegmentView, summary: SegmentSummary, synced_length: int) -> int:
        """Reads a segment's valid records and reports the gaps between them; returns where the segment ends."""
        scanner = self._view.scanner(segment)
        end = SEGMENT_HEADER_BYTES
        for item in scanner.records_and_gaps(end, synced_length):
            if isinstance(item, ScannedRecord):
                self._read_record(segment, scanner, item, summary)
                end = item.end
                continue
            self._add(_gap_damage(segment, item, synced_length))
            self._lsn = None
            if item.end is None:
                return max(synced_length, segment.file.size())
        return end

    def _read_record(
        self, segment: SegmentView, scanner: SegmentScanner, record: ScannedRecord, summary: SegmentSummary
    ) -> None:
        for kind, what in self._problems(segment, scanner, record):
            self._report(kind, segment, record.position, f"the record at byte {record.position} {what}")
        self._lsn = record.head.lsn + 1
        totals = self.result.contents.totals
        summary.record_count += 1
        summary.commit_count += totals.commit_count - self._before.commit_count
        summary.event_count += totals.event_count - self._before.event_count
        self._before = totals
        self._progress.advance(record.head.record_length)

    def _problems(
        self, segment: SegmentView, scanner: SegmentScanner, record: ScannedRecord
    ) -> Iterator[tuple[DamageKind, str]]:
        head = record.head
        if self._lsn not in {None, head.lsn}:
            yield DamageKind.CONTENT, f"has LSN {head.lsn}; it must be {self._lsn}"
        if record.position == SEGMENT_HEADER_BYTES and head.kind is not Kind.STATE:
            yield DamageKind.CONTENT, f"is a {head.kind.name}; a segment begins with a STATE"
        if (problem := self.result.check(self._codec, scanner, segment.segment_id, record)) is not None:
            yield problem

    def _report(self, kind: DamageKind, segment: SegmentView, position: int, what: str) -> None:
        self._add(Damage(kind, segment.segment_id, position, f"{segment.path.name}: {what}"))

    def _add(self, damage: Damage) -> None:
        if damage.kind not in LOSSLESS:
            self.result.contents.skip_damage()
        self.result.damages.append(damage)


def _gap_damage(segment: SegmentView, gap: Gap, synced_length: int) -> Damage:
    following = f"; the next valid record is at byte {gap.end}" if gap.end is not None else " and behind it"
    sentence = (
        f"{segment.path.name}: is damaged at byte {gap.position}{following}; it was synced up to byte {synced_length}"
    )
    return Damage(DamageKind.RECORD, segment.segment_id, gap.position, sentence, synced_length, gap.end)


def key_id_of(record: ScannedRecord) -> str | None:
    """Returns the key that a payload needs; None if it needs none or does not name it."""
    if Flags.ENCRYPTED not in record.head.flags or not record.payload:
        return None
    key_id = bytes(record.payload[1 : 1 + record.payload[0]])
    return key_id.decode("ascii", "backslashreplace")


def log_record(codec: PayloadCodec, scanner: SegmentScanner, segment_id: int, record: ScannedRecord) -> LogRecord:
    """Returns a record as replay reads it. Accessing its payload may raise KeyMissingError or LogCorruptError."""
    head, context = record.head, scanner.context(record.position)
    location = Location(segment_id, record.position, head.payload_length)
    return LogRecord(
        head.kind, head.flags, location, lambda: codec.decode(head.kind, head.flags, record.payload, context)
    )
