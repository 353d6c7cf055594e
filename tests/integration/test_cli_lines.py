import itertools
import json
import shlex
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import millrace_client
from millrace_client import ChannelConfig, ChannelType, Client
from tests.conftest import StartMillraced
from tests.millrace_program import END_SECONDS_MAX, run_millrace, started_millrace, stream_of, wait_for
from tests.millraced import Millraced

ODD_LINES = (
    b"plain\n\n\r\n\x00\xff\xfe\n" + "ä€😀\n".encode() + b"\x1b[31m\n" + b"x" * 200_000 + b"\nlast without newline"
)

LINES = b"".join(b"line %d of a log that is long enough to fill a pipe soon\n" % number for number in range(5000))
"""More bytes than a pipe holds."""


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(shared_server: Millraced) -> str:
    return shared_server.grpc


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    with millrace_client.connect(server) as client:
        yield client


@pytest.fixture
def channel(client: Client) -> str:
    """An empty channel of the test's own, whose transactions may have all lines."""
    name = f"lines-{next(NUMBERS)}"
    client.admin.create_channel(name, ChannelConfig(capacity=10_000, transaction_capacity=10_000))
    return name


@pytest.fixture
def filled(client: Client, channel: str) -> str:
    client.channel(channel).append(LINES.splitlines())
    return channel


def queued_events(client: Client, channel: str) -> int:
    gauges = client.admin.get_channel(channel).gauges
    assert (gauges.taken_events, gauges.open_transactions) == (0, 0)
    return gauges.queued_events


@pytest.mark.parametrize("source", ["standard input", "-", "a file"])
def test_put_and_take_odd_lines_keep_every_byte(server: str, channel: str, tmp_path: Path, source: str) -> None:
    """Lines come out unchanged, with a newline after the last one."""
    log = tmp_path / "odd.log"
    log.write_bytes(ODD_LINES)
    arguments = {"standard input": (), "-": ("-",), "a file": (str(log),)}[source]
    put = run_millrace(server, "put", channel, *arguments, typed=b"" if source == "a file" else ODD_LINES)
    assert put.returncode == 0
    assert put.stdout.decode() == f"{channel}: 8 lines read, 8 events committed, sequences 1 to 8\n"
    take = run_millrace(server, "take", channel)
    assert (take.returncode, take.stdout, take.stderr) == (0, ODD_LINES + b"\n", b"")


def test_put_with_headers_shows_them_in_json(server: str, channel: str) -> None:
    """Each event has the headers and its commit's time, and JSON distinguishes bytes from text."""
    began = datetime.now(UTC)
    run_millrace(server, "put", channel, "--header", "host=a=b", "--header", "empty=", typed=b"text\n\xff\n")
    peek = run_millrace(server, "peek", channel, "--json")
    headers = {"host": "a=b", "empty": ""}
    events = [json.loads(line) for line in peek.stdout.splitlines()]
    [time] = {datetime.fromisoformat(event.pop("commit_time")) for event in events}
    assert began <= time <= datetime.now(UTC)
    assert events == [
        {"sequence": 1, "headers": headers, "body": "text"},
        {"sequence": 2, "headers": headers, "body_base64": "/w=="},
    ]


def test_put_from_a_pipe_that_pauses_commits_what_came(server: str, client: Client, channel: str) -> None:
    """Lines of a live log do not wait for a full batch."""
    with started_millrace(server, "put", channel) as put:
        stdin = stream_of(put.stdin)
        stdin.write(b"one\ntwo\nthr")
        stdin.flush()
        wait_for(client, channel, lambda info: info.gauges.queued_events == 2)
        stdin.write(b"ee")
        output, _ = put.communicate()
    assert output.decode() == f"{channel}: 3 lines read, 3 events committed, sequences 1 to 3\n"
    assert queued_events(client, channel) == 3


def test_put_into_a_full_channel_waits_for_a_consumer(server: str, client: Client, tmp_path: Path) -> None:
    """Once events are taken the put continues, and reports that it waited."""
    config = ChannelConfig(capacity=1000, transaction_capacity=1000, keep_alive_seconds=0.05)
    client.admin.create_channel("narrow", config)
    log = tmp_path / "log"
    log.write_bytes(LINES)
    taken: list[bytes] = []
    with started_millrace(server, "put", "narrow", log, "--batch-size", "500") as put:
        assert any(b"trying again for up to 60 s" in note for note in stream_of(put.stderr))
        while len(taken) < 5000:
            with client.channel("narrow").transaction() as txn:
                taken += [body for batch in txn.take() for body in batch.bodies()]
        assert put.wait(END_SECONDS_MAX) == 0
    assert taken == LINES.splitlines()


