"""The source `netcat`, by connections as senders make them."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.netcat import source as source_module
from millrace_server.agent.sources.netcat.config import NetcatSourceConfig
from millrace_server.agent.sources.netcat.source import NetcatSource
from millrace_server.agent.supervision import ComponentError
from tests.certificates import Authority
from tests.unit.agent.sources.recording_writer import WAIT_SECONDS_MAX, RecordingWriter, running
from tests.waiting import until

TABLE = {"type": "netcat", "channels": ["lines"], "listen": "127.0.0.1:0"}


def make_source(**settings: object) -> NetcatSource:
    return NetcatSource("nc", NetcatSourceConfig.model_validate({**TABLE, **settings}, strict=True))


class Sender:
    """A connection to the source."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def responses(self, count: int) -> list[bytes]:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            return [(await self._reader.readline()).removesuffix(b"\n") for _ in range(count)]

    async def rest(self) -> bytes:
        """What comes until the other side closes the connection."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            return await self._reader.read()


@asynccontextmanager
async def sender(made: NetcatSource, **options: object) -> AsyncIterator[Sender]:
    reader, writer = await asyncio.open_connection(made._listen.address.host, made._listen.address.port, **options)  # type: ignore[arg-type] # TLS's
    try:
        yield Sender(reader, writer)
    finally:
        writer.close()


async def test_run_acknowledges_each_line_once_it_is_stored() -> None:
    """Not before: a response means that the event is in its channels."""
    made, channel_writer = make_source(client_ip_header="from"), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        channel_writer.may_store.clear()
        await one.send(b"first\r\nsecond\n\nhal")
        await channel_writer.waiting.wait()
        assert channel_writer.rows == []
        responding = asyncio.ensure_future(one.responses(3))
        await asyncio.sleep(0.05)
        assert not responding.done()
        channel_writer.may_store.set()
        assert await responding == [b"OK"] * 3
        await one.send(b"f\n")
        assert await one.responses(1) == [b"OK"]
    assert channel_writer.rows == [({"from": "127.0.0.1"}, body) for body in (b"first", b"second", b"", b"half")]


async def test_run_with_a_sender_that_half_closes_stores_and_responses_its_last_line() -> None:
    """A last line needs no line end, as with `printf line | nc -N`."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        await one.send(b"one\ntwo")
        one.writer.write_eof()
        assert await one.rest() == b"OK\nOK\n"
    assert channel_writer.bodies == [b"one", b"two"]


