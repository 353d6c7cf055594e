"""Both variants of the client on a real server."""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from millrace_client import (
    BadArgumentError,
    ChannelClaimedError,
    ChannelConfig,
    ChannelFullError,
    ChannelNotEmptyError,
    ChannelNotFoundError,
    ChannelState,
    ChannelType,
    Client,
    Compression,
    DeadlineError,
    Event,
    FsyncPolicy,
    LeaseExpiredError,
    MillraceError,
    RefusedError,
    SequenceGoneError,
    StaleEpochError,
    UnavailableError,
    connect,
)
from tests.client_variants import client_variant
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.waiting import wait_until

_WAIT_SECONDS_MAX = 60.0
_numbers = itertools.count()


@pytest.fixture(params=["sync", "aio"])
def client(request: pytest.FixtureRequest, shared_server: Millraced) -> Iterator[Any]:
    with client_variant(request.param) as connecting:
        yield connecting(shared_server.grpc)


@pytest.fixture
def open_channel(client: Any) -> Iterator[Callable[..., Any]]:
    """Creates channels of the test's own, with the given limits."""
    names: list[str] = []

    def open_it(**limits: Any) -> Any:
        names.append(f"channels-{next(_numbers)}")
        client.admin.create_channel(names[-1], ChannelConfig(**limits))
        return client.channel(names[-1])

    yield open_it
    for name in names:
        client.admin.delete_channel(name, force=True)


@pytest.fixture
def channel(open_channel: Callable[..., Any]) -> Any:
    return open_channel()


def bodies_in(channel: Any) -> list[bytes]:
    """The bodies of all queued events."""
    return [body for batch in channel.peek(max_events=1_000) for body in batch.bodies()]


def test_events_come_back_as_they_were_given(channel: Any) -> None:
    """Bodies, headers and sequences are unchanged; text becomes UTF-8; empty and missing values are distinguished."""
    given = [Event(b"", {"": "", "grüße": "ü"}), Event(b"\xff\0"), b"body", "tëxt"]
    assert channel.append(given).last_sequence == 4
    with channel.transaction() as txn:
        events = [event for batch in txn.take(wait_seconds=0) for event in batch]
    assert events == [
        Event(b"", {"": "", "grüße": "ü"}, 1),
        Event(b"\xff\0", {}, 2),
        Event(b"body", {}, 3),
        Event("tëxt".encode(), {}, 4),
    ]
    assert bodies_in(channel) == []


def test_transaction_moves_events_or_leaves_all_as_it_was(channel: Any) -> None:
    """Puts and takes take effect together or not at all."""
    channel.append([b"one", b"two"])

    def fail_half_way() -> None:
        with channel.transaction() as txn:
            assert [batch.bodies() for batch in txn.take(max_events=1)] == [[b"one"]]
            txn.put([b"three"])
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert bodies_in(channel) == [b"one", b"two"]
    with channel.transaction() as txn:
        txn.take(max_events=1)
        txn.put([b"three"])
    assert txn.receipt.first_sequence == 3
    assert bodies_in(channel) == [b"two", b"three"]


def test_commit_without_space_can_be_tried_again(open_channel: Callable[..., Any]) -> None:
    """A full channel refuses the commit after its keep-alive; the transaction stays open."""
    channel = open_channel(capacity=1, keep_alive_seconds=0.05)
    channel.append([b"one"])
    with pytest.raises(ChannelFullError) as caught:
        channel.append([b"two"])
    assert caught.value.is_outcome_known
    assert (caught.value.channel, caught.value.retry_delay_seconds is None) == (channel.name, False)
    with channel.transaction() as txn:
        txn.put([b"two"])
        with pytest.raises(ChannelFullError):
            txn.commit()
        with channel.transaction() as other:
            other.take()
        txn.commit()
    assert bodies_in(channel) == [b"two"]


def test_transaction_without_a_call_for_its_lease_is_rolled_back(channel: Any) -> None:
    """The next call reports that, and the events return to the channel."""
    channel.append([b"one"])
    txn = channel.transaction(lease_seconds=0.05)

    def be_late() -> None:
        with txn:
            assert txn.lease_seconds == pytest.approx(0.05)
            txn.take()
            wait_until(lambda: bodies_in(channel) == [b"one"])
            txn.put([b"late"])

    with pytest.raises(LeaseExpiredError) as caught:
        be_late()
    assert caught.value.txn_id == txn.txn_id
    assert isinstance(caught.value, RefusedError)


def test_consume_left_by_break_returns_what_was_not_acknowledged(channel: Any) -> None:
    """Acknowledged events are removed, and the others return to their places, in order."""
    channel.append([b"one", b"two", b"three"])
    with channel.consume(max_events=1, prefetch=2) as deliveries:
        for delivery in deliveries:
            if delivery.bodies() == [b"two"]:
                break
            delivery.ack()
    assert bodies_in(channel) == [b"two", b"three"]


