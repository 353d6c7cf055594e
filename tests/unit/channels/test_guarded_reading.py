"""A channel that another server may own already shows nothing of itself, not even that it has nothing."""

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.errors import NotOwnerError
from tests.channel_events import append, begin, open_channel, take


@pytest.fixture
async def channel() -> Channel:
    """A channel with the events 1 and 2."""
    made = open_channel(capacity=10)
    await append(made, b"a", b"b")
    return made


def _overtake(channel: Channel) -> None:
    channel.guard_reading(lambda: False)


@pytest.mark.parametrize("from_sequence", [1, 3])
async def test_queued_of_a_channel_of_another_server_is_refused(channel: Channel, from_sequence: int) -> None:
    """Also where nothing is to be shown: the owner may have more."""
    _overtake(channel)
    with pytest.raises(NotOwnerError):
        [batch async for batch in channel.queued(from_sequence)]


async def test_first_since_of_a_channel_of_another_server_is_refused(channel: Channel) -> None:
    """The owner may have other events of that time."""
    _overtake(channel)
    with pytest.raises(NotOwnerError):
        channel.first_since(0)


@pytest.mark.parametrize(("first", "end"), [(1, 3), (3, 3), (3, 5)])
async def test_read_of_a_channel_of_another_server_is_refused(channel: Channel, first: int, end: int) -> None:
    """A range that does not exist here may exist there."""
    claim = await channel.claim("reader", None, takeover=False)
    _overtake(channel)
    with pytest.raises(NotOwnerError):
        [batch async for batch in channel.claims.read("reader", claim.epoch, first, end)]


async def test_take_again_of_a_channel_of_another_server_is_refused(channel: Channel) -> None:
    """What was taken here may have been consumed there."""
    txn_id = begin(channel)
    assert await take(channel, txn_id) == [b"a", b"b"]
    _overtake(channel)
    with pytest.raises(NotOwnerError):
        await channel.transactions.take(txn_id, TakeLimits(), 0.0, 0)
