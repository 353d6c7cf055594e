import io
import json
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from millrace_client import ChannelClaimedError, Event, LeaseExpiredError, UnavailableError
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.line_events import event_of_line
from millrace_client.cli.read_commands import EventFormat, EventWriter
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import FakeChannel, batch_of

ODD = Event(b"\xff\n\x1b[31m", {"k": "v"})


def written(event_format: EventFormat, *events: Event, is_terminal: bool = False) -> bytes:
    stream = io.BytesIO()
    EventWriter(event_format, stream, is_terminal=is_terminal).write([batch_of(events, first_sequence=7)])
    return stream.getvalue()


def test_write_lines_elsewhere_keeps_the_bytes() -> None:
    """Lines are returned byte for byte."""
    assert written(EventFormat.LINES, Event(b"one"), Event(b""), ODD) == b"one\n\n\xff\n\x1b[31m\n"


def test_write_lines_on_a_terminal_escapes_control_characters() -> None:
    """Control characters in a log line do not reach the terminal."""
    assert written(EventFormat.LINES, ODD, is_terminal=True) == b"\\xff\\n\\x1b[31m\n"


def test_write_long_of_odd_events_stays_one_line_each() -> None:
    """Sequence, headers and body are separated by tabs, whatever they contain."""
    lines = written(EventFormat.LONG, Event(b"one", {"b": "2", "a": "x\ny"}), ODD, Event(b"plain"))
    assert lines.decode().splitlines() == ["7\tb=2 a=x\\ny\tone", "8\tk=v\t\\xff\\n\\x1b[31m", "9\t-\tplain"]


def test_write_json_of_text_and_bytes_tells_them_apart() -> None:
    """A body in UTF-8 is text; any other is base64 under another key."""
    lines = written(EventFormat.JSON, Event("ä\n".encode(), {"k": "v"}), ODD).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"sequence": 7, "commit_time": None, "headers": {"k": "v"}, "body": "ä\n"},
        {"sequence": 8, "commit_time": None, "headers": {"k": "v"}, "body_base64": "/wobWzMxbQ=="},
    ]


def test_write_several_batches_counts_their_events() -> None:
    """The take commits this number."""
    writer = EventWriter(EventFormat.LINES, io.BytesIO(), is_terminal=False)
    assert writer.write([batch_of([Event(b"a"), Event(b"b")]), batch_of([Event(b"c")])]) == 3
    assert writer.write([]) == 0


class RawStream(io.BytesIO):
    """A raw stream that writes at most three bytes at once, and sometimes none."""

    def __init__(self, *, blocks_after: int) -> None:
        super().__init__()
        self.blocks_after = blocks_after

    def write(self, data: object) -> int:
        assert isinstance(data, memoryview)
        if self.tell() >= self.blocks_after:
            return cast("int", None)
        return super().write(data[:3])


def test_write_to_a_stream_that_writes_in_parts_writes_all() -> None:
    """An unbuffered standard output may write a part; the rest must follow before anything is committed."""
    stream = RawStream(blocks_after=100)
    EventWriter(EventFormat.LINES, stream, is_terminal=False).write([batch_of([Event(b"12345"), Event(b"67")])])
    assert stream.getvalue() == b"12345\n67\n"


def test_write_to_a_stream_that_would_block_fails() -> None:
    """A full non-blocking standard output is reported as an error; nothing counts as written."""
    writer = EventWriter(EventFormat.LINES, RawStream(blocks_after=3), is_terminal=False)
    with pytest.raises(CommandError, match=r"^cannot write to standard output: Resource temporarily unavailable"):
        writer.write([batch_of([Event(b"12345")])])


class FullStream(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


def test_write_to_a_full_disk_says_so() -> None:
    """The writer flushes, so that a full disk is noticed before anything is committed."""
    writer = EventWriter(EventFormat.LINES, FullStream(OSError(28, "No space left on device")), is_terminal=False)
    with pytest.raises(CommandError, match=r"^cannot write to standard output: No space left on device; ") as caught:
        writer.write([batch_of([Event(b"a")])])
    assert caught.value.exit_code is ExitCode.REFUSED


def test_write_to_a_broken_pipe_stays_a_broken_pipe() -> None:
    """The reader of the output may stop at any time; no failure is reported."""
    writer = EventWriter(EventFormat.LINES, FullStream(BrokenPipeError()), is_terminal=False)
    with pytest.raises(BrokenPipeError):
        writer.write([batch_of([Event(b"a")])])


@pytest.fixture
def filled(orders: FakeChannel) -> FakeChannel:
    for number in range(250):
        orders.add(f"line {number}")
    return orders


def test_take_without_options_takes_all(filled: FakeChannel, millrace: RunMillrace) -> None:
    """All events are taken in order, in several transactions, without waiting."""
    result = millrace("take", "orders")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"line {number}" for number in range(250)]
    assert not filled.events
    assert set(filled.waits) == {0}


