import asyncio
import base64
import gzip
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.sinks.http.config import HttpSinkConfig
from millrace_server.agent.sinks.http.sink import HttpSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.channel import Channel
from millrace_server.channels.deliveries import Deliveries
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.transaction import Transaction
from millrace_server.errors import DiskFullError
from tests.agent_components import registry_with
from tests.channel_events import append, queued, stored_rows
from tests.forward_targets import reader_of
from tests.http_receiver import CLOSE, OK, HttpReceiver, Received, receiving, response
from tests.recorded_spans import recording, traceparent_of
from tests.waiting import WAIT_SECONDS_MAX, until

TABLE: Mapping[str, Any] = {"type": "http", "channel": "orders"}


@dataclass
class Scene:
    """A channel, and a server that receives its events."""

    registry: ChannelRegistry
    receiver: HttpReceiver

    @property
    def channel(self) -> Channel:
        return self.registry.get("orders")

    def sink(self, **settings: object) -> HttpSink:
        table = {**TABLE, "url": self.receiver.url, **settings}
        made = HttpSinkConfig.model_validate(table, strict=True).make(SinkContext("web", Path()))
        assert isinstance(made, HttpSink)
        return made

    async def empty(self, sink: HttpSink | None = None, reader: ChannelReader | None = None) -> None:
        """Runs a sink until the channel is empty and what it held is settled."""
        reader = reader or reader_of(self.registry)
        work = asyncio.create_task((sink or self.sink()).run(reader))
        await until(lambda: not self.channel._contents.capacity.event_count or work.done())
        reader.close()
        await work

    async def run_failing(
        self, words: str, sink: HttpSink | None = None, reader: ChannelReader | None = None
    ) -> ComponentError:
        """Runs a sink that must fail; returns its error."""
        reader = reader or reader_of(self.registry)
        with pytest.raises(ComponentError, match=words) as raised:
            await (sink or self.sink()).run(reader)
        reader.nack_all()
        return raised.value


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with receiving() as receiver:
        yield Scene(registry_with("orders", "rejected", capacity=10_000, transaction_capacity=1_000), receiver)


def bodies_of(request: Received) -> list[bytes]:
    return [event["body"].encode() for event in json.loads(request.body)]


async def fill(channel: Channel, *counts: int) -> list[bytes]:
    """Appends batches of these sizes; returns their bodies."""
    bodies = [b"%d" % number for number in range(sum(counts))]
    rest = iter(bodies)
    for count in counts:
        await append(channel, *(next(rest) for _ in range(count)))
    return bodies


async def test_run_posts_deliveries_as_json_on_one_connection(scene: Scene) -> None:
    """Each delivery is a request with the configured headers; bodies that are not UTF-8 are sent as base64."""
    headers = {"customer": "17 \u20ac"}
    rows = stored_rows([(headers, b"text"), ({}, b"\xff\x00"), ({}, "\u00e4".encode())])
    await scene.channel.appends.append([rows], None)
    await fill(scene.channel, 10)
    await scene.empty(scene.sink(headers={"Authorization": "Bearer x"}))
    first, second = scene.receiver.requests
    assert first.line == "POST /in?key=secret HTTP/1.1"
    assert first.headers["host"] == scene.receiver.url.split("/")[2]
    assert (first.headers["authorization"], first.headers["content-type"]) == ("Bearer x", "application/json")
    assert json.loads(first.body)[:3] == [
        {"headers": headers, "body": "text"},
        {"headers": {}, "body_base64": base64.b64encode(b"\xff\x00").decode()},
        {"headers": {}, "body": "\u00e4"},
    ]
    assert len(json.loads(first.body) + json.loads(second.body)) == 13
    assert scene.receiver.connection_count == 1
    assert queued(scene.channel) == []