async def test_run_with_a_connection_that_breaks_discards_its_unfinished_line() -> None:
    """Its end is missing, and its sender knows that it got no response."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer):
        async with sender(made) as one:
            await one.send(b"whole\npart")
            assert await one.responses(1) == [b"OK"]
            raw = one.writer.get_extra_info("socket")
            # The system sends a reset instead of an end.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.writer.transport.abort()
        await until(lambda: not made._serving)
    assert channel_writer.bodies == [b"whole"]


async def test_run_refuses_a_line_that_is_too_long_and_stores_the_others() -> None:
    """The responses are in the order of the lines, also where the long one comes in many pieces."""
    made, channel_writer = make_source(line_bytes_max=16), RecordingWriter()
    refused = b"FAILED: the line has more than 16 bytes, its line end included"
    async with running(made, channel_writer), sender(made) as one:
        await one.send(b"x" * 15 + b"\n" + b"y" * 16 + b"\nshort\n")
        assert await one.responses(3) == [b"OK", refused, b"OK"]
        for _ in range(20):
            await one.send(b"z" * 50_000)
        await one.send(b"\nlast\n")
        assert await one.responses(2) == [refused, b"OK"]
    assert channel_writer.bodies == [b"x" * 15, b"short", b"last"]


async def test_run_without_acks_responses_failures_only() -> None:
    """For senders that do not read."""
    made, channel_writer = make_source(line_bytes_max=16, ack_every_event=False), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        await one.send(b"one\n" + b"x" * 20 + b"\ntwo\n")
        one.writer.write_eof()
        assert (await one.rest()).startswith(b"FAILED: the line has more than 16 bytes")
    assert channel_writer.bodies == [b"one", b"two"]


@pytest.mark.parametrize(
    ("charset", "sent", "bodies"),
    [
        ("iso-8859-1", "Gr\u00fc\u00dfe\nzwei\n".encode("latin-1"), ["Gr\u00fc\u00dfe".encode(), b"zwei"]),
        ("utf-16", "\u4e2d\n\u0a0a\r\n".encode("utf-16"), ["\u4e2d".encode(), "\u0a0a".encode()]),
        ("utf-8", b"\xff\x00\xfe\n\x00\n", [b"\xff\x00\xfe", b"\x00"]),
    ],
)
async def test_run_stores_lines_of_a_charset_as_utf_8(charset: str, sent: bytes, bodies: list[bytes]) -> None:
    """What is not valid in the charset is kept as it is, binary input too."""
    made, channel_writer = make_source(charset=charset), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        for byte in sent:
            await one.send(bytes([byte]))
        assert await one.responses(2) == [b"OK", b"OK"]
    assert channel_writer.bodies == bodies


async def test_run_with_a_line_that_cannot_be_decoded_ends_the_connection() -> None:
    """Where that is an error, the lines before it are stored and acknowledged."""
    made, channel_writer = make_source(decode_errors="fail"), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        await one.send(b"good\n\xff\n")
        assert await one.responses(1) == [b"OK"]
        assert (await one.rest()).startswith(b"FAILED: the line at byte 5 is not in utf-8: ")
    assert channel_writer.bodies == [b"good"]


async def test_run_while_nothing_can_be_stored_lets_senders_wait() -> None:
    """A connection is read no further than its buffer, and another one is not held up by it."""
    made, channel_writer = make_source(), RecordingWriter(events_max=100)
    channel_writer.may_store.clear()
    count = 15_000
    async with running(made, channel_writer), sender(made) as one:
        one.writer.write(b"".join(b"%06d%s\n" % (number, b"x" * 700) for number in range(count)))
        await channel_writer.waiting.wait()
        await asyncio.sleep(0.1)
        assert one.writer.transport.get_write_buffer_size() > 1_000_000
        channel_writer.may_store.set()
        one.writer.write_eof()
        assert await one.rest() == b"OK\n" * count
    assert [int(body[:6]) for body in channel_writer.bodies] == list(range(count))


async def send_for_ever(raw: socket.socket) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            await asyncio.get_running_loop().sock_sendall(raw, (b"x" * 16 + b"\n") * 10_000)


async def test_run_with_a_sender_that_never_reads_ends_its_connection() -> None:
    """Its responses take bounded memory, and others are served."""
    made, channel_writer = make_source(line_seconds_max=0.3, line_bytes_max=16), RecordingWriter()
    async with running(made, channel_writer):
        with socket.socket() as deaf:
            # With small buffers the responses fill them soon.
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect((made._listen.address.host, made._listen.address.port))
            deaf.setblocking(False)
            with pytest.raises(OSError, match=r"reset|pipe"):
                await send_for_ever(deaf)
        async with sender(made) as other:
            await other.send(b"other\n")
            assert await other.responses(1) == [b"OK"]


@pytest.mark.parametrize(
    ("settings", "sent", "response"),
    [
        ({"idle_seconds_max": 0.1}, b"", b"FAILED: no line arrived within 0.1 s, so the connection is closed\n"),
        (
            {"line_seconds_max": 0.1},
            b"unfinished",
            b"FAILED: the line was not complete within 0.1 s, so the connection is closed\n",
        ),
    ],
)
async def test_run_ends_connections_that_hold_a_place_for_nothing(
    settings: dict[str, object], sent: bytes, response: bytes
) -> None:
    """Idle ones, and those that do not finish a line."""
    made, channel_writer = make_source(**settings), RecordingWriter()
    async with running(made, channel_writer), sender(made) as one:
        await one.send(sent)
        assert await one.rest() == response
        await until(lambda: not made._serving)
    assert channel_writer.rows == []


async def test_run_with_too_many_connections_closes_further_ones() -> None:
    """A place that becomes free is given to the next."""
    made, channel_writer = make_source(connections_max=1), RecordingWriter()
    async with running(made, channel_writer):
        async with sender(made) as one:
            await one.send(b"one\n")
            assert await one.responses(1) == [b"OK"]
            with capture_logs() as logs:
                async with sender(made) as other:
                    assert await other.rest() == b""
            assert [entry["event"] for entry in logs] == ["connections were closed at once"]
        await until(lambda: not made._serving)
        async with sender(made) as late:
            await late.send(b"late\n")
            assert await late.responses(1) == [b"OK"]


def _is_closed(connected: socket.socket) -> bool:
    """Returns whether the other side has closed a connection on which it sends nothing."""
    try:
        return connected.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_run_with_a_crowd_that_comes_at_once_serves_as_many_as_it_may() -> None:
    """The others are closed, and nothing is left of any of them once they have gone."""
    made, channel_writer = make_source(connections_max=5), RecordingWriter()

    def connect_all() -> list[socket.socket]:
        # The event loop does not accept them one by one meanwhile.
        return [socket.create_connection((made._listen.address.host, made._listen.address.port)) for _ in range(40)]

    async with running(made, channel_writer):
        crowd = connect_all()
        await until(lambda: sum(map(_is_closed, crowd)) == 35)
        # Those that were closed while they were accepted may end a moment later.
        await until(lambda: len(made._serving) == 5)
        for one in crowd:
            one.close()
        await until(lambda: not made._serving)
        async with sender(made) as late:
            await late.send(b"late\n")
            assert await late.responses(1) == [b"OK"]


async def test_run_that_cannot_store_tells_the_sender() -> None:
    """The response says that nothing since the last one is stored."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.refusals = [ComponentError("the channel is gone")]
    async with running(made, channel_writer), sender(made) as one:
        await one.send(b"one\n")
        assert await one.rest() == b"FAILED: the lines since the last response were not stored: the channel is gone\n"


