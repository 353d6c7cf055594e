import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from millrace_server.agent.sources.syslog import listeners, message_queue, source
from millrace_server.agent.sources.syslog.config import Listener, SyslogSourceConfig, Transport
from millrace_server.agent.sources.syslog.listeners import Loss, LossCounter
from millrace_server.agent.sources.syslog.message_queue import MessageQueue
from millrace_server.agent.sources.syslog.source import SyslogSource
from millrace_server.agent.supervision import ComponentError
from tests.certificates import Authority
from tests.unit.agent.sources.recording_writer import WAIT_SECONDS_MAX, RecordingWriter, running
from tests.waiting import until

TCP, UDP = "tcp://127.0.0.1:0", "udp://127.0.0.1:0"


def make_source(*listen: str, **settings: object) -> SyslogSource:
    table = {"type": "syslog", "channels": ["logs"], "listen": list(listen or (TCP,)), "linger_seconds": 0.01}
    return SyslogSource("log", SyslogSourceConfig.model_validate({**table, **settings}, strict=True))


def bound_address(made: SyslogSource, index: int = 0) -> tuple[str, int]:
    return made._listeners[index].address.host, made._listeners[index].address.port


@asynccontextmanager
async def sender(made: SyslogSource) -> "AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]":
    reader, writer = await asyncio.open_connection(*bound_address(made))
    try:
        yield reader, writer
    finally:
        writer.close()


