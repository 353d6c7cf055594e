"""Writing by Spark's tasks and driver, on real servers but without Spark."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError, OptionError
from millrace_spark.option_values import PLAINTEXT
from millrace_spark.writing import driver
from millrace_spark.writing import tasks as writing
from millrace_spark.writing.driver import BatchCommit, ShardPuts, check_targets, commit_all, roll_back
from millrace_spark.writing.options import WriteOptions, WriteRouting, parse_write_options
from millrace_spark.writing.tasks import put_all
from tests.conftest import StartMillraced
from tests.cutting_proxy import cutting_proxy
from tests.waiting import wait_until

_WAIT_SECONDS_MAX = 60.0
_names = (f"spark-puts-{number}" for number in itertools.count(1))


@pytest.fixture
def channel(client: millrace.Client) -> millrace.Channel:
    return make_channel(client)


@pytest.fixture
def puts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tasks put each batch of rows immediately, however small."""
    monkeypatch.setattr(writing, "MESSAGE_ROWS_MAX", 1)


def make_channel(client: millrace.Client, **limits: Any) -> millrace.Channel:
    """Creates a memory channel with a transaction capacity of 100 events."""
    config = {"capacity": 10_000, "transaction_capacity": 100, "keep_alive_seconds": 0.1} | limits
    name = next(_names)
    client.admin.create_channel(name, millrace.ChannelConfig(**config))
    return client.channel(name)


def options_to(channel: millrace.Channel, *endpoints: str, **options: str) -> WriteOptions:
    named = {"endpoints": ",".join(endpoints), "channel": channel.name, "retrySeconds": "1"} | options
    return replace(parse_write_options(named, is_streaming=True), routing=WriteRouting.ROUND_ROBIN)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers])], names=["body"])


def put(client: millrace.Client, channel: millrace.Channel, *batches: pa.RecordBatch, **options: str) -> Any:
    return put_all(batches, options_to(channel, client.endpoint, **options), 0)


def commit(puts: Sequence[ShardPuts], number: int = 0, **but: Any) -> None:
    """Commits the puts of tasks, as a stream does by default."""
    said = BatchCommit(
        producer_id="query",
        stamp_id="query/1f",
        number=number,
        numbers_increase=but.get("is_streaming", True),
        is_streaming=True,
        is_repeatable=True,
        retry_seconds=1.0,
        security=PLAINTEXT,
    )
    commit_all(puts, replace(said, **but))


def bodies(client: millrace.Client, channel: millrace.Channel) -> list[bytes]:
    assert open_count(client, channel) == 0
    queued = client.admin.get_channel(channel.name).gauges.queued_events
    return [body for batch in channel.peek(max_events=queued or 1) for body in batch.bodies()]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def open_count(client: millrace.Client, channel: millrace.Channel) -> int:
    return client.admin.get_channel(channel.name).gauges.open_transactions


# Tasks.