def test_consume_of_no_channel_says_so(client: Any) -> None:
    """The error comes with the first delivery requested."""
    with pytest.raises(ChannelNotFoundError):
        list(client.channel("nowhere").consume())


def test_claim_reads_as_often_as_it_likes_until_acknowledged(channel: Any) -> None:
    """A claim lets one reader read ranges of the queue repeatedly."""
    channel.append([b"one", b"two", b"three"])
    with channel.claim("reader") as claim:
        assert (claim.first_sequence, claim.next_sequence) == (1, 4)
        for _ in range(2):
            assert [batch.bodies() for batch in claim.read(2)] == [[b"two", b"three"]]
        with pytest.raises(ChannelClaimedError) as caught:
            channel.claim("other")
        assert caught.value.retry_delay_seconds
        assert claim.acknowledge(2) == 3
        with pytest.raises(SequenceGoneError):
            list(claim.read(1))
    with channel.transaction() as txn:
        assert [batch.bodies() for batch in txn.take()] == [[b"three"]]


def test_claim_that_was_taken_over_is_refused(channel: Any) -> None:
    """The epoch keeps a reader that was considered dead from acknowledging."""
    channel.append([b"one"])
    claim = channel.claim("reader")
    newer = channel.claim("other", takeover=True)
    assert newer.epoch > claim.epoch
    for use in (lambda: list(claim.read()), lambda: claim.acknowledge(1), claim.release):
        with pytest.raises(StaleEpochError):
            use()
    newer.release()
    assert bodies_in(channel) == [b"one"]


def test_peek_that_follows_sees_events_as_they_come(channel: Any) -> None:
    """Each event from the requested sequence on is returned once, and none is taken."""
    channel.append([b"one"])
    seen: list[bytes] = []
    for batch in channel.peek(from_sequence=1, follow=True):
        seen += batch.bodies()
        if len(seen) == 3:
            break
        channel.append([b"another"])
    assert seen == [b"one", b"another", b"another"]
    assert bodies_in(channel) == seen


def test_admin_makes_changes_and_deletes_channels(client: Any) -> None:
    """A created channel is listed with its limits, can be changed while in use, and is deleted only when empty."""
    name = f"made-{next(_numbers)}"
    made = client.admin.create_channel(name, ChannelConfig(capacity=10, keep_alive_seconds=0.05))
    assert (made.name, made.config.capacity, made.config.type) == (name, 10, "memory")
    client.channel(name).append([b"one", b"two"])
    assert client.admin.update_channel(name, ChannelConfig(capacity=20)).applied
    refused = client.admin.update_channel(name, ChannelConfig(capacity=1, transaction_capacity=1))
    assert not refused.applied
    assert refused.message
    assert refused.channel.config.capacity == 20
    assert name in [channel.name for channel in client.admin.list_channels()]
    [[watched]] = itertools.islice(client.admin.watch_channels([name]), 1)
    assert watched.gauges.queued_events == 2
    with pytest.raises(ChannelNotEmptyError):
        client.admin.delete_channel(name)
    assert client.admin.purge_channel(name) == 2
    client.admin.delete_channel(name)
    with pytest.raises(ChannelNotFoundError):
        client.admin.get_channel(name)


def test_admin_makes_changes_and_copies_a_file_channel(client: Any) -> None:
    """Limits of the log are sent and returned like others, and can be used to create another channel."""
    name, copy = f"made-{next(_numbers)}", f"made-{next(_numbers)}"
    config = ChannelConfig(
        type=ChannelType.FILE,
        capacity=10,
        backup_checkpoint=False,
        checkpoint_interval_seconds=0.5,
        segment_bytes_max=1 << 20,
        min_free_bytes=0,
        fsync=FsyncPolicy.INTERVAL,
        fsync_interval_seconds=0.25,
        compression=Compression.ZSTD,
    )
    made = client.admin.create_channel(name, config)
    said = {field: value for field, value in asdict(config).items() if value is not None}
    assert {field: getattr(made.config, field) for field in said} == said
    assert (made.state, made.fault, made.replayed_fraction) == (ChannelState.OPEN, "", 1.0)
    assert (made.gauges.segments, made.config.active_key) == (0, "")
    changed = client.admin.update_channel(name, ChannelConfig(fsync=FsyncPolicy.COMMIT, capacity=20))
    assert changed.applied
    limits = changed.channel.config
    assert (limits.fsync, limits.capacity, limits.compression) == ("commit", 20, "zstd")
    with pytest.raises(BadArgumentError, match="cannot be changed"):
        client.admin.update_channel(name, ChannelConfig(backup_checkpoint=True))
    assert client.admin.create_channel(copy, limits).config == limits
    with pytest.raises(BadArgumentError, match=r'config\.fsync: is only for type "file"'):
        client.admin.create_channel(f"made-{next(_numbers)}", ChannelConfig(fsync=FsyncPolicy.COMMIT))
    for made_name in (name, copy):
        client.admin.delete_channel(made_name)


