import asyncio

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Receipt
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import (
    BadArgumentError,
    BytesFullError,
    EventTooLargeError,
    LeaseExpiredError,
    MillraceError,
    OffsetGapError,
    TooManyTxnsError,
    TxnCapacityError,
    TxnNotFoundError,
    TxnStateError,
)
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    check_accounts,
    open_channel,
    queued,
    stored,
    stored_rows,
    take,
)
from tests.virtual_clock import now


@pytest.fixture
async def channel() -> Channel:
    return open_channel(capacity=10, transaction_capacity=5, body_bytes_max=100)


# Begin.


async def test_begin_without_an_id_makes_one(channel: Channel) -> None:
    """Each call creates another id, and returns the granted lease."""
    (first, lease_seconds), (second, _) = channel.transactions.begin(None, None), channel.transactions.begin(None, None)
    assert first != second
    assert lease_seconds == 30
    assert channel.open_transactions == 2


async def test_begin_with_a_lease_grants_it(channel: Channel) -> None:
    """Absent and zero mean the channel's own lease."""
    assert channel.transactions.begin(None, 7.5)[1] == 7.5
    assert channel.transactions.begin(None, 0)[1] == 30


async def test_begin_with_the_id_of_an_open_transaction_returns_it(channel: Channel) -> None:
    """A repeated call opens nothing, keeps what was put, and restarts the lease."""
    txn_id = begin(channel, "mine", 10)
    channel.transactions.put(txn_id, [stored(b"a")], None)
    await asyncio.sleep(9)
    assert channel.transactions.begin("mine", 99) == ("mine", 10)
    await asyncio.sleep(9)
    await channel.transactions.commit(["mine"], None)
    assert queued(channel) == [b"a"]
    assert channel.open_transactions == 0


@pytest.mark.parametrize("txn_id", ["", "ü", "a\0", "x" * 129])
async def test_begin_with_a_malformed_id_is_refused(channel: Channel, txn_id: str) -> None:
    """An id has 1 to 128 printable ASCII characters."""
    with pytest.raises(BadArgumentError, match="txn_id: is"):
        channel.transactions.begin(txn_id, None)
    assert channel.open_transactions == 0


async def test_begin_with_the_id_of_an_ended_transaction_is_refused(channel: Channel) -> None:
    """The error contains the outcome."""
    for txn_id in ("a", "b", "c"):
        begin(channel, txn_id)
    await channel.transactions.commit(["a"], None)
    channel.transactions.rollback("b")
    await asyncio.sleep(31)
    for txn_id, state in (("a", "committed"), ("b", "rolled back"), ("c", "expired")):
        with pytest.raises(TxnStateError, match=f"its transaction is {state}; use another id"):
            channel.transactions.begin(txn_id, None)


async def test_begin_with_another_channels_id_is_refused() -> None:
    """Whether it is open or ended there, nothing is opened here."""
    directory = TxnDirectory(10)
    orders, bills = open_channel("orders", directory=directory), open_channel("bills", directory=directory)
    for txn_id in ("open", "ended"):
        begin(orders, txn_id)
    orders.transactions.rollback("ended")
    for txn_id in ("open", "ended"):
        with pytest.raises(TxnStateError, match="another channel than 'bills'"):
            bills.transactions.begin(txn_id, None)
    assert (bills.open_transactions, directory.limit.open_count) == (0, 1)
    assert directory.find("open") is orders.transactions


async def test_begin_beyond_the_channels_transactions_is_refused() -> None:
    """A known transaction is still found; one that ends makes space for another."""
    channel = open_channel(open_transactions_max=2)
    begin(channel, "a")
    begin(channel, "b")
    with pytest.raises(TooManyTxnsError, match="channel 'orders' has 2 open transactions; at most 2"):
        channel.transactions.begin("c", None)
    begin(channel, "a")
    channel.transactions.rollback("a")
    begin(channel, "c")
    assert channel.open_transactions == 2


async def test_begin_beyond_the_servers_transactions_is_refused() -> None:
    """The limit covers all channels, including deliveries."""
    directory = TxnDirectory(2)
    orders, bills = open_channel("orders", directory=directory), open_channel("bills", directory=directory)
    begin(orders)
    await append(bills, b"a")
    delivery = await bills.deliveries.deliver(TakeLimits())
    with pytest.raises(TooManyTxnsError, match="the server has 2 open transactions; at most 2"):
        bills.transactions.begin(None, None)
    bills.deliveries.nack(delivery)
    begin(bills)


async def test_begin_with_an_id_that_was_refused_is_free() -> None:
    """A refused call reserves nothing."""
    directory = TxnDirectory(1)
    orders, bills = open_channel("orders", directory=directory), open_channel("bills", directory=directory)
    begin(orders, "a")
    with pytest.raises(TooManyTxnsError):
        bills.transactions.begin("b", None)
    orders.transactions.rollback("a")
    begin(orders, "b")