@pytest.mark.parametrize(
    ("settings", "content_type", "bodies"),
    [
        ({"format": "json_lines"}, "application/x-ndjson", [b'{"headers":{},"body":"0"}\n{"headers":{},"body":"1"}\n']),
        ({"format": "single"}, "application/octet-stream", [b"0", b"1"]),
        ({"format": "single", "headers": {"content-type": "text/plain"}}, "text/plain", [b"0", b"1"]),
    ],
)
async def test_run_in_another_format_posts_that(
    scene: Scene, settings: Mapping[str, object], content_type: str, bodies: list[bytes]
) -> None:
    """JSON lines, or each event on its own."""
    await fill(scene.channel, 2)
    await scene.empty(scene.sink(**settings))
    assert [request.body for request in scene.receiver.requests] == bodies
    assert {request.headers["content-type"] for request in scene.receiver.requests} == {content_type}


async def test_run_while_tracing_is_on_sends_the_context_of_the_delivery(scene: Scene) -> None:
    """So that the receiver's spans are in the same trace."""
    await fill(scene.channel, 1)
    with recording() as recorded:
        await scene.empty()
    await fill(scene.channel, 1)
    await scene.empty()
    traced, untraced = scene.receiver.requests
    assert traced.headers["traceparent"] == traceparent_of(recorded.named(f"process {scene.channel.name}"))
    assert "traceparent" not in untraced.headers


async def test_run_with_compression_compresses_requests(scene: Scene) -> None:
    """The header Content-Encoding names the compression."""
    await fill(scene.channel, 5)
    await scene.empty(scene.sink(compression="gzip"))
    [request] = scene.receiver.requests
    assert request.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(request.body))) == 5


async def test_run_of_large_events_bounds_a_request(scene: Scene) -> None:
    """The bodies of a request stay within the limit; a larger event is sent alone."""
    for size in (400, 400, 400, 2_000, 400):
        await append(scene.channel, b"x" * size)
    await scene.empty(scene.sink(request_bytes_max=1_000))
    sizes = [[len(body) for body in bodies_of(request)] for request in scene.receiver.requests]
    assert sizes == [[400, 400], [400], [2_000], [400]]


async def test_run_settles_nothing_before_the_response(scene: Scene) -> None:
    """Events stay in the channel until the receiver has accepted them."""
    await fill(scene.channel, 3)
    seen = []
    scene.receiver.before_response = lambda _request: seen.append(scene.channel._contents.capacity.event_count)
    await scene.empty()
    assert seen == [3]


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 425, 401, 403, 404, 301])
async def test_run_with_an_response_that_may_change_keeps_the_events(scene: Scene, status: int) -> None:
    """The sink fails with a sentence without secrets; the same request is repeated and settled."""
    bodies = await fill(scene.channel, 3)
    scene.receiver.responses = [response(status, body=b"because\n" + b"x" * 500)]
    sink = scene.sink()
    error = await scene.run_failing(rf"^http://127.0.0.1:\d+/in returned {status} [A-Z][\w ]+: because", sink)
    assert "secret" not in str(error)
    assert len(str(error)) < 400
    assert error.retry_delay_seconds is None
    assert queued(scene.channel) == bodies
    await scene.empty(sink)
    first, second = scene.receiver.requests
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


@pytest.mark.parametrize(
    ("retry_after", "low", "high"),
    [
        (lambda: "7", 7.0, 7.0),
        (lambda: "0", 0.0, 0.0),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True), 3_000.0, 3_600.0),
        (lambda: format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True), 0.0, 0.0),
    ],
    ids=["seconds", "now", "date", "past"],
)
async def test_run_with_retry_after_requests_that_delay(
    scene: Scene, retry_after: Callable[[], str], low: float, high: float
) -> None:
    """The header may contain seconds or a date."""
    await fill(scene.channel, 1)
    scene.receiver.responses = [response(503, f"Retry-After: {retry_after()}")]
    error = await scene.run_failing("returned 503")
    assert error.retry_delay_seconds is not None
    assert low <= error.retry_delay_seconds <= high


@pytest.mark.parametrize("retry_after", ["soon", "-5", "1e9", "Mon, 99 Foo", "\u00b2"])
async def test_run_with_an_invalid_retry_after_requests_no_delay(scene: Scene, retry_after: str) -> None:
    """The back-off decides then."""
    await fill(scene.channel, 1)
    scene.receiver.responses = [response(503, f"Retry-After: {retry_after}")]
    assert (await scene.run_failing("returned 503")).retry_delay_seconds is None


