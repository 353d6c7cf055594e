"""Where a log ends to which a server may be writing.

What a server writes shows bit by bit, and is cut off again where the disk is full. So the end that counts is one that
is proven to stay: a later record says that all before it was synced, or a MARK stands there, which is written alone and
after all before it. Under load the next commit is such a proof, in silence a MARK 50 ms after the last sync, and in a
log that was closed its last MARK.
"""

import time
from dataclasses import dataclass

from millrace_server.log_tools.places import LogPlaces
from millrace_server.log_tools.walking import SegmentWalker
from millrace_server.wal.disk import File
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, FormatError, Kind, SegmentHeader
from millrace_server.wal.segments import segment_name

PROOF_SECONDS_MAX = 2.0
"""How long a proof is waited for. It comes within 0.1 s where a server runs, and never where it was killed."""

_LOOK_SECONDS = 0.02
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log's last segment."""

    cut: int
    """Up to here it is to be read."""
    torn_bytes: int = 0
    """Bytes behind the last record up to the last one that is not zero."""
    is_rotten: bool = False
    """Whether something behind it proves that there was more, which is not good any more."""


@dataclass(slots=True)
class _Scan:
    end: int
    """Behind the last good record."""
    proven: int
    """Up to here it stays, as the good records tell; between two records."""
    is_rotten: bool = False


def find_tail(file: File, places: LogPlaces, segment_id: int, *, waits: bool) -> Tail:
    """Finds the end of a log's last segment.

    Args:
        file: The segment, which may grow meanwhile, and be followed by another.
        places: Where it lies.
        segment_id: Its number.
        waits: Whether a server may be writing, so that a proof is waited for.
    """
    walker = SegmentWalker(file, places.log_id, segment_id)
    scan = _scan(walker, _Scan(SEGMENT_HEADER_BYTES, 0))
    wanted = scan.end
    give_up_at = time.monotonic() + (PROOF_SECONDS_MAX if waits else 0.0)
    while not scan.is_rotten:
        if scan.proven >= wanted:
            return Tail(scan.proven, _torn_bytes(file, scan.end))
        if (length := _full_length(places, segment_id)) is not None:
            return Tail(length)
        if time.monotonic() >= give_up_at:
            return Tail(_last_end(walker, scan.proven, wanted), _torn_bytes(file, scan.end))
        time.sleep(_LOOK_SECONDS)
        scan = _scan(walker, _Scan(scan.proven, scan.proven))
    return Tail(file.size(), is_rotten=True)


def _scan(walker: SegmentWalker, scan: _Scan) -> _Scan:
    """Reads on to the end of the good records, and makes sure that it is one."""
    while True:
        for record in walker.records(scan.end):
            scan.end = record.end
            # A segment gets its name once its first record is synced.
            is_proof = record.head.kind is Kind.MARK or not scan.proven
            scan.proven = record.end if is_proof else max(scan.proven, record.head.synced_position)
        evidence = max((behind.head.synced_position for behind in walker.good_ones_from(scan.end + 1)), default=0)
        if max(evidence, SEGMENT_HEADER_BYTES + 1) <= scan.end:
            return scan
        # A record behind says that this place was synced before it was written: if it is good now, it was only seen
        # too early; if it is not, it never will be.
        if walker.record_at(scan.end) is None:
            scan.is_rotten = True
            return scan


def _last_end(walker: SegmentWalker, start: int, wanted: int) -> int:
    """Where the last record ends that does so at the wanted place or before, and was not cut off meanwhile."""
    ends = (record.end for record in walker.records(start))
    return max((end for end in ends if end <= wanted), default=start)


def _full_length(places: LogPlaces, segment_id: int) -> int | None:
    """The segment's length, should another have been begun behind it."""
    for directory in places.directories:
        try:
            with (directory / segment_name(segment_id + 1)).open("rb") as file:
                return SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES)).previous_length
        except (OSError, FormatError):
            continue
    return None


def _torn_bytes(file: File, end: int) -> int:
    size = file.size()
    last = end
    for start in range(end, size, _BLOCK_BYTES):
        block = file.read(_BLOCK_BYTES, start).rstrip(b"\0")
        last = start + len(block) if block else last
    return last - end
