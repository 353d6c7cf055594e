import errno
from collections.abc import Sequence

import pytest

from millrace_server.wal import reading
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import KeyMissingError, Payload, PayloadCodec
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError
from tests.log_histories import CODECS, DATA, KEYS, RunningLog, files_on
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

FIRST = DATA / "segment-000000000001.log"


def _write(log: RunningLog, *payloads: bytes, begins_segment: bool = False) -> list[Location]:
    return [*log.append(*payloads, begins_segment=begins_segment).locations]


def _read_counting(disk: SimulatedDisk, log: WriteAheadLog, locations: Sequence[Location]) -> tuple[list[Payload], int]:
    """The payloads of a run, and the number of read calls."""
    before = len(disk.calls)
    payloads = log.read_run(locations)
    assert payloads is not None
    calls = [call.kind for call in disk.calls[before:]]
    assert set(calls) <= {"read"}
    return payloads, len(calls)


def test_read_run_of_neighbours_takes_one_call(disk: SimulatedDisk) -> None:
    """Adjacent records are read together, in whichever form they are requested."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", b"one", b"", b"three", begins_segment=True)
        locations += _write(log, b"four")
        assert _read_counting(disk, log.log, locations) == ([b"state", b"one", b"", b"three", b"four"], 1)
        assert _read_counting(disk, log.log, locations[1:2]) == ([b"one"], 1)
        assert _read_counting(disk, log.log, []) == ([], 0)


def test_read_run_over_small_gaps_takes_one_call(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gaps between records are read with them."""
    monkeypatch.setattr(reading, "GAP_BYTES_MAX", 100)
    with RunningLog(disk) as log:
        first, _gap, second = _write(log, b"state", bytes(68), b"second", begins_segment=True)
        _wide_gap, third = _write(log, bytes(69), b"third")
        assert _read_counting(disk, log.log, [first, second, third]) == ([b"state", b"second", b"third"], 2)


def test_read_run_backwards_and_twice_gives_what_was_asked_for(disk: SimulatedDisk) -> None:
    """The results are in the order of the request."""
    with RunningLog(disk) as log:
        first, second = _write(log, b"state", b"second", begins_segment=True)
        payloads, count = _read_counting(disk, log.log, [second, first, first, second])
        assert payloads == [b"second", b"state", b"state", b"second"]
        assert count == 3


def test_read_run_over_segments_takes_one_call_for_each(disk: SimulatedDisk) -> None:
    """A run ends at the end of a file."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", b"one", begins_segment=True)
        locations += _write(log, b"state", b"two", begins_segment=True)
        assert _read_counting(disk, log.log, locations) == ([b"state", b"one", b"state", b"two"], 2)
        # Without the segment, the second position would be adjacent to the first.
        assert _read_counting(disk, log.log, [locations[0], locations[3]]) == ([b"state", b"two"], 2)


def test_read_run_of_much_is_cut(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call reads more than the limit, unless a single record is larger."""
    monkeypatch.setattr(reading, "RUN_BYTES_MAX", 300)
    payloads = [bytes(68), bytes(68), bytes(68), bytes(1), bytes(500), bytes(1)]
    with RunningLog(disk) as log:
        locations = _write(log, *payloads, begins_segment=True)
        assert _read_counting(disk, log.log, locations) == (payloads, 4)
        assert _read_counting(disk, log.log, locations[:3]) == (payloads[:3], 1)


def test_read_run_of_what_is_cached_only_waits_for_nothing(disk: SimulatedDisk) -> None:
    """If the disk would have to be read, nothing is returned."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", b"one", begins_segment=True)
        assert log.log.read_run(locations, cached_only=True) == [b"state", b"one"]
        disk.is_cached = False
        assert log.log.read_run(locations, cached_only=True) is None
        assert log.log.read_run([], cached_only=True) == []
        assert log.log.read_run(locations) == [b"state", b"one"]


@pytest.mark.parametrize("codec", CODECS)
def test_read_run_of_encoded_records_decodes_them(disk: SimulatedDisk, codec: PayloadCodec) -> None:
    """Readers get what was submitted."""
    with RunningLog(disk, codec=codec) as log:
        locations = _write(log, b"state", b"one" * 100, b"", begins_segment=True)
        one_by_one = [payload for location in locations for payload in log.log.read_run([location]) or ()]
        for payloads in (log.log.read_run(locations), one_by_one):
            assert payloads == [b"state", b"one" * 100, b""]


def test_read_run_hands_out_no_more_memory_than_is_used(disk: SimulatedDisk) -> None:
    """Payloads that are most of what was read are views on it; a few among many others are copied."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", b"a" * 900, b"b" * 100, b"c" * 900, b"d" * 100, begins_segment=True)
        dense, sparse = log.log.read_run(locations), log.log.read_run([locations[2], locations[4]])
        assert dense is not None
        assert sparse == [b"b" * 100, b"d" * 100]
        assert [type(payload) for payload in dense] == [memoryview] * 5
        assert [type(payload) for payload in sparse] == [bytes, bytes]


@pytest.mark.parametrize("offset", [0, 31, 33], ids=["head", "head's end", "payload"])
def test_read_run_with_damage_says_where(disk: SimulatedDisk, offset: int) -> None:
    """Each record of a run is checked as if it were read alone."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", b"one", b"two", begins_segment=True)
        content = bytearray(disk.content(FIRST))
        content[locations[2].position + offset] ^= 1
        log.log._segments[1].file.write([bytes(content)], 0)
        assert log.log.read_run(locations[:2]) == [b"state", b"one"]
        with pytest.raises(
            LogCorruptError, match=f"segment-000000000001.log: the record at byte {locations[2].position} is damaged"
        ):
            log.log.read_run(locations)


@pytest.mark.parametrize("cached_only", [True, False])
def test_read_run_of_a_segment_that_is_gone_says_so(disk: SimulatedDisk, *, cached_only: bool) -> None:
    """A location may outlive its segment; reading it raises an error."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", begins_segment=True)
        _write(log, b"state", begins_segment=True)
        log.remove_before(2)
        with pytest.raises(LogCorruptError, match="segment 1, which holds a record to be read, is missing"):
            log.log.read_run(locations, cached_only=cached_only)


def test_read_without_the_key_says_which(disk: SimulatedDisk) -> None:
    """A record that was not decrypted at replay needs its key when it is read."""
    with RunningLog(disk, codec=CODECS[-1]) as log:
        locations = _write(log, b"state", begins_segment=True)
        keyless = WriteAheadLog(files_on(disk), PayloadCodec(keys={"old": KEYS["old"]}))
        keyless._segments.update(log.log._segments)
        with pytest.raises(KeyMissingError, match="'new'"):
            keyless.read_run(locations[:1])


def test_read_that_the_disk_refuses_raises_its_error(disk: SimulatedDisk) -> None:
    """An error of the disk is not taken for damage."""
    with RunningLog(disk) as log:
        locations = _write(log, b"state", begins_segment=True)
        disk.fail("read", 1, errno.EIO, count=2)
        for read in (locations[:1], locations):
            with pytest.raises(OSError, match="Input/output error"):
                log.log.read_run(read)
