import gzip
import random
import time
import zlib
from typing import Any

import pytest
import zstandard

from millrace_server.agent.sources.http.bodies import HttpRefusalError, find_content_coding

SEED = 1_031_904
MIB = 1024 * 1024


def decode(encoding: str, encoded: bytes, bytes_max: int = 8 * MIB) -> bytes:
    coding = find_content_coding(encoding)
    assert coding is not None
    return coding.decode(encoded, bytes_max)


def pack(encoding: str, content: bytes) -> bytes:
    return gzip.compress(content) if encoding == "gzip" else zstandard.compress(content)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP ", "zstd"])
def test_decode_of_what_was_packed_returns_it(encoding: str) -> None:
    """Bodies may be small or large, well or badly compressible, and in several parts."""
    packer = "zstd" if encoding == "zstd" else "gzip"
    for content in (b"", b"a", b"a" * MIB, random.Random(SEED).randbytes(MIB)):
        assert decode(encoding, pack(packer, content)) == content
        assert decode(encoding, pack(packer, content) * 3) == 3 * content


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_find_packing_of_what_is_not_packed_is_none(encoding: str) -> None:
    """Such a body is used unchanged."""
    assert find_content_coding(encoding) is None


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "\x00"])
def test_find_packing_of_what_is_not_known_reports_it(encoding: str) -> None:
    """The error lists what is supported."""
    with pytest.raises(HttpRefusalError, match=r"it must be gzip, zstd or identity$") as raised:
        find_content_coding(encoding)
    assert raised.value.refusal.status == 415


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decode_of_exactly_the_limit_is_allowed(encoding: str) -> None:
    """The limit itself is accepted; one byte more is refused."""
    assert len(decode(encoding, pack(encoding, b"a" * 1_000_000), 1_000_000)) == 1_000_000
    with pytest.raises(HttpRefusalError, match="more than 1000000 bytes when it is decompressed"):
        decode(encoding, pack(encoding, b"a" * 1_000_001), 1_000_000)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decode_of_a_bomb_stops_soon_behind_the_limit(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a hundred megabytes in some kilobytes cost neither memory nor time."""
    if encoding == "gzip":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        encoded = b"".join(packer.compress(bytes(MIB)) for _ in range(128)) + packer.flush()
    else:
        with_window = zstandard.ZstdCompressor(level=3).compressobj()
        encoded = b"".join(with_window.compress(bytes(MIB)) for _ in range(1024)) + with_window.flush()
    assert len(encoded) < MIB
    coding = find_content_coding(encoding)
    assert coding is not None
    made: list[int] = []
    grow = type(coding)._decode_chunk

    def counting(self: object, member: Any, chunk: bytes) -> bytes:
        decoded = grow(coding, member, chunk)
        made.append(len(decoded))
        return decoded

    monkeypatch.setattr(type(coding), "_decode_chunk", counting)
    began = time.process_time()
    with pytest.raises(HttpRefusalError) as raised:
        coding.decode(encoded, MIB)
    assert raised.value.refusal.status == 413
    assert sum(made) < 20 * MIB
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decode_of_what_is_cut_anywhere_is_refused(encoding: str) -> None:
    """A part of a body is never accepted as a whole one."""
    encoded = pack(encoding, random.Random(SEED).randbytes(200))
    for end in range(1, len(encoded)):
        with pytest.raises(HttpRefusalError, match=r"ends in the middle|is not (gzip|zstd)"):
            decode(encoding, encoded[:end])


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decode_of_what_is_damaged_never_fails_otherwise(encoding: str) -> None:
    """Any input is decoded or refused with a sentence."""
    source = random.Random(SEED)
    encoded = pack(encoding, b"some text, " * 50)
    refused = 0
    for _ in range(300):
        damaged = bytearray(encoded)
        damaged[source.randrange(len(encoded))] = source.randrange(256)
        try:
            decode(encoding, bytes(damaged))
        except HttpRefusalError as error:
            refused += error.refusal.status in {400, 413}
    assert refused > 100


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decode_of_very_many_parts_is_refused_soon(encoding: str) -> None:
    """A million empty parts cost no more than a thousand."""
    began = time.process_time()
    with pytest.raises(HttpRefusalError, match="more than 1000 parts"):
        decode(encoding, pack(encoding, b"") * 300_000)
    assert time.process_time() - began < 3.0


def test_decode_of_zstd_with_a_huge_window_is_refused() -> None:
    """A sender cannot make the server reserve a gigabyte for the window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True, write_content_size=0)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    encoded = packer.compress(random.Random(SEED).randbytes(100)) + packer.flush()
    with pytest.raises(HttpRefusalError, match="is not zstd"):
        decode("zstd", encoded)
