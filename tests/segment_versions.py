"""Segments as other versions of Millrace would write them: with that version, and with a checksum that matches."""

import zlib
from pathlib import Path

from millrace_server.wal.format import VERSION

LATER_VERSION = VERSION + 1
"""The first version that this program refuses."""
VERSION_OFFSET = 8
"""Where all versions have their version, of 2 bytes."""
_VERSION_BYTES = 2
_CHECKSUM_OFFSET = 60
_CHECKSUM_BYTES = 4


def of_version(segment: bytes, version: int) -> bytes:
    """Returns the content of a segment as one of another version."""
    content = bytearray(segment)
    content[VERSION_OFFSET : VERSION_OFFSET + _VERSION_BYTES] = version.to_bytes(_VERSION_BYTES, "little")
    checksum = zlib.crc32(content[:_CHECKSUM_OFFSET])
    content[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES] = checksum.to_bytes(_CHECKSUM_BYTES, "little")
    return bytes(content)


def set_version(segment: Path, version: int) -> None:
    """Makes a segment one of another version."""
    segment.write_bytes(of_version(segment.read_bytes(), version))