def test_take_with_a_maximum_takes_no_more(filled: FakeChannel, millrace: RunMillrace) -> None:
    """The maximum holds over all transactions."""
    result = millrace("take", "orders", "--max-events", "120")
    assert result.stdout.splitlines()[-1] == "line 119"
    assert len(filled.events) == 130


def test_take_with_a_wait_waits_for_each_next_event(orders: FakeChannel, millrace: RunMillrace) -> None:
    """The server waits, and responds as soon as there is an event."""
    orders.add("one")
    result = millrace("take", "orders", "--wait", "7.5")
    assert result.stdout == "one\n"
    assert orders.waits == [7.5, 7.5]


def test_take_where_there_is_nothing_ends_with_4(millrace: RunMillrace) -> None:
    """The exit code distinguishes an empty channel from an empty line."""
    result = millrace("take", "orders")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "millrace: there is nothing to take in orders; wait for events with --wait SECONDS\n"


def test_take_when_the_commit_fails_says_what_comes_again(filled: FakeChannel, millrace: RunMillrace) -> None:
    """The message gives the lines that were written but not taken."""
    filled.commit_errors.extend([None, LeaseExpiredError("the lease ran out")])
    result = millrace("take", "orders")
    assert result.exit_code == 5
    assert result.stderr.splitlines() == [
        "millrace: the lease ran out; the events are back in the channel, so run the command again",
        "millrace: up to 100 events written last may be delivered again: taking them was interrupted",
    ]
    assert filled.events[0].body == b"line 100"


def test_take_when_the_server_has_gone_says_only_that(orders: FakeChannel, millrace: RunMillrace) -> None:
    """Nothing was written, so nothing can come again."""
    orders.commit_errors.append(UnavailableError("gone"))
    result = millrace("take", "orders")
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1


def test_take_of_a_claimed_channel_ends_with_5(orders: FakeChannel, millrace: RunMillrace) -> None:
    """The claim may end, so a retry may succeed."""
    orders.commit_errors.append(ChannelClaimedError("reader 'spark' has claimed it", channel="orders"))
    result = millrace("take", "orders")
    assert result.exit_code == 5
    assert "`millrace channel show orders`" in result.stderr


def test_take_of_an_unknown_channel_ends_with_1(millrace: RunMillrace) -> None:
    """The sentence says how to find or create a channel."""
    result = millrace("take", "nosuch")
    assert result.exit_code == 1
    assert result.stderr == (
        "millrace: the server at 127.0.0.1:7070 has no channel nosuch; see the names with `millrace channels`,"
        " or create it with `millrace channel create nosuch`\n"
    )


@pytest.mark.parametrize("option", [("--max-events", "-1"), ("--wait", "-1"), ("--wait", "3601"), ("--wait", "nan")])
def test_take_with_impossible_numbers_is_a_usage_error(
    filled: FakeChannel, millrace: RunMillrace, option: tuple[str, str]
) -> None:
    """Nothing is taken if the command line is wrong."""
    assert millrace("take", "orders", *option).exit_code == 2
    assert len(filled.events) == 250


def test_take_as_json_and_long_is_a_usage_error(filled: FakeChannel, millrace: RunMillrace) -> None:
    """Two formats are refused before anything is taken."""
    result = millrace("take", "orders", "--json", "--long")
    assert (result.exit_code, len(filled.events)) == (2, 250)
    assert result.stderr == "millrace: --json and --long exclude each other; use one of them\n"


def test_take_as_json_writes_one_object_a_line(orders: FakeChannel, millrace: RunMillrace) -> None:
    """Each object has the sequence and the headers."""
    orders.add(Event(b"one", {"host": "a"}))
    result = millrace("take", "orders", "--json")
    assert json.loads(result.stdout) == {"sequence": 1, "commit_time": None, "headers": {"host": "a"}, "body": "one"}