def send_datagrams(address: tuple[str, int], *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        for datagram in datagrams:
            sending.sendto(datagram, address)


async def closed(reader: asyncio.StreamReader) -> None:
    """Waits until the other side has closed the connection."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            return


async def test_run_of_tcp_stores_messages_of_both_framings() -> None:
    """Lines and counted messages of one connection are events, in order, with their headers."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (_, writer):
        counted = b'<13>1 - host app - - [a b="c"] second\nand more'
        writer.write(b"<13>Oct 11 22:14:15 host app[1]: first\n%d %s" % (len(counted), counted))
        writer.write(b"nonsense\n")
        rows = await channel_writer.wait_for(3)
    assert channel_writer.bodies == [b"first", b"second\nand more", b"nonsense"]
    assert rows[0][0]["procid"] == "1"
    assert rows[1][0] == {
        "facility": "1",
        "severity": "5",
        "hostname": "host",
        "app_name": "app",
        "structured_data": '{"a":{"b":"c"}}',
    }
    assert rows[2][0] == {"syslog_malformed": "it does not begin with a priority"}


async def test_run_of_udp_stores_each_datagram() -> None:
    """A datagram is a message, with line breaks and broken UTF-8 in it."""
    made, channel_writer = make_source(UDP), RecordingWriter()
    async with running(made, channel_writer):
        send_datagrams(
            bound_address(made), b"<13>1 - - - - - - one\ntwo\n", b"", b"\xff\xfe", b"<13>1 - - - - - - three"
        )
        await channel_writer.wait_for(3)
    assert channel_writer.bodies == [b"one\ntwo", b"\xff\xfe", b"three"]


async def test_run_of_several_listeners_records_where_messages_arrived() -> None:
    """The sender's address and the port are headers if this is configured."""
    made = make_source(TCP, UDP, UDP, client_ip_header="ip", port_header="port")
    channel_writer = RecordingWriter()
    async with running(made, channel_writer), sender(made) as (_, writer):
        writer.write(b"<13>1 - - - - - - 0\n")
        for index in (1, 2):
            send_datagrams(bound_address(made, index), b"<13>1 - - - - - - %d" % index)
        rows = await channel_writer.wait_for(3)
    found = {body: (headers["ip"], headers["port"]) for headers, body in rows}
    assert found == {b"%d" % index: ("127.0.0.1", str(bound_address(made, index)[1])) for index in range(3)}


async def test_run_of_many_messages_batches_them_by_count() -> None:
    """A full batch does not wait for the linger time, and no batch is larger than the writer's limit."""
    made, channel_writer = make_source(linger_seconds=60.0), RecordingWriter(events_max=150)
    async with running(made, channel_writer), sender(made) as (_, writer):
        writer.write(b"".join(b"<13>1 - - - - - - %d\n" % number for number in range(450)))
        await channel_writer.wait_for(450)
    assert channel_writer.bodies == [b"%d" % number for number in range(450)]
    assert channel_writer.batch_sizes == [150, 150, 150]


async def test_run_with_a_connection_that_ends_in_a_message_stores_it() -> None:
    """A last line needs no line end; a counted message that is cut off is marked."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer):
        async with sender(made) as (_, writer):
            writer.write(b"<13>1 - - - - - - last")
        await channel_writer.wait_for(1)
        async with sender(made) as (_, writer):
            writer.write(b"100 <13>1 - - - - - - cut")
        rows = await channel_writer.wait_for(2)
    assert channel_writer.bodies == [b"last", b"cut"]
    assert ["syslog_truncated" in headers for headers, _ in rows] == [False, True]


async def test_run_with_messages_that_are_too_long_cuts_or_drops_them() -> None:
    """Both keep the messages that follow; dropped messages are counted and logged."""
    long = b"<13>1 - - - - - - " + b"x" * 100_000
    for policy, expected in (("truncate", 2), ("drop", 1)):
        made = make_source(TCP, UDP, message_bytes_max=480, long_messages=policy)
        channel_writer = RecordingWriter()
        async with running(made, channel_writer), sender(made) as (_, writer):
            writer.write(long + b"\n<13>1 - - - - - - short\n")
            rows = await channel_writer.wait_for(expected)
            send_datagrams(bound_address(made, 1), long[:1_000], b"<13>1 - - - - - - short")
            await channel_writer.wait_for(2 * expected)
        assert channel_writer.bodies[expected - 1] == b"short"
        assert made._losses.counts[Loss.LONG_MESSAGES] == (2 if policy == "drop" else 0)
        if policy == "truncate":
            assert len(rows[0][1]) == 480 - len("<13>1 - - - - - - ")
            assert rows[0][0]["syslog_truncated"] == rows[2][0]["syslog_truncated"] == "true"


async def test_run_while_nothing_can_be_stored_has_tcps_senders_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source reads no more than its queue holds, and loses nothing once channels have space again."""
    made, channel_writer = make_source(), RecordingWriter(events_max=100)
    made._queue = MessageQueue(messages_max=200)
    channel_writer.may_store.clear()
    count = 15_000
    async with running(made, channel_writer), sender(made) as (_, writer):
        writer.write(b"".join(b"<13>1 - - - - - - %06d %s\n" % (number, b"x" * 800) for number in range(count)))
        await channel_writer.waiting.wait()
        await until(lambda: made._queue.is_full)
        held = len(made._queue)
        async with sender(made) as (_, late):
            late.write(b"<13>1 - - - - - - late\n")
            await asyncio.sleep(0.05)
        # At most one read of each connection more.
        assert held <= len(made._queue) <= held + 1 < 10_000
        assert writer.transport.get_write_buffer_size() > 1_000_000
        channel_writer.may_store.set()
        await channel_writer.wait_for(count + 1)
    assert [int(body[:6]) for body in channel_writer.bodies if body != b"late"] == list(range(count))


async def test_run_while_nothing_can_be_stored_counts_datagrams_that_the_system_drops() -> None:
    """The stored and the dropped datagrams add up to those sent."""
    made, channel_writer = make_source(UDP, udp_receive_buffer_bytes=4_096), RecordingWriter(events_max=10)
    made._queue = MessageQueue(messages_max=20)
    channel_writer.may_store.clear()
    async with running(made, channel_writer):
        for number in range(500):
            send_datagrams(bound_address(made), b"<13>1 - - - - - - %d" % number)
            await asyncio.sleep(0)
        channel_writer.may_store.set()
        await channel_writer.wait_for(20)
        # Each datagram reports the drops before it, so one must arrive after them.
        sent = 500
        while b"%d" % (sent - 1) not in channel_writer.bodies:
            send_datagrams(bound_address(made), b"<13>1 - - - - - - %d" % sent)
            sent += 1
            await asyncio.sleep(0.02)
    dropped = made._losses.counts[Loss.DATAGRAMS]
    assert channel_writer.dropped_count == dropped > 100
    assert len(channel_writer.rows) + dropped == sent
    numbers = [int(body) for body in channel_writer.bodies]
    assert numbers == sorted(numbers)


async def test_run_that_is_cancelled_stores_what_has_come() -> None:
    """Messages, unfinished ones and datagrams that the system holds are stored before the source ends."""
    made, channel_writer = make_source(TCP, UDP, linger_seconds=60.0), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (reader, writer):
        writer.write(b"<13>1 - - - - - - whole\n<13>1 - - - - - - begun")
        await until(lambda: len(made._queue) > 0)
        send_datagrams(bound_address(made, 1), b"<13>1 - - - - - - datagram")
    await closed(reader)
    assert sorted(channel_writer.bodies) == [b"begun", b"datagram", b"whole"]
    assert [headers.get("syslog_truncated") for headers, body in channel_writer.rows if body == b"begun"] == ["true"]
    with pytest.raises(ConnectionRefusedError), socket.create_connection(bound_address(made)):
        pytest.fail("the port is still open")


async def test_run_that_is_cancelled_while_nothing_can_be_stored_reports_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source waits for a limited time, and logs what is lost."""
    monkeypatch.setattr(source, "FINISH_SECONDS_MAX", 0.05)
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.may_store.clear()
    with structlog.testing.capture_logs() as logs:
        async with running(made, channel_writer), sender(made) as (_, writer):
            writer.write(b"a\n" * 3)
            await channel_writer.waiting.wait()
    assert made._losses.counts[Loss.UNSTORED] == channel_writer.dropped_count == 3
    assert [entry["events"] for entry in logs if entry["event"] == "syslog messages were lost"] == [3]


async def test_run_again_after_a_failure_stores_what_was_under_way_and_keeps_the_port() -> None:
    """A failure between the socket and the channel loses nothing."""
    made, channel_writer = make_source(), RecordingWriter()
    channel_writer.refusals = [RuntimeError("an interceptor's bug")]
    async with running(made, channel_writer) as work:
        async with sender(made) as (_, writer):
            writer.write(b"first\nsecond\n")
            await asyncio.wait({work}, timeout=WAIT_SECONDS_MAX)
        with pytest.raises(RuntimeError, match="bug"):
            await work
    address = bound_address(made)
    async with running(made, channel_writer):
        assert await channel_writer.wait_for(2)
        assert bound_address(made) == address
        async with sender(made) as (_, writer):
            writer.write(b"third\n")
            await channel_writer.wait_for(3)
    assert channel_writer.bodies == [b"first", b"second", b"third"]
    assert made._losses.counts[Loss.UNSTORED] == 0


async def test_run_with_broken_framing_keeps_the_beginning_and_closes_the_connection() -> None:
    """The source does not guess where the next message begins; other connections continue."""
    made, channel_writer = make_source(framing="octet_counting"), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (reader, writer), sender(made) as (_, other):
        writer.write(b"2 okbroken\n")
        await closed(reader)
        other.write(b"4 fine")
        rows = await channel_writer.wait_for(3)
    assert channel_writer.bodies == [b"ok", b"broken", b"fine"]
    assert rows[1][0]["syslog_truncated"] == "true"
    assert made._losses.counts[Loss.FRAMING] == 1


async def test_run_with_a_message_letter_by_letter_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that never ends a message is disconnected; one that is silent between two messages is not."""
    monkeypatch.setattr(listeners, "MESSAGE_SECONDS_MAX", 0.2)
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (reader, slow), sender(made) as (_, quiet):
        quiet.write(b"first\n")
        slow.write(b"a")
        ended = asyncio.create_task(closed(reader))
        while not ended.done():
            slow.write(b"a")
            await asyncio.sleep(0.01)
        await ended
        quiet.write(b"second\n")
        rows = await channel_writer.wait_for(3)
    assert [body for _, body in rows if not body.startswith(b"a")] == [b"first", b"second"]
    assert [headers.get("syslog_truncated") for headers, body in rows if body.startswith(b"a")] == ["true"]


async def test_run_with_senders_that_reset_their_connections_stores_their_messages() -> None:
    """The messages are stored; the sender's address is missing if the connection was reset too early."""
    made, channel_writer = make_source(client_ip_header="ip", port_header="port"), RecordingWriter()
    async with running(made, channel_writer):
        for number in range(20):
            with socket.create_connection(bound_address(made)) as sending:
                sending.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sending.sendall(b"%d\n" % number)
        rows = await channel_writer.wait_for(20)
        assert sorted(channel_writer.bodies, key=int) == [b"%d" % number for number in range(20)]
        assert {headers.get("ip", "127.0.0.1") for headers, _ in rows} == {"127.0.0.1"}
        assert {headers["port"] for headers, _ in rows} == {str(bound_address(made)[1])}
    assert not any(made._losses.counts.values())


async def test_run_with_too_many_connections_closes_those_that_come_last() -> None:
    """The other connections continue; one that ends makes space."""
    made, channel_writer = make_source(connections_max=2), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (_, first):
        async with sender(made) as (_, second):
            second.write(b"a\n")
            first.write(b"b\n")
            await channel_writer.wait_for(2)
            async with sender(made) as (reader, _):
                await closed(reader)
        assert made._losses.counts[Loss.CONNECTIONS] == 1
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(channel_writer.rows) < 3:
                async with sender(made) as (_, third):
                    third.write(b"c\n")
                    await third.drain()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("transport", list(Transport))
async def test_run_with_a_port_in_use_reports_it_and_leaves_the_others(transport: Transport) -> None:
    """The source's state has a sentence with the setting; its other listeners are closed."""
    kind = socket.SOCK_STREAM if transport is Transport.TCP else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as owner:
        owner.bind(("127.0.0.1", 0))
        if transport is Transport.TCP:
            owner.listen()
        port = owner.getsockname()[1]
        made, channel_writer = make_source(TCP, f"{transport}://127.0.0.1:{port}"), RecordingWriter()
        async with running(made, channel_writer) as work:
            with pytest.raises(
                ComponentError, match=rf"^cannot listen on 127.0.0.1:{port} \(sources.log.listen\): Address already"
            ):
                await work
        with pytest.raises(ConnectionRefusedError), socket.create_connection(bound_address(made)):
            pytest.fail("the first port is still open")
    async with running(made, channel_writer):
        assert made._listeners[1] == Listener.parse(f"{transport}://127.0.0.1:{port}")


async def test_take_from_a_backlog_of_large_messages_bounds_a_batchs_bytes() -> None:
    """A thousand messages of 64 KiB do not become one transaction."""
    made, channel_writer = make_source(), RecordingWriter()
    async with running(made, channel_writer), sender(made) as (_, writer):
        writer.write((b"x" * 60_000 + b"\n") * 100)
        await channel_writer.wait_for(100)
    assert max(channel_writer.batch_sizes) <= message_queue._BATCH_BYTES_MAX // 60_000 + 1


async def test_run_with_tls_stores_the_messages_of_clients_with_a_certificate(tmp_path: Path) -> None:
    """RFC 5425: a counted message, and a client without a certificate gets no connection."""
    authority = Authority()
    certificate, private_key = authority.issue(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    files = {"certificate": str(certificate), "private_key": str(private_key), "client_ca": str(tmp_path / "ca.pem")}
    made, channel_writer = make_source(tls={**files, "client_certificate": "required"}), RecordingWriter()
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    async with running(made, channel_writer), asyncio.timeout(WAIT_SECONDS_MAX):
        reader, writer = await asyncio.open_connection(*bound_address(made), ssl=context, server_hostname="localhost")
        writer.write(b"22 <13>1 - - - - - - thief")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        context.load_cert_chain(*authority.issue(tmp_path, "sender"))
        _, writer = await asyncio.open_connection(*bound_address(made), ssl=context, server_hostname="localhost")
        message = b"<13>1 - host - - - - one\ntwo"
        writer.write(b"%d %s" % (len(message), message))
        await channel_writer.wait_for(1)
        writer.close()
    assert channel_writer.bodies == [b"one\ntwo"]


def test_count_of_a_flood_is_logged_at_once_and_then_in_total() -> None:
    """The log has few lines, whose counts are complete."""
    losses = LossCounter("log")
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            losses.count(Loss.DATAGRAMS, 2)
        losses.count(Loss.CONNECTIONS)
        losses.log_remaining()
        losses.log_remaining()
    reported = [(entry["reason"].split()[0], entry["events"]) for entry in logs]
    assert reported == [("datagrams", 2), ("TCP", 1), ("datagrams", 198)]
    assert losses.counts == {Loss.DATAGRAMS: 200, Loss.CONNECTIONS: 1}
