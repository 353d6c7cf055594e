"""A producer for a channel that one of several servers owns."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client.producing.config import ProducerConfig
from tests.unit.client.owned_servers import CHANNEL, OwnedServers, owned_servers
from tests.waiting import wait_until


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OwnedServers]:
    """Three servers, the second of which owns the channel."""
    with owned_servers(tmp_path, 3) as three:
        three.own(1)
        yield three


def stored(servers: OwnedServers, owner: int) -> list[bytes]:
    """The bodies of all events of the channel."""
    with millrace.connect(servers.addresses[owner]) as client:
        return [event.body for batch in client.channel(CHANNEL).peek() for event in batch]


QUICK = ProducerConfig(linger_seconds=0.001, backoff_seconds=0.01, backoff_seconds_max=0.05)


def test_events_for_a_server_that_stands_by_are_stored_by_the_owner(servers: OwnedServers) -> None:
    """The producer goes there at once, also for the batches that were on their way, and no attempt has failed."""
    with millrace.Producer(servers.addresses[0], CHANNEL, config=QUICK) as producer:
        results = [producer.send(b"%d" % number).result(60) for number in range(5)]
    assert [(result.stored, result.attempt_count) for result in results] == [(True, 1)] * 5
    assert sorted(stored(servers, 1)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("given", [1, 3])
def test_events_go_to_each_next_owner_once(servers: OwnedServers, given: int) -> None:
    """Whether the producer knows one server or all: an owner that is gone costs neither events nor repeats."""
    expected = []
    with millrace.Producer(servers.addresses[:given], CHANNEL, config=QUICK) as producer:
        for owner in (1, 2, 0):
            servers.own(owner)
            for number in range(3):
                expected.append(b"%d/%d" % (owner, number))
                assert producer.send(expected[-1]).result(60).stored
            if owner:
                servers.own(0)
                servers.stop(owner)
    assert sorted(stored(servers, 0)) == sorted(expected)


def test_events_wait_while_servers_name_each_other(servers: OwnedServers) -> None:
    """Until one of them owns the channel they are asked now and then; nothing fails before its delivery time."""
    servers.own(2)
    servers.named = {0: servers.addresses[1], 1: servers.addresses[0]}
    with millrace.Producer(servers.addresses[0], CHANNEL, config=QUICK) as producer:
        waiting = producer.send(b"a")
        began = time.monotonic()
        wait_until(lambda: servers.refusal_count(0) + servers.refusal_count(1) > 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        refusal_count = servers.refusal_count(0) + servers.refusal_count(1)
        assert refusal_count < 200 * (time.monotonic() - began)
        servers.own(0)
        assert waiting.result(60).stored
