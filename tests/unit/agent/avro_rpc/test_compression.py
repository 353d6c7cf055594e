import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.avro_rpc.compression import CompressionError, Deflater, Inflater


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(0, 9), st.integers(1, 60))
def test_inflater_of_any_pieces_returns_what_was_deflated(frames: list[bytes], level: int, piece_bytes: int) -> None:
    """Each frame can be decompressed completely as soon as it has arrived, at every level."""
    deflater, inflater = Deflater(level), Inflater()
    for frame in frames:
        sent = deflater.deflated(frame)
        pieces = [sent[start : start + piece_bytes] for start in range(0, len(sent), piece_bytes)]
        assert b"".join(out for piece in pieces for out in inflater.feed(piece)) == frame


@pytest.mark.parametrize("deflater", [Deflater(6), Deflater.for_responses()])
def test_deflated_can_be_decompressed_by_zlib(deflater: Deflater) -> None:
    """The streams are zlib's, as Netty's decoder expects them."""
    stream = zlib.decompressobj()
    for frame in (b"first" * 1_000, b"", b"second"):
        assert stream.decompress(deflater.deflated(frame)) == frame


def test_inflater_of_a_bomb_returns_small_pieces() -> None:
    """What 100 KB decompress to, 100 MB, is never in memory as a whole."""
    bomb = zlib.compress(bytes(100 << 20), 9)
    inflater = Inflater()
    tracemalloc.start()
    try:
        starts = range(0, len(bomb), 1 << 16)
        total = sum(len(piece) for start in starts for piece in inflater.feed(bomb[start : start + (1 << 16)]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 100 << 20
    assert peak < 2 << 20


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x01\x00\x00\x00\x01", b"GET / HTTP/1.1", zlib.compress(b"x") + b"more"]
)
def test_inflater_of_what_is_no_stream_is_refused(data: bytes) -> None:
    """Bytes without compression, or after its end, are refused."""
    with pytest.raises(CompressionError):
        list(Inflater().feed(data))