async def test_run_with_an_event_that_is_rejected_dead_letters_it(scene: Scene) -> None:
    """It is found among the others and goes to the dead-letter channel; the others arrive once."""
    bodies = await fill(scene.channel, 20)
    accepted: list[bytes] = []

    def judge(request: Received) -> None:
        if b"13" in bodies_of(request):
            scene.receiver.responses.append(response(422, body=b"13 is unlucky"))
        else:
            accepted.extend(bodies_of(request))

    scene.receiver.before_response = judge
    reader = reader_of(scene.registry, deliveries_max=2, dead_letter_channel="rejected")
    await scene.run_failing("13 is unlucky", reader=reader)
    await scene.empty(reader=reader)
    assert sorted(accepted, key=int) == [body for body in bodies if body != b"13"]
    rejected = scene.registry.get("rejected")
    assert queued(rejected) == [b"13"]


async def test_run_of_single_events_with_one_rejected_sends_none_twice(scene: Scene) -> None:
    """Accepted events before the rejected one are not sent again."""
    bodies = await fill(scene.channel, 10)
    scene.receiver.before_response = lambda request: (
        scene.receiver.responses.append(response(400)) if request.body == b"7" else None
    )
    reader = reader_of(scene.registry, deliveries_max=1, dead_letter_channel="rejected")
    await scene.empty(scene.sink(format="single"), reader)
    sent = [request.body for request in scene.receiver.requests]
    assert [body for body in sent if body != b"7"] == [body for body in bodies if body != b"7"]
    keys = {request.headers["idempotency-key"] for request in scene.receiver.requests}
    assert len(keys) == len(bodies)


@pytest.mark.parametrize(
    ("statuses", "status", "outcome"),
    [
        ({"409": "settle"}, 409, "settled"),
        ({"4xx": "settle", "400": "retry"}, 400, "kept"),
        ({"4xx": "settle", "400": "retry"}, 418, "settled"),
        ({"404": "reject"}, 404, "rejected"),
        ({"2xx": "retry"}, 204, "kept"),
        ({}, 299, "settled"),
        ({}, 409, "rejected"),
    ],
)
async def test_run_with_statuses_that_mean_something_else_does_that(
    scene: Scene, statuses: Mapping[str, str], status: int, outcome: str
) -> None:
    """The exact status counts before its class, and both before the default."""
    await fill(scene.channel, 1)
    scene.receiver.responses = [response(status) if status != 204 else b"HTTP/1.1 204 No\r\n\r\n"]
    reader = reader_of(scene.registry, deliveries_max=1, dead_letter_channel="rejected")
    sink = scene.sink(statuses=statuses)
    if outcome == "kept":
        await scene.run_failing(f"returned {status}", sink, reader)
    else:
        await scene.empty(sink, reader)
    assert len(queued(scene.channel)) == (outcome == "kept")
    assert len(queued(scene.registry.get("rejected"))) == (outcome == "rejected")


async def test_run_with_a_kept_connection_that_was_closed_opens_another(scene: Scene) -> None:
    """A server may close an idle connection at any time, even during the next request: that is not a failure."""
    sink, reader = scene.sink(), reader_of(scene.registry)
    work = asyncio.create_task(sink.run(reader))
    for said in (OK, CLOSE, OK):
        scene.receiver.responses.append(said)
    await append(scene.channel, b"first")
    await until(lambda: not scene.channel._contents.capacity.event_count)
    await append(scene.channel, b"second")
    await until(lambda: not scene.channel._contents.capacity.event_count)
    scene.receiver.close_connections()
    await append(scene.channel, b"third")
    await until(lambda: not scene.channel._contents.capacity.event_count)
    reader.close()
    await work
    assert [(request.connection, bodies_of(request)) for request in scene.receiver.requests] == [
        (1, [b"first"]),
        (1, [b"second"]),
        (2, [b"second"]),
        (3, [b"third"]),
    ]


