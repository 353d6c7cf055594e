"""Responses that are lost on the way to the client: its service config repeats the call without an error."""

from collections.abc import AsyncGenerator

import pytest

from millrace_client import ChannelConfig, Stamp, aio
from tests.cutting_proxy import CuttingProxy, cutting_proxy
from tests.millraced import Millraced

_LARGE_BYTES = 1 << 20
_FAST = (("grpc.initial_reconnect_backoff_ms", 10),)


@pytest.fixture
async def proxy(shared_server: Millraced) -> AsyncGenerator[CuttingProxy]:
    async with cutting_proxy(shared_server.grpc) as cutting:
        yield cutting


@pytest.fixture
async def channel(proxy: CuttingProxy, request: pytest.FixtureRequest) -> AsyncGenerator[aio.Channel]:
    """A channel of the test's own, accessed through the proxy."""
    async with aio.connect(proxy.address, options=_FAST) as client:
        name = f"retries-{abs(hash(request.node.nodeid))}"
        await client.admin.create_channel(name, ChannelConfig(capacity=100))
        yield client.channel(name)
        await client.admin.delete_channel(name, force=True)


@pytest.mark.parametrize("body_bytes", [1, _LARGE_BYTES], ids=["small", "large"])
async def test_append_when_its_reply_is_lost_stores_once(
    channel: aio.Channel, proxy: CuttingProxy, body_bytes: int
) -> None:
    """The client's stamp identifies the repeat; requests of any size are repeated."""
    proxy.lose_next_response()
    receipt = await channel.append([bytes(body_bytes), b"two"])
    assert proxy.cut_count == 1
    assert (receipt.first_sequence, receipt.last_sequence, receipt.deduplicated) == (0, 0, True)
    assert [len(batch) async for batch in channel.peek()] == [2]


async def test_append_repeated_by_hand_with_its_stamp_stores_once(channel: aio.Channel) -> None:
    """An append with a stamp taken beforehand can be repeated after any failure."""
    stamp = channel.next_stamp(2)
    receipts = [await channel.append([b"one", b"two"], stamp=stamp) for _ in range(2)]
    assert [receipt.deduplicated for receipt in receipts] == [False, True]
    assert isinstance(stamp, Stamp)
    assert [batch.bodies() async for batch in channel.peek()] == [[b"one", b"two"]]


async def test_transaction_when_every_reply_is_lost_has_the_effect_of_one(
    channel: aio.Channel, proxy: CuttingProxy
) -> None:
    """Begin, put, take, renewal and commit each take effect once, though each of them is sent twice."""
    await channel.append([b"old"])
    txn = channel.transaction()
    proxy.lose_next_response()
    await txn.begin()
    proxy.lose_next_response()
    assert await txn.put([b"new", b"newer"]) == 2
    proxy.lose_next_response()
    taken = await txn.take(wait_seconds=0)
    proxy.lose_next_response()
    await txn.renew()
    proxy.lose_next_response()
    receipt = await txn.commit()
    assert proxy.cut_count == 5
    assert [batch.bodies() for batch in taken] == [[b"old"]]
    assert (receipt.first_sequence, receipt.last_sequence) == (2, 3)
    assert [batch.bodies() async for batch in channel.peek()] == [[b"new", b"newer"]]


async def test_rollback_when_its_reply_is_lost_returns_the_events(channel: aio.Channel, proxy: CuttingProxy) -> None:
    """The repeat of a rollback succeeds, and the first error is the one that is raised."""
    await channel.append([b"one"])

    async def fail_half_way() -> None:
        async with channel.transaction() as txn:
            await txn.take(wait_seconds=0)
            proxy.lose_next_response()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        await fail_half_way()
    assert proxy.cut_count == 1
    assert not hasattr(caught.value, "__notes__")
    assert [batch.bodies() async for batch in channel.peek()] == [[b"one"]]


async def test_claim_when_replies_are_lost_keeps_its_epoch(channel: aio.Channel, proxy: CuttingProxy) -> None:
    """The repeat of a claim renews it, and that of an acknowledgement removes nothing more."""
    await channel.append([b"one", b"two", b"three"])
    async with await channel.claim("reader") as before:
        pass
    proxy.lose_next_response()
    claim = await channel.claim("reader")
    assert claim.epoch == before.epoch + 1
    proxy.lose_next_response()
    assert await claim.acknowledge(2) == 3
    proxy.lose_next_response()
    await claim.renew()
    assert [batch.bodies() async for batch in claim.read()] == [[b"three"]]
    assert proxy.cut_count == 3
    await claim.release()
