import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import structlog
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.http import bodies as http_bodies
from millrace_server.agent.sources.http import source
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.http.events import Event
from millrace_server.agent.sources.http.source import HttpSource, fingerprint
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import (
    BadArgumentError,
    ChannelFullError,
    ChannelLogFailedError,
    DrainingError,
    EventTooLargeError,
    InternalError,
    ReplayingError,
    TxnCapacityError,
)
from tests.http_response import Response
from tests.unit.agent.sources.recording_writer import WAIT_SECONDS_MAX, RecordingWriter, running

pytestmark = pytest.mark.usefixtures("prompt_http_stop")

TABLE = {"type": "http", "channels": ["orders"], "listen": "127.0.0.1:0"}
JSON = {"Content-Type": "application/json"}


def make_source(**settings: object) -> HttpSource:
    return HttpSource("web", HttpSourceConfig.model_validate({**TABLE, **settings}, strict=True))


@asynccontextmanager
async def connected(made: HttpSource) -> "AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]":
    reader, writer = await asyncio.open_connection(made._listen.address.host, made._listen.address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(length: int | None, headers: Mapping[str, str], method: str = "POST", path: str = "/") -> bytes:
    size = {} if length is None else {"Content-Length": str(length)}
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: mill",
        *(f"{key}: {value}" for key, value in {**size, **headers}.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def read_response(reader: asyncio.StreamReader) -> Response:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        response = Response.parsed(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(response.headers.get("content-length", 0)))
        return replace(response, body=body)


async def post(made: HttpSource, body: bytes, headers: Mapping[str, str] | None = None, path: str = "/") -> Response:
    async with connected(made) as (reader, writer):
        writer.write(head(len(body), headers or {}, path=path) + body)
        return await read_response(reader)


async def test_post_of_each_kind_of_body_stores_its_events() -> None:
    """The response follows the storing and contains the number of events."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer):
        events = [{"headers": {"a": "1"}, "body": "one"}, {"body": "two"}]
        responses = [
            await post(made, json.dumps(events).encode(), JSON),
            await post(made, b'{"body":"three"}\n{"body":"four"}', {"Content-Type": "application/x-ndjson"}),
            await post(made, b"\xff raw", {"Content-Type": "image/png"}),
            await post(made, b""),
            await post(made, b"[]", JSON),
        ]
    assert [(response.status, response.json()) for response in responses] == [
        (200, {"events": n}) for n in (2, 2, 1, 1, 0)
    ]
    assert channel_writer.rows == [
        ({"a": "1"}, b"one"),
        ({}, b"two"),
        ({}, b"three"),
        ({}, b"four"),
        ({}, b"\xff raw"),
        ({}, b""),
    ]


async def test_post_of_several_requests_on_a_connection_keeps_their_order() -> None:
    """The connection stays open; requests may be sent before the response to the previous one."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        writer.write(b"".join(head(1, {}) + b"%d" % number for number in range(5)))
        assert [(await read_response(reader)).status for _ in range(5)] == [200] * 5
    assert channel_writer.bodies == [b"%d" % number for number in range(5)]


async def test_post_of_a_chunked_and_a_packed_body_stores_it() -> None:
    """The transfer of a body makes no difference to what is stored."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        encoded = gzip.compress(b'[{"body":"encoded"}]')
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, encoded[i : i + 1]) for i in range(len(encoded))) + b"0\r\n\r\n"
        writer.write(head(None, {**JSON, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked"}) + chunks)
        assert (await read_response(reader)).status == 200
    assert channel_writer.bodies == [b"encoded"]


async def test_post_with_configured_request_headers_copies_them_to_events() -> None:
    """A request's header goes to all events that do not have it themselves."""
    made, channel_writer = make_source(request_headers={"X-Customer": "customer", "x-none": "none"}), RecordingWriter()
    async with running(made, channel_writer):
        await post(made, b"raw", {"x-customer": "17"})
        await post(made, b'[{"headers":{"customer":"18"},"body":"a"},{"body":"b"}]', {**JSON, "X-Customer": "19"})
    assert channel_writer.rows == [({"customer": "17"}, b"raw"), ({"customer": "18"}, b"a"), ({"customer": "19"}, b"b")]


async def test_post_of_many_events_stores_them_in_batches() -> None:
    """The batches keep to the limits of events and bytes."""
    made, channel_writer = make_source(batch_events_max=100), RecordingWriter()
    async with running(made, channel_writer):
        assert (await post(made, b'{"body":"a"}\n' * 250, {"Content-Type": "application/jsonl"})).status == 200
        assert channel_writer.batch_sizes == [100, 100, 50]
        large = json.dumps({"body": "x" * 400_000}).encode() + b"\n"
        assert (await post(made, large * 5, {"Content-Type": "application/jsonl"})).status == 200
    assert channel_writer.batch_sizes[3:] == [2, 2, 1]
    assert len(channel_writer.rows) == 255


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (ChannelFullError("full", retry_delay_seconds=2.5), 503, "3"),
        (ReplayingError("not open", retry_delay_seconds=0.1), 503, "1"),
        (DrainingError("stopping"), 503, "1"),
        (ChannelLogFailedError("failed"), 503, "1"),
        (EventTooLargeError("too large"), 413, None),
        (BadArgumentError("too many headers"), 400, None),
        (TxnCapacityError("too many events"), 413, None),
    ],
)
async def test_post_that_channels_refuse_learns_whether_to_retry(
    error: Exception, status: int, retry_after: str | None
) -> None:
    """The response has the reason and, if a repetition can succeed, a delay; the repeated request is stored."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.refusals = [error]
    async with running(made, channel_writer):
        response = await post(made, b"event")
        assert (response.status, response.headers["retry-after"]) == (status, retry_after)
        assert response.json()["message"] == str(error)
        assert (await post(made, b"event")).status == 200
    assert channel_writer.bodies == [b"event"]


async def test_post_again_with_the_same_key_stores_each_event_once() -> None:
    """This holds after a refusal in the middle, after a lost response, and for another instance of the source."""
    made, channel_writer = make_source(batch_events_max=10), RecordingWriter()
    body = b"\n".join(b'{"body":"%d"}' % number for number in range(25))
    headers = {"Content-Type": "application/jsonl", "Idempotency-Key": "a key"}
    async with running(made, channel_writer):
        channel_writer.refusals = [None, ChannelFullError("full")]
        assert (await post(made, body, headers)).status == 503
        assert len(channel_writer.rows) == 10
        for _ in range(2):
            assert (await post(made, body, headers)).status == 200
    again = make_source(batch_events_max=10)
    async with running(again, channel_writer):
        assert (await post(again, body, headers)).status == 200
        assert (await post(again, b"other", {"Idempotency-Key": "another key"})).status == 200
        assert (await post(again, b"none")).status == 200
        assert (await post(again, b"none")).status == 200
    assert channel_writer.bodies == [*(b"%d" % number for number in range(25)), b"other", b"none", b"none"]


async def test_post_of_other_events_with_a_key_that_was_used_is_refused() -> None:
    """Nothing of it is stored, even after a restart of the source; the sentence explains keys."""
    made, channel_writer = make_source(), RecordingWriter()
    key = {"Idempotency-Key": "a key"}
    async with running(made, channel_writer):
        assert (await post(made, b"one", key)).status == 200
    made = make_source()
    async with running(made, channel_writer):
        refused = await post(made, b"other", key)
        longer = await post(made, b'[{"body": "one"}, {"body": "two"}]', {**JSON, **key})
        assert (await post(made, b"one", key)).status == 200
    assert (refused.status, longer.status) == (422, 422)
    assert refused.json()["reason"] == "KEY_REUSED"
    assert (
        "this Idempotency-Key was used before with different events, so nothing was stored" in refused.json()["message"]
    )
    assert channel_writer.bodies == [b"one"]


async def test_post_with_a_key_in_progress_gets_retry_after() -> None:
    """A client that repeats the request after its timeout finds it stored."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.may_store.clear()
    key = {"Idempotency-Key": "a key"}
    async with running(made, channel_writer):
        first = asyncio.create_task(post(made, b"one", key))
        await channel_writer.waiting.wait()
        again = await post(made, b"one", key)
        channel_writer.may_store.set()
        assert (again.status, again.json()["reason"]) == (503, "KEY_IN_WORK")
        assert again.headers["retry-after"]
        assert [(await first).status, (await post(made, b"one", key)).status] == [200, 200]
    assert channel_writer.bodies == [b"one"]


