"""How the components of a daemon's agent start, are shown, are reloaded and stop."""

import asyncio
import json
import signal
import time
import urllib.request
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import millrace_client
import millrace_client.aio
from millrace_client import ComponentInfo, ComponentKind, ComponentState
from tests.conftest import StartMillraced
from tests.free_ports import free_port
from tests.millrace_program import run_millrace
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS_MAX = 60.0
LONG_GRACE = "shutdown_grace_seconds = 600.0"
"""A server that used its grace time would outlast each wait for its end, so that no test measures a stop."""

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def _known_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `tests.daemon_components` importable for daemons."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def components_of(server: Millraced) -> dict[str, ComponentInfo]:
    with millrace_client.connect(server.grpc) as client:
        return {f"{one.kind}s/{one.name}": one for one in client.admin.list_components()}


def page_of(server: Millraced, path: str) -> str:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=20.0) as response:
        return str(response.read().decode())


def health_of(server: Millraced, service: str) -> int:
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20.0).status)


def events_of(server: Millraced, event: str) -> list[dict[str, Any]]:
    return [entry for entry in server.log if entry["event"] == event]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def flow(tmp_path: Path, *, count: int, sink: str = "", server: str = "") -> str:
    """A memory channel between a source with this number of events and a sink that writes the file `written`."""
    return f"""
        [server]
        {server}
        [channels.orders]
        type = "memory"
        capacity = 1000
        [sources.app]
        type = "custom"
        factory = "tests.daemon_components:CountingSource"
        options = {{ count = {count}, ended = "{tmp_path / "ended"}" }}
        channels = ["orders"]
        [sinks.out]
        type = "custom"
        factory = "tests.daemon_components:SlowSink"
        channel = "orders"
        batch_events_max = 1
        options = {{ path = "{tmp_path / "written"}" {sink} }}
    """


def config_of(server: Millraced) -> Path:
    [argument] = [one for one in server.arguments if one.endswith(".toml")]
    return Path(str(argument))


def reload(server: Millraced, toml: str) -> dict[str, Any]:
    """Replaces the configuration file, requests a reload, and returns the log entry of its end."""
    config_of(server).write_text(toml)
    return reload_again(server)


def reload_again(server: Millraced) -> dict[str, Any]:
    ends = {"reloaded", "the configuration was not reloaded, and nothing was changed"}
    before = sum(entry["event"] in ends for entry in server.log)
    server.send(signal.SIGHUP)
    wait_until(lambda: sum(entry["event"] in ends for entry in server.log) > before)
    return [entry for entry in server.log if entry["event"] in ends][-1]


def test_components_of_a_daemon_are_shown_everywhere(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """RPC, health service, HTTP, Prometheus and command line show them, with the reason of a failure."""
    broken = (
        '[sinks.broken]\ntype = "millrace"\nchannel = "orders"\nendpoints = ["127.0.0.1:9"]\ntarget_channel = "x"\n'
    )
    toml = flow(tmp_path, count=3) + '[channels.other]\ntype = "memory"\n' + broken.replace('"orders"', '"other"')
    server = start_millraced(toml)
    with millrace_client.connect(server.grpc) as client:
        client.channel("other").append([b"a"])
    wait_until(lambda: components_of(server)["sinks/broken"].state is ComponentState.BACKING_OFF)
    wait_until(lambda: components_of(server)["sinks/out"].counters.event_count == 3)
    reported = components_of(server)
    assert list(reported) == ["sinks/broken", "sinks/out", "sources/app"]
    app, broken_sink = reported["sources/app"], reported["sinks/broken"]
    assert (app.kind, app.type, app.state, app.reason) == (ComponentKind.SOURCE, "custom", ComponentState.RUNNING, "")
    assert app.counters.event_count == 3
    assert app.progress_age_seconds is not None
    assert broken_sink.reason
    assert broken_sink.counters.failure_count > 0
    assert health_of(server, "sources/app") == health_of(server, "sinks/out") == SERVING
    assert health_of(server, "sinks/broken") == NOT_SERVING
    assert health_of(server, "") == SERVING
    page = json.loads(page_of(server, "/components"))
    assert page["SINK.broken"]["State"] == "backing off"
    assert page["SOURCE.app"]["EventAcceptedCount"] == 3
    assert json.loads(page_of(server, "/healthz")) == {
        "status": "serving",
        "components": {"sinks/broken": "backing off"},
    }
    state = 'millrace_component_state{component="broken",kind="sink",state="backing_off",type="millrace"} 1.0'
    assert state in page_of(server, "/metrics")
    shown = run_millrace(server.grpc, "components").stdout.decode()
    assert asyncio.run(_components_by_asyncio(server)) == list(reported)
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        ["sinks/broken", "backing_off"],
        ["sinks/out", "running"],
        ["sources/app", "running"],
    ]
    assert "sinks/broken" in run_millrace(server.grpc, "top", "--interval", "0.1").stdout.decode()
    retried = run_millrace(server.grpc, "component", "retry", "broken").stdout.decode()
    assert retried.startswith("sinks/broken: tries again now, after ")
    assert "sinks/out" in run_millrace(server.grpc, "consumers", "orders").stdout.decode()


