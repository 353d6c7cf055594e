import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.wal.format import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Flags,
    FormatError,
    Kind,
    RecordHead,
    SegmentHeader,
    UnknownVersionError,
    payload_checksum,
)
from tests.segment_versions import VERSION_OFFSET, of_version

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
HEADERS = st.builds(SegmentHeader, st.binary(min_size=16, max_size=16), U64, U64, U64)
HEADS = st.builds(RecordHead, U32, U32, st.sampled_from(Kind), st.sampled_from(list(map(Flags, range(4)))), U64, U64)


@given(HEADERS)
def test_decode_of_an_encoded_header_gives_it_back(header: SegmentHeader) -> None:
    """A header has 64 bytes."""
    encoded = header.encode()
    assert len(encoded) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.decode(encoded + b"what follows") == header


def test_encode_of_a_header_has_the_bytes_that_are_documented() -> None:
    """The bytes of version 2 never change."""
    head = (
        b"MILLRACE\x02\x00" + bytes(6) + bytes(range(16))
        + (2).to_bytes(8, "little") + (3).to_bytes(8, "little") + (4).to_bytes(8, "little") + bytes(4)
    )  # fmt: skip
    header = SegmentHeader(bytes(range(16)), 2, 3, 4)
    assert header.encode() == head + zlib.crc32(head).to_bytes(4, "little")


def test_decode_of_a_header_of_version_1_gives_it() -> None:
    """Its records lack times only."""
    header = SegmentHeader(bytes(16), 2, 3, 4)
    assert SegmentHeader.decode(of_version(header.encode(), 1)) == header


def test_encode_of_a_record_head_has_the_bytes_that_are_documented() -> None:
    """The bytes of version 1 never change."""
    channel_id = bytes(range(16))
    seed = zlib.crc32(channel_id + (2).to_bytes(8, "little") + (64).to_bytes(8, "little"))
    head = (
        zlib.crc32(b"payload").to_bytes(4, "little") + (7).to_bytes(4, "little") + b"\x02\x01\x00\x00"
        + (5).to_bytes(8, "little") + (60).to_bytes(8, "little")
    )  # fmt: skip
    record = RecordHead(payload_checksum([b"pay", b"load"]), 7, Kind.PUT, Flags.COMPRESSED, 5, 60)
    assert SegmentHeader(channel_id, 2, 3, 4).seed(64) == seed
    assert record.encode(seed) == zlib.crc32(head, seed).to_bytes(4, "little") + head
    assert record.record_length == RECORD_HEAD_BYTES + 7


@given(HEADS, U32)
def test_decode_of_an_encoded_record_head_gives_it_back(head: RecordHead, seed: int) -> None:
    """A head has 32 bytes."""
    encoded = head.encode(seed)
    assert len(encoded) == RECORD_HEAD_BYTES
    assert RecordHead.decode(encoded, seed) == head


@given(HEADS, HEADERS, U64, U64)
def test_decode_of_a_record_head_elsewhere_gives_none(
    head: RecordHead, header: SegmentHeader, here: int, there: int
) -> None:
    """A head is valid only at its own position."""
    here_seed, there_seed = header.seed(here), header.seed(there)
    assert (RecordHead.decode(head.encode(here_seed), there_seed) == head) is (here_seed == there_seed)


@pytest.mark.parametrize("length", [0, 31])
def test_decode_of_too_few_bytes_gives_no_record_head(length: int) -> None:
    """At the end of a file there may be fewer bytes than a head has."""
    assert RecordHead.decode(bytes(length), 0) is None


@pytest.mark.parametrize(("offset", "value"), [(12, 0), (12, 9), (13, 4)])
def test_decode_of_an_unknown_kind_or_flag_is_refused(offset: int, value: int) -> None:
    """Records of a later version are not damage."""
    encoded = bytearray(RecordHead(0, 0, Kind.PUT, Flags(0), 1, 0).encode(9))
    encoded[offset] = value
    encoded[:4] = zlib.crc32(encoded[4:], 9).to_bytes(4, "little")
    with pytest.raises(UnknownVersionError, match="which are not known"):
        RecordHead.decode(bytes(encoded), 9)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"MILLRACE", "a segment begins with 64 bytes; there are 8"),
        (b"MILLCHKP" + bytes(56), "it does not begin with the magic of a segment"),
        (b"MILLRACE\x01" + bytes(55), "the checksum of its header does not match"),
    ],
)
def test_decode_of_what_is_no_header_is_refused(encoded: bytes, message: str) -> None:
    """The error gives the reason."""
    with pytest.raises(FormatError, match=message):
        SegmentHeader.decode(encoded)


def test_decode_of_a_header_of_another_version_is_refused_whatever_its_checksum() -> None:
    """Another version may use another checksum."""
    encoded = b"MILLRACE\x01\x02" + bytes(50)
    own = zlib.crc32(encoded).to_bytes(4, "little")
    with pytest.raises(UnknownVersionError, match=r"its format version is 513; this program knows 1 and 2$"):
        SegmentHeader.decode(encoded + own)
    with pytest.raises(
        UnknownVersionError, match=r"1 and 2; or its header is damaged, as its checksum does not match$"
    ):
        SegmentHeader.decode(encoded + bytes(4))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bit", range(16))
def test_decode_of_a_header_with_a_flipped_bit_of_its_version_is_damage(version: int, bit: int) -> None:
    """The checksum of the other bytes tells which version it was."""
    encoded = bytearray(of_version(SegmentHeader(bytes(16), 1, 1, 0).encode(), version))
    encoded[VERSION_OFFSET + bit // 8] ^= 1 << bit % 8
    damaged = int.from_bytes(encoded[VERSION_OFFSET : VERSION_OFFSET + 2], "little")
    message = f"the format version in its header is damaged: {damaged} instead of {version}"
    if damaged in {1, 2}:
        message = "the checksum of its header does not match"
    with pytest.raises(FormatError, match=message) as caught:
        SegmentHeader.decode(bytes(encoded))
    assert not isinstance(caught.value, UnknownVersionError)


@given(st.lists(st.binary()))
def test_payload_checksum_of_pieces_is_that_of_the_whole(pieces: list[bytes]) -> None:
    """The division of a payload into pieces makes no difference."""
    assert payload_checksum(pieces) == zlib.crc32(b"".join(pieces))