async def test_fingerprint_of_events_distinguishes_them_but_not_the_order_of_headers() -> None:
    """Wherever one event or header ends and the next begins."""
    kinds: list[list[Event]] = [
        [({}, b"ab")],
        [({}, b"a"), ({}, b"b")],
        [({"a": "b"}, b"")],
        [({"ab": ""}, b"")],
        [({"a": "b', 'c"}, b"")],
        [({"a": "b", "c": ""}, b"")],
    ]
    assert len({fingerprint(events) for events in kinds}) == len(kinds)
    assert fingerprint([({"a": "1", "b": "2"}, b"")]) == fingerprint([({"b": "2", "a": "1"}, b"")])


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_post_with_an_invalid_key_is_refused(key: str) -> None:
    """The error says what is allowed."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer):
        response = await post(made, b"event", {"Idempotency-Key": key})
    assert response.status == 400
    assert response.json()["message"] == f"Idempotency-Key has {len(key)} characters; 1 to 256 are allowed"


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"{", JSON, 400, "BAD_ARGUMENT"),
        (b"x" * 1_025, {}, 413, "TOO_LARGE"),
        (gzip.compress(b"x" * 1_000_000)[:1_025], {"Content-Encoding": "gzip"}, 413, "TOO_LARGE"),
        (b"x", {"Content-Encoding": "br"}, 415, "BAD_ENCODING"),
        (b"x", {"Content-Encoding": "gzip"}, 400, "BAD_ARGUMENT"),
        (b'{"body":""}\n' * 11, {"Content-Type": "application/jsonl"}, 413, "TOO_LARGE"),
        (b"[" * 1_000, JSON, 400, "BAD_ARGUMENT"),
    ],
)
async def test_post_of_an_invalid_request_is_refused_and_affects_no_other(
    body: bytes, headers: Mapping[str, str], status: int, reason: str
) -> None:
    """The response has a stable reason and a sentence; nothing is stored, and the next request is."""
    made, channel_writer = make_source(body_bytes_max=1_024, request_events_max=10), RecordingWriter()
    async with running(made, channel_writer):
        response = await post(made, body, headers)
        assert (response.status, response.json()["reason"]) == (status, reason)
        assert response.json()["message"]
        assert (await post(made, b"good")).status == 200
    assert channel_writer.bodies == [b"good"]


async def test_post_of_a_body_declared_too_large_is_refused_before_it_is_sent() -> None:
    """A client that sends `Expect: 100-continue` need not send the body at all."""
    made, channel_writer = make_source(body_bytes_max=1_024), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        writer.write(head(10**15, {"Expect": "100-continue"}))
        response = await read_response(reader)
        assert (response.status, response.headers["connection"]) == (413, "close")
        assert await reader.read() == b""


async def test_post_that_expects_100_continue_gets_it() -> None:
    """Curl asks so before a large body."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        writer.write(head(5, {"Expect": "100-continue"}))
        assert (await read_response(reader)).status == 100
        writer.write(b"event")
        assert (await read_response(reader)).status == 200