# Put.


async def test_put_is_invisible_until_commit(channel: Channel) -> None:
    """The event cannot be taken, and occupies no space yet."""
    txn_id = begin_with_puts(channel, b"a")
    other = begin(channel)
    assert await take(channel, other) == []
    assert await take(channel, txn_id) == []
    assert channel._contents.capacity.event_count == 0
    await channel.transactions.commit([txn_id], None)
    assert await take(channel, other) == [b"a"]


async def test_put_without_an_offset_stores_each_time(channel: Channel) -> None:
    """The response counts the events of the transaction."""
    txn_id = begin(channel)
    assert channel.transactions.put(txn_id, [stored(b"a", b"b")], None) == 2
    assert channel.transactions.put(txn_id, [stored(b"a"), stored(b"b")], None) == 4
    assert channel.transactions.put(txn_id, [], None) == 4


@pytest.mark.parametrize(
    ("offset", "bodies", "put_count"),
    [
        # The transaction contains a, b and c.
        (3, [b"d"], 4),
        (0, [b"a", b"b", b"c"], 3),
        (1, [b"b"], 3),
        (1, [b"b", b"c", b"d"], 4),
        (0, [b"a", b"b", b"c", b"d", b"e"], 5),
        (3, [], 3),
    ],
)
async def test_put_with_an_offset_stores_each_event_once(
    channel: Channel, offset: int, bodies: list[bytes], put_count: int
) -> None:
    """Repeats, also partial ones, may have requests of any sizes."""
    txn_id = begin(channel)
    channel.transactions.put(txn_id, [stored(b"a", b"b")], 0)
    channel.transactions.put(txn_id, [stored(b"c")], 2)
    for _ in range(2):
        assert channel.transactions.put(txn_id, [stored(body) for body in bodies], offset) == put_count
    await channel.transactions.commit([txn_id], None)
    assert queued(channel) == [b"a", b"b", b"c", b"d", b"e"][:put_count]


@pytest.mark.parametrize("bodies", [[b"d"], []])
async def test_put_with_a_gap_is_refused(channel: Channel, bodies: list[bytes]) -> None:
    """The transaction stays usable and unchanged."""
    txn_id = begin_with_puts(channel, b"a")
    with pytest.raises(OffsetGapError, match="put_offset: is 2; the transaction has 1"):
        channel.transactions.put(txn_id, [stored(body) for body in bodies], 2)
    assert channel.transactions.put(txn_id, [stored(b"b")], 1) == 2


async def test_put_beyond_the_transactions_capacity_is_refused_whole(channel: Channel) -> None:
    """Not even a part of it is stored, and the transaction stays usable."""
    txn_id = begin_with_puts(channel, b"a", b"b")
    with pytest.raises(TxnCapacityError, match="would put 6 events; transaction_capacity is 5"):
        channel.transactions.put(txn_id, [stored(b"c"), stored(b"d", b"e", b"f")], None)
    assert channel.transactions.put(txn_id, [stored(b"c", b"d", b"e")], None) == 5
    with pytest.raises(TxnCapacityError):
        channel.transactions.put(txn_id, [stored(b"f")], None)
    assert channel.transactions.put(txn_id, [stored(b"d", b"e")], 3) == 5
    await channel.transactions.commit([txn_id], None)
    assert queued(channel) == [b"a", b"b", b"c", b"d", b"e"]


async def test_put_of_more_bytes_than_the_channel_holds_is_refused(channel: Channel) -> None:
    """They could never be committed together."""
    txn_id = begin_with_puts(channel, b"a" * 60)
    with pytest.raises(TxnCapacityError, match=r"would put 101 body bytes; byte_capacity and .* allow 100 at once"):
        channel.transactions.put(txn_id, [stored(b"b" * 41)], None)
    assert channel.transactions.put(txn_id, [stored(b"b" * 40)], None) == 2


async def test_put_of_an_event_that_the_channel_could_never_hold_is_refused(channel: Channel) -> None:
    """The event is refused at once, alone or among others, also in a repeat."""
    txn_id = begin(channel)
    for put_offset in (None, 0):
        with pytest.raises(EventTooLargeError, match="a body has 101 bytes; byte_capacity allows 100 in all"):
            channel.transactions.put(txn_id, [stored(b"a"), stored(b"b", b"c" * 101)], put_offset)
    assert channel.transactions.put(txn_id, [stored(b"c" * 100)], 0) == 1


