import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.avro_rpc.framing import Frame, FrameReader, FramingError, framed

LIMIT = 4_096


@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=5), st.integers(1, 50))
def test_feed_in_any_pieces_finds_the_frames(payloads: list[list[bytes]], piece_bytes: int) -> None:
    """However frames are cut into buffers, and arrive, their payloads are the same."""
    stream = b"".join(framed(serial, *buffers) for serial, buffers in enumerate(payloads))
    reader = FrameReader(LIMIT)
    found = [
        frame
        for start in range(0, len(stream), piece_bytes)
        for frame in reader.feed(stream[start : start + piece_bytes])
    ]
    assert found == [Frame(serial, b"".join(buffers)) for serial, buffers in enumerate(payloads)]
    assert not reader.is_inside


@pytest.mark.parametrize(
    "numbers",
    [
        (1, -1),
        (1, (1 << 31) - 1),
        (1, LIMIT),
        (1, 1, -1),
        (1, 1, (1 << 31) - 1),
        (1, 1, LIMIT + 1),
        (0x16030101, 0x00010000),  # The hello of TLS.
        (0x789CED95, 0x4B4E0231),  # A zlib stream.
    ],
)
def test_feed_with_numbers_above_a_limit_is_refused(numbers: tuple[int, ...]) -> None:
    """What is declared huge or negative is refused by its head, before anything is set aside for it."""
    reader = FrameReader(LIMIT)
    with pytest.raises(FramingError):
        list(reader.feed(struct.pack(f">I{len(numbers) - 1}i", *numbers)))
    assert reader.held_bytes == 0


def test_feed_with_buffers_that_exceed_the_limit_together_is_refused() -> None:
    """The limit is for a whole frame."""
    reader = FrameReader(LIMIT)
    head = struct.pack(">ii", 1, 3) + (struct.pack(">i", 3_000) + bytes(3_000))
    assert list(reader.feed(head)) == []
    assert reader.held_bytes == 3_000
    with pytest.raises(FramingError, match="a buffer of 1097 bytes after 3000; at most 4096"):
        list(reader.feed(struct.pack(">i", 1_097)))


def test_feed_of_an_incomplete_frame_holds_only_what_arrived() -> None:
    """A declared length reserves nothing."""
    reader = FrameReader(1 << 30)
    assert list(reader.feed(struct.pack(">iii", 1, 1, 1 << 30) + b"abc")) == []
    assert reader.is_inside
    assert reader.held_bytes == 3
