from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from millrace_client import (
    ChannelFullError,
    Event,
    MillraceError,
    ProducerConfig,
    SendSummary,
    Stamp,
    TxnCapacityError,
    UnavailableError,
)
from millrace_client.cli.exit_status import CommandError
from millrace_client.cli.line_events import LineFormat, LineRouting
from millrace_client.cli.line_source import InputError
from millrace_client.cli.progress import PutProgress
from millrace_client.cli.upload import CLOSE_SECONDS, Destination, PutAccount, TroubleHooks, Upload
from tests.unit.cli.fake_channel import FakeChannel
from tests.unit.cli.fake_client import FakeProducer


class FakeProgress(PutProgress):
    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[int, int]] = []
        self.waits: list[str] = []

    def committed(self, line_count: int, input_bytes: int, /) -> None:
        self.commits.append((line_count, input_bytes))

    def waiting(self, error: MillraceError, _patience_seconds: float, /) -> None:
        self.waits.append(error.reason)


class Bench:
    """An upload with its dependencies."""

    def __init__(
        self, *channels: FakeChannel, line_format: LineFormat | None = None, skipped_lines: int = 0, **limits: Any
    ) -> None:
        self.progress = FakeProgress()
        self.account = PutAccount("orders", "p", skipped_lines=skipped_lines, server_count=len(channels))
        config = ProducerConfig(producer_id="p", first_number=skipped_lines, **limits)
        endpoints = [f"{chr(ord('a') + place)}:1" for place in range(len(channels))]
        hooks = [TroubleHooks() for _ in channels]
        self.producers = [
            FakeProducer(channel, config, its_hooks) for channel, its_hooks in zip(channels, hooks, strict=True)
        ]
        self.upload = Upload(
            [
                Destination(endpoint, cast("Any", producer), its_hooks)
                for endpoint, producer, its_hooks in zip(endpoints, self.producers, hooks, strict=True)
            ],
            line_format or LineFormat({}),
            LineRouting(endpoints, "key"),
            self.account,
            10.0,
        )

    def send(self, *batches: Sequence[bytes]) -> None:
        for lines in batches:
            self.upload.send(list(lines), self.progress)

    def put(self, *batches: Sequence[bytes]) -> None:
        self.send(*batches)
        self.upload.finish(self.progress)


def test_send_several_batches_counts_their_lines(orders: FakeChannel) -> None:
    """Lines are numbered from 0 through the whole input, including skipped ones."""
    bench = Bench(orders, skipped_lines=10)
    bench.put([b"a", b"b"], [b"c"])
    assert orders.stamps == [Stamp("p", 10, 11), Stamp("p", 12, 12)]
    assert bench.progress.commits == [(2, 4), (1, 2)]
    assert (bench.account.events_committed, bench.account.first_sequence, bench.account.last_sequence) == (3, 1, 3)


def test_send_waits_for_all_batches_but_the_last(orders: FakeChannel) -> None:
    """A put that is interrupted has read little more than it has stored."""
    bench = Bench(orders)
    bench.send([b"a"], [b"b"], [b"c"])
    assert (bench.account.lines_read, bench.account.lines_committed) == (3, 2)


def test_send_with_headers_gives_them_to_each_event(orders: FakeChannel) -> None:
    """All lines become events with these headers."""
    Bench(orders, line_format=LineFormat({"k": "v"})).put([b"a", b"b"])
    assert list(orders.events) == [Event(b"a", {"k": "v"}, 1), Event(b"b", {"k": "v"}, 2)]


def test_send_of_a_line_that_is_no_json_names_it(orders: FakeChannel) -> None:
    """Lines are numbered from 1 through the whole input; those before it are sent."""
    bench = Bench(orders, line_format=LineFormat({}, is_json=True), skipped_lines=10)
    bench.send([b'{"body": "a"}'])
    with pytest.raises(InputError, match="line 13 is not JSON"):
        bench.send([b'{"body": "b"}', b"c", b'{"body": "d"}'])
    bench.upload.finish(bench.progress)
    assert [event.body for event in orders.events] == [b"a", b"b"]


