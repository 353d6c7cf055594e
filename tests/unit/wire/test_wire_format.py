import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Place, field, field_head, packed, place_of

COLUMNS_FIELD = pb.AppendRequest.COLUMNS_FIELD_NUMBER
BODIES_FIELD = event_pb2.EventColumns.BODIES_FIELD_NUMBER
FILLER = bytes(20_000)
"""Makes a message large enough to be decoded by hand."""
FILLER_FIELD = field_head(15, len(FILLER)) + FILLER


def held(message: bytes, place: Place | None) -> bytes | None:
    return None if place is None else message[place.content : place.end]


@given(st.integers(1, 14), st.binary(max_size=300))
def test_field_head_is_read_again(number: int, content: bytes) -> None:
    """Number, wire type and length are each encoded in as few bytes as possible."""
    message = FILLER_FIELD + field_head(number, len(content)) + content
    assert held(message, place_of(number, message)) == content


@given(channel=st.text(max_size=5), first_sequence=st.integers(0, (1 << 64) - 1), with_stamp=st.booleans())
def test_place_of_a_field_is_where_protobuf_has_it(*, channel: str, first_sequence: int, with_stamp: bool) -> None:
    """Whatever is before and after it, the field and the rest make the message."""
    columns = event_pb2.EventColumns(count=1, body_sizes=[len(FILLER)], bodies=FILLER)
    stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=first_sequence) if with_stamp else None
    request = pb.AppendRequest(channel=channel, stamp=stamp, columns=columns)
    message = request.SerializeToString()
    place = place_of(COLUMNS_FIELD, message)
    assert place is not None
    assert held(message, place) == columns.SerializeToString()
    assert place_of(BODIES_FIELD, columns.SerializeToString()) is not None
    request.ClearField("columns")
    assert pb.AppendRequest.FromString(message[: place.head] + message[place.end :]) == request


def test_place_of_a_field_among_numbers_and_bytes_is_found() -> None:
    """Fields of Millrace's messages before and after it are skipped."""
    others = b"\x08\x96\x01" + b"\x12\x03abc"
    message = others + FILLER_FIELD + others
    assert held(message, place_of(15, message)) == FILLER


@pytest.mark.parametrize("other", [b"\x11" + bytes(8), b"\x1d" + bytes(4), field_head(16, 1) + b"a", b"\x0b\x0c"])
def test_place_of_a_field_beside_what_our_messages_never_have_is_none(other: bytes) -> None:
    """Numbers of a fixed width, fields above 15 and groups are left to protobuf."""
    assert place_of(15, other + FILLER_FIELD) is None
    assert place_of(15, FILLER_FIELD + other) is None


def test_place_of_a_number_with_another_wire_type_is_none() -> None:
    """A field of this number with another wire type is not the field."""
    assert place_of(1, b"\x08\x05" + FILLER_FIELD) is None


def test_place_of_a_field_that_comes_twice_is_none() -> None:
    """Protobuf would merge the two, or use the last."""
    assert place_of(15, FILLER_FIELD * 2) is None


def test_place_of_a_field_in_a_small_message_or_among_many_is_none() -> None:
    """There protobuf is faster."""
    assert place_of(1, field_head(1, 3) + b"abc") is None
    assert place_of(15, field_head(1, 0) * 100 + FILLER_FIELD) is None


@given(st.integers(0, len(FILLER_FIELD) - 1))
def test_place_of_a_field_in_a_message_cut_short_is_none(length: int) -> None:
    """Truncated messages are refused by protobuf."""
    assert place_of(15, FILLER_FIELD[:length]) is None
    assert place_of(15, FILLER_FIELD + FILLER_FIELD[:length]) is None or length == 0


@given(st.binary(max_size=40))
def test_place_of_a_field_among_garbage_is_inside_the_message(garbage: bytes) -> None:
    """Groups, endless numbers and lengths beyond the message neither raise nor lead outside."""
    for message in (garbage + FILLER_FIELD, FILLER_FIELD + garbage):
        place = place_of(15, message)
        if place is not None:
            assert 0 <= place.head < place.content <= place.end <= len(message)


@given(st.lists(st.integers(0, (1 << 32) - 1) | st.integers(0, 300)), st.integers(0, 300), st.integers(0, 200))
def test_packed_numbers_are_what_protobuf_writes(numbers: list[int], same: int, count: int) -> None:
    """The numbers may be small, large, or all the same."""
    for sizes in (numbers, [same] * count):
        expected = event_pb2.EventColumns(body_sizes=sizes).SerializeToString()
        assert field(event_pb2.EventColumns.BODY_SIZES_FIELD_NUMBER, packed(sizes)) == expected
