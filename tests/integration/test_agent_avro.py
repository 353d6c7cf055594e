"""Flume's Avro RPC between real servers and peers made from the specification; the page docs/flume.md."""

import ssl
from collections.abc import Callable
from pathlib import Path

from millrace_client import ComponentKind, ComponentState
from tests.certificates import Authority
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.flume_peer import Event, FlumeClient, FlumeServer, flume_server
from tests.millraced import Millraced, run_millraced
from tests.tiers import Tier, tiers
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "flume.md"
SINK = ComponentKind.SINK

CHANNEL_TOML = '[channels.orders]\ntype = "file"\n'
SOURCE_TOML = '[sources.flume]\ntype = "avro"\nlisten = "127.0.0.1:0"\nchannels = ["orders"]\n'

EVENTS: list[Event] = [({"host": f"web-{number % 3}", "n": str(number)}, b"body-%d" % number) for number in range(500)]


def sink_toml(name: str, *collectors: FlumeServer) -> str:
    endpoints = [collector.endpoint for collector in collectors]
    return f'[sinks.{name}]\ntype = "avro"\nchannel = "orders"\nendpoints = {endpoints}\n'


def client_of(server: Millraced, tls: ssl.SSLContext | None = None) -> FlumeClient:
    host, _, port = server.wait_for("listening")["address"].partition("//")[2].rpartition(":")
    return FlumeClient((host, int(port)), tls=tls)


def numbers_of(*collectors: FlumeServer) -> set[str]:
    return {headers["n"] for collector in collectors for headers, _ in collector.events}


def sent_to(edge: Tier, events: list[Event]) -> None:
    client = client_of(edge.server)
    assert client.append_batch(events) == "OK"
    client.close()


def all_at(*collectors: FlumeServer) -> Callable[[], bool]:
    return lambda: len(numbers_of(*collectors)) == len(EVENTS)


def test_configurations_of_the_page_are_good(tmp_path: Path) -> None:
    """Each configuration passes the check."""
    blocks = blocks_of(PAGE, "check")
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "millrace.toml").write_text(block, encoding="utf-8")
        checked = run_millraced("check", tmp_path / "millrace.toml")
        assert checked.returncode == 0, checked.stderr


def test_source_and_sink_pass_events_between_flumes(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """From Flume's client over TLS through a channel to Flume's source, with the same headers and bodies, in order."""
    certificate, key = Authority().issue(tmp_path, "localhost")
    tls = f'[sources.flume.tls]\ncertificate = "{certificate}"\nprivate_key = "{key}"\n'
    trust = ssl.create_default_context()
    trust.check_hostname = False
    trust.verify_mode = ssl.CERT_NONE
    with flume_server() as collector:
        server = start_millraced(CHANNEL_TOML + SOURCE_TOML + tls + sink_toml("out", collector))
        client = client_of(server, trust)
        assert client.append_batch(EVENTS[:400]) == "OK"
        assert [client.append(event) for event in EVENTS[400:]] == ["OK"] * 100
        client.close()
        collector.wait_for(lambda: len(collector.events) == len(EVENTS))
        assert collector.events == EVENTS
        assert server.stop() == 0


def test_failover_group_uses_the_next_collector_while_the_first_fails(tmp_path: Path) -> None:
    """The group returns to the first old collector by itself, and no event is lost."""
    group = '[sink_groups.all]\nsinks = ["best", "spare"]\nbackoff_seconds_max = 0.5\n'
    with tiers(tmp_path, "edge") as [edge], flume_server() as best, flume_server() as spare:
        edge.start(CHANNEL_TOML + SOURCE_TOML + sink_toml("best", best) + sink_toml("spare", spare) + group)
        sent_to(edge, EVENTS[:200])
        best.wait_for(lambda: len(best.events) == 200)
        assert spare.events == []
        with best.changed:
            best.responses += ["FAILED"] * 3
        sent_to(edge, EVENTS[200:300])
        spare.wait_for(lambda: len(spare.events) == 100)
        wait_until(lambda: edge.component(SINK, "spare").state is ComponentState.RUNNING)

        def has_returned() -> bool:
            # Each attempt of the first collector takes one of its refusals.
            sent_to(edge, EVENTS[300:301])
            return not best.responses and edge.component(SINK, "best").state is ComponentState.RUNNING

        wait_until(has_returned)
        sent_to(edge, EVENTS[300:])
        wait_until(all_at(best, spare))


def test_load_balancing_group_uses_all_collectors(tmp_path: Path) -> None:
    """Each gets a share, and one that is gone does not hold the others up."""
    group = '[sink_groups.all]\nsinks = ["one", "two"]\npolicy = "load_balancing"\nbackoff_seconds_max = 0.5\n'
    with tiers(tmp_path, "edge") as [edge], flume_server() as one, flume_server() as two:
        edge.start(CHANNEL_TOML + SOURCE_TOML + sink_toml("one", one) + sink_toml("two", two) + group)
        # One that waits for events gets the next ones, but the first to be connected could take them all.
        wait_until(lambda: all(edge.component(SINK, name).state is ComponentState.RUNNING for name in ("one", "two")))
        for start in range(0, 400, 50):
            sent_to(edge, EVENTS[start : start + 50])
        wait_until(lambda: len(numbers_of(one, two)) == 400)
        assert one.events
        assert two.events
        two.close()
        sent_to(edge, EVENTS[400:])
        wait_until(all_at(one, two))
