import random
from itertools import pairwise
from typing import Any

import pytest

from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter

SEED = 20261121
TRIALS = 120
# Among them characters of two units in UTF-16, and two characters whose bytes contain a line feed between them.
CHARACTERS = ("a", "b", "é", "漢", "😀", "\n", "\r\n", "\r", "ਊĀ")

Events = list[tuple[int, bytes]]


def splitter(offset: int = 0, head: bytes = b"", **settings: Any) -> LineSplitter:
    return LineSplitter(LinesConfig.model_validate(settings, strict=True), offset, head)


def events_of(*parts: Lines) -> Events:
    """Each event's offset and body."""
    return [event for part in parts for event in zip(part.offsets, part.bodies, strict=True)]


def bodies_of(*parts: Lines) -> list[bytes]:
    return [body for part in parts for body in part.bodies]


def covers_all(parts: list[Lines], start: int, end: int) -> bool:
    """Whether the parts follow one another without a gap."""
    return (
        parts[0].start == start
        and parts[-1].end == end
        and all(before.end == after.start for before, after in pairwise(parts))
    )


def test_feed_of_lines_hands_out_finished_ones() -> None:
    """A line waits for its end; the lines returned cover all bytes before it."""
    split = splitter()
    lines = split.feed(b"one\ntwo\n\nthr")
    assert events_of(lines) == [(0, b"one"), (4, b"two"), (8, b"")]
    assert (lines.start, lines.end, split.position) == (0, 9, 9)
    assert split.has_unfinished_line
    assert split.pending_bytes == 3
    assert events_of(split.feed(b"ee\n")) == [(9, b"three")]
    assert not split.has_unfinished_line


def test_feed_of_carriage_returns_leaves_them_out_before_a_line_feed_only() -> None:
    """CR LF ends a line like LF; any other carriage return is a character."""
    assert bodies_of(splitter().feed(b"a\r\nb\r\r\nc\rd\n\r\n")) == [b"a", b"b\r", b"c\rd", b""]


def test_feed_of_utf_8_passes_bytes_untouched() -> None:
    """By default a body has the bytes that were read, text or not."""
    assert bodies_of(splitter().feed(b"\xff\xfe\x00\xc3\n\xef\xbb\xbfx\n")) == [b"\xff\xfe\x00\xc3", b"\xef\xbb\xbfx"]


def test_finish_returns_the_unfinished_line_and_restarts() -> None:
    """The last line needs no line end; what follows is an event of its own."""
    split = splitter()
    assert bodies_of(split.feed(b"one\ntw")) == [b"one"]
    assert events_of(split.finish()) == [(4, b"tw")]
    assert events_of(split.finish()) == []
    assert events_of(split.feed(b"o\n")) == [(6, b"o")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("split", [(0, b"short"), (6, b"a" * 16), (22, b"a" * 16), (38, b"aa"), (41, b"end")]),
        ("truncate", [(0, b"short"), (6, b"a" * 16), (41, b"end")]),
        ("drop", [(0, b"short"), (41, b"end")]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_feed_of_a_long_line_follows_the_policy(policy: str, expected: Events, chunk: int) -> None:
    """A line that is too long is split, truncated or dropped in any chunks; its bytes are covered."""
    text = b"short\n" + b"a" * 34 + b"\nend\n"
    split = splitter(line_bytes_max=16, long_lines=policy)
    parts = [split.feed(text[start : start + chunk]) for start in range(0, len(text), chunk)]
    assert events_of(*parts) == expected
    assert covers_all(parts, 0, len(text))
    assert split.long_line_count == 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_feed_of_a_line_of_the_largest_length_leaves_it_whole(end: bytes) -> None:
    """A line is too long above the maximum, not at it; its line end does not count."""
    split = splitter(line_bytes_max=16, long_lines="drop")
    assert bodies_of(split.feed(b"a" * 16), split.feed(end[:1]), split.feed(end[1:])) == [b"a" * 16]
    assert split.long_line_count == 0


@pytest.mark.parametrize("policy", ["split", "truncate", "drop"])
def test_feed_of_a_line_without_end_keeps_memory_bounded(policy: str) -> None:
    """However long a line is, only about one maximum line is kept in memory."""
    split = splitter(line_bytes_max=1_000, long_lines=policy)
    for _ in range(500):
        split.feed(b"x" * 777)
        assert split.pending_bytes <= 2_000 + 777
    split.feed(b"\nlast")
    assert split.position == 500 * 777 + 1
    assert bodies_of(split.finish()) == [b"last"]


def test_feed_of_a_split_line_cuts_no_character() -> None:
    """A piece ends at the end of a character, so that each piece is text."""
    text = "ä€😀".encode() * 20
    pieces = bodies_of(splitter(line_bytes_max=16).feed(text + b"\n"))
    assert b"".join(pieces) == text
    assert all(piece.decode() for piece in pieces)
    assert max(map(len, pieces)) <= 16


@pytest.mark.parametrize(
    ("charset", "written"),
    [
        ("iso-8859-1", "grün\nß\n".encode("iso-8859-1")),
        ("cp037", "grün\nß\n".encode("cp037")),
        ("utf-16", "grün\nß\n".encode("utf-16")),
        ("utf-16", b"\xfe\xff" + "grün\nß\n".encode("utf-16-be")),
        ("utf-16", "grün\nß\n".encode("utf-16-le")),
        ("utf-16-be", "grün\nß\n".encode("utf-16-be")),
        ("utf-32", "grün\nß\n".encode("utf-32")),
        ("utf-8-sig", "grün\nß\n".encode("utf-8-sig")),
        ("utf-8-sig", "grün\nß\n".encode()),
    ],
)
def test_feed_of_another_charset_returns_utf_8(charset: str, written: bytes) -> None:
    """Bodies are UTF-8, whatever the charset's bytes for a line feed are; a byte order mark is removed."""
    split = splitter(charset=charset)
    parts = [split.feed(written[index : index + 1]) for index in range(len(written))]
    assert bodies_of(*parts) == ["grün".encode(), "ß".encode()]
    assert covers_all(parts, 0, len(written))


def test_finish_of_an_input_that_is_a_mark_covers_it() -> None:
    """An input may be shorter than the byte order marks."""
    split = splitter(charset="utf-16")
    assert split.feed(b"\xff\xfe").end == 0
    assert split.has_unfinished_line
    assert (split.finish().end, split.position) == (2, 2)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ("keep", [b"ok", b"a\xffb", b"end"]),
        ("replace", [b"ok", "a�b".encode(), b"end"]),
        ("ignore", [b"ok", b"ab", b"end"]),
    ],
)
def test_feed_of_broken_utf_8_follows_the_policy(errors: str, expected: list[bytes]) -> None:
    """Only the invalid line is changed."""
    assert bodies_of(splitter(decode_errors=errors).feed(b"ok\na\xffb\nend\n")) == expected


