import os
from pathlib import Path

import pytest

from millrace_server.agent.sources.taildir.positions import FileKey, FilePosition, Fingerprint
from millrace_server.agent.sources.taildir.tailed_file import FileReplacedError, StartPosition, TailedFile
from tests.unit.agent.sources.taildir.tailing import config_of


@pytest.mark.parametrize(
    ("stored_ranges", "saved", "start"),
    [
        ([], 7, StartPosition(7)),
        ([[]], 7, StartPosition(7)),
        ([[(0, 9)]], 7, StartPosition(10)),
        ([[(0, 9)]], 70, StartPosition(10)),
        ([[(0, 9)], [(0, 29)]], 0, StartPosition(10, (30,))),
        ([[(0, 9)], []], 4, StartPosition(4, (10,))),
        ([[(0, 9)], []], 10, StartPosition(10)),
        ([[(0, 9), (20, 29)]], 0, StartPosition(10, (20, 30))),
        ([[(100, 199)]], 100, StartPosition(200)),
        ([[(0, 9)], [(5, 6)], [(0, 14)]], 0, StartPosition(7, (10, 15))),
    ],
    ids=str,
)
def test_start_of_what_channels_have_stored_is_where_the_first_of_them_misses_something(
    stored_ranges: list[list[tuple[int, int]]], saved: int, start: StartPosition
) -> None:
    """Channels that know the file have their own positions, others the saved one; each is a border."""
    assert StartPosition.of(stored_ranges, saved) == start


def tailed(path: Path, start: StartPosition, tail: Fingerprint) -> TailedFile:
    content = path.read_bytes()
    key = FileKey.of(path.stat())
    known = FilePosition(
        producer_id="taildir/app/1",
        path=str(path),
        pattern=str(path),
        place=str(path),
        device=key.device,
        inode=key.inode,
        position=start.position,
        head=Fingerprint.of(0, content[:16]),
        tail=tail,
    )
    return TailedFile(known, start, config_of(path))


def test_open_of_a_file_shorter_than_what_was_stored_raises(log: Path) -> None:
    """A file that ends between the saved position and what channels have stored was truncated."""
    log.write_bytes(b"0123456\n" * 100)
    file = tailed(log, StartPosition(500), Fingerprint.of(0, log.read_bytes()[:100]))
    file.open()
    file.close()
    os.truncate(log, 200)
    with pytest.raises(FileReplacedError):
        file.open()
    assert not file.is_open


def test_read_up_to_a_border_ends_an_event_there(log: Path) -> None:
    """Bytes across a border are never in one part, even if the border is within a line."""
    log.write_bytes(b"one two\nthree\n")
    file = tailed(log, StartPosition(0, (3, 8)), Fingerprint.of(0, b""))
    file.open()
    parts = [file.read() for _ in range(4)]
    file.close()
    assert [[(part.start, part.end, part.bodies) for part in group] for group in parts] == [
        [(0, 3, [b"one"])],
        [(3, 8, [b" two"])],
        [(8, 14, [b"three"])],
        [],
    ]
    assert not file.has_unread
