import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import ChannelFile, ChannelIdentity
from millrace_server.log_tools import view
from millrace_server.log_tools.layout import ChannelLayout
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.view import Tail, find_tail
from millrace_server.wal.format import Flags, Kind, SegmentHeader, encode_record_head, payload_checksum
from millrace_server.wal.segments import segment_name

LOG_ID = bytes(range(16))
HEADER = SegmentHeader(LOG_ID, 1, 1, 0)

# A record's kind, payload and synced position.
Made = tuple[Kind, bytes, int]


def segment_of(records: Sequence[Made], spare_bytes: int = 200) -> bytes:
    """A segment with records, followed by zeros."""
    content = HEADER.encode()
    for number, (kind, payload, synced) in enumerate(records, start=1):
        fields = (payload_checksum([payload]), len(payload), kind, Flags(0), number)
        content += encode_record_head(HEADER.seed(len(content)), *fields, synced) + payload
    return content + bytes(spare_bytes)


STATE: Made = (Kind.STATE, b"", 0)
# The STATE ends at 96, and each record with 4 bytes of payload has 36.
FIRST: Made = (Kind.PUT, b"one.", 96)
SECOND: Made = (Kind.PUT, b"two.", 132)
MARK: Made = (Kind.SYNC_POINT, b"", 168)


class GrowingFile:
    """A file that is being written: its content changes whenever the reader waits."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = list(contents)

    def go_on(self, _seconds: float) -> None:
        if len(self._contents) > 1:
            self._contents.pop(0)

    def frozen(self) -> ReadOnlyFile:
        return ReadOnlyFile(lambda length, offset: self._contents[0][offset : offset + length], 1 << 20)


@pytest.fixture
def layout(tmp_path: Path) -> ChannelLayout:
    identity = ChannelIdentity("orders", LOG_ID, LOG_ID, 0)
    return ChannelLayout((tmp_path,), tmp_path, LOG_ID, identity, {tmp_path: ChannelFile(identity, 0, 1)}, {})


Find = Callable[..., Tail]


@pytest.fixture
def find(layout: ChannelLayout, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Finds the end of a file that changes whenever its reader waits; the time ends with the last change."""

    def find(*contents: bytes, is_live: bool = True) -> Tail:
        growing = GrowingFile(*contents)
        clock = iter(range(1000))
        monkeypatch.setattr(time, "sleep", growing.go_on)
        monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.5)
        return find_tail(growing.frozen(), layout, 1, is_live=is_live)

    return find


def test_find_tail_of_a_closed_log_takes_its_mark_for_a_proof(find: Find) -> None:
    """A SYNC_POINT is written alone, after everything that stays."""
    assert find(segment_of([STATE, FIRST, SECOND, MARK])) == Tail(200)


def test_find_tail_of_a_first_record_needs_no_proof(find: Find) -> None:
    """A segment has its name only once its first record is synced."""
    assert find(segment_of([STATE])) == Tail(96)


def test_find_tail_under_load_ends_where_a_later_record_proves(find: Find) -> None:
    """Records of the first read are proven by later ones, which are left out."""
    assert find(segment_of([STATE, FIRST]), segment_of([STATE, FIRST, SECOND])) == Tail(132)


def test_find_tail_with_a_refused_group_leaves_it_out(find: Find) -> None:
    """A full disk has undone the group, and another one is in its place now."""
    refused, other = (Kind.PUT, b"refused", 132), (Kind.COMMIT, b"longer than it", 132)
    contents = [
        segment_of([STATE, FIRST, refused]),
        segment_of([STATE, FIRST]),
        segment_of([STATE, FIRST, other]),
        segment_of([STATE, FIRST, other, (Kind.SYNC_POINT, b"", 178)]),
    ]
    assert find(*contents) == Tail(210)


def test_find_tail_after_a_kill_takes_what_stays_there(find: Find) -> None:
    """No proof will come; records that stay valid for so long are no refused group."""
    assert find(segment_of([STATE, FIRST, SECOND])) == Tail(168)
    assert find(segment_of([STATE, FIRST, SECOND]), is_live=False) == Tail(168)


def test_find_tail_of_what_goes_on_without_a_proof_ends_where_the_look_began(find: Find) -> None:
    """If commits are synced at intervals, those written meanwhile may still be truncated."""
    unsynced = (Kind.PUT, b"more", 96)
    assert find(segment_of([STATE, FIRST]), segment_of([STATE, FIRST, unsynced])) == Tail(132, torn_bytes=0)


def test_find_tail_with_a_torn_record_says_how_much_lies_behind(find: Find) -> None:
    """The torn record was left by a crash; it is not damage."""
    torn = bytearray(segment_of([STATE, FIRST, SECOND]))
    torn[140] ^= 1
    assert find(bytes(torn)) == Tail(132, torn_bytes=36)


def test_find_tail_with_rot_before_a_proof_says_so(find: Find) -> None:
    """A later record was written only after everything before it was synced."""
    rotten = bytearray(segment_of([STATE, FIRST, SECOND, MARK]))
    rotten[100] ^= 1
    assert find(bytes(rotten)).is_damaged
    rotten = bytearray(segment_of([STATE]))
    rotten[70] ^= 1
    assert find(bytes(rotten)).is_damaged


def test_find_tail_that_saw_a_place_too_early_looks_again(layout: ChannelLayout) -> None:
    """A window is read before the part after it, so a record there may be newer."""
    content = segment_of([STATE, FIRST, SECOND, MARK])
    looks = iter([content[:100] + bytes(len(content) - 100)])
    file = ReadOnlyFile(lambda length, offset: next(looks, content)[offset : offset + length], len(content))
    assert find_tail(file, layout, 1, is_live=True) == Tail(200)


def test_find_tail_with_a_successor_takes_the_whole_segment(layout: ChannelLayout, find: Find) -> None:
    """The next segment's header contains the length of this one."""
    following = SegmentHeader(LOG_ID, 2, 4, 168).encode()
    (layout.directories[0] / segment_name(2)).write_bytes(following)
    assert find(segment_of([STATE, FIRST, SECOND])) == Tail(168)


def test_find_tail_with_a_proof_at_hand_does_not_wait(layout: ChannelLayout) -> None:
    """The tools wait only after a kill."""
    content = segment_of([STATE, FIRST, SECOND, MARK])
    started = time.monotonic()
    find_tail(ReadOnlyFile.of(content), layout, 1, is_live=True)
    assert time.monotonic() - started < view.PROOF_SECONDS_MAX
