import pytest

from millrace_server.channels.admission import Capacity
from millrace_server.errors import BytesFullError, ChannelFullError, MillraceError
from tests.virtual_clock import settle, started


def space_with(event_count: int, body_bytes: int) -> Capacity:
    space = Capacity(events_max=10, body_bytes_max=100)
    space.change(event_count, body_bytes)
    return space


@pytest.mark.parametrize(
    ("event_count", "body_bytes", "is_admitted"),
    [
        (0, 0, True),
        (2, 10, True),
        (3, 0, False),
        (0, 11, False),
        (3, 11, False),
        # A change that shrinks one account needs space only in the other.
        (-1, 10, True),
        (-1, 11, False),
        (2, -1, True),
        (3, -90, False),
        (-8, -90, True),
    ],
)
def test_admits_a_change_that_keeps_both_limits(event_count: int, body_bytes: int, *, is_admitted: bool) -> None:
    """The channel holds 8 events with 90 bytes; 10 events and 100 bytes are allowed."""
    assert space_with(8, 90).admits(event_count, body_bytes) is is_admitted


def test_admits_what_shrinks_though_the_limits_are_passed() -> None:
    """A channel above its limits can still shrink."""
    space = space_with(8, 90)
    space.resize(events_max=5, body_bytes_max=50)
    assert space.admits(-1, -1)
    assert space.admits(0, 0)
    assert not space.admits(1, 0)
    assert not space.admits(-1, 1)


@pytest.mark.parametrize(("event_count", "body_bytes"), [(-9, 0), (0, -91)])
def test_change_below_nothing_is_a_bug(event_count: int, body_bytes: int) -> None:
    """A counter that goes below zero raises an error."""
    with pytest.raises(AssertionError):
        space_with(8, 90).change(event_count, body_bytes)


@pytest.mark.parametrize(
    ("event_count", "body_bytes", "is_woken"),
    [(-1, 0, True), (0, -1, True), (-1, 5, True), (1, -1, True), (1, 1, False), (0, 0, False)],
)
async def test_change_that_makes_space_wakes_who_waits(event_count: int, body_bytes: int, *, is_woken: bool) -> None:
    """One caller is woken if there is more of any space than before."""
    space = space_with(8, 90)
    woken = list[str]()

    async def wait(name: str) -> None:
        with space.waiters.join() as place:
            if await place.wait(10):
                woken.append(name)

    for name in "ab":
        await started(wait(name))
    space.change(event_count, body_bytes)
    await settle()
    assert woken == ["a"] * is_woken


@pytest.mark.parametrize(
    ("event_count", "body_bytes", "kind"),
    [(3, 0, ChannelFullError), (3, 11, ChannelFullError), (2, 11, BytesFullError), (0, 11, BytesFullError)],
)
def test_full_error_of_a_change_says_which_limit(event_count: int, body_bytes: int, kind: type[MillraceError]) -> None:
    """Events are checked before bytes; the message has the numbers, and a retry is suggested."""
    error = space_with(8, 90).full_error(event_count, body_bytes, waited_seconds=3)
    assert type(error) is kind
    assert str(error) == (
        "the channel holds 8 events of 10 and 90 body bytes of 100; "
        f"no capacity for {event_count} more with {body_bytes} within 3 s"
    )
    assert error.retry_delay_seconds == 1


@pytest.mark.parametrize(("waited_seconds", "retry_delay_seconds"), [(0, 0.1), (0.5, 0.5), (60, 1)])
def test_full_error_after_any_wait_suggests_a_sensible_delay(waited_seconds: float, retry_delay_seconds: float) -> None:
    """The delay is neither zero nor longer than a second."""
    error = space_with(8, 90).full_error(3, 0, waited_seconds)
    assert error.retry_delay_seconds == retry_delay_seconds