def test_put_that_gave_up_can_be_resumed_as_it_said(server: str, client: Client, tmp_path: Path) -> None:
    """The printed command stores the rest, so that each line is stored once and in order."""
    config = ChannelConfig(capacity=1200, transaction_capacity=1000, keep_alive_seconds=0.0)
    client.admin.create_channel("resumed", config)
    log = tmp_path / "log with spaces"
    log.write_bytes(LINES)
    first = run_millrace(server, "put", "resumed", log, "--patience", "0")
    assert first.returncode == 5
    client.admin.update_channel("resumed", ChannelConfig(capacity=10_000))
    program, *arguments = shlex.split(first.stderr.decode().rsplit("run `", maxsplit=1)[1].rstrip("`\n"))
    second = run_millrace(server, *arguments)
    assert (program, second.returncode) == ("millrace", 0)
    assert run_millrace(server, "take", "resumed").stdout == LINES


def test_put_again_under_its_producer_stores_nothing_twice(server: str, client: Client, channel: str) -> None:
    """A put whose outcome is unknown is run again with the same producer id."""
    run_millrace(server, "put", channel, "--producer-id", "p-1", typed=b"a\nb\n")
    again = run_millrace(server, "put", channel, "--producer-id", "p-1", "--json", typed=b"a\nb\nc\n")
    document = json.loads(again.stdout)
    assert (document["lines_committed"], document["events_committed"]) == (3, 1)
    assert run_millrace(server, "take", channel).stdout == b"a\nb\nc\n"
    assert queued_events(client, channel) == 0


def test_put_to_two_names_of_one_server_stores_each_line_once(server: str, client: Client, channel: str) -> None:
    """Lines to one name are not taken for repeats of the other's, and a repeated put adds none."""
    lines = b"".join(b'{"body": "%d", "headers": {"customer": "%d"}}\n' % (number, number % 9) for number in range(900))
    port = server.rpartition(":")[2]
    options = ("--json-lines", "--also", f"localhost:{port}", "--key", "customer", "--producer-id", "p-2", "--json")
    first = json.loads(run_millrace(server, "put", channel, *options, typed=lines).stdout)
    assert (first["events_committed"], first["complete"], queued_events(client, channel)) == (900, True, 900)
    again = json.loads(run_millrace(server, "put", channel, *options, "--skip-lines", "500", typed=lines).stdout)
    assert (again["lines_committed"], again["events_committed"]) == (400, 0)
    bodies = [int(body) for body in run_millrace(server, "take", channel).stdout.split()]
    for customer in range(9):
        assert [body for body in bodies if body % 9 == customer] == list(range(customer, 900, 9))


def test_put_a_line_larger_than_the_channel_says_so(server: str, client: Client) -> None:
    """The lines before it are stored, and the report says so."""
    client.admin.create_channel("tight", ChannelConfig(byte_capacity=1000, byte_capacity_buffer_percentage=0))
    put = run_millrace(server, "put", "tight", typed=b"small\n" + b"x" * 1001 + b"\nsmall\n")
    assert put.returncode == 1
    assert b"1 event committed" in put.stderr
    assert b"--skip-lines 1 --producer-id" in put.stderr
    assert queued_events(client, "tight") == 1


def test_put_when_the_server_is_killed_tells_what_was_committed(start_millraced: StartMillraced) -> None:
    """The report counts what the server acknowledged, and the exit code says that no server responds."""
    doomed = start_millraced()
    with millrace_client.connect(doomed.grpc) as client:
        client.admin.create_channel("orders")
        with started_millrace(doomed.grpc, "put", "orders", "--patience", "0") as put:
            stdin = stream_of(put.stdin)
            stdin.write(b"one\ntwo\n")
            stdin.flush()
            wait_for(client, "orders", lambda info: info.gauges.queued_events == 2)
            # The server responds to the append before a call that comes after its commit.
            client.admin.get_channel("orders")
            doomed.kill()
            stdin.write(b"three\n")
            output, errors = put.communicate()
    assert (put.returncode, output) == (3, b"")
    assert b"orders: 3 lines read, 2 events committed, sequences 1 to 2; to store the rest, give the same" in errors


def test_put_continues_when_the_server_is_restarted(start_millraced: StartMillraced) -> None:
    """The put waits for a killed server to return, and each line is stored once and in order."""
    server = start_millraced()
    address = server.grpc
    lines = LINES.splitlines(keepends=True)
    with millrace_client.connect(address, timeout_seconds=60) as client:
        client.admin.create_channel("orders", ChannelConfig(type=ChannelType.FILE))
        with started_millrace(address, "put", "orders", "--batch-size", "100") as put:
            stdin = stream_of(put.stdin)
            stdin.write(b"".join(lines[:2000]))
            stdin.flush()
            wait_for(client, "orders", lambda info: info.gauges.queued_events >= 500)
            server.kill()
            start_millraced(data_dir=server.data_dir, arguments=("--listen", address))
            output, _ = put.communicate(b"".join(lines[2000:]))
        assert put.returncode == 0
        assert output.startswith(b"orders: 5,000 lines read, ")
        with client.channel("orders").transaction() as txn:
            assert [body for batch in txn.take() for body in batch.bodies()] == LINES.splitlines()