def test_client_shared_by_threads_loses_and_doubles_nothing(shared_server: Millraced) -> None:
    """Appends, takes and acks of many threads over one client add up."""
    with connect(shared_server.grpc) as client:
        name = f"threads-{next(_numbers)}"
        client.admin.create_channel(name, ChannelConfig(capacity=10_000))
        channel = client.channel(name)
        given = [b"%d-%d" % (worker, number) for worker in range(8) for number in range(50)]

        def append(worker: int) -> None:
            for body in given[worker * 50 : worker * 50 + 50]:
                channel.append([body])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(append, range(8)))
            seen: list[bytes] = []
            with channel.consume(max_events=7) as deliveries:
                for delivery in deliveries:
                    seen += delivery.bodies()
                    pool.submit(delivery.ack)
                    if len(seen) == len(given):
                        break
                pool.shutdown()
        assert sorted(seen) == sorted(given)
        assert client.admin.get_channel(name).gauges.producers == 1
        assert bodies_in(channel) == []
        client.admin.delete_channel(name)


def test_client_survives_a_restart_of_the_server(start_millraced: StartMillraced) -> None:
    """The client reconnects to the same address by itself."""
    server = start_millraced()
    with connect(server.grpc) as client:
        client.admin.create_channel("orders")
        client.channel("orders").append([b"one"])
        server.kill()
        with pytest.raises(UnavailableError, match=server.grpc):
            client.channel("orders").append([b"two"])
        start_millraced(data_dir=server.data_dir, arguments=("--listen", server.grpc))
        assert client.channel("orders").append([b"three"]).first_sequence == 1


@pytest.mark.parametrize("name", ["sync", "aio"])
def test_consume_when_its_server_dies_says_so(start_millraced: StartMillraced, name: str) -> None:
    """A loop that waits for events ends with an error soon."""
    server = start_millraced()
    with client_variant(name) as connecting:
        client = connecting(server.grpc)
        client.admin.create_channel("orders")
        client.channel("orders").append([b"one"])

        def consume() -> None:
            for delivery in client.channel("orders").consume():
                delivery.ack()
                server.kill()

        with pytest.raises(UnavailableError):
            consume()


@pytest.mark.parametrize("name", ["sync", "aio"])
def test_call_on_a_frozen_server_ends_at_its_deadline(start_millraced: StartMillraced, name: str) -> None:
    """Calls to a server that does not respond end at their deadline; afterwards the same client works again."""
    server = start_millraced()
    with connect(server.grpc) as other, client_variant(name) as connecting:
        other.admin.create_channel("orders")
        client = connecting(server.grpc, timeout_seconds=0.25)
        wait_until(lambda: _responds(client))
        server.send(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(DeadlineError, match=server.grpc):
                client.admin.list_channels()
            with pytest.raises(DeadlineError):
                list(client.channel("orders").peek())
            assert time.monotonic() - begun < 10.0
        finally:
            server.send(signal.SIGCONT)
        wait_until(lambda: _responds(client))


def _responds(client: Any) -> bool:
    try:
        client.admin.list_channels()
    except MillraceError:
        return False
    return True


def test_closing_a_client_while_calls_wait_ends_them(shared_server: Millraced) -> None:
    """Waiting calls of other threads raise that the client was closed."""
    client = connect(shared_server.grpc)
    name = f"closing-{next(_numbers)}"
    client.admin.create_channel(name)
    errors: list[MillraceError] = []

    def wait_for_events() -> None:
        try:
            with client.channel(name).transaction() as txn:
                txn.take(wait_seconds=_WAIT_SECONDS_MAX)
        except MillraceError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait_for_events)
    waiting.start()
    with connect(shared_server.grpc) as other:
        wait_until(lambda: _waiting_takes(other, name) == 1)
        client.close()
        waiting.join(_WAIT_SECONDS_MAX)
        other.admin.delete_channel(name, force=True)
    assert [error.reason for error in errors] == ["CANCELLED"]


def _waiting_takes(client: Client, name: str) -> int:
    return client.admin.get_channel(name).gauges.waiting_takes


def test_client_of_a_wrong_address_says_what_is_wrong(shared_server: Millraced) -> None:
    """Only gRPC's texts, which may change with any release, tell these causes apart."""
    for address, cause in (
        (shared_server.http, "this port speaks HTTP"),
        ("nowhere.invalid:7070", "cannot be resolved"),
    ):
        # Without repeats, which could not help.
        options = (("grpc.enable_retries", 0),)
        with connect(address, options=options) as client, pytest.raises(UnavailableError, match=cause):
            client.admin.list_channels()
