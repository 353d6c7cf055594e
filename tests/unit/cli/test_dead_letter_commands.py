import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.dead_letters import DEAD_LETTER_PREFIX
from millrace_client import ChannelFullError, Event, LeaseExpiredError, UnavailableError
from millrace_client.dead_letters import replay, targets
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import LIMITS, FakeChannel
from tests.unit.cli.fake_client import FakeClient

SEED = 71_203
RUNS_MAX = 500


@pytest.fixture
def rejected(client: FakeClient) -> FakeChannel:
    """The channel of dead letters, in addition to `orders` and `logs`."""
    client.admin.channels.update({name: FakeChannel(name) for name in ("rejected", "logs")})
    return client.admin.channels["rejected"]


@pytest.fixture
def logs(client: FakeClient, rejected: FakeChannel) -> FakeChannel:
    return client.admin.channels["logs"]


def letter(body: str, channel: str = "orders", reason: str = "no such customer", **reported: str) -> Event:
    headers = {"reason": reason, "time": "2026-01-02T03:04:05.678+00:00", "channel": channel, "sink": "web", **reported}
    return Event(body.encode(), {"n": body, **{DEAD_LETTER_PREFIX + key: value for key, value in headers.items()}})


def bodies(channel: FakeChannel) -> list[str]:
    return [event.body.decode() for event in channel.events]


def numbers(channel: FakeChannel) -> list[int]:
    return [event.sequence or 0 for event in channel.events]


