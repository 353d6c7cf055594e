from pathlib import Path

from examples.access_log.live_log import LiveLog
from examples.access_log.log_file import open_log_file


def live_log_of(folder: Path, content: bytes) -> LiveLog:
    log = folder / "some.log"
    log.write_bytes(content)
    return LiveLog(folder / "live.log", open_log_file(log))


def test_write_up_to_a_share_writes_that_many_lines_once(tmp_path: Path) -> None:
    """Each call continues where the last one ended."""
    live_log = live_log_of(tmp_path, b"".join(b"%d\n" % number for number in range(2_000)))
    reported: list[int] = []
    for share, count in ((0.4, 800), (0.4, 800), (1.0, 2_000)):
        live_log.write_up_to(share, reported.append)
        assert (tmp_path / "live.log").read_bytes().splitlines() == [b"%d" % number for number in range(count)]
        assert sum(reported) == count
    assert max(reported) <= 500


def test_write_up_to_the_end_ends_each_line(tmp_path: Path) -> None:
    """This includes the last line, and any kind of line end; empty lines and other bytes stay."""
    live_log_of(tmp_path, b"one\r\n\n\xff\xfe\nlast").write_up_to(1.0, lambda _: None)
    assert (tmp_path / "live.log").read_bytes() == b"one\n\n\xff\xfe\nlast\n"


def test_live_log_begins_empty(tmp_path: Path) -> None:
    """The content of an earlier run is not collected again."""
    (tmp_path / "live.log").write_bytes(b"earlier\n")
    live_log_of(tmp_path, b"one\n")
    assert (tmp_path / "live.log").read_bytes() == b""