def test_wait_for_a_full_channel_is_reported(orders: FakeChannel) -> None:
    """Each retry reports the reason, and the report ends when an append succeeds."""
    orders.append_errors.extend([ChannelFullError("full")] * 2 + [None])
    bench = Bench(orders)
    bench.put([b"a"], [b"b"])
    assert bench.progress.waits == ["CHANNEL_FULL"] * 2
    assert bench.account.lines_committed == 2


def test_wait_for_an_unreachable_server_is_reported(orders: FakeChannel) -> None:
    """This includes a server that fails while nothing is in progress."""
    orders.append_errors.extend([ChannelFullError("full"), None])
    bench = Bench(orders)
    bench.producers[0].is_connected = False
    bench.put([b"a"])
    assert bench.progress.waits == ["UNAVAILABLE"]


@pytest.mark.parametrize("error", [TxnCapacityError("too many"), UnavailableError("gone")])
def test_send_that_fails_raises_what_the_server_said(orders: FakeChannel, error: MillraceError) -> None:
    """The report counts the lines before it, and none after it is stored."""
    orders.append_errors.extend([None, error])
    bench = Bench(orders, batch_events_max=2)
    with pytest.raises(CommandError) as raised:
        bench.put([b"a", b"b", b"c", b"d"], [b"e"])
    assert raised.value.__cause__ is error
    bench.upload.close()
    assert (bench.account.lines_read, bench.account.lines_committed) == (5, 2)
    assert bench.progress.commits == [(2, 4)]
    assert [event.body for event in orders.events] == [b"a", b"b"]


def test_send_behind_a_line_that_failed_raises_why_it_did(orders: FakeChannel) -> None:
    """The error is that of the line, not that the producer has stopped."""
    error = TxnCapacityError("too many")
    orders.append_errors.append(error)
    bench = Bench(orders)
    bench.send([b"a"])
    bench.producers[0].is_stopped = True
    with pytest.raises(CommandError) as raised:
        bench.send([b"b"])
    assert raised.value.__cause__ is error


def test_end_counts_what_was_acknowledged_in_the_meantime(orders: FakeChannel) -> None:
    """Lines in progress may be acknowledged for a moment; the others are left to the next run."""
    orders.append_errors.extend([None, ChannelFullError("full")])
    bench = Bench(orders, batch_events_max=2)
    bench.send([b"a", b"b", b"c"])
    assert bench.account.lines_committed == 0
    bench.upload.close()
    assert bench.producers[0].close_seconds == CLOSE_SECONDS
    assert bench.account.lines_committed == 2


def test_send_to_several_servers_gives_each_its_lines(orders: FakeChannel) -> None:
    """Lines go by their key, or in turn; numbers count the lines of each server."""
    other = FakeChannel("orders")
    bench = Bench(orders, other, line_format=LineFormat({}, is_json=True))
    keyed = [b'{"body": "%d", "headers": {"key": "%d"}}' % (number, number % 5) for number in range(40)]
    bench.put([b'{"body": "in turn"}'] * 4, keyed)
    bodies = [[event.body for event in channel.events] for channel in (orders, other)]
    assert [each.count(b"in turn") for each in bodies] == [2, 2]
    for key in range(5):
        mine = [b"%d" % number for number in range(40) if number % 5 == key]
        assert [[body for body in each if body in mine] for each in bodies] in ([mine, []], [[], mine])
    assert all(len(each) > 2 for each in bodies)
    assert [stamp.first_sequence for stamp in orders.stamps] == [0, 2]
    assert (bench.account.lines_committed, bench.account.events_committed) == (44, 44)
    assert bench.account.sentence() == "orders: 44 lines read, 44 events committed"