def test_peek_without_options_shows_ten_and_takes_none(filled: FakeChannel, millrace: RunMillrace) -> None:
    """The oldest events are shown, and stay."""
    result = millrace("peek", "orders")
    assert result.stdout.splitlines() == [f"line {number}" for number in range(10)]
    assert len(filled.events) == 250


def test_peek_from_a_sequence_begins_there(filled: FakeChannel, millrace: RunMillrace) -> None:
    """Any part of the queue can be shown."""
    result = millrace("peek", "orders", "--from", "200", "-n", "2", "--long")
    assert result.stdout == "200\t-\tline 199\n201\t-\tline 200\n"


def test_peek_since_a_time_begins_there(orders: FakeChannel, millrace: RunMillrace) -> None:
    """A time is how long ago, or ISO 8601; events that were committed before are left out."""
    now = datetime.now(UTC)
    for minutes in (90, 30, 1):
        orders.add(Event(f"{minutes} min".encode(), commit_time=now - timedelta(minutes=minutes)))
    assert millrace("peek", "orders", "--since", "2h").stdout.splitlines() == ["90 min", "30 min", "1 min"]
    assert millrace("peek", "orders", "--since", "45m").stdout.splitlines() == ["30 min", "1 min"]
    iso = (now - timedelta(minutes=10)).isoformat()
    assert millrace("peek", "orders", "--since", iso).stdout.splitlines() == ["1 min"]
    result = millrace("peek", "orders", "--since", "10s")
    assert (result.exit_code, result.stdout) == (4, "")


def test_peek_since_nonsense_or_with_from_is_a_usage_error(millrace: RunMillrace) -> None:
    """The message says what a time may be, and that only one beginning can be given."""
    result = millrace("peek", "orders", "--since", "yesterday")
    assert result.exit_code == 2
    assert "'yesterday' is not a time; write how long ago, such as 10m" in " ".join(result.stderr.split())
    result = millrace("peek", "orders", "--since", "10m", "--from", "3")
    assert (result.exit_code, result.stderr) == (
        2,
        "millrace: --from and --since exclude each other; use one of them\n",
    )


def test_events_as_json_have_their_commit_time(orders: FakeChannel, millrace: RunMillrace) -> None:
    """Exact to the microsecond, and null where it is not known; `put --json` accepts the lines."""
    orders.add(Event(b"a", commit_time=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)))
    lines = millrace("peek", "orders", "--json").stdout.splitlines()
    orders.add(b"b")
    assert [json.loads(line)["commit_time"] for line in lines] == ["2026-05-04T03:02:01.000000+00:00"]
    assert event_of_line(lines[0].encode()) == Event(b"a")
    orders.events.popleft()
    assert json.loads(millrace("take", "orders", "--json").stdout)["commit_time"] is None


def test_peek_where_there_is_nothing_ends_with_4(millrace: RunMillrace) -> None:
    """The exit code says that nothing was shown."""
    result = millrace("peek", "orders")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "`millrace tail orders`" in result.stderr


def test_tail_until_interrupted_ends_with_0(orders: FakeChannel, millrace: RunMillrace) -> None:
    """Ctrl-C is the normal end of a tail."""
    orders.followed = [batch_of([Event(b"one"), Event(b"two")]), KeyboardInterrupt()]
    result = millrace("tail", "orders")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\ntwo\n", "")


def test_tail_that_is_too_slow_says_what_it_left_out(orders: FakeChannel, millrace: RunMillrace) -> None:
    """A gap is always reported, on standard error."""
    orders.followed = [batch_of([Event(b"late")], first_sequence=1001, skipped_events=1000)]
    result = millrace("tail", "orders")
    assert result.stdout == "late\n"
    assert result.stderr == "millrace: 1,000 events skipped before sequence 1,001\n"


def test_tail_when_the_server_goes_ends_with_3(orders: FakeChannel, millrace: RunMillrace) -> None:
    """Events received before are written."""
    orders.followed = [batch_of([Event(b"one")]), UnavailableError("gone")]
    result = millrace("tail", "orders")
    assert (result.exit_code, result.stdout) == (3, "one\n")


def test_tail_of_an_unknown_channel_ends_with_1(millrace: RunMillrace) -> None:
    """The channel does not exist."""
    assert millrace("tail", "nosuch").exit_code == 1