async def test_stop_responses_what_is_being_stored_and_says_that_it_ends() -> None:
    """A line that was read is stored; one that was not is never acknowledged with OK."""
    made, channel_writer = make_source(), RecordingWriter()
    async with sender_of_stopping(made, channel_writer) as (one, stopping):
        channel_writer.may_store.set()
        assert await one.rest() == b"OK\nFAILED: the source is stopping, so the connection is closed\n"
        await stopping
    assert channel_writer.bodies == [b"one"]


async def test_stop_while_nothing_can_be_stored_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender gets no response, and may repeat its lines."""
    monkeypatch.setattr(source_module, "FINISH_SECONDS_MAX", 0.1)
    made, channel_writer = make_source(), RecordingWriter()
    async with sender_of_stopping(made, channel_writer) as (one, stopping):
        assert await one.rest() == b""
        await stopping
    assert channel_writer.bodies == []


@asynccontextmanager
async def sender_of_stopping(
    made: NetcatSource, channel_writer: RecordingWriter
) -> AsyncIterator[tuple[Sender, "asyncio.Future[None]"]]:
    """A sender whose line is being stored when the source is stopped, and the end of that."""
    channel_writer.may_store.clear()

    async def stop(work: "asyncio.Task[None]") -> None:
        work.cancel()
        await asyncio.wait({work})

    async with running(made, channel_writer) as work, sender(made) as one:
        await one.send(b"one\n")
        await channel_writer.waiting.wait()
        yield one, asyncio.ensure_future(stop(work))


async def test_run_with_tls_serves_clients_with_a_certificate(tmp_path: Path) -> None:
    """A client without a certificate gets no connection."""
    authority = Authority()
    certificate, private_key = authority.issue(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    files = {"certificate": str(certificate), "private_key": str(private_key), "client_ca": str(tmp_path / "ca.pem")}
    made, channel_writer = make_source(tls={**files, "client_certificate": "required"}), RecordingWriter()
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    async with running(made, channel_writer):
        with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012 - either of them may notice it
            async with sender(made, ssl=context, server_hostname="localhost") as thief:
                await thief.send(b"thief\n")
                assert await thief.rest() == b""
                raise ConnectionError("it was closed")
        context.load_cert_chain(*authority.issue(tmp_path, "sender"))
        async with sender(made, ssl=context, server_hostname="localhost") as one:
            await one.send(b"one\n")
            assert await one.responses(1) == [b"OK"]
    assert channel_writer.bodies == [b"one"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": "7000"}, 'listen: is "7000"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070'),
        ({"line_bytes_max": 1}, "line_bytes_max: is 1; it must be a whole number from 16 to 16_777_216"),
        ({"connections_max": 5_001}, "connections_max: is 5001; it must be a whole number from 1 to 5_000"),
        ({"charset": "nonsense"}, "charset: is "),
        ({"listen": "0.0.0.0:7000"}, 'listen: is "0.0.0.0:7000", which other machines can reach, and nothing is'),
    ],
)
def test_config_that_makes_no_sense_is_refused(settings: dict[str, object], problem: str) -> None:
    """The problem names the setting."""
    with pytest.raises(ValidationError) as raised:
        NetcatSourceConfig.model_validate({**TABLE, **settings}, strict=True)
    [found] = describe_problems(raised.value, NetcatSourceConfig)
    assert str(found).startswith(problem)
