import pytest

from examples.access_log.access_lines import matches

COMBINED = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203 "http://x/" "Mozilla/5.0 (X11)"'
COMMON = b'::1 - ann [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 304 -'
QUOTED = b'h - - [17/May/2015:10:05:03 +0000] "GET /\\"x\\" HTTP/1.1" 404 1 "-" "say \\"hi\\""'
NO_REQUEST = b'h - - [17/May/2015:10:05:03 +0000] "" 400 0 "-" "-"'


@pytest.mark.parametrize("line", [COMBINED, COMMON, QUOTED, NO_REQUEST])
def test_matches_lines_of_access_logs(line: bytes) -> None:
    """Combined and common format match, with escaped quotes, and with invalid requests."""
    assert matches([line])


@pytest.mark.parametrize("line", [b"", b"2024-01-01T00:00:00 Collecting grpcio", b'GET / HTTP/1.1" 200 7', b"\xff\xfe"])
def test_matches_no_other_lines(line: bytes) -> None:
    """Lines of other programs are text."""
    assert not matches([line])


def test_matches_where_most_lines_do() -> None:
    """A few other lines, in particular empty ones, do not change the kind of log."""
    assert matches([COMBINED, b"", b"", b"odd", COMMON])
    assert not matches([COMBINED, b"odd"])
    assert not matches([])