async def test_post_of_an_endless_body_is_refused_and_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is read and dropped for a moment, so that the sender sees the response."""
    monkeypatch.setattr(http_bodies, "_UNREAD_SECONDS_MAX", 0.2)
    made, channel_writer = make_source(body_bytes_max=1_024), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        writer.write(head(None, {"Transfer-Encoding": "chunked"}))
        responding = asyncio.create_task(read_response(reader))
        sent = 0
        while not responding.done():
            writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            sent += 65_536
            await asyncio.sleep(0)
        assert (await responding).status == 413
        assert sent > 1_024


async def test_post_of_a_body_that_is_not_completed_is_refused_in_time() -> None:
    """The time for a body is limited."""
    made, channel_writer = make_source(request_seconds_max=0.1), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer):
        writer.write(head(1_000, {}) + b"unfinished")
        response = await read_response(reader)
        assert (response.status, response.json()["reason"]) == (408, "TOO_SLOW")
        assert await reader.read() == b""
    assert channel_writer.rows == []


async def test_post_while_others_hold_all_memory_gets_retry_after() -> None:
    """The memory of all requests together is bounded; their end makes space again."""
    made, channel_writer = make_source(body_bytes_max=1_024, inflight_bytes_max=2_048), RecordingWriter()
    async with running(made, channel_writer), connected(made) as (reader, writer), connected(made) as (_, second):
        for holder in (writer, second):
            holder.write(head(1_024, {}) + bytes(1_000))
        while (response := await post(made, bytes(100))).status == 200:
            pass  # Not all of it has been read yet.
        assert (response.status, response.json()["reason"], response.headers["retry-after"]) == (503, "OVERLOADED", "1")
        encoded = {"Content-Encoding": "gzip"}
        assert (await post(made, gzip.compress(b"x"), encoded)).status == 503
        for holder in (writer, second):
            holder.write(bytes(24))
        assert (await read_response(reader)).status == 200
        while (await post(made, gzip.compress(bytes(1_024)), encoded)).status == 503:
            pass  # The second is being processed.
        for _ in range(5):
            assert (await post(made, bytes(1_024))).status == 200


async def test_post_with_a_key_that_does_not_go_together_with_what_is_stored_is_a_conflict() -> None:
    """Other events with the same key are an error."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.refusals = [BadArgumentError("overlaps in part")]
    async with running(made, channel_writer):
        response = await post(made, b"event", {"Idempotency-Key": "key"})
    assert (response.status, response.json()) == (409, {"reason": "BAD_ARGUMENT", "message": "overlaps in part"})