async def test_put_of_an_event_that_no_response_could_hold_is_refused() -> None:
    """Every stored event must fit a response, including its headers."""
    channel = open_channel(response_bytes_max=10_000)
    txn_id = begin(channel)
    with pytest.raises(
        EventTooLargeError, match=r"events\[1\]: with its headers it would not fit into a response.*10000"
    ):
        channel.transactions.put(txn_id, [stored_rows([({}, b"a"), ({"k": "v" * 9_990}, b"")])], None)
    channel.transactions.put(txn_id, [stored_rows([({}, b"a"), ({"k": "v" * 9_000}, b"")])], None)


# Commit and rollback.


async def test_commit_of_an_empty_transaction_succeeds(channel: Channel) -> None:
    """Nothing is stored, and both sequences are 0."""
    assert await channel.transactions.commit([begin(channel)], None) == Receipt(0, 0)
    assert channel.open_transactions == 0


async def test_commit_of_takes_alone_has_no_sequences(channel: Channel) -> None:
    """The taken events are gone."""
    await append(channel, b"a")
    assert await channel.transactions.commit([await begin_with_takes(channel, 1)], None) == Receipt(0, 0)
    check_accounts(channel)
    assert channel._contents.capacity.event_count == 0


async def test_commit_of_several_stores_in_the_order_of_their_ids(channel: Channel) -> None:
    """The order in which they were begun or put does not matter."""
    first, second, third = (begin_with_puts(channel, body) for body in (b"1", b"2", b"3"))
    assert await channel.transactions.commit([third, first, second], None) == Receipt(1, 3)
    assert queued(channel) == [b"3", b"1", b"2"]


async def test_commit_repeated_says_the_same_again(channel: Channel) -> None:
    """This holds for all of its ids or a part, in any order; nothing is stored twice."""
    ids = [begin_with_puts(channel, body) for body in (b"1", b"2", b"3")]
    receipt = await channel.transactions.commit(ids, None)
    for repeat in (ids, ids[::-1], ids[1:], ids[:1]):
        assert await channel.transactions.commit(repeat, None) == receipt == Receipt(1, 3)
    assert queued(channel) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("others_end", ["commit", "rollback", "expiry", "none"])
async def test_commit_with_one_that_cannot_leaves_the_others_open(channel: Channel, others_end: str) -> None:
    """A commit is all or nothing: the valid transaction stays open and can be committed alone."""
    bad = begin_with_puts(channel, b"bad")
    kind: type[MillraceError] = TxnStateError
    match others_end:
        case "commit":
            await channel.transactions.commit([bad], None)
        case "rollback":
            channel.transactions.rollback(bad)
        case "expiry":
            await asyncio.sleep(31)
            kind = LeaseExpiredError
        case _:
            bad, kind = "unknown", TxnNotFoundError
    before = queued(channel)
    good = begin_with_puts(channel, b"good")
    for ids in ([good, bad], [bad, good]):
        with pytest.raises(kind):
            await channel.transactions.commit(ids, None)
    assert queued(channel) == before
    await channel.transactions.commit([good], None)
    assert queued(channel) == [*before, b"good"]


async def test_commit_of_parts_of_two_commits_is_refused(channel: Channel) -> None:
    """There is no single result to return."""
    first, second = begin_with_puts(channel, b"1"), begin_with_puts(channel, b"2")
    await channel.transactions.commit([first], None)
    await channel.transactions.commit([second], None)
    with pytest.raises(TxnStateError, match="committed already"):
        await channel.transactions.commit([first, second], None)


async def test_commit_that_names_one_twice_is_refused(channel: Channel) -> None:
    """Its events would be stored twice; it stays open."""
    txn_id = begin_with_puts(channel, b"a")
    with pytest.raises(BadArgumentError, match="txn_ids: lists a transaction twice"):
        await channel.transactions.commit([txn_id, txn_id], None)
    assert await channel.transactions.commit([txn_id], None) == Receipt(1, 1)
    with pytest.raises(BadArgumentError):
        await channel.transactions.commit([txn_id, txn_id], None)


async def test_rollback_drops_puts_and_returns_takes(channel: Channel) -> None:
    """The transaction leaves no trace."""
    await append(channel, b"a", b"b")
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"x")], None)
    channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"a", b"b"]
    assert channel.open_transactions == 0
    check_accounts(channel)


async def test_rollback_repeated_says_the_same_again(channel: Channel) -> None:
    """This includes a rollback by an expired lease."""
    rolled_back, expired = begin(channel), begin(channel)
    channel.transactions.rollback(rolled_back)
    await asyncio.sleep(31)
    for txn_id in (rolled_back, expired):
        channel.transactions.rollback(txn_id)
    assert channel._contents.counters.rollbacks == 2


async def test_rollback_of_a_committed_transaction_is_refused(channel: Channel) -> None:
    """Stored events stay stored."""
    txn_id = begin_with_puts(channel, b"a")
    await channel.transactions.commit([txn_id], None)
    with pytest.raises(TxnStateError, match="committed already"):
        channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"a"]


