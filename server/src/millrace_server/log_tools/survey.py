"""Reads a whole log and tells all that is wrong with it, and what that concerns."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from millrace_server.log_tools.contents_check import ContentsCheck, ContradictionError, Totals
from millrace_server.log_tools.progress import ToolProgress
from millrace_server.log_tools.view import LogView, ViewedSegment
from millrace_server.log_tools.walking import SegmentWalker, WalkedRecord
from millrace_server.wal.format import (
    SEGMENT_HEADER_BYTES,
    Flags,
    FormatError,
    Kind,
    SegmentHeader,
    UnknownVersionError,
)
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.segments import LogCorruptError


class DamageKind(enum.Enum):
    """What is wrong at a place."""

    RECORD = "record"
    """No good record lies there, and one must."""
    CONTENT = "content"
    """A record whose checksums are right contradicts itself or those before it."""
    SEALED = "sealed"
    """A payload whose checksum is right does not open: the key is another one, or somebody has changed it."""
    MISSING = "missing"
    """A segment is not there."""
    FOREIGN = "foreign"
    """A segment is another channel's, or there twice."""
    HEADER = "header"
    """Only the segment's header is damaged. It can be made anew."""
    TOO_LONG = "too long"
    """Bytes lie behind the segment's end. They can be cut off."""


MENDABLE = {DamageKind.HEADER, DamageKind.TOO_LONG}
"""What can be mended without giving anything up."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is wrong with a log."""

    kind: DamageKind
    segment_id: int
    position: int
    """Byte offset in the segment."""
    sentence: str
    synced_up_to: int | None = None
    """How much of the segment was synced once, where that is known."""
    end: int | None = None
    """Where the next good record lies in the segment; None where none does."""


@dataclass(slots=True)
class SegmentSurvey:
    """What one segment holds."""

    segment_id: int
    name: str
    byte_count: int
    record_count: int = 0
    commit_count: int = 0
    event_count: int = 0
    """Events that its commits put."""


@dataclass(slots=True)
class Survey:
    """What a log holds, and what is wrong with it."""

    segments: list[SegmentSurvey] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    """In the order of the log."""
    key_ids: set[str] = field(default_factory=set)
    """Keys that something in it was sealed with."""
    is_opened: bool = True
    """Whether payloads were opened; else only checksums were compared."""
    contents: ContentsCheck = field(default_factory=ContentsCheck)
    """What the records say."""
    kept: Totals = field(default_factory=Totals)
    """What the commits hold that stand before the first damage that cannot be mended."""

    @property
    def first_loss(self) -> Damage | None:
        """The first damage that cannot be mended."""
        return next((damage for damage in self.damages if damage.kind not in MENDABLE), None)


def survey_log(view: LogView, codec: PayloadCodec, progress: ToolProgress, *, opens: bool = True) -> Survey:
    """Reads all of a log.

    Args:
        view: The log.
        codec: Opens payloads.
        progress: Told how far it is.
        opens: Whether payloads are opened and compared with each other, for which their keys are needed.

    Raises:
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
    """
    surveyor = _Surveyor(view, codec, progress, Survey(is_opened=opens))
    progress.begin("reading", view.byte_count)
    for segment, following in zip_longest(view.segments, view.segments[1:]):
        surveyor.read(segment, following)
    return surveyor.survey