async def test_post_that_is_cut_off_stores_nothing() -> None:
    """An incomplete request is not stored."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer):
        async with connected(made) as (_, writer):
            writer.write(head(1_000, {}) + b"half")
            await writer.drain()
        assert (await post(made, b"whole")).status == 200
    assert channel_writer.bodies == [b"whole"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/in", 405), ("PUT", "/in", 405), ("POST", "/", 404)])
async def test_request_for_something_else_is_refused(method: str, path: str, status: int) -> None:
    """Only POST to the one path stores events."""
    made, channel_writer = make_source(path="/in"), RecordingWriter()
    async with running(made, channel_writer):
        async with connected(made) as (reader, writer):
            writer.write(head(1, {}, method, path) + b"x")
            assert (await read_response(reader)).status == status
        assert (await post(made, b"event", path="/in")).status == 200
    assert channel_writer.bodies == [b"event"]


async def test_post_that_an_interceptor_fails_on_gets_a_response_and_is_logged_once() -> None:
    """Despite a bug in an interceptor each request gets a response without internals, and the log is not flooded."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.refusals = [RuntimeError("secret") for _ in range(10)]
    channel_writer.refusals += [InternalError("secret")]
    with structlog.testing.capture_logs() as logs:
        async with running(made, channel_writer):
            responses = [await post(made, b"event") for _ in range(12)]
    assert [response.status for response in responses] == [500] * 11 + [200]
    assert b"secret" not in b"".join(response.body for response in responses)
    assert [entry["log_level"] for entry in logs if entry["event"] == "a request could not be stored"] == ["error"]


