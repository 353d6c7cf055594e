import random
from collections.abc import Iterator

import pytest

from millrace_server.agent.sources.syslog.config import Framing
from millrace_server.agent.sources.syslog.framing import Frame, StreamFramer, frame_datagram

SEED = 7_050_110


def framer(framing: Framing = "auto", message_bytes_max: int = 20, *, drops_long: bool = False) -> StreamFramer:
    return StreamFramer(framing, message_bytes_max, "drop" if drops_long else "truncate")


def contents(frames: list[Frame]) -> list[bytes]:
    return [frame.content for frame in frames]


def test_feed_of_lines_returns_each_once_it_has_ended() -> None:
    """A line is a message, without the line ends of Windows, NULs and empty lines."""
    cut = framer()
    assert contents(cut.feed(b"<1>a\n<2>b\r\n\n\r\n<3>c\0\n<4>")) == [b"<1>a", b"<2>b", b"<3>c"]
    assert cut.is_inside
    assert contents(cut.feed(b"d\n")) == [b"<4>d"]
    assert not cut.is_inside
    assert cut.finish(is_clean=True) == []


def test_feed_of_counted_messages_returns_them_with_their_line_breaks() -> None:
    """Octet counting of RFC 6587: a message may have lines, and the next may follow at once or on a new line."""
    cut = framer()
    assert contents(cut.feed(b"7 <1>a\nb\n4 <2>c\n10 <3>")) == [b"<1>a\nb", b"<2>c"]
    assert contents(cut.feed(b"defghij")) == [b"<3>defghij"]


def test_feed_of_both_framings_mixed_distinguishes_them() -> None:
    """The beginning of each message determines how it is delimited."""
    cut = framer()
    assert contents(cut.feed(b"<1>a\n4 <2>b<3>c\n4 <4>d")) == [b"<1>a", b"<2>b", b"<3>c", b"<4>d"]


@pytest.mark.parametrize(
    "line", [b"2024 was a good year", b"12345678901 <1>a", b"0 <1>a", b"-5 <1>", b"5", b"12x<1>", b" 4 <1>"]
)
def test_feed_of_a_line_that_only_begins_like_a_count_takes_it_as_a_line(line: bytes) -> None:
    """An invalid count does not hide what follows."""
    assert contents(framer().feed(line + b"\n<2>next\n")) == [line, b"<2>next"]


def test_feed_with_framing_newline_never_counts() -> None:
    """With framing by newlines, each line is a message."""
    assert contents(framer("newline").feed(b"4 <2>b\n4 <3>c\n")) == [b"4 <2>b", b"4 <3>c"]


def test_feed_with_framing_octet_counting_needs_no_priority_behind_the_count() -> None:
    """Counted messages may contain any bytes."""
    assert contents(framer("octet_counting").feed(b"5 hello3 2\n3\n6 a\nb\n4 ")) == [b"hello", b"2\n3", b"a\nb\n4 "]


@pytest.mark.parametrize("broken", [b"hello world, a long line\n", b"x", b"0 a", b"5x", b"123456789 a"])
def test_feed_with_framing_octet_counting_of_none_is_lost(broken: bytes) -> None:
    """The beginning is kept and marked; nothing after it is interpreted."""
    cut = framer("octet_counting")
    frames = cut.feed(b"2 ab" + broken)
    assert frames == [Frame(b"ab", is_truncated=False), Frame(broken[:20].rstrip(b"\n"), is_truncated=True)]
    assert cut.is_out_of_sync
    assert not cut.is_inside
    assert cut.finish(is_clean=True) == []


