import pytest

from millrace_server.channels.admission import ChannelLimits
from millrace_server.channels.batches import Form
from millrace_server.channels.queue import ResponseLimits, TakeLimits
from millrace_server.errors import BytesFullError, EventTooLargeError, TxnCapacityError
from tests.channel_events import limits_of, stored

UNLIMITED = 1 << 62


@pytest.fixture
def limits() -> ChannelLimits:
    """10 body bytes, 5 events in a transaction, responses of 10,000 bytes."""
    return ChannelLimits(limits_of(body_bytes_max=10, capacity=50, transaction_capacity=5), 10_000)


def test_refuse_too_large_names_the_body_that_fits_no_channel(limits: ChannelLimits) -> None:
    """Events that are too large only together are refused elsewhere."""
    limits.refuse_too_large([stored(b"x" * 10), stored(b"y" * 6, b"z" * 6)])
    with pytest.raises(EventTooLargeError, match="a body has 11 bytes; byte_capacity allows 10 in all"):
        limits.refuse_too_large([stored(b""), stored(b"x" * 11)])


def test_refuse_too_large_names_the_event_that_fits_no_response() -> None:
    """Its headers count too; stored events always fit into a response."""
    limits = ChannelLimits(limits_of(body_bytes_max=1 << 30), 10_000)
    with pytest.raises(
        EventTooLargeError, match=r"events\[1\]: with .* server's message_bytes_max limits to 10000 bytes"
    ):
        limits.refuse_too_large([stored(b"", b"x" * 10_000)])


def test_refuse_too_much_goes_by_the_transactions_capacity_and_the_whole_channels_bytes(limits: ChannelLimits) -> None:
    """Exactly the limits are allowed; no commit of more could ever succeed."""
    limits.refuse_too_much(5, 10)
    with pytest.raises(TxnCapacityError, match="would put 6 events; transaction_capacity is 5"):
        limits.refuse_too_much(6, 10)
    with pytest.raises(TxnCapacityError, match=r"would put 11 body bytes; byte_capacity and .* allow 10 at once"):
        limits.refuse_too_much(5, 11)


def test_refuse_above_open_bytes_names_the_body_that_no_commit_could_hold(limits: ChannelLimits) -> None:
    """Bodies that are too large only together are refused elsewhere."""
    limits.refuse_above_open_bytes([stored(b"x" * 10), stored(b"y" * 6, b"z" * 6)])
    with pytest.raises(EventTooLargeError, match=r"a body has 11 bytes; byte_capacity and .* allow 10 at once"):
        limits.refuse_above_open_bytes([stored(b""), stored(b"x", b"x" * 11)])


def test_refuse_crowding_bounds_what_open_transactions_hold(limits: ChannelLimits) -> None:
    """There is space again when some transactions have ended."""
    limits.refuse_open_bytes(4, 6)
    with pytest.raises(BytesFullError, match="open transactions hold 5 body bytes; with 6 more") as refused:
        limits.refuse_open_bytes(5, 6)
    assert refused.value.retry_delay_seconds == 1


@pytest.mark.parametrize(("taken", "space"), [(0, 5), (4, 1)])
def test_taking_space_is_what_the_transaction_may_still_take(limits: ChannelLimits, taken: int, space: int) -> None:
    """Takes are counted separately from puts."""
    assert limits.takes_left(taken, "t") == space


def test_taking_space_that_is_used_up_is_refused(limits: ChannelLimits) -> None:
    """This holds also if the limit was lowered meanwhile."""
    for taken in (5, 6):
        with pytest.raises(TxnCapacityError, match=f"has taken {taken} events") as refused:
            limits.takes_left(taken, "t")
        assert refused.value.metadata == {"txn_id": "t"}


@pytest.mark.parametrize(
    ("form", "wanted", "portion"),
    [
        (Form.COLUMNS, (0, 0, 5), (5, UNLIMITED, 10_000)),
        (Form.COLUMNS, (3, 7, 5), (3, 7, 10_000)),
        (Form.COLUMNS, (9, 0, 5), (5, UNLIMITED, 10_000)),
        (Form.ROWS, (0, 0, 1 << 20), (10_000, UNLIMITED, 10_000)),
    ],
)
def test_portion_is_what_was_asked_for_within_the_limits(
    limits: ChannelLimits, form: Form, wanted: tuple[int, int, int], portion: tuple[int, int, int]
) -> None:
    """Zero requests the maximum; rows are built one by one, so fewer are allowed."""
    events_max, body_bytes_max, response_bytes_max = portion
    wanted_events, wanted_bytes, allowed_events = wanted
    taking = TakeLimits(events_max=wanted_events, body_bytes_max=wanted_bytes, form=form)
    assert limits.response_limits(taking, allowed_events) == ResponseLimits(
        events_max=events_max, body_bytes_max=body_bytes_max, response_bytes_max=response_bytes_max, form=form
    )


def test_portion_in_rows_is_a_small_one() -> None:
    """The limit of a message makes no difference."""
    assert (
        ChannelLimits(limits_of(), 1 << 30).response_limits(TakeLimits(form=Form.ROWS), 10).response_bytes_max
        == 8 << 20
    )