def test_failure_at_one_of_several_servers_counts_the_lines_before_it(orders: FakeChannel) -> None:
    """Lines that other servers have stored after it are left to the next run, which does not store them again."""
    other = FakeChannel("orders", append_errors=deque([None, TxnCapacityError("too many")]))
    bench = Bench(orders, other, batch_events_max=2)
    with pytest.raises(CommandError, match="too many"):
        bench.put([b"%d" % number for number in range(10)], [b"10", b"11"])
    bench.upload.close()
    assert [event.body for event in orders.events] == [b"0", b"2", b"4", b"6", b"8", b"10"]
    assert [event.body for event in other.events] == [b"1", b"3"]
    # Line 5 is the first that is not stored.
    assert (bench.account.next_line, bench.account.events_committed) == (5, 5)
    assert bench.progress.commits == [(5, 10)]
    assert bench.account.lines_read == 12


def test_failure_for_good_names_the_server(orders: FakeChannel) -> None:
    """With several servers the error names the one that failed."""
    other = FakeChannel("orders", append_errors=deque([UnavailableError("gone")]))
    with pytest.raises(CommandError, match="no server responds at b:1;"):
        Bench(orders, other).put([b"a", b"b"])


def test_close_that_is_interrupted_closes_all_producers_at_once(
    orders: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C waits for no server."""
    bench = Bench(orders, FakeChannel("orders"))
    first, second = bench.producers
    closed: list[float] = []

    def close(seconds: float) -> None:
        closed.append(seconds)
        if seconds:
            raise KeyboardInterrupt

    monkeypatch.setattr(first, "close", close)
    with pytest.raises(KeyboardInterrupt):
        bench.upload.close()
    assert (closed, second.close_seconds) == ([CLOSE_SECONDS, 0.0], 0.0)


@pytest.fixture
def account() -> PutAccount:
    account = PutAccount("orders", "p-1", skipped_lines=100, lines_read=1300)
    account.add(SendSummary(1000, 200, 5, 804, None))
    account.add(SendSummary(100, 100, None, None, None))
    account.add(SendSummary(100, 0, 2001, 2100, None))
    return account


def test_add_of_receipts_counts_lines_and_events_apart(account: PutAccount) -> None:
    """Lines that were stored before are acknowledged, but this run did not store them."""
    assert (account.lines_committed, account.events_committed) == (1200, 900)
    assert (account.first_sequence, account.last_sequence) == (5, 2100)
    assert account.next_line == 1300


def test_sentence_of_a_resumed_put_tells_all(account: PutAccount) -> None:
    """It contains the numbers of lines skipped, read, committed and repeated, and their sequences."""
    assert account.sentence() == (
        "orders: 100 lines skipped, 1,300 lines read, 900 events committed, 300 of the lines stored before,"
        " sequences 5 to 2,100"
    )


def test_sentence_of_an_empty_put_is_short() -> None:
    """Zero counts are omitted."""
    assert PutAccount("orders", "p-1").sentence() == "orders: 0 lines read, 0 events committed"


def test_sentence_of_one_line_is_in_the_singular() -> None:
    """A count of one is in the singular."""
    account = PutAccount("orders", "p-1", lines_read=1)
    account.add(SendSummary(1, 0, 7, 7, None))
    assert account.sentence() == "orders: 1 line read, 1 event committed, sequences 7 to 7"


def test_document_of_an_incomplete_put_tells_where_to_resume(account: PutAccount) -> None:
    """A script needs the two values for --skip-lines and --producer-id."""
    assert account.document(is_complete=False) == {
        "channel": "orders",
        "producer_id": "p-1",
        "skipped_lines": 100,
        "lines_read": 1300,
        "lines_committed": 1200,
        "events_committed": 900,
        "first_sequence": 5,
        "last_sequence": 2100,
        "server_count": 1,
        "complete": False,
        "resume_skip_lines": 1300,
    }


def test_resume_command_with_spaces_can_be_pasted(account: PutAccount) -> None:
    """The shell parses the words unchanged."""
    command = account.resume_command(Path("my log"), ["--header=a=b c"])
    assert command == "millrace put orders 'my log' '--header=a=b c' --skip-lines 1300 --producer-id p-1"