@pytest.mark.parametrize(
    ("sent", "truncated"),
    [
        (b"<1>" + b"x" * 17 + b"\n<2>\n", False),
        (b"<1>" + b"x" * 17 + b"\r\n<2>\n", False),
        (b"<1>" + b"x" * 18 + b"\n<2>\n", True),
        (b"<1>" + b"x" * 500 + b"\n<2>\n", True),
        (b"20 <1>" + b"x" * 17 + b"<2>\n", False),
        (b"21 <1>" + b"x" * 18 + b"<2>\n", True),
        (b"503 <1>" + b"x" * 500 + b"<2>\n", True),
    ],
)
def test_feed_of_a_long_message_keeps_its_beginning_and_finds_the_next(sent: bytes, truncated: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """However the network splits it, the message and the next one are the same."""
    whole = framer().feed(sent)
    assert whole == [Frame(b"<1>" + b"x" * 17, truncated), Frame(b"<2>", is_truncated=False)]
    cut = framer()
    assert [frame for index in range(len(sent)) for frame in cut.feed(sent[index : index + 1])] == whole
    dropping = framer(drops_long=True)
    assert dropping.feed(sent) == [frame for frame in whole if not frame.is_truncated]
    assert dropping.dropped_count == truncated


@pytest.mark.parametrize("start", [b"<1>", b"99999999 <1>"])
def test_feed_of_an_endless_message_holds_no_more_than_the_limit(start: bytes) -> None:
    """A message that never ends uses bounded memory."""
    cut = framer(message_bytes_max=1000)
    frames = cut.feed(start)
    for _ in range(100):
        frames += cut.feed(b"x" * 10_000)
        assert len(cut._buffer) <= 1001
    assert frames == [Frame(b"<1>" + b"x" * 997, is_truncated=True)]
    assert cut.is_inside
    assert cut.finish(is_clean=False) == []


@pytest.mark.parametrize(
    ("sent", "is_clean", "expected"),
    [
        (b"<1>a", True, [Frame(b"<1>a", is_truncated=False)]),
        (b"<1>a", False, [Frame(b"<1>a", is_truncated=True)]),
        (b"9 <1>a", True, [Frame(b"<1>a", is_truncated=True)]),
        (b"9 <", True, [Frame(b"<", is_truncated=True)]),
        (b"9 ", True, [Frame(b"9 ", is_truncated=False)]),
        (b"\n", False, []),
        (b"", True, []),
    ],
)
def test_finish_returns_the_unfinished_message(sent: bytes, is_clean: bool, expected: list[Frame]) -> None:  # noqa: FBT001 - a parameter of the test
    """The last line needs no line end if the sender has ended; an incomplete message is marked."""
    cut = framer()
    assert cut.feed(sent) == []
    assert cut.finish(is_clean=is_clean) == expected
    assert not cut.is_inside


def _portions(sent: bytes, source: random.Random) -> Iterator[bytes]:
    position = 0
    while position < len(sent):
        end = position + source.choice((1, 2, 3, 7, 50, 400))
        yield sent[position:end]
        position = end


@pytest.mark.parametrize("round_number", range(20))
def test_feed_of_random_messages_in_random_portions_returns_them_all(round_number: int) -> None:
    """Neither the framing nor the portions make a difference."""
    source = random.Random(SEED + round_number)
    messages, sent = [], b""
    for _ in range(200):
        is_counted = source.random() < 0.5
        letters = b"ab <>[]0123456789\xff" + (b"\n" if is_counted else b"")
        message = b"<1>" + bytes(source.choices(letters, k=source.randrange(60))) + b"."
        messages.append(message)
        sent += b"%d %s" % (len(message), message) if is_counted else message + b"\n"
    cut = framer(message_bytes_max=100)
    frames = [frame for chunk in _portions(sent, source) for frame in cut.feed(chunk)]
    assert frames == [Frame(message, is_truncated=False) for message in messages], f"round {round_number}"


@pytest.mark.parametrize("framing", ["auto", "newline", "octet_counting"])
@pytest.mark.parametrize("round_number", range(10))
def test_feed_of_noise_never_fails_nor_holds_much(framing: Framing, round_number: int) -> None:
    """Any input becomes messages within the limit, and little of it is buffered."""
    source = random.Random(SEED + round_number)
    sent = bytes(source.choices(b"123 <\n\r\0\xffab", k=20_000))
    cut = framer(framing)
    for chunk in _portions(sent, source):
        assert all(0 < len(frame.content) <= 20 for frame in cut.feed(chunk))
        assert len(cut._buffer) <= 21 + 10
    assert all(0 < len(frame.content) <= 20 for frame in cut.finish(is_clean=True))


@pytest.mark.parametrize(
    ("datagram", "expected"),
    [
        (b"<1>a\nb\n", Frame(b"<1>a\nb", is_truncated=False)),
        (b"<1>a\0", Frame(b"<1>a", is_truncated=False)),
        (b"<1>" + b"x" * 20, Frame(b"<1>" + b"x" * 17, is_truncated=True)),
        (b"", None),
        (b"\r\n\0", None),
    ],
)
def test_frame_datagram_of_any_length_is_one_message(datagram: bytes, expected: Frame | None) -> None:
    """A datagram is one message, or none if it is empty."""
    assert frame_datagram(datagram, 20) == expected
