"""Daemons with sinks that post events, log them, or are custom ones."""

import asyncio
import json
import random
import time
from pathlib import Path

import pytest

from millrace_client import Client, ComponentState, Event, connect
from tests.conftest import StartMillraced
from tests.free_ports import free_port
from tests.http_receiver import Received, receiving, response
from tests.millraced import Millraced
from tests.waiting import wait_until

WAIT_SECONDS_MAX = 60.0
SEED = 50_250

CHANNELS = """
[channels.orders]
type = "file"

[channels.rejected]
type = "file"
"""

OWN_SINK = '''
"""A user's own sink."""

from pathlib import Path

from millrace_server.agent.sinks.sink import BatchSink


class LineSink(BatchSink):
    def __init__(self, place, *, path):
        self._path = Path(path)
        self._name = place.name

    async def write(self, batches):
        with self._path.open("ab") as file:
            for batch in batches:
                file.writelines(self._name.encode() + b" " + body + b"\\n" for _, body in batch.window.rows())
'''


def _append(server: Millraced, *bodies: bytes) -> None:
    with connect(server.grpc) as client:
        client.channel("orders").append([Event(body, {"n": body.decode()}) for body in bodies])


def _held(client: Client, channel: str = "orders") -> int:
    gauges = client.admin.get_channel(channel).gauges
    return gauges.queued_events + gauges.taken_events


def _wait_empty(server: Millraced) -> None:
    with connect(server.grpc) as client:
        wait_until(lambda: not _held(client))


def _events(server: Millraced, channel: str) -> list[Event]:
    with connect(server.grpc) as client:
        return [event for batch in client.channel(channel).peek(max_events=100_000) for event in batch]


async def test_http_sink_of_a_daemon_goes_through_refusals_and_sets_aside_what_is_rejected(
    start_millraced: StartMillraced,
) -> None:
    """The sink obeys Retry-After, sends nothing twice without need, and its state says why it waits."""
    async with receiving() as receiver:
        has_shown_why = False

        def choose_response(request: Received) -> None:
            if not has_shown_why:
                receiver.responses.append(response(503, "Retry-After: 1", body=b"later"))
            elif "3" in [event["body"] for event in json.loads(request.body)]:
                receiver.responses.append(response(422, body=b"no 3"))

        receiver.before_response = choose_response
        config = f"""
            {CHANNELS}
            [sinks.web]
            type = "http"
            channel = "orders"
            url = "{receiver.url}"
            deliveries_max = 1
            dead_letter_channel = "rejected"
        """
        server = await asyncio.to_thread(start_millraced, config)
        began = time.monotonic()
        await asyncio.to_thread(_append, server, *(b"%d" % number for number in range(8)))
        with connect(server.grpc) as client:

            def is_backing_off() -> bool:
                [sink] = client.admin.list_components()
                return sink.state is ComponentState.BACKING_OFF and sink.reason.endswith(
                    "/in returned 503 Service Unavailable: later"
                )

            await asyncio.to_thread(wait_until, is_backing_off)
        has_shown_why = True
        await asyncio.to_thread(_wait_empty, server)
        assert time.monotonic() - began >= 1.0
        assert len({request.headers["idempotency-key"] for request in receiver.requests[:2]}) == 1
        [rejected] = await asyncio.to_thread(_events, server, "rejected")
        assert rejected.body == b"3"
        assert rejected.headers["millrace.dead_letter.reason"].endswith("/in returned 422 Unprocessable Entity: no 3")
        assert "secret" not in str(rejected.headers) + str(server.log)
        assert await asyncio.to_thread(server.stop) == 0


def test_http_sink_to_a_source_that_is_killed_again_and_again_brings_each_event_once(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Responses are lost, the sink repeats its requests, and the source recognizes them by their keys."""
    chance = random.Random(SEED)
    port = free_port()
    receiving_config = f"""
        {CHANNELS}
        [sources.web]
        type = "http"
        listen = "127.0.0.1:{port}"
        channels = ["orders"]
    """
    sending_config = f"""
        {CHANNELS}
        [sinks.web]
        type = "http"
        channel = "orders"
        url = "http://127.0.0.1:{port}/"
        format = "json_lines"
        compression = "gzip"
        batch_events_max = 50
    """
    receiver = start_millraced(receiving_config, tmp_path / "receiver")
    sender = start_millraced(sending_config, tmp_path / "sender")
    count = 0
    for _ in range(3):
        for _ in range(20):
            _append(sender, *(b"%d" % number for number in range(count, count + 100)))
            count += 100
        time.sleep(chance.uniform(0.0, 0.2))
        receiver.kill()
        if chance.random() < 0.5:
            assert sender.stop() == 0
            sender = start_millraced(sending_config, tmp_path / "sender")
        receiver = start_millraced(receiving_config, tmp_path / "receiver")
    _wait_empty(sender)
    arrived = _events(receiver, "orders")
    assert [event.body for event in arrived] == [b"%d" % number for number in range(count)], f"seed {SEED}"
    assert all(event.headers == {"n": event.body.decode()} for event in arrived)


def test_logger_sink_of_a_daemon_logs_events(start_millraced: StartMillraced) -> None:
    """The logger sink shows the events of a flow; no event can forge a line of the log."""
    server = start_millraced(f'{CHANNELS}\n[sinks.show]\ntype = "logger"\nchannel = "orders"\nbytes_max = 12\n')
    _append(server, b'first\n{"event":"forged"}')
    reported = server.wait_for("an event")
    assert {key: reported[key] for key in ("sink", "sequence", "headers", "body", "body_bytes")} == {
        "sink": "show",
        "sequence": 1,
        "headers": {"n": 'first\\n{"event":"forged"}'},
        "body": 'first\\n{"even',
        "body_bytes": 24,
    }
    _wait_empty(server)
    assert server.stop() == 0


def test_custom_sink_of_a_daemon_does_what_its_user_wrote(
    start_millraced: StartMillraced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class is found by its import path, and gets its options."""
    (tmp_path / "users_own.py").write_text(OWN_SINK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = f"""
        {CHANNELS}
        [sinks.own]
        type = "custom"
        channel = "orders"
        factory = "users_own:LineSink"
        options = {{ path = "{tmp_path / "lines"}" }}
    """
    server = start_millraced(config)
    _append(server, b"1", b"2")
    _wait_empty(server)
    assert (tmp_path / "lines").read_text() == "own 1\nown 2\n"
