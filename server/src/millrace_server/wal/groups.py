"""Encodes what the writer of a log writes together."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.disk import Piece
from millrace_server.wal.format import RECORD_HEAD_BYTES, Flags, SegmentHeader, encode_record_head
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Location, LogPosition, Record, Submission

_PLAIN = Flags(0)


def encode_group(
    group: Sequence[Submission], codec: PayloadCodec, header: SegmentHeader, start: LogPosition, synced_position: int
) -> tuple[list[Piece], LogPosition]:
    """Encodes a group's records and sets each submission's locations.

    Args:
        group: What is written together.
        codec: Encodes payloads.
        header: The segment that they are written to.
        start: Where they are written.
        synced_position: How much of the segment was synced before.

    Returns:
        The bytes, and the end of the log after them.
    """
    # The hot loop of every commit: local variables, no object per record but its location, and no copy of a
    # payload, whose pieces go to the vectored write as they are.
    segment_id, position, lsn = start
    encodes = codec.is_active
    encoded: list[Piece] = []
    for submissions, records in _merged(group):
        locations: list[Location] = []
        for kind, payload in records:
            context = header.context(position)
            flags, pieces = _PLAIN, payload
            if encodes:
                flags, pieces = codec.encode(kind, payload, context)
            length = checksum = 0
            for piece in pieces:
                length += len(piece)
                checksum = crc32(piece, checksum)
            # Seeded with the record's position, so that stale or copied bytes never pass for a record here.
            seed = crc32(context)
            encoded.append(encode_record_head(seed, checksum, length, kind, flags, lsn, synced_position))
            encoded += pieces
            locations.append(Location(segment_id, position, length))
            position += RECORD_HEAD_BYTES + length
            lsn += 1
        end = LogPosition(segment_id, position, lsn)
        for submission in submissions:
            submission.locations, submission.end = locations, end
    return encoded, LogPosition(segment_id, position, lsn)


def _kind(submission: Submission) -> type:
    return type(submission.mergeable)


def _merged(group: Sequence[Submission]) -> Iterator[tuple[Sequence[Submission], Sequence[Record]]]:
    """Yields a group's submissions with their records: neighbours that are written as one, or a single one."""
    if len(group) == 1 and group[0].mergeable is None:
        # What a lone caller waits for.
        yield group, group[0].records
        return
    for _, neighbours in groupby(group, key=_kind):
        submissions = list(neighbours)
        parts = [submission.mergeable for submission in submissions if submission.mergeable is not None]
        if parts:
            rest = iter(submissions)
            for count, records in parts[0].merge(parts):
                yield list(islice(rest, count)), records
        else:
            for submission in submissions:
                yield [submission], submission.records