async def test_rollbacks_interleaved_keep_the_total_order(channel: Channel) -> None:
    """T1 takes A and B, T2 takes C; T1, then T2 roll back: the order is A B C D, where Flume's was C A B D."""
    await append(channel, b"A", b"B", b"C", b"D")
    first, second = await begin_with_takes(channel, 2), await begin_with_takes(channel, 1)
    channel.transactions.rollback(first)
    channel.transactions.rollback(second)
    assert queued(channel) == [b"A", b"B", b"C", b"D"]
    check_accounts(channel)


async def test_swaps_one_for_one_never_drift(channel: Channel) -> None:
    """A channel full of events and bytes swaps without waiting, repeatedly, with rollbacks and refusals in between."""
    await append(channel, *[b"x" * 20] * 5)
    await append(channel, *[b""] * 5)
    for number in range(100):
        txn_id = await begin_with_takes(channel, 3)
        taken_bytes = 100 - sum(map(len, queued(channel)))
        channel.transactions.put(txn_id, [stored(b"x" * taken_bytes, b"", b"")], None)
        if number % 3 == 2:
            channel.transactions.rollback(txn_id)
        else:
            await channel.transactions.commit([txn_id], None)
        check_accounts(channel)
        assert (channel._contents.capacity.event_count, channel._contents.capacity.body_bytes) == (10, 100)
    assert now() == 0


# Counters.


async def test_counters_of_puts_count_attempts_and_successes(channel: Channel) -> None:
    """Each event offered is an attempt, also if refused or repeated; each event stored is a success."""
    counters = channel._contents.counters
    txn_id = begin_with_puts(channel, b"a", b"b")
    channel.transactions.put(txn_id, [stored(b"a", b"b")], 0)
    with pytest.raises(TxnCapacityError):
        channel.transactions.put(txn_id, [stored(*[b"x"] * 4)], None)
    with pytest.raises(TxnNotFoundError):
        channel.transactions.put("none", [stored(b"x")], None)
    with pytest.raises(EventTooLargeError):
        await append(channel, b"x" * 101)
    await append(channel, b"c")
    assert (counters.put_attempts, counters.put_successes) == (2 + 2 + 4 + 1 + 1 + 1, 1)
    await channel.transactions.commit([txn_id], None)
    await channel.transactions.commit([txn_id], None)
    assert (counters.put_successes, counters.commits, counters.rollbacks) == (3, 2, 0)


async def test_counters_of_takes_count_attempts_and_successes(channel: Channel) -> None:
    """Each event taken is an attempt, as is a take that found none or was refused; each removal is a success."""
    counters = channel._contents.counters
    await append(channel, b"a", b"b", b"c")
    txn_id = await begin_with_takes(channel, 2)
    assert (counters.take_attempts, counters.take_successes) == (2, 0)
    await channel.transactions.take(txn_id, TakeLimits(), 0, 0)
    assert counters.take_attempts == 4
    with pytest.raises(TxnNotFoundError):
        await channel.transactions.take("none", TakeLimits(), 0, None)
    assert counters.take_attempts == 5
    channel.transactions.rollback(txn_id)
    txn_id = await begin_with_takes(channel, 3)
    assert await take(channel, txn_id) == []
    assert counters.take_attempts == 9
    await channel.transactions.commit([txn_id], None)
    assert (counters.take_successes, counters.commits, counters.rollbacks) == (3, 2, 1)


# The limit for all open transactions together.


async def test_put_beyond_what_open_transactions_may_hold_together_is_refused(channel: Channel) -> None:
    """Bytes that may never be committed are bounded like committed ones; the transaction stays usable."""
    first, second = begin_with_puts(channel, b"a" * 60), begin_with_puts(channel, b"b" * 30)
    with pytest.raises(BytesFullError, match="open transactions hold 90 body bytes; with 11 more") as refused:
        channel.transactions.put(second, [stored(b"c" * 11)], None)
    assert refused.value.retry_delay_seconds == 1
    assert channel.transactions.put(second, [stored(b"c" * 10)], None) == 2
    assert channel.transactions.put(second, [stored(b"b" * 30, b"c" * 10)], 0) == 2
    await channel.transactions.commit([second], None)
    third = begin_with_puts(channel, b"d" * 40)
    channel.transactions.rollback(first)
    channel.transactions.put(third, [stored(b"e" * 60)], None)
    await asyncio.sleep(30)
    channel.transactions.put(begin(channel), [stored(b"f" * 100)], None)
    check_accounts(channel)


async def test_put_of_much_into_a_full_channel_is_not_refused(channel: Channel) -> None:
    """Uncommitted bytes are counted separately from committed ones, so a full channel can still swap."""
    await append(channel, b"x" * 100)
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"y" * 100)], None)
    assert await channel.transactions.commit([txn_id], None) == Receipt(2, 2)