async def _components_by_asyncio(server: Millraced) -> list[str]:
    async with millrace_client.aio.connect(server.grpc) as client:
        listed = await client.admin.list_components()
        async with aclosing(client.admin.watch_components(0.1)) as watched:
            seen = await anext(watched)
    assert [one.name for one in listed] == [one.name for one in seen]
    return [f"{one.kind}s/{one.name}" for one in listed]


def test_watch_components_follows_their_states(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The stream continues during a reload, and shows its effect."""
    server = start_millraced(flow(tmp_path, count=0))
    with millrace_client.connect(server.grpc) as client:
        watched = client.admin.watch_components(0.1)
        assert {one.name for one in next(watched)} == {"app", "out"}
        reload(server, '[channels.orders]\ntype = "memory"\ncapacity = 1000\n')
        wait_until(lambda: next(watched) == [])


def test_log_of_an_unreachable_target_has_one_line_and_one_when_it_is_back(start_millraced: StartMillraced) -> None:
    """Each way to fail is logged once, however often the sink retries, and the end is logged."""
    address = f"127.0.0.1:{free_port()}"
    server = start_millraced(f"""
        [channels.orders]
        type = "memory"
        [sinks.collector]
        type = "millrace"
        channel = "orders"
        endpoints = ["{address}"]
        target_channel = "in"
        connect_timeout_seconds = 0.2
    """)
    with millrace_client.connect(server.grpc) as client:
        client.channel("orders").append([b"a"])
    wait_until(lambda: components_of(server)["sinks/collector"].counters.failure_count >= 3)
    collector = start_millraced('[channels.in]\ntype = "file"\n', arguments=("--listen", address))
    server.wait_for("works again", 60.0)
    reasons = [event["reason"] for event in events_of(server, "backs off")]
    assert 1 <= len(reasons) == len(set(reasons))
    assert len(events_of(server, "works again")) == 1
    with millrace_client.connect(collector.grpc) as client:
        assert client.admin.get_channel("in").gauges.queued_events == 1


def test_sighup_changes_only_what_changed(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The unchanged sink keeps running; the changed source is restarted; limits change in place; events stay."""
    server = start_millraced(flow(tmp_path, count=5))
    wait_until(lambda: components_of(server)["sinks/out"].counters.event_count == 5)
    out = components_of(server)["sinks/out"]
    other = flow(tmp_path, count=2).replace("capacity = 1000", "capacity = 2000")
    other += '[channels.new]\ntype = "file"\n[sinks.new]\ntype = "null"\nchannel = "new"\n'
    last = reload(server, other)
    assert (last["changed"], last["started"]) == (["sources/app"], ["sinks/new"])
    assert (last["channels_made"], last["channels_changed"]) == (["new"], ["orders"])
    wait_until(lambda: components_of(server)["sinks/out"].counters.event_count == 7)
    again = components_of(server)
    assert again["sinks/out"].since == out.since
    assert again["sources/app"].counters.event_count == 2
    assert (tmp_path / "ended").exists()
    assert lines_of(tmp_path / "written") == [*(f"app-{number}" for number in range(5)), "app-0", "app-1"]
    assert {"timestamp", "level", "event", "logger"} == reload_again(server).keys()
    assert server.stop() == 0


def test_sighup_with_a_bad_file_changes_nothing(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """All problems are listed, the server continues unchanged, and a valid file can be loaded afterwards."""
    server = start_millraced(flow(tmp_path, count=1))
    wait_until(lambda: {one.state for one in components_of(server).values()} == {ComponentState.RUNNING})
    before = components_of(server)
    last = reload(server, flow(tmp_path, count=9).replace('"memory"', '"memroy"') + "[sinsk]\n")
    assert last["level"] == "error"
    assert len(last["problems"]) == 2
    assert {name: one.since for name, one in components_of(server).items()} == {
        name: one.since for name, one in before.items()
    }
    assert reload(server, flow(tmp_path, count=9))["changed"] == ["sources/app"]


def test_sigterm_during_a_reload_stops(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A stop does not wait for a reload; SIGHUP during the stop does not end the process."""
    gate = tmp_path / "gate"
    server = start_millraced(flow(tmp_path, count=1, sink=f', gate = "{gate}"', server=LONG_GRACE))
    wait_until(lambda: components_of(server)["sources/app"].counters.event_count == 1)
    config_of(server).write_text('[channels.orders]\ntype = "memory"\ncapacity = 1000\n')
    server.send(signal.SIGHUP)
    server.wait_for("reloading")
    server.send(signal.SIGTERM)
    server.wait_for("stopping")
    server.send(signal.SIGHUP)
    server.wait_for("SIGHUP is ignored, since the server is stopping")
    gate.touch()
    assert server.wait() == 0
    assert lines_of(tmp_path / "written") == ["app-0"]


def test_second_sigterm_with_a_slow_sink_stops_at_once(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The log says what the second signal costs; not even a thread that never ends keeps the process."""
    toml = flow(tmp_path, count=5, sink=f', gate = "{tmp_path / "never"}"', server=LONG_GRACE)
    server = start_millraced(toml)
    wait_until(lambda: components_of(server)["sources/app"].counters.event_count == 5)
    server.send(signal.SIGTERM)
    server.wait_for("stopping")
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    [lost] = events_of(server, "events in memory are lost")
    assert (lost["channel"], lost["events"]) == ("orders", 5)
    assert [entry["event"] for entry in server.log][-2:] == [
        "stopped",
        "some threads have not ended; the process exits without them",
    ]


@pytest.mark.torture
def test_agent_with_nothing_to_do_needs_next_to_no_processor(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Components wait for events without polling."""
    server = start_millraced(flow(tmp_path, count=1))
    wait_until(lambda: components_of(server)["sinks/out"].counters.event_count == 1)
    time.sleep(0.5)
    before = cpu_seconds(server.process.pid)
    time.sleep(2.0)
    assert cpu_seconds(server.process.pid) - before <= 0.1


def test_sighup_sets_and_lifts_the_retention_and_what_expired_stays_gone(start_millraced: StartMillraced) -> None:
    """A reader and `millrace channels` see events expire, and neither a lifted retention nor SIGKILL restores them."""
    kept = '[channels.orders]\ntype = "file"\n'
    server = start_millraced(kept)
    with millrace_client.connect(server.grpc) as client:
        orders = client.channel("orders")
        orders.append([b"a", b"b"])
        claim = orders.claim("reader", lease_seconds=60.0)
        assert reload(server, kept + "retention_seconds = 0.01\n")["channels_changed"] == ["orders"]
        wait_until(lambda: client.admin.get_channel("orders").gauges.queued_events == 0)
        with pytest.raises(millrace_client.SequenceGoneError):
            list(claim.read(1, 3))
        assert reload(server, kept)["channels_changed"] == ["orders"]
        orders.append([b"c"])
    [shown] = json.loads(run_millrace(server.grpc, "channels", "--json").stdout)
    assert (shown["gauges"]["queued_events"], shown["counters"]["event_expired_count"]) == (1, 2)
    server.kill()
    again = start_millraced(kept, server.data_dir)
    assert run_millrace(again.grpc, "peek", "orders").stdout == b"c\n"


def test_secrets_of_components_are_neither_logged_nor_shown(start_millraced: StartMillraced) -> None:
    """Not when a sink fails, when the configuration is reloaded, or when it is not valid any more."""
    secret = "hush-hush"  # noqa: S105 - it must not be found again
    flows = f"""
        channels = {{ a = {{ type = "memory" }}, b = {{ type = "memory" }} }}
        [sinks.web]
        type = "http"
        url = "http://127.0.0.1:1/?key={secret}"
        headers = {{ Key = "{secret}" }}
        channel = "a"
        [sources.run]
        type = "exec"
        command = ["sh", "-c", "sleep 0.1; exit 3"]
        environment = {{ KEY = "{secret}" }}
        channels = ["a"]
        [sinks.files]
        type = "files"
        path = "ftp://user:{secret}@127.0.0.1:1/dir"
        channel = "b"
    """
    server = start_millraced(flows)
    with millrace_client.connect(server.grpc) as client:
        for channel in ("a", "b"):
            client.channel(channel).append([b"one"])
    wait_until(lambda: all(one.reason for one in components_of(server).values()))
    shown = [page_of(server, "/components"), page_of(server, "/metrics"), str(components_of(server))]
    config = Path(server.arguments[1])
    config.write_text(flows.replace(f'KEY = "{secret}"', f'KEY = "{secret}2"'))
    server.send(signal.SIGHUP)
    server.wait_for("reloaded")
    config.write_text(flows.replace(f'Key = "{secret}"', f'Key = "{secret}\\n"'))
    server.send(signal.SIGHUP)
    server.wait_for("the configuration was not reloaded, and nothing was changed")
    assert secret not in str([*shown, server.log, server.other_output])
