"""Finds what a damaged log still holds: the channel's state, and the events that can be read."""

from dataclasses import dataclass, field

from millrace.columns import ColumnsCutter
from millrace.v1 import event_pb2
from millrace_server.channels.recovery import Recovered
from millrace_server.channels.replay import ContradictionError
from millrace_server.channels.stamps import IntervalSet
from millrace_server.log_tools.contents_check import columns_of
from millrace_server.log_tools.damaged_replay import DamagedReplay
from millrace_server.log_tools.event_index import EventIndex, Piece, Range, intersection, shown_ranges
from millrace_server.log_tools.scanning import key_id_of, log_record
from millrace_server.log_tools.verify import checkpoint_files
from millrace_server.log_tools.view import LogView, SegmentView
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, Flags, FormatError, Kind, SegmentHeader
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.reading import RecordReader, ScannedRecord
from millrace_server.wal.segments import LogCorruptError, Segment


@dataclass(slots=True)
class Salvage:
    """What a log still holds."""

    recovered: Recovered = field(default_factory=Recovered)
    """The channel without its events."""
    pieces: list[Piece] = field(default_factory=list)
    """The events in the channel that can be read, by sequence."""
    lost: list[Range] = field(default_factory=list)
    """Sequences of events that cannot be read and are not known to be consumed."""
    bound_from: int = 0
    """From this sequence on, `lost` is an upper bound, since the number of events at the log's end is unknown; 0 if no
    part of it is."""
    redelivered: list[Range] = field(default_factory=list)
    """Sequences of readable events that may have been consumed by a lost record."""
    unstamped: list[Range] = field(default_factory=list)
    """Sequences whose stamps may be lost: if their producer sends them again, they are stored twice."""
    is_renumbered: bool = False
    """Whether no record states a sequence, so that the channel counts from 1 again, without stamps."""
    is_doubtful: bool = False
    """Whether stamps, ended transactions and claims may be missing in `recovered`."""
    next_segment_id: int = 1
    next_lsn: int = 1
    """Both are above all that were used."""
    key_id: str = ""
    """The key of the newest encrypted record; empty if none is encrypted."""
    is_compressed: bool = False
    """Whether the newest PUT record is compressed."""

    @property
    def event_count(self) -> int:
        return sum(piece.event_count for piece in self.pieces)

    @property
    def lost_sentence(self) -> str:
        """Which sequences are lost; empty if none are."""
        if not self.lost:
            return ""
        sentence = f"sequences {shown_ranges(self.lost)}, which cannot be read"
        if not self.bound_from:
            return sentence
        reason = "no record states how many events the log's end had"
        return f"{sentence}; from {self.bound_from} on, this is an upper bound: {reason}"


class PieceReader:
    """Reads events from a view of a log."""

    def __init__(self, view: LogView, codec: PayloadCodec) -> None:
        log_id = view.layout.log_id
        # The ids come from the file's name and directory, since the segment's own header may be damaged.
        segments = [Segment(one.path, SegmentHeader(log_id, one.segment_id, 0, 0), one.file) for one in view.segments]
        self._reader = RecordReader({segment.segment_id: segment for segment in segments}, codec)

    def read(self, piece: Piece) -> event_pb2.EventColumns | None:
        """Returns the events of a piece; None if they cannot be read."""
        try:
            payloads = self._reader.read_run([piece.location], cached_only=False)
            assert payloads is not None, "it may read from the disk"
            columns = columns_of(payloads[0])
        except (LogCorruptError, ContradictionError):
            return None
        if columns.count < piece.start + piece.event_count:
            return None
        if columns.count == piece.event_count:
            return columns
        return ColumnsCutter(columns).cut(piece.start, piece.start + piece.event_count)


