"""Fields decoded by hand have protobuf's meaning, or are left to protobuf."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from millrace import wire_format
from millrace.v1 import event_pb2
from millrace.wire_format import field_head, place_of

BODIES = event_pb2.EventColumns.BODIES_FIELD_NUMBER


def varint(value: int, length: int) -> bytes:
    """A number in this many bytes, though it may need fewer."""
    septets = [value >> 7 * index & 0x7F for index in range(length)]
    return bytes([*(septet | 0x80 for septet in septets[:-1]), septets[-1]])


@pytest.mark.parametrize(
    "message",
    [
        # Truncated inside a number, and a number without end.
        field_head(BODIES, 1) + b"a" + b"\x08\x80",
        field_head(BODIES, 1) + b"a" + b"\x08" + b"\xff" * 10,
        # A group, and an unknown wire type.
        field_head(BODIES, 1) + b"a" + bytes([5 << 3 | 3, 5 << 3 | 4]),
        field_head(BODIES, 1) + b"a" + bytes([5 << 3 | 7]),
        # Heads that are longer than necessary; protobuf cannot read the first.
        varint(BODIES << 3 | 2, 6) + b"\x01a",
        varint(BODIES << 3 | 2, 2) + b"\x01a",
        varint(BODIES << 3 | 2, 1) + varint(1, 2) + b"a",
    ],
)
def test_place_of_a_field_that_is_not_plain_is_left_to_protobuf(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field with more than one possible meaning is left to protobuf."""
    monkeypatch.setattr(wire_format, "_WORTH_IT_BYTES", 0)
    assert place_of(BODIES, message) is None


_PIECES = st.one_of(
    st.binary(max_size=6),
    st.binary(max_size=6).map(lambda content: field_head(BODIES, len(content)) + content),
    st.binary(max_size=6).map(lambda content: varint(BODIES << 3 | 2, 2) + varint(len(content), 3) + content),
    st.integers(0, 300).map(lambda count: event_pb2.EventColumns(count=count).SerializeToString()),
    st.lists(st.integers(0, 300), max_size=3).map(
        lambda sizes: event_pb2.EventColumns(body_sizes=sizes).SerializeToString()
    ),
)


@given(st.lists(_PIECES, max_size=5).map(b"".join))
def test_place_of_a_field_in_any_bytes_agrees_with_protobuf(message: bytes) -> None:
    """If a place is found, the field and the rest are as in protobuf, or both are empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_format, "_WORTH_IT_BYTES", 0)
        place = place_of(BODIES, message)
    if place is None:
        return
    rest = message[: place.head] + message[place.end :]
    try:
        whole = event_pb2.EventColumns.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            event_pb2.EventColumns.FromString(rest)
        return
    assert whole.bodies == message[place.content : place.end]
    whole.ClearField("bodies")
    assert whole == event_pb2.EventColumns.FromString(rest)