async def test_run_with_a_kept_connection_that_was_reset_opens_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not a failure either if the server's machine has dropped the idle connection."""
    writers: list[asyncio.StreamWriter] = []
    open_connection = asyncio.open_connection

    async def open_noted(*args: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await open_connection(*args, **options)
        writers.append(writer)
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", open_noted)
    sink, reader = scene.sink(), reader_of(scene.registry)
    work = asyncio.create_task(sink.run(reader))
    await append(scene.channel, b"first")
    await until(lambda: not scene.channel._contents.capacity.event_count)
    scene.receiver.reset_connections()
    # The event loop must have noticed the reset before there is something to send.
    with pytest.raises(ConnectionResetError):
        await writers[0].wait_closed()
    await append(scene.channel, b"second")
    await until(lambda: not scene.channel._contents.capacity.event_count)
    reader.close()
    await work
    assert [(request.connection, bodies_of(request)) for request in scene.receiver.requests] == [
        (1, [b"first"]),
        (2, [b"second"]),
    ]


async def test_run_with_a_kept_connection_that_is_reset_under_a_request_opens_another(scene: Scene) -> None:
    """The connection may have been dropped before the request arrived."""
    await fill(scene.channel, 1, 1)
    scene.receiver.responses = [OK, CLOSE]

    def reset(request: Received) -> None:
        if bodies_of(request) == [b"1"] and request.connection == 1:
            scene.receiver.reset_connections()

    scene.receiver.before_response = reset
    await scene.empty(reader=reader_of(scene.registry, batch_events_max=1))
    assert [(request.connection, bodies_of(request)) for request in scene.receiver.requests] == [
        (1, [b"0"]),
        (1, [b"1"]),
        (2, [b"1"]),
    ]


async def test_run_with_a_connection_that_is_reset_within_an_response_reports_it(scene: Scene) -> None:
    """The request had arrived: it is repeated only after the usual delay."""
    await fill(scene.channel, 1, 1)
    scene.receiver.responses = [OK, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"]
    reader = reader_of(scene.registry, batch_events_max=1)
    work = asyncio.create_task(scene.sink().run(reader))
    await until(lambda: len(scene.receiver.requests) == 2)
    scene.receiver.reset_connections()
    with pytest.raises(ComponentError, match="the connection broke"):
        await work
    reader.nack_all()
    assert queued(scene.channel) == [b"1"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (CLOSE, "the connection was closed before a response arrived"),
        (b"nonsense\r\n\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "has not responded"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "the response is not HTTP"),
        (b"", "closed"),
    ],
)
async def test_run_without_a_whole_response_keeps_the_events(scene: Scene, said: bytes, words: str) -> None:
    """The sink reports what happened, and buffers only a little of the response."""
    bodies = await fill(scene.channel, 1)
    scene.receiver.responses = [said] * 2
    seconds = 0.3 if words == "has not responded" else WAIT_SECONDS_MAX
    await scene.run_failing(words, scene.sink(answer_seconds_max=seconds))
    assert queued(scene.channel) == bodies


async def test_run_with_a_receiver_that_does_not_respond_gives_up_in_time(scene: Scene) -> None:
    """A request has a time limit; the next one opens a connection of its own."""
    await fill(scene.channel, 1)
    scene.receiver.hold = True
    sink = scene.sink(answer_seconds_max=0.1)
    await scene.run_failing(r"/in has not responded after 0\.1 seconds", sink)
    scene.receiver.hold = False
    # The next response may be slow.
    sink._config = sink._config.model_copy(update={"answer_seconds_max": WAIT_SECONDS_MAX})
    await scene.empty(sink)
    assert [request.connection for request in scene.receiver.requests] == [1, 2]


async def test_run_with_responses_that_are_seldom_seen_understands_them(scene: Scene) -> None:
    """An interim response, an unknown status, and a response that ends with the connection."""
    await fill(scene.channel, 3)
    scene.receiver.responses = [
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK,
        response(299),
        b"HTTP/1.0 200 OK\r\n\r\n",
        response(599),
    ]
    reader = reader_of(scene.registry, batch_events_max=1)
    work = asyncio.create_task(scene.sink().run(reader))
    await until(lambda: len(scene.receiver.requests) == 3)
    scene.receiver.close_connections()
    await until(lambda: not scene.channel._contents.capacity.event_count)
    await append(scene.channel, b"more")
    with pytest.raises(ComponentError, match=r"/in returned 599$"):
        await work


async def test_run_with_an_endless_response_reads_little_of_it(scene: Scene) -> None:
    """The status counts; the connection is closed before the rest."""
    await fill(scene.channel, 2)
    scene.receiver.responses = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + bytes(3_000_000)]
    await scene.empty(reader=reader_of(scene.registry, batch_events_max=1))
    assert [request.connection for request in scene.receiver.requests] == [1, 2]


async def test_run_without_a_server_reports_it(scene: Scene) -> None:
    """A closed port, and an unknown name."""
    await fill(scene.channel, 1)
    await scene.run_failing(r"^http://127.0.0.1:1/: cannot connect: ", scene.sink(url="http://127.0.0.1:1/"))
    await scene.run_failing(
        r"^http://no-such-host.invalid: cannot connect: ", scene.sink(url="http://no-such-host.invalid")
    )


async def test_run_after_an_response_was_lost_repeats_the_same_request_first(scene: Scene) -> None:
    """Newer events are another request, so that the receiver recognizes the first one's key."""
    await fill(scene.channel, 2, 1)
    scene.receiver.responses = [CLOSE]
    sink = scene.sink()
    await scene.run_failing("closed", sink)
    await append(scene.channel, b"new", b"newer")
    await scene.empty(sink)
    first, repeated, new = scene.receiver.requests
    assert first.body == repeated.body
    assert first.headers["idempotency-key"] == repeated.headers["idempotency-key"]
    assert first.headers["idempotency-key"] == f"{scene.channel.channel_id}:1-3"
    assert bodies_of(new) == [b"new", b"newer"]
    assert new.headers["idempotency-key"] == f"{scene.channel.channel_id}:4-5"


async def test_run_where_settling_fails_does_not_send_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted events only need to leave the channel."""
    await fill(scene.channel, 3)
    sink, reader = scene.sink(), reader_of(scene.registry)

    def refuse(deliveries: Deliveries, delivery: Transaction) -> None:
        deliveries.nack(delivery)
        raise DiskFullError("full")

    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "settle", refuse)
        with pytest.raises(DiskFullError):
            await sink.run(reader)
    reader.nack_all()
    await append(scene.channel, b"new")
    await scene.empty(sink, reader)
    assert [bodies_of(request) for request in scene.receiver.requests] == [[b"0", b"1", b"2"], [b"new"]]


async def test_run_with_others_taking_from_the_channel_names_exactly_what_it_sends(scene: Scene) -> None:
    """A key has the exact sequences; events that another consumer took are not assumed to be sent."""
    await fill(scene.channel, 2, 2, 2)
    delivery = await scene.channel.deliveries.deliver(TakeLimits(events_max=2))
    sink, reader = scene.sink(), reader_of(scene.registry)
    work = asyncio.create_task(sink.run(reader))
    await until(lambda: scene.channel._contents.capacity.event_count == 2)
    scene.channel.deliveries.nack(delivery)
    await until(lambda: not scene.channel._contents.capacity.event_count)
    reader.close()
    await work
    keys = [request.headers["idempotency-key"].partition(":")[2] for request in scene.receiver.requests]
    assert sorted(keys) == ["1-2", "3-6"]


async def test_run_over_https_checks_the_certificate(scene: Scene, tmp_path: Path) -> None:
    """An untrusted certificate is rejected; one signed by `ca_file` is accepted."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    command = [*make, "-keyout", str(key), "-out", str(certificate), *names]
    await asyncio.to_thread(lambda: subprocess.run(command, check=True, capture_output=True))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    await fill(scene.channel, 2)
    async with await asyncio.start_server(scene.receiver.serve, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/in"
        await scene.run_failing("cannot connect: .*certificate verify failed", scene.sink(url=url))
        await scene.run_failing("ca_file .* cannot be read", scene.sink(url=url, ca_file=str(tmp_path / "none")))
        await scene.empty(scene.sink(url=url, ca_file=str(certificate)))
        scene.receiver.close_connections()
        await asyncio.sleep(0)
    assert [bodies_of(request) for request in scene.receiver.requests] == [[b"0", b"1"]]