def salvage(view: LogView, codec: PayloadCodec) -> Salvage:
    """Reads all of a log, and then each event that is still in the channel.

    Raises KeyMissingError if a key was not given, and UnknownVersionError if another version wrote a part of it.
    """
    checkpoint = next(checkpoint_files(view, codec).valid_checkpoints(), None)
    has_memory = view.layout.has_memory
    found, replay = _read_log(view, codec, checkpoint, has_reserves=has_memory)
    if replay.has_reserves and replay.is_damaged and not has_memory:
        # Again, with what the first pass has shown: sequences may have gaps.
        found, replay = _read_log(view, codec, checkpoint, has_reserves=True)
    index = replay.index
    found.next_lsn = max(replay.lsn, 1)
    found.next_segment_id += max([one.segment_id for one in view.segments], default=0)
    if checkpoint is not None:
        found.next_segment_id = max(found.next_segment_id, checkpoint.position.segment_id + 1)
    found.recovered.next_sequence = max(index.next_sequence, index.reserved_sequence)
    found.unstamped, found.is_doubtful = list(index.unstamped), index.is_doubtful
    found.bound_from = replay.bound_from
    found.is_renumbered = replay.is_without_sequences
    _read_pieces(index, PieceReader(view, codec), found)
    return found


def _read_log(
    view: LogView, codec: PayloadCodec, checkpoint: Checkpoint | None, *, has_reserves: bool
) -> tuple[Salvage, DamagedReplay]:
    replay = DamagedReplay(checkpoint, has_reserves=has_reserves)
    found = Salvage(replay.index.recovered)
    _LogReader(view, codec, replay, found).read()
    return found, replay


def _read_pieces(index: EventIndex, reader: PieceReader, found: Salvage) -> None:
    lost, redelivered = index.present.copy(), IntervalSet()
    for piece in index.pieces():
        if reader.read(piece) is not None:
            found.pieces.append(piece)
            lost.remove(piece.first_sequence, piece.last_sequence)
            for part in intersection(index.doubtful, piece.first_sequence, piece.last_sequence):
                redelivered.add(*part)
    found.lost, found.redelivered = list(lost), list(redelivered)


@dataclass(frozen=True, slots=True)
class _LogReader:
    """Passes all valid records of a log to a replay, with what is known of the gaps between them."""

    view: LogView
    codec: PayloadCodec
    replay: DamagedReplay
    found: Salvage

    def read(self) -> None:
        segments = self.view.segments
        headers = [self._header(segment) for segment in segments]
        for index, (segment, header) in enumerate(zip(segments, headers, strict=True)):
            if index:
                self.replay.gap_bytes += _missing_bytes(segments[index - 1], segment, header)
            self.replay.begin_segment(segment.segment_id, header.first_lsn if header else 0)
            self._read_segment(segment, self._length(segment, *headers[index + 1 : index + 2]))
        self.replay.finish(self.view.written_bytes)

    def _length(self, segment: SegmentView, following: SegmentHeader | None = None) -> int:
        """Returns the full length of a segment, which may have lost its end; the next segment's header states it."""
        if segment is self.view.segments[-1]:
            length = min(segment.file.size(), self.view.written_bytes)
            # Each segment had a first record. If that is cut off, nothing states the length.
            is_cut_off = length <= SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES
            return max(one.file.size() for one in self.view.segments) if is_cut_off else length
        is_stated = following is not None and following.segment_id == segment.segment_id + 1
        self.replay.knows_lengths &= is_stated
        return max(segment.file.size(), following.previous_length if following and is_stated else 0)

    def _header(self, segment: SegmentView) -> SegmentHeader | None:
        """Returns a segment's header, unless it is damaged or that of another segment."""
        try:
            header = SegmentHeader.decode(segment.file.read(SEGMENT_HEADER_BYTES, 0))
        except FormatError:
            return None
        is_own = (header.channel_id, header.segment_id) == (self.view.layout.log_id, segment.segment_id)
        return header if is_own else None

    def _read_segment(self, segment: SegmentView, length: int) -> None:
        scanner = self.view.scanner(segment)
        for item in scanner.records_and_gaps(SEGMENT_HEADER_BYTES, length):
            if not isinstance(item, ScannedRecord):
                self.replay.gap_bytes += (item.end or length) - item.position
                continue
            self.found.key_id = key_id_of(item) or self.found.key_id
            if item.head.kind is Kind.PUT:
                self.found.is_compressed = Flags.COMPRESSED in item.head.flags
            self.replay.add(item.head.lsn, log_record(self.codec, scanner, segment.segment_id, item))


def _missing_bytes(before: SegmentView, segment: SegmentView, header: SegmentHeader | None) -> int:
    """Returns the bytes of the missing segments between two, estimated from the length of one of them."""
    missing_count = max(segment.segment_id - before.segment_id - 1, 0)
    return missing_count * (header.previous_length if header else before.file.size())