def test_list_in_a_pipe_writes_a_plain_table_and_takes_nothing(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """The table shows who rejected the event, when, where from and why, and the beginning of the body."""
    rejected.add("an ordinary event")
    rejected.add(letter("one", sequence="17", deliveries="5"))
    heading, line = millrace("dead-letter", "list", "rejected").stdout.splitlines()
    assert heading.split() == [
        *["SEQUENCE", "CHANNEL", "TIME", "(UTC)", "COMPONENT", "TRIES", "SIZE", "REASON", "BODY"]
    ]
    assert line.split() == [
        *["2", "orders/17", "2026-01-02", "03:04:05", "sinks/web", "5", "3", "B"],
        *["no", "such", "customer", "one"],
    ]
    assert len(rejected.events) == 2


def test_list_of_evil_events_writes_nothing_that_drives_a_terminal(
    rejected: FakeChannel, millrace: RunMillrace
) -> None:
    """Each event stays on one line, whatever its headers and body contain; no character is cut in two."""
    rejected.add(letter("\x1b[2J\n" + "ä" * 500, channel="a\x1b]0;b\x07", reason="one\ntwo\tthree\x1b[31m" + "x" * 999))
    output = millrace("dead-letter", "list", "rejected").stdout
    assert len(output.splitlines()) == 2
    assert "\x1b" not in output
    assert "\\xc3" not in output
    assert "ä…" in output
    assert len(output) < 500


def test_list_as_json_tells_all_of_each_event(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """Each line is one object; the headers are the event's own."""
    rejected.add(letter("one", sequence="17", deliveries="5"))
    rejected.add(replace(letter("two", step="encoding"), body=b"\xff"))
    first, second = map(json.loads, millrace("dead-letter", "list", "rejected", "--json").stdout.splitlines())
    assert first == {
        "sequence": 1,
        "time": "2026-01-02T03:04:05.678+00:00",
        "component": "sinks/web",
        "step": "",
        "channel": "orders",
        "channel_sequence": 17,
        "deliveries": 5,
        "reason": "no such customer",
        "headers": {"n": "one"},
        "body": "one",
    }
    assert (second["step"], second["channel_sequence"], second["body_base64"]) == ("encoding", None, "/w==")


def test_list_with_filters_and_limit_shows_only_those(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """The limit counts the events shown, not those skipped."""
    for number in range(300):
        rejected.add(letter(f"{number}", channel="logs" if number % 3 else "orders", reason=f"code {number % 2}"))
    arguments = ("--channel-of", "orders", "--reason", "CODE 1", "--limit", "3", "--json")
    result = millrace("dead-letter", "list", "rejected", *arguments)
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["3", "9", "15"]
    assert len(millrace("dead-letter", "list", "rejected", "--limit", "0").stdout.splitlines()) == 301
    assert len(millrace("dead-letter", "list", "rejected").stdout.splitlines()) == 101


def test_list_where_there_is_none_ends_with_4(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """Ordinary events are not dead letters."""
    rejected.add("an ordinary event")
    result = millrace("dead-letter", "list", "rejected")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "`millrace peek rejected`" in result.stderr


def test_list_of_an_unknown_channel_ends_with_1(millrace: RunMillrace) -> None:
    """The exit code is the same for every command."""
    assert millrace("dead-letter", "list", "nosuch").exit_code == 1


def test_replay_brings_events_back_as_they_were(
    rejected: FakeChannel, orders: FakeChannel, logs: FakeChannel, millrace: RunMillrace
) -> None:
    """Each event returns to its own channel, in order, without the headers about the rejection."""
    for number in range(250):
        rejected.add(letter(f"{number}", channel="logs" if number % 5 == 0 else "orders"))
    orders.config = replace(LIMITS, capacity=1000)
    result = millrace("dead-letter", "replay", "rejected")
    assert (result.exit_code, result.stdout) == (
        0,
        "rejected: 250 events replayed (50 to logs, 200 to orders)\n",
    )
    assert bodies(logs) == [str(number) for number in range(0, 250, 5)]
    assert bodies(orders) == [str(number) for number in range(250) if number % 5]
    assert {tuple(event.headers) for event in [*orders.events, *logs.events]} == {("n",)}
    assert not rejected.events
    assert {stamp.producer_id for stamp in orders.stamps} == {"replay/c-1/0"}
    assert max(stamp.last_sequence - stamp.first_sequence for stamp in orders.stamps) == 3


def test_replay_with_keep_headers_keeps_them(rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace) -> None:
    """Readers of the channel can distinguish them from others."""
    rejected.add(letter("one"))
    millrace("dead-letter", "replay", "rejected", "--keep-headers")
    assert orders.events[0].headers == letter("one").headers


@pytest.mark.parametrize("page_events", [1, 7, 10_000])
def test_replay_with_filters_leaves_the_others_in_their_place(
    rejected: FakeChannel,
    orders: FakeChannel,
    millrace: RunMillrace,
    monkeypatch: pytest.MonkeyPatch,
    page_events: int,
) -> None:
    """Skipped events may be anywhere, and more than one transaction or one look holds."""
    monkeypatch.setattr(replay, "_PAGE_EVENTS", page_events)
    for number in range(500):
        rejected.add(letter(f"{number}", reason="again" if number in (3, 250, 251, 420) else "never"))
    rejected.add("ordinary")
    result = millrace("dead-letter", "replay", "rejected", "--reason", "again", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "replayed": {"orders": 4},
        "left": {},
        "passed_over": 497,
        "held_elsewhere": 0,
        "complete": True,
    }
    assert bodies(orders) == ["3", "250", "251", "420"]
    assert numbers(rejected) == [number for number in range(1, 502) if number not in (4, 251, 252, 421)]


def test_replay_to_another_channel_brings_all_there(
    rejected: FakeChannel, logs: FakeChannel, millrace: RunMillrace
) -> None:
    """This includes events without the name of their channel."""
    rejected.add(letter("one", channel="gone"))
    rejected.add(letter("two", channel=""))
    assert millrace("dead-letter", "replay", "rejected", "--to", "logs").exit_code == 0
    assert bodies(logs) == ["one", "two"]


@pytest.mark.parametrize("target", ["rejected", "nosuch"])
def test_replay_to_a_channel_that_cannot_be_is_refused(
    rejected: FakeChannel, millrace: RunMillrace, target: str
) -> None:
    """The refusal comes before anything is taken."""
    rejected.add(letter("one"))
    assert millrace("dead-letter", "replay", "rejected", "--to", target).exit_code in (1, 2)
    assert numbers(rejected) == [1]


def test_replay_where_some_must_stay_brings_the_others_and_ends_with_1(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace
) -> None:
    """The command reports how many events stay, for each reason."""
    orders.body_bytes_max = 10
    for number in range(3):
        rejected.add(letter(f"ok {number}"))
        rejected.add(letter("far too large a body"))
        rejected.add(letter("gone", channel="nosuch"))
        rejected.add(letter("lost", channel=""))
        rejected.add(letter("loop", channel="rejected"))
    result = millrace("dead-letter", "replay", "rejected")
    assert (result.exit_code, result.stdout) == (1, "rejected: 3 events replayed (3 to orders)\n")
    assert bodies(orders) == ["ok 0", "ok 1", "ok 2"]
    assert numbers(rejected) == [number for number in range(1, 16) if number % 5 != 1]
    assert sorted(result.stderr.splitlines()) == [
        "millrace: 12 events of rejected must stay there",
        "millrace: 3 events stay: orders does not accept them: an event has more than 10 bytes",
        "millrace: 3 events stay: the server has no channel nosuch; create it, or name another with --to",
        "millrace: 3 events stay: they came from rejected itself; name another channel with --to",
        "millrace: 3 events stay: they have no header with their channel; name one with --to",
    ]


def test_replay_in_a_dry_run_changes_nothing(rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace) -> None:
    """The numbers are the same, and nothing is moved."""
    rejected.add(letter("one"))
    rejected.add(letter("two", channel="nosuch"))
    result = millrace("dead-letter", "replay", "rejected", "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "rejected: 1 event would be replayed (1 to orders)\n")
    assert (numbers(rejected), bodies(orders), rejected.waits) == ([1, 2], [], [])


def test_replay_where_there_is_none_ends_with_4(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """The exit code says that nothing was done."""
    rejected.add(letter("one"))
    assert millrace("dead-letter", "replay", "rejected", "--channel-of", "logs").exit_code == 4
    assert numbers(rejected) == [1]


def test_replay_where_others_hold_events_says_so(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """Events that a killed replay still holds in a transaction are reported, so that they do not seem lost."""
    rejected.taken_events = 7
    result = millrace("dead-letter", "replay", "rejected")
    assert result.exit_code == 4
    assert "7 events of rejected were in open transactions" in result.stderr


def test_replay_into_a_full_channel_gives_up_in_the_end_and_keeps_the_rest(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace
) -> None:
    """Earlier events stay replayed, and the sentence says how to continue."""
    for number in range(30):
        rejected.add(letter(f"{number}", sink=f"{number}"))
    orders.config = replace(LIMITS, capacity=20, transaction_capacity=10)
    result = millrace("dead-letter", "replay", "rejected", "--patience", "0")
    assert result.exit_code == 5
    assert "run the command again for the rest" in result.stderr
    assert len(rejected.events) == 30
    orders.config = LIMITS
    assert millrace("dead-letter", "replay", "rejected").exit_code == 0
    assert bodies(orders) == [str(number) for number in range(30)]


def test_replay_into_a_channel_that_is_full_for_a_while_waits(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace
) -> None:
    """Space may appear when events are taken there."""
    rejected.add(letter("one"))
    orders.append_errors.append(ChannelFullError("full", channel="orders", retry_delay_seconds=0.001))
    result = millrace("dead-letter", "replay", "rejected")
    assert (result.exit_code, bodies(orders)) == (0, ["one"])
    assert "full; trying again for up to 60 s" in result.stderr


@pytest.mark.parametrize("error", [LeaseExpiredError("the lease ran out"), UnavailableError("gone")])
def test_replay_whose_commit_fails_stores_nothing_twice(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace, error: Exception
) -> None:
    """The events were stored and are sent again; their stamps identify them."""
    for number in range(5):
        rejected.add(letter(f"{number}"))
    rejected.commit_errors.append(error)
    first = millrace("dead-letter", "replay", "rejected")
    assert first.exit_code == (0 if isinstance(error, LeaseExpiredError) else 3)
    assert millrace("dead-letter", "replay", "rejected").exit_code in (0, 4)
    assert bodies(orders) == ["0", "1", "2", "3", "4"]
    assert not rejected.events


def test_replay_interrupted_tells_what_went_and_leaves_the_rest(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace
) -> None:
    """Ctrl-C returns the events taken; another run replays the rest."""
    for number in range(150):
        rejected.add(letter(f"{number}"))
    orders.config = replace(LIMITS, capacity=1000)
    orders.append_errors.extend([None, KeyboardInterrupt()])
    result = millrace("dead-letter", "replay", "rejected", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["replayed"] == {"orders": 100}
    assert result.stderr.endswith("100 events replayed (100 to orders); run the command again for the rest\n")
    assert numbers(rejected) == list(range(101, 151))


def test_replay_does_not_chase_what_comes_in_in_the_meantime(
    rejected: FakeChannel, orders: FakeChannel, millrace: RunMillrace
) -> None:
    """A sink that rejects the events again at once does not keep the command running without end."""
    rejected.add(letter("one"))

    def add_more() -> None:
        rejected.add(letter("more"))

    orders.raise_sometimes = add_more
    assert millrace("dead-letter", "replay", "rejected").exit_code == 0
    assert bodies(orders) == ["one"]
    assert bodies(rejected) == ["more", "more"]


def test_replay_where_others_always_return_events_gives_up(rejected: FakeChannel, millrace: RunMillrace) -> None:
    """The command does not start over without end."""
    rejected.add(letter("one"))
    rejected.commit_errors.extend([LeaseExpiredError("the lease ran out")] * 100)
    result = millrace("dead-letter", "replay", "rejected")
    assert result.exit_code == 5
    assert len(rejected.commit_errors) == 90
    assert "try again when they have ended" in result.stderr


class KilledError(BaseException):
    """Ends a run at any point."""


def sometimes(chance: random.Random, probability: float) -> Callable[[], None]:
    def raise_sometimes() -> None:
        if chance.random() < probability:
            raise KilledError

    return raise_sometimes


def test_replay_that_is_cut_off_anywhere_and_repeated_stores_each_event_once(
    rejected: FakeChannel,
    orders: FakeChannel,
    logs: FakeChannel,
    millrace: RunMillrace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events stored before the end are recognized by their stamps; the others stay in their channel."""
    chance = random.Random(SEED)
    monkeypatch.setattr(targets, "NUMBERS_OF_A_PRODUCER", 64)
    monkeypatch.setattr(replay, "_PAGE_EVENTS", 20)
    kinds = [chance.choice(["orders", "logs", "stays"]) for _ in range(600)]
    for number, kind in enumerate(kinds):
        rejected.add(letter(f"{number}", channel=kind, reason="never" if kind == "stays" else "again"))
    rejected.config = replace(LIMITS, transaction_capacity=37)
    for channel in (orders, logs):
        channel.config = replace(LIMITS, capacity=1000, transaction_capacity=11)
        channel.raise_sometimes = sometimes(chance, 0.02)
    rejected.raise_sometimes = sometimes(chance, 0.01)
    cut_offs = 0
    while cut_offs < RUNS_MAX:
        try:
            result = millrace("dead-letter", "replay", "rejected", "--reason", "again")
        except KilledError:
            cut_offs += 1
            continue
        assert result.exit_code == 0, f"seed {SEED}: {result.output}"
        break
    assert 5 < cut_offs < RUNS_MAX, f"seed {SEED}"
    for name, channel in (("orders", orders), ("logs", logs)):
        assert bodies(channel) == [str(number) for number, kind in enumerate(kinds) if kind == name], f"seed {SEED}"
    assert bodies(rejected) == [str(number) for number, kind in enumerate(kinds) if kind == "stays"], f"seed {SEED}"