def test_take_whose_reader_goes_loses_nothing(server: str, client: Client, filled: str) -> None:
    """A broken pipe ends the take quietly, and lines that could not be written stay in the channel."""
    with started_millrace(server, "take", filled) as take:
        stdout = stream_of(take.stdout)
        assert stdout.readline() == LINES.splitlines(keepends=True)[0]
        stdout.close()
        assert stream_of(take.stderr).read() == b""
        assert take.wait() == 141
    assert queued_events(client, filled) == 5000


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_take_that_is_ended_while_it_writes_loses_nothing(
    server: str, client: Client, filled: str, number: signal.Signals, exit_code: int
) -> None:
    """The open transaction is rolled back at once, not only when its lease ends."""
    with started_millrace(server, "take", filled) as take:
        stream_of(take.stdout).readline()
        take.send_signal(number)
        _, errors = take.communicate()
    assert take.returncode == exit_code
    assert errors == b"millrace: up to 5,000 events written last may be delivered again: taking them was interrupted\n"
    assert queued_events(client, filled) == 5000


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_take_that_is_ended_while_it_waits_takes_nothing_later(
    server: str, client: Client, channel: str, number: signal.Signals, exit_code: int
) -> None:
    """A cancelled wait does not take the next event."""
    with started_millrace(server, "take", channel, "--wait", "60") as take:
        wait_for(client, channel, lambda info: info.gauges.waiting_takes == 1)
        take.send_signal(number)
        assert take.wait() == exit_code
    client.channel(channel).append([b"later"])
    assert queued_events(client, channel) == 1


def test_take_that_waits_gets_the_next_event(server: str, client: Client, channel: str) -> None:
    """The event is written as soon as it arrives."""
    with started_millrace(server, "take", channel, "--wait", "60", "--max-events", "1") as take:
        wait_for(client, channel, lambda info: info.gauges.waiting_takes == 1)
        client.channel(channel).append([b"here"])
        output, _ = take.communicate()
    assert (take.returncode, output) == (0, b"here\n")
    assert queued_events(client, channel) == 0


def test_take_to_a_full_disk_takes_nothing(server: str, client: Client, filled: str) -> None:
    """The take commits only what was flushed to the output."""
    with Path("/dev/full").open("wb") as full:
        take = run_millrace(server, "take", filled, output=full)
    assert take.returncode == 1
    assert take.stderr.startswith(b"millrace: cannot write to standard output: No space left on device;")
    assert queued_events(client, filled) == 5000


def test_take_whose_lease_ran_out_says_that_all_comes_again(server: str, client: Client, channel: str) -> None:
    """A reader that is slower than the lease gets the events again, and the output says so."""
    client.admin.update_channel(channel, ChannelConfig(lease_seconds=2.0))
    client.channel(channel).append(LINES.splitlines())
    with started_millrace(server, "take", channel) as take:
        wait_for(client, channel, lambda info: info.counters.lease_expired_count == 1)
        output, errors = take.communicate()
    assert (take.returncode, output) == (5, LINES)
    assert b"up to 5,000 events written last may be delivered again" in errors
    assert queued_events(client, channel) == 5000


def test_tail_follows_and_takes_nothing(server: str, client: Client, channel: str) -> None:
    """Existing and new events are shown until Ctrl-C, which is a normal end."""
    client.channel(channel).append([b"before"])
    with started_millrace(server, "tail", channel, "--from", "1", "--long") as tail:
        stdout = stream_of(tail.stdout)
        assert stdout.readline() == b"1\t-\tbefore\n"
        client.channel(channel).append([b"after"])
        assert stdout.readline() == b"2\t-\tafter\n"
        tail.send_signal(signal.SIGINT)
        output, errors = tail.communicate()
    assert (tail.returncode, output, errors) == (0, b"", b"")
    assert queued_events(client, channel) == 2


def test_tail_of_a_channel_that_is_deleted_ends(server: str, client: Client, channel: str) -> None:
    """No more events can follow, and the sentence says why."""
    client.channel(channel).append([b"last"])
    with started_millrace(server, "tail", channel, "--from", "1") as tail:
        assert stream_of(tail.stdout).readline() == b"last\n"
        client.admin.delete_channel(channel, force=True)
        _, errors = tail.communicate()
    assert tail.returncode == 1
    assert f"has no channel {channel};".encode() in errors