def test_put_all_beyond_a_transactions_capacity_begins_others(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """Transactions hold their capacity, and one commit of all stores the rows in order."""
    puts = put(client, channel, rows(*range(30)), rows(*range(30, 250)))
    assert [(len(part.txn_ids), part.event_count) for part in puts] == [(3, 250)]
    assert open_count(client, channel) == 3
    commit(puts)
    assert bodies(client, channel) == numbered(250)


@pytest.mark.usefixtures("puts_at_once")
def test_put_all_when_the_transactions_capacity_shrinks_goes_on(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """After a change of the channel, a running task uses smaller transactions."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*range(60))
        client.admin.update_channel(channel.name, millrace.ChannelConfig(transaction_capacity=20))
        yield rows(*range(60, 130))

    commit(put_all(batches(), options_to(channel, client.endpoint), 0))
    assert bodies(client, channel) == numbered(130)


@pytest.mark.usefixtures("puts_at_once")
def test_put_all_that_fails_leaves_no_transaction(client: millrace.Client, channel: millrace.Channel) -> None:
    """After any failure of a task, its transactions are rolled back."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*range(250))
        assert open_count(client, channel) == 3
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_all(batches(), options_to(channel, client.endpoint), 0)
    assert bodies(client, channel) == []


@pytest.mark.usefixtures("puts_at_once")
def test_put_all_of_a_slow_task_keeps_its_transactions(client: millrace.Client, channel: millrace.Channel) -> None:
    """The transactions of a task are renewed, again and again."""
    lease_seconds = 6.0

    def are_renewed_again() -> bool:
        opened = client.admin.list_transactions(channel.name)
        ends = [(datetime.now(UTC) - txn.start_time).seconds + (txn.lease_remaining_seconds or 0.0) for txn in opened]
        # A renewal comes after each third of the lease.
        return len(ends) == 2 and min(ends) > 1.5 * lease_seconds

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*range(150))
        wait_until(are_renewed_again)
        yield rows(*range(150, 200))

    commit(put_all(batches(), options_to(channel, client.endpoint, leaseSeconds=f"{lease_seconds}"), 0))
    assert bodies(client, channel) == numbered(200)


def test_put_all_to_a_server_with_small_messages_cuts_them(start_millraced: StartMillraced) -> None:
    """Messages respect the server's limit, and a larger event is an error."""
    server = start_millraced("server.message_bytes_max = 65536\n")
    with millrace.connect(server.grpc) as client:
        channel = make_channel(client)
        large = pa.RecordBatch.from_arrays(
            [pa.array([b"%d" % (number % 10) * 5_000 for number in range(90)])], ["body"]
        )
        commit(put(client, channel, large))
        assert [body[:1] for body in bodies(client, channel)] == [b"%d" % (number % 10) for number in range(90)]
        huge = pa.RecordBatch.from_arrays([pa.array([b"x" * 100_000])], ["body"])
        with pytest.raises(MillraceSparkError, match="raise message_bytes_max in the server's configuration"):
            put(client, channel, huge)
        assert open_count(client, channel) == 0


def test_put_all_with_more_transactions_than_may_be_open_says_so(client: millrace.Client) -> None:
    """The task retries at the limit, then fails without open transactions."""
    channel = make_channel(client, open_transactions_max=2)
    with pytest.raises(MillraceSparkError, match=r"at most 2 are allowed; write with fewer tasks \(coalesce\)"):
        put(client, channel, rows(*range(250)), retrySeconds="0.2")
    assert bodies(client, channel) == []


# The driver.


def test_commit_all_repeated_with_new_transactions_stores_nothing(
    client: millrace.Client, channel: millrace.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated batch is dropped with its transactions, whatever its rows, and logged."""
    commit(put(client, channel, rows(0, 1)), number=7)
    commit(put(client, channel, rows(5, 6, 7)), number=7)
    assert "has batch 7 of producer query already, so none of its 3 events is stored again" in caplog.text
    commit(put(client, channel, rows(2)), number=9)
    commit(put(client, channel, rows(8)), number=6)
    assert bodies(client, channel) == numbered(3)


def test_commit_all_of_saves_takes_numbers_in_any_order(client: millrace.Client, channel: millrace.Channel) -> None:
    """Saves with explicit numbers may come in any order, and each is stored once."""
    for number, rows_of_save in ((7, rows(0)), (5, rows(1)), (7, rows(8)), (6, rows(2)), (5, rows(9))):
        commit(put(client, channel, rows_of_save), number=number, is_streaming=False)
    assert bodies(client, channel) == numbered(3)


def test_commit_all_of_rising_numbers_has_the_channel_forget_gaps(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """If numbers only rise, gaps are closed, and a lower number counts as a repeat."""
    for number in (2, 5, 9, 5, 7, 9):
        puts = put(client, channel, rows(number))
        commit(puts, number, is_streaming=False, numbers_increase=True)
    assert bodies(client, channel) == [b"2", b"5", b"9"]


def test_commit_all_whose_response_is_lost_stores_once(client: millrace.Client, channel: millrace.Channel) -> None:
    """A commit whose response is lost is repeated and takes effect once."""

    async def commit_through_proxy() -> int:
        async with cutting_proxy(client.endpoint) as proxy:
            puts = await asyncio.to_thread(put_all, [rows(0, 1)], options_to(channel, proxy.address), 0)
            proxy.lose_next_response()
            await asyncio.to_thread(commit, puts)
            return proxy.cut_count

    assert asyncio.run(commit_through_proxy()) == 1
    assert bodies(client, channel) == numbered(2)


def test_commit_all_after_the_leases_says_what_to_do(client: millrace.Client, channel: millrace.Channel) -> None:
    """If the leases have expired, nothing is stored, and the error says how to repeat the batch."""
    puts = put(client, channel, rows(0), leaseSeconds="3")
    wait_until(lambda: open_count(client, channel) == 0)
    for is_streaming, advice in ((True, "start the query again"), (False, "save again")):
        with pytest.raises(MillraceSparkError, match=f"leaseSeconds ran out, .* are gone; {advice}"):
            commit(puts, is_streaming=is_streaming)
    assert bodies(client, channel) == []


def test_commit_all_to_a_full_channel_waits_for_space(client: millrace.Client) -> None:
    """The commit succeeds once a consumer has made space."""
    channel = make_channel(client, capacity=100, keep_alive_seconds=0.3)
    channel.append([b"old"] * 80)
    puts = put(client, channel, rows(*range(50)))

    def waiting_count() -> int:
        return client.admin.get_channel(channel.name).gauges.waiting_commits

    def consume() -> None:
        # Wait until the first attempt has been refused.
        wait_until(lambda: waiting_count() == 1)
        wait_until(lambda: waiting_count() == 0)
        client.admin.purge_channel(channel.name)

    consumer = threading.Thread(target=consume)
    consumer.start()
    commit(puts, retry_seconds=_WAIT_SECONDS_MAX)
    consumer.join()
    assert bodies(client, channel) == numbered(50)


def test_commit_all_of_too_many_transactions_says_so(
    client: millrace.Client, channel: millrace.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with too many transactions is refused before any commit."""
    monkeypatch.setattr(driver, "TXNS_MAX", 2)
    puts = put(client, channel, rows(*range(250)))
    with pytest.raises(MillraceSparkError, match="250 events are in 3 transactions, and one commit takes 2; raise"):
        commit(puts)
    roll_back(puts, PLAINTEXT)
    assert bodies(client, channel) == []


def test_check_targets_of_a_server_under_two_names_is_refused(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """Otherwise half of the rows would be taken for repeats of the other half."""
    port = client.endpoint.rpartition(":")[2]
    for named in (channel.name, ""):
        options = replace(options_to(channel, f"127.0.0.1:{port}", f"localhost:{port}"), channel=named)
        with pytest.raises(OptionError, match=f"^option endpoints: 127.0.0.1:{port} and localhost:{port} are the same"):
            check_targets(options, is_streaming=False)


def test_commit_all_with_one_server_away_says_what_is_stored(
    client: millrace.Client, channel: millrace.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """The other servers store their share, and the error says how to store the rest of a save."""
    caplog.set_level(logging.INFO, "millrace_spark")
    puts = put(client, channel, rows(0, 1))
    away = replace(puts[0], shard=replace(puts[0].shard, endpoint="127.0.0.1:1"))
    with pytest.raises(MillraceSparkError) as refused:
        commit([*puts, away], 3, retry_seconds=0, is_streaming=False)
    assert "at 127.0.0.1:1: cannot reach a Millrace server" in str(refused.value)
    assert str(refused.value).endswith(
        f"The rows for {puts[0].shard} are stored; saving again to the same endpoints with "
        'option("producerId", "query").option("batchNumber", 3) stores only the rest'
    )
    with pytest.raises(MillraceSparkError, match=f"The rows for {puts[0].shard} are stored$"):
        commit([*puts, away], 3, retry_seconds=0, is_streaming=False, is_repeatable=False)
    roll_back([*puts, away], PLAINTEXT)
    assert bodies(client, channel) == numbered(2)
    assert f"{puts[0].shard}: stored batch 3 of producer query, 2 events from sequence 1 to 2" in caplog.text


def test_commit_all_of_one_attempt_leaves_the_other_to_its_lease(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """A task that runs twice, as with speculation, is stored once; the other attempt expires with its lease."""
    put(client, channel, rows(0, 1), leaseSeconds="3")
    commit(put(client, channel, rows(0, 1)))
    wait_until(lambda: open_count(client, channel) == 0)
    assert bodies(client, channel) == numbered(2)