async def test_run_that_is_cancelled_responses_requests_that_are_in_work() -> None:
    """Complete requests are stored; others get a response with a retry; the port is closed."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.may_store.clear()
    async with (
        running(made, channel_writer) as work,
        connected(made) as (whole, first),
        connected(made) as (half, second),
    ):
        second.write(head(1_000, {}) + b"half")
        first.write(head(5, {}) + b"whole")
        await channel_writer.waiting.wait()
        work.cancel()
        response = await read_response(half)
        assert (response.status, response.json()["reason"], response.headers["retry-after"]) == (503, "DRAINING", "1")
        channel_writer.may_store.set()
        assert (await read_response(whole)).status == 200
    assert channel_writer.bodies == [b"whole"]
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection((made._listen.address.host, made._listen.address.port)),
    ):
        pytest.fail("the port is still open")


async def test_run_that_is_cancelled_waits_for_channels_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a request cannot be stored in time, its outcome is reported as unknown."""
    monkeypatch.setattr(source, "CLOSING_SECONDS_MAX", 0.1)
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.may_store.clear()
    async with running(made, channel_writer) as work, connected(made) as (reader, writer):
        writer.write(head(5, {}) + b"event")
        await channel_writer.waiting.wait()
        work.cancel()
        response = await read_response(reader)
    assert (response.status, response.json()["reason"]) == (503, "UNAVAILABLE")


async def test_post_that_channels_do_not_take_in_time_gets_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that waits an hour for space does not make the sender wait as long."""
    monkeypatch.setattr(source, "STORING_SECONDS_MAX", 0.05)
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.may_store.clear()
    async with running(made, channel_writer):
        response = await post(made, b"event")
    assert (response.status, response.json()["reason"], response.headers["retry-after"]) == (503, "UNAVAILABLE", "1")


async def test_run_with_a_port_in_use_reports_it_and_can_begin_again() -> None:
    """The source's state has a sentence with the setting; the port that was found is kept."""
    with socket.create_server(("127.0.0.1", 0)) as owner:
        port = owner.getsockname()[1]
        made, channel_writer = make_source(listen=f"127.0.0.1:{port}"), RecordingWriter()
        async with running(made, channel_writer) as work:
            with pytest.raises(
                ComponentError, match=rf"^cannot listen on 127.0.0.1:{port} \(sources.web.listen\): Addr"
            ):
                await work
    async with running(made, channel_writer):
        assert (await post(made, b"event")).status == 200
    made = make_source()
    async with running(made, channel_writer):
        found = made._listen.address
    async with running(made, channel_writer):
        assert made._listen.address == found
        assert (await post(made, b"event")).status == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"listen": "0.0.0.0:80"},
            (
                'listen: is "0.0.0.0:80", which other machines can reach, and nothing is encrypted; add a table '
                "tls, use a loopback address, or set allow_plaintext = true"
            ),
        ),
        ({"listen": "80"}, 'listen: is "80"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070'),
        ({"path": "in"}, 'path: is "in"; it must match /[!-z|~]*'),
        (
            {"inflight_bytes_max": 1_024},
            "inflight_bytes_max: is 1024; it must be at least twice body_bytes_max, 33554432",
        ),
        ({"request_seconds_max": 0}, "request_seconds_max: is 0; it must be a number above 0, at most 3_600"),
        ({"request_headers": {"a b": "c"}}, None),
    ],
)
def test_config_that_is_invalid_is_reported_in_a_sentence(settings: Mapping[str, object], problem: str | None) -> None:
    """The error shows the setting, its value, and what is allowed."""
    with pytest.raises(ValidationError) as raised:
        HttpSourceConfig.model_validate({**TABLE, **settings}, strict=True)
    [message] = describe_problems(raised.value, HttpSourceConfig)
    assert problem is None or str(message) == problem


def test_config_with_plaintext_allowed_may_be_reached() -> None:
    """With allow_plaintext the source may listen on any address."""
    HttpSourceConfig.model_validate({**TABLE, "listen": "0.0.0.0:80", "allow_plaintext": True}, strict=True)
