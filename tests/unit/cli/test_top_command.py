import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from millrace_client import ChannelInfo, UnavailableError
from millrace_client.cli.exit_status import CommandError
from millrace_client.cli.top_command import ChannelWatch, RateMeter, channel_counters, try_to_update
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import COUNTERS, ORDERS, FakeChannel
from tests.unit.cli.fake_client import FakeClient


class SteppingClock:
    """A clock that advances two seconds per sample."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def counted(put: int, taken: int) -> ChannelInfo:
    counters = replace(COUNTERS, event_put_success_count=put, event_take_success_count=taken)
    return replace(ORDERS, counters=counters)


@pytest.fixture
def meter() -> RateMeter:
    meter = RateMeter(SteppingClock())
    meter.measure(channel_counters([counted(100, 50)]))
    return meter


def test_measure_for_the_first_time_knows_nothing() -> None:
    """One sample has no rate."""
    assert RateMeter(SteppingClock()).measure(channel_counters([ORDERS])) == {}


def test_measure_again_gives_events_a_second(meter: RateMeter) -> None:
    """The rate is the difference of two samples by the time between them; the newer sample is then the base."""
    assert list(meter.measure(channel_counters([counted(300, 50)])).values()) == [[100.0, 0.0]]
    assert list(meter.measure(channel_counters([counted(300, 60)])).values()) == [[0.0, 5.0]]


@pytest.mark.parametrize(
    "channel",
    [
        replace(counted(300, 50), channel_id="c-2"),
        replace(counted(300, 50), start_time=ORDERS.start_time + timedelta(seconds=1)),
        counted(99, 50),
        counted(100, 49),
    ],
)
def test_measure_a_channel_created_again_knows_nothing(meter: RateMeter, channel: ChannelInfo) -> None:
    """Counters that restarted from 0 would give wrong rates."""
    assert meter.measure(channel_counters([channel])) == {}


def test_measure_a_channel_that_comes_and_goes_knows_nothing(meter: RateMeter) -> None:
    """Only a channel in both samples has a rate."""
    assert meter.measure({}) == {}
    assert meter.measure(channel_counters([counted(300, 50)])) == {}


def watch_of(client: FakeClient, *names: str) -> ChannelWatch:
    return ChannelWatch(cast("Any", client), names)


def test_top_in_a_pipe_writes_one_plain_table(client: FakeClient, millrace: RunMillrace) -> None:
    """Two samples are taken for the rates, and one table is written."""
    client.orders.add("12345")
    result = millrace("top", "--interval", "0.1")
    heading, row = result.stdout.splitlines()
    assert " ".join(heading.split()) == "CHANNEL STATE DEPTH FILL IN/S OUT/S AGE BYTES TXNS WAITING CLAIM FAULT"
    assert row.split() == ["orders", "open", "1", "1%", "0", "0", "-", "5", "B", "0", "0", "-", "-"]


def test_top_as_json_tells_rates(millrace: RunMillrace) -> None:
    """The channel is shown as elsewhere, with its rates."""
    (document,) = json.loads(millrace("top", "--json", "--interval", "0.1").stdout)
    assert document["name"] == "orders"
    assert document["events_per_second"] == {"in": 0.0, "out": 0.0}


def test_top_of_named_channels_shows_only_them(client: FakeClient, millrace: RunMillrace) -> None:
    """Other channels are left out."""
    client.admin.channels["audit"] = FakeChannel("audit")
    result = millrace("top", "audit", "--json", "--interval", "0.1")
    assert [channel["name"] for channel in json.loads(result.stdout)] == ["audit"]


def test_top_of_an_unknown_channel_ends_with_1(millrace: RunMillrace) -> None:
    """An unknown name is reported at the start."""
    result = millrace("top", "nosuch", "orders")
    assert result.exit_code == 1
    assert result.stderr == "millrace: there is no channel nosuch; see the names with `millrace channels`\n"


def test_top_without_a_server_ends_with_3(client: FakeClient, millrace: RunMillrace) -> None:
    """The error comes with the first sample, before the screen changes."""
    client.admin.errors.append(UnavailableError("gone"))
    assert millrace("top").exit_code == 3


@pytest.mark.parametrize("interval", ["0", "0.05", "3601", "nan"])
def test_top_with_an_impossible_interval_is_a_usage_error(millrace: RunMillrace, interval: str) -> None:
    """The interval is between a tenth of a second and an hour."""
    assert millrace("top", "--interval", interval).exit_code == 2


def test_try_to_update_while_the_server_is_away_keeps_the_last_look(client: FakeClient) -> None:
    """A restart of the server does not end the display."""
    watch = watch_of(client)
    watch.update()
    client.admin.errors.append(UnavailableError("gone"))
    assert try_to_update(watch).startswith("trying again: no server responds at ")
    assert [channel.name for channel in watch.channels] == ["orders"]
    assert try_to_update(watch) == ""


def test_try_to_update_at_a_channel_that_went_says_so(client: FakeClient) -> None:
    """The channel may be created again."""
    watch = watch_of(client, "orders")
    watch.update()
    del client.admin.channels["orders"]
    assert try_to_update(watch).startswith("trying again: there is no channel orders;")


def test_look_at_unknown_channels_names_them_all(client: FakeClient) -> None:
    """All unknown names are listed."""
    with pytest.raises(CommandError, match=r"^there is no channel a, b; "):
        watch_of(client, "a", "orders", "b").update()