class _Surveyor:
    """Goes through the segments of a log."""

    def __init__(self, view: LogView, codec: PayloadCodec, progress: ToolProgress, survey: Survey) -> None:
        self._view = view
        self._codec = codec
        self._progress = progress
        self.survey = survey
        self._last_id: int | None = None
        self._write_number: int | None = None
        """That of the next record, where it is known."""
        self._before = Totals()
        """What was read before the record that is looked at."""

    def read(self, segment: ViewedSegment, following: ViewedSegment | None) -> None:
        """Reads the next segment."""
        account = SegmentSurvey(segment.segment_id, segment.path.name, segment.file.size())
        self.survey.segments.append(account)
        if not self._is_next(segment):
            return
        header = self._header(segment)
        if header is not None and self._write_number not in {None, header.first_write_number}:
            self._found(
                Damage(
                    DamageKind.CONTENT,
                    segment.segment_id,
                    0,
                    f"{segment.path.name}: begins with record {header.first_write_number}, where record "
                    f"{self._write_number} must be",
                )
            )
        end = self._read_records(segment, account, self._synced_length(segment, following))
        if following is not None and end < segment.file.size():
            sentence = f"{segment.path.name}: {segment.file.size() - end} bytes lie behind its end at byte {end}"
            self._found(Damage(DamageKind.TOO_LONG, segment.segment_id, end, sentence))

    def _is_next(self, segment: ViewedSegment) -> bool:
        """Whether a segment is one of the log's, after telling what is missing before it."""
        name = segment.path.name
        if segment.segment_id == self._last_id:
            sentence = f"{name}: is there twice; move the one away that does not belong here: {segment.path}"
            self._found(Damage(DamageKind.FOREIGN, segment.segment_id, 0, sentence))
            return False
        if self._last_id is not None and segment.segment_id != self._last_id + 1:
            missing = _numbers(self._last_id + 1, segment.segment_id - 1)
            sentence = f"segment {missing} is missing: {name} is the next one that is there"
            self._found(Damage(DamageKind.MISSING, self._last_id + 1, 0, sentence))
            self._write_number = None
        self._last_id = segment.segment_id
        return True

    def _header(self, segment: ViewedSegment) -> SegmentHeader | None:
        name = segment.path.name
        try:
            header = SegmentHeader.decode(segment.file.read(SEGMENT_HEADER_BYTES, 0))
        except UnknownVersionError as error:
            raise UnknownVersionError(f"{name}: {error}") from None
        except FormatError as error:
            self._found(Damage(DamageKind.HEADER, segment.segment_id, 0, f"{name}: {error}"))
            return None
        if (header.channel_id, header.segment_id) != (self._view.places.log_id, segment.segment_id):
            sentence = (
                f"{name}: its header says that it is segment {header.segment_id} of channel "
                f"{header.channel_id.hex()}; it must be segment {segment.segment_id} of "
                f"{self._view.places.log_id.hex()}"
            )
            self._found(Damage(DamageKind.FOREIGN, segment.segment_id, 0, sentence))
            return None
        return header

    def _synced_length(self, segment: ViewedSegment, following: ViewedSegment | None) -> int:
        """How much of the segment must be good."""
        if following is None and self._view.is_rotten:
            behind = self._view.walker(segment).good_ones_from(SEGMENT_HEADER_BYTES)
            # A segment gets its name once its first record is synced.
            return max((record.head.synced_position for record in behind), default=0) or SEGMENT_HEADER_BYTES + 1
        if following is None or following.segment_id != segment.segment_id + 1:
            return segment.file.size()
        try:
            return SegmentHeader.decode(following.file.read(SEGMENT_HEADER_BYTES, 0)).previous_length
        except FormatError:
            return segment.file.size()

    def _read_records(self, segment: ViewedSegment, account: SegmentSurvey, synced_length: int) -> int:
        """Reads a segment's good records and tells of the holes between them; returns where it ends."""
        walker = self._view.walker(segment)
        position = SEGMENT_HEADER_BYTES
        while True:
            for record in walker.records(position):
                self._take_in(segment, walker, record, account)
                position = record.end
            if position >= synced_length:
                return position
            behind = next(walker.good_ones_from(position + 1), None)
            self._found(
                Damage(
                    DamageKind.RECORD,
                    segment.segment_id,
                    position,
                    f"{segment.path.name}: is damaged at byte {position}"
                    + (f"; the next good record is at byte {behind.position}" if behind else " and behind it")
                    + f"; it was synced up to byte {synced_length}",
                    synced_length,
                    behind.position if behind else None,
                )
            )
            self._write_number = None
            if behind is None:
                return max(synced_length, segment.file.size())
            position = behind.position

    def _take_in(
        self, segment: ViewedSegment, walker: SegmentWalker, record: WalkedRecord, account: SegmentSurvey
    ) -> None:
        head = record.head
        for damage in self._checked(segment, walker, record):
            self._found(damage)
        self._write_number = head.write_number + 1
        totals = self.survey.contents.totals
        account.record_count += 1
        account.commit_count += totals.commit_count - self._before.commit_count
        account.event_count += totals.event_count - self._before.event_count
        self._before = totals
        self._progress.advance(head.record_length)

    def _checked(self, segment: ViewedSegment, walker: SegmentWalker, record: WalkedRecord) -> Iterator[Damage]:
        head = record.head
        place = f"{segment.path.name}: the record at byte {record.position}"

        def damage(kind: DamageKind, what: str) -> Damage:
            return Damage(kind, segment.segment_id, record.position, f"{place} {what}")

        if self._write_number not in {None, head.write_number}:
            yield damage(DamageKind.CONTENT, f"has number {head.write_number}, where {self._write_number} must be")
        if record.position == SEGMENT_HEADER_BYTES and head.kind is not Kind.STATE:
            yield damage(DamageKind.CONTENT, f"is a {head.kind.name}; a segment begins with a STATE")
        if (key_id := key_id_of(record)) is not None:
            self.survey.key_ids.add(key_id)
        if not self.survey.is_opened:
            return
        try:
            payload = open_payload(self._codec, walker, record)
        except LogCorruptError as error:
            yield damage(DamageKind.SEALED, f"is damaged: {error}")
            return
        try:
            self.survey.contents.apply(head.kind, payload)
        except ContradictionError as error:
            yield damage(DamageKind.CONTENT, str(error))

    def _found(self, damage: Damage) -> None:
        if damage.kind not in MENDABLE:
            if self.survey.first_loss is None:
                self.survey.kept = self._before
            self.survey.contents.skip()
        self.survey.damages.append(damage)


def key_id_of(record: WalkedRecord) -> str | None:
    """Which key a payload needs; None where it needs none, or does not tell."""
    if Flags.ENCRYPTED not in record.head.flags or not record.payload:
        return None
    key_id = bytes(record.payload[1 : 1 + record.payload[0]])
    return key_id.decode("ascii", "backslashreplace")


def open_payload(codec: PayloadCodec, walker: SegmentWalker, record: WalkedRecord) -> Payload:
    """What was sealed.

    Raises:
        KeyMissingError: It needs a key that was not given.
        LogCorruptError: It does not open.
    """
    head = record.head
    return codec.open(head.kind, head.flags, record.payload, walker.place(record.position))


def _numbers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