def test_feed_of_broken_text_in_another_charset_keeps_its_bytes() -> None:
    """A line that cannot be converted is passed on unchanged."""
    assert bodies_of(splitter(charset="shift_jis").feed(b"\x83e\n\x83\x0a")) == ["テ".encode(), b"\x83"]


def test_feed_where_broken_text_is_to_fail_hands_out_what_is_before_it() -> None:
    """Valid lines before an invalid one are not lost; each later call reports the position of the invalid line."""
    split = splitter(decode_errors="fail", charset="ascii")
    assert bodies_of(split.feed(b"one\ntwo\nthr\xe9e\nfour\n")) == [b"one", b"two"]
    assert split.position == 8
    assert str(split.failure).startswith("the line at byte 8 is not in ascii: ordinal not in range(128) at byte 3")
    with pytest.raises(LinesError, match="at byte 8"):
        split.feed(b"more\n")
    with pytest.raises(LinesError, match="at byte 8"):
        split.finish()


def test_feed_of_multiline_events_hands_them_out_once_the_next_begins() -> None:
    """The last event waits for further lines until `finish`."""
    split = splitter(multiline={"pattern": r"^\d"})
    assert events_of(split.feed(b"1 first\n  at a\n  at b\n2 second\n  at")) == [(0, b"1 first\n  at a\n  at b")]
    assert split.has_pending_event
    assert split.position == 22
    assert events_of(split.finish_event()) == [(22, b"2 second")]
    assert not split.has_pending_event
    assert split.has_unfinished_line
    assert bodies_of(split.finish()) == [b"  at"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"long_lines": "truncate"},
        {"long_lines": "drop"},
        {"charset": "utf-16"},
        {"charset": "utf-16", "long_lines": "truncate"},
        {"charset": "utf-8-sig", "decode_errors": "replace"},
        {"multiline": {"pattern": "^a", "lines_max": 3, "bytes_max": 20}},
        {"multiline": {"pattern": "a$", "role": "ends"}, "long_lines": "drop"},
    ],
    ids=str,
)
def test_feed_in_random_portions_returns_the_same_events(settings: dict[str, Any]) -> None:
    """Events depend on the bytes only; reading from any event returns the same events."""
    drawn = random.Random(f"{SEED} {settings}")
    for _ in range(TRIALS):
        text = "".join(drawn.choice(CHARACTERS) * drawn.choice((1, 1, 1, 9)) for _ in range(drawn.randrange(60)))
        written = text.encode(settings.get("charset", "utf-8"))
        whole = splitter(line_bytes_max=16, **settings)
        expected = events_of(whole.feed(written), whole.finish())
        assert whole.position == len(written)
        assert _read_in_portions(written, 0, drawn, settings) == expected
        if expected:
            offset, _ = drawn.choice(expected)
            again = [event for event in expected if event[0] >= offset]
            assert _read_in_portions(written, offset, drawn, settings) == again


def _read_in_portions(written: bytes, offset: int, drawn: random.Random, settings: dict[str, Any]) -> Events:
    split = splitter(offset, written[:4], line_bytes_max=16, **settings)
    parts = []
    start = offset
    while start < len(written):
        stop = start + drawn.randrange(1, 12)
        parts.append(split.feed(written[start:stop]))
        start = stop
    parts.append(split.finish())
    assert covers_all(parts, offset, len(written)), f"seed {SEED}: {written!r}"
    return events_of(*parts)
