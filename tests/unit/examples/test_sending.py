from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import millrace_client as millrace
from examples.access_log.log_file import open_log_file
from examples.access_log.sending import BATCH_BYTES_MAX, REPEATS_MAX, RoundLimits, Sender


class FakeChannel(millrace.Channel):
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self._next_number = 1

    def next_stamp(self, event_count: int) -> millrace.Stamp:
        first = self._next_number
        self._next_number += event_count
        return millrace.Stamp("sender", first, first + event_count - 1)

    def append(
        self, events: Iterable[millrace.Event | bytes | str], stamp: millrace.Stamp | None = None
    ) -> millrace.Receipt:
        bodies = [event.body for event in events if isinstance(event, millrace.Event)]
        first = 1 + sum(map(len, self.batches))
        self.batches.append(bodies)
        return millrace.Receipt(first, first + len(bodies) - 1, deduplicated=False)


def send(folder: Path, lines: list[bytes], limits: RoundLimits) -> tuple[FakeChannel, list[int]]:
    path = folder / "some.log"
    path.write_bytes(b"\n".join(lines))
    channel = FakeChannel()
    sender = Sender(channel, open_log_file(path), limits)
    rounds = []
    while not sender.is_done:
        told: list[int] = []
        rounds.append(sender.send_round(told.append))
        assert sum(told) == rounds[-1]
    assert [body for batch in channel.batches for body in batch] == lines
    return channel, rounds


def test_sender_of_a_small_file_sends_it_in_one_round(tmp_path: Path) -> None:
    """Batches of 1,000 lines."""
    channel, rounds = send(tmp_path, [b"%d" % number for number in range(2_500)], RoundLimits())
    assert rounds == [2_500]
    assert [len(batch) for batch in channel.batches] == [1_000, 1_000, 500]


def test_sender_of_more_lines_than_a_round_holds_takes_several(tmp_path: Path) -> None:
    """No round is larger than the channel, and no line is lost between rounds."""
    _, rounds = send(tmp_path, [b"%d" % number for number in range(2_500)], RoundLimits(lines_max=700))
    assert rounds == [700, 700, 700, 400]


def test_sender_of_more_bytes_than_a_round_holds_takes_several(tmp_path: Path) -> None:
    """Large lines are bounded by their bytes."""
    lines = [b"x" * 700_000] * 10
    channel, rounds = send(tmp_path, lines, RoundLimits(bytes_max=3_000_000))
    assert rounds == [4, 4, 2]
    assert max(sum(map(len, batch)) for batch in channel.batches) <= BATCH_BYTES_MAX + 700_000


def test_sender_of_a_line_above_all_limits_sends_it_alone(tmp_path: Path) -> None:
    """Whether it is too large is for the channel to say."""
    _, rounds = send(tmp_path, [b"a", b"x" * 3_000_000, b"b"], RoundLimits(bytes_max=100))
    assert sum(rounds) == 3


def test_sender_counts_a_batch_whose_first_answer_was_lost(tmp_path: Path) -> None:
    """The repeat's receipt says that nothing was stored again; the lines are committed all the same."""

    class RepeatingChannel(FakeChannel):
        def append(
            self, events: Iterable[millrace.Event | bytes | str], stamp: millrace.Stamp | None = None
        ) -> millrace.Receipt:
            super().append(events, stamp)
            return millrace.Receipt(0, 0, deduplicated=True)

    path = tmp_path / "some.log"
    path.write_bytes(b"a\nb\nc\n")
    sender = Sender(RepeatingChannel(), open_log_file(path), RoundLimits())
    assert sender.send_round(lambda _count: None) == 3


class FailingChannel(FakeChannel):
    """Fails as it is told before it stores anything."""

    def __init__(self, errors: Sequence[millrace.MillraceError]) -> None:
        super().__init__()
        self._errors = list(errors)
        self.stamps: list[millrace.Stamp | None] = []

    def append(
        self, events: Iterable[millrace.Event | bytes | str], stamp: millrace.Stamp | None = None
    ) -> millrace.Receipt:
        self.stamps.append(stamp)
        if self._errors:
            raise self._errors.pop(0)
        return super().append(events, stamp)


def sender_of_two_batches(folder: Path, channel: FailingChannel, pauses: list[float]) -> Sender:
    path = folder / "some.log"
    path.write_bytes(b"a\nb\nc\n")
    return Sender(channel, open_log_file(path), RoundLimits(lines_max=2), pauses.append)


def test_sender_whose_server_is_away_sends_the_same_numbers_again(tmp_path: Path) -> None:
    """A batch that failed is sent again under the same stamp, after as long as the server says, until it is stored."""
    gone = millrace.UnavailableError("gone")
    replaying = millrace.ReplayingError("replaying", retry_delay_seconds=0.7)
    channel, pauses = FailingChannel([gone, replaying]), list[float]()
    sender = sender_of_two_batches(tmp_path, channel, pauses)
    assert sender.send_round(lambda _count: None) == 2
    assert sender.send_round(lambda _count: None) == 1
    assert channel.batches == [[b"a", b"b"], [b"c"]]
    first, second = millrace.Stamp("sender", 1, 2), millrace.Stamp("sender", 3, 3)
    assert channel.stamps == [first, first, first, second]
    assert len(pauses) == 2
    assert pauses[1] == 0.7


def test_sender_whose_server_stays_away_gives_up(tmp_path: Path) -> None:
    """There is an end to the repeats, and the last error says why."""
    channel, pauses = FailingChannel([millrace.UnavailableError("gone")] * (REPEATS_MAX + 1)), list[float]()
    sender = sender_of_two_batches(tmp_path, channel, pauses)
    with pytest.raises(millrace.UnavailableError, match="gone"):
        sender.send_round(lambda _count: None)
    assert len(channel.stamps) == REPEATS_MAX + 1
    assert len(pauses) == REPEATS_MAX


def test_sender_that_is_refused_does_not_repeat(tmp_path: Path) -> None:
    """What a repeat cannot mend is told at once."""
    channel, pauses = FailingChannel([millrace.DiskFullError("full")]), list[float]()
    sender = sender_of_two_batches(tmp_path, channel, pauses)
    with pytest.raises(millrace.DiskFullError):
        sender.send_round(lambda _count: None)
    assert pauses == []
