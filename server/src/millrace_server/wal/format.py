"""The bytes of a segment: its header, and its records. FORMAT.md tells why they are so.

Segment header, 64 bytes, little-endian like everything here:

     0   8  magic, "MILLRACE"
     8   2  format version
    10   6  zeros
    16  16  channel id
    32   8  segment id
    40   8  write number of the segment's first record
    48   8  length of the segment before it, 0 where there is none
    56   4  zeros
    60   4  CRC-32 of bytes 0 to 59

Record: a head of 32 bytes, then the payload.

     0   4  CRC-32 of bytes 4 to 31, seeded with the segment's identity and the record's position
     4   4  CRC-32 of the payload, 0 where it is empty
     8   4  length of the payload
    12   1  kind
    13   1  flags: how the payload is sealed
    14   2  zeros
    16   8  write number, +1 with each record of the log
    24   8  synced position: all of the segment below it was synced before this record was written
"""

import enum
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

MAGIC = b"MILLRACE"
VERSION = 1
SEGMENT_HEADER_BYTES = 64
RECORD_HEAD_BYTES = 32
PAYLOAD_BYTES_MAX = (1 << 31) - 1024
"""A payload's bytes before it is sealed; sealed it may have a few more."""

_SEGMENT_HEADER = struct.Struct("<8sH6x16sQQQ4x")
_RECORD_HEAD = struct.Struct("<IIBB2xQQ")
_CHECKSUM = struct.Struct("<I")
_PLACE = struct.Struct("<16sQQ")


class FormatError(ValueError):
    """Returned when bytes are not what this module writes."""


class UnknownVersionError(FormatError):
    """Returned when another version of Millrace wrote the segment; nothing of it may be touched."""


class Kind(enum.IntEnum):
    """What a record says."""

    STATE = 1
    """How the channel stood when the segment began: the first record of each segment."""
    PUT = 2
    """Events of one request."""
    TAKE = 3
    """Ranges of sequences that a transaction takes."""
    COMMIT = 4
    """Makes the puts and takes of transactions happen."""
    ROLLBACK = 5
    """Makes them never have happened."""
    CLAIM = 6
    """A reader's claim has begun."""
    MARK = 7
    """Nothing, but for its synced position."""
    KEEP = 8
    """What is to last of a channel that has events in memory only."""


class Flags(enum.IntFlag, boundary=enum.STRICT):
    """How a payload is sealed. Others than these are refused, since nobody knows what they ask for."""

    COMPRESSED = 1
    ENCRYPTED = 2


HEAD_SHAPE = re.compile(b"(?s)(?=.{12}[\x01-%c][\0-%c]\0\0)" % (max(Kind), sum(Flags)))
"""Matches before whatever may be a record's head, as far as a look at four of its bytes tells."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Who a segment is."""

    channel_id: bytes
    """16 bytes."""
    segment_id: int
    """From 1, +1 each."""
    first_write_number: int
    """That of the segment's first record."""
    previous_length: int
    """Length of the segment before it, which was synced whole before this one was made; 0 where there is none."""

    def encode(self) -> bytes:
        """The header's 64 bytes."""
        fields = (self.channel_id, self.segment_id, self.first_write_number, self.previous_length)
        head = _SEGMENT_HEADER.pack(MAGIC, VERSION, *fields)
        return head + _CHECKSUM.pack(crc32(head))

    @classmethod
    def decode(cls, encoded: bytes) -> "SegmentHeader":
        """Reads a header.

        Raises:
            UnknownVersionError: It is a segment's, of another version.
            FormatError: It is none, or damaged.
        """
        if len(encoded) < SEGMENT_HEADER_BYTES:
            raise FormatError(f"a segment begins with {SEGMENT_HEADER_BYTES} bytes; there are {len(encoded)}")
        magic, version, channel_id, segment_id, first_write_number, previous_length = _SEGMENT_HEADER.unpack_from(
            encoded
        )
        if magic != MAGIC:
            raise FormatError("it does not begin as a segment does")
        (checksum,) = _CHECKSUM.unpack_from(encoded, _SEGMENT_HEADER.size)
        is_intact = checksum == crc32(encoded[: _SEGMENT_HEADER.size])
        # A version that is not ours may compute its checksum otherwise; a damaged version is damage all the same.
        if version != VERSION:
            raise UnknownVersionError(f"its format version is {version}; this program knows version {VERSION} only")
        if not is_intact:
            raise FormatError("the checksum of its header does not match")
        return cls(channel_id, segment_id, first_write_number, previous_length)

    def place(self, position: int) -> bytes:
        """Names a record's place among all places of all channels.

        Checksums begin with it, and sealed payloads open with it only, so that bytes which were right elsewhere, in a
        copied or reused file, are wrong here.
        """
        return _PLACE.pack(self.channel_id, self.segment_id, position)

    def seed(self, position: int) -> int:
        """What a record's checksum begins with."""
        return crc32(self.place(position))


@dataclass(frozen=True, slots=True)
class RecordHead:
    """What a record says of itself."""

    payload_checksum: int
    payload_length: int
    kind: Kind
    flags: Flags
    write_number: int
    synced_position: int

    @property
    def record_length(self) -> int:
        """Bytes of the record, head and payload."""
        return RECORD_HEAD_BYTES + self.payload_length

    def encode(self, seed: int) -> bytes:
        """The head's 32 bytes."""
        fields = (self.payload_checksum, self.payload_length, self.kind, self.flags, self.write_number)
        return encode_record_head(seed, *fields, self.synced_position)

    @classmethod
    def decode(cls, encoded: bytes, seed: int) -> "RecordHead | None":
        """Reads a head; None where these bytes are no head for this place."""
        if len(encoded) < RECORD_HEAD_BYTES:
            return None
        (checksum,) = _CHECKSUM.unpack_from(encoded)
        if checksum != crc32(encoded[_CHECKSUM.size : RECORD_HEAD_BYTES], seed):
            return None
        payload_checksum, length, kind, flags, write_number, synced = _RECORD_HEAD.unpack_from(encoded, _CHECKSUM.size)
        try:
            return cls(payload_checksum, length, Kind(kind), Flags(flags), write_number, synced)
        except ValueError:
            # The checksum is right, so another program wrote it: a kind of a later version.
            raise UnknownVersionError(
                f"it has a record of kind {kind} with flags {flags}, which are not known"
            ) from None


def encode_record_head(seed: int, *fields: int) -> bytes:
    """What `RecordHead(*fields).encode(seed)` gives, for who writes many."""
    head = _RECORD_HEAD.pack(*fields)
    return _CHECKSUM.pack(crc32(head, seed)) + head


def payload_checksum(pieces: Sequence[bytes | memoryview]) -> int:
    """CRC-32 of a payload that lies in pieces."""
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum
