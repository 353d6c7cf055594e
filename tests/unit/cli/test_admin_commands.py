import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from millrace_client import (
    ChannelConfig,
    ChannelState,
    ChannelType,
    ClaimStatus,
    ComponentKind,
    ComponentState,
    Compression,
    Event,
    FsyncPolicy,
)
from millrace_client.cli import views
from millrace_client.cli.terminal import note
from millrace_client.cli.top_command import RateMeter
from millrace_client.cli.views import document_of
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import ACCESS, FakeChannel
from tests.unit.cli.fake_client import FakeClient


def test_channels_in_a_pipe_are_a_plain_table(client: FakeClient, millrace: RunMillrace) -> None:
    """The output has no colours or borders, and nothing is cut off, however long a name is."""
    long_name = "a" * 64
    client.admin.channels[long_name] = FakeChannel(
        long_name, claim=ClaimStatus(reader_id="r" * 128, epoch=1, remaining_seconds=1.0)
    )
    client.orders.add("12345")
    heading, first, second = millrace("channels").stdout.splitlines()
    assert " ".join(heading.split()) == (
        "CHANNEL STATE QUEUED FILL AGE BYTES TYPE CAPACITY TAKEN TXNS NEXT CLAIM FAULT NOTE"
    )
    assert first.split() == [
        *[long_name, "open", "0", "0%", "-", "0", "B", "memory", "100", "0", "0", "1", "r" * 128, "-", "-"]
    ]
    assert second.split() == ["orders", "open", "1", "1%", "-", "5", "B", "memory", "100", "0", "0", "2", "-", "-", "-"]


def test_channels_with_markup_in_a_name_show_it(client: FakeClient, millrace: RunMillrace) -> None:
    """Text of the server is never interpreted as markup."""
    client.admin.channels["[red]"] = FakeChannel("[red]")
    assert "[red]" in millrace("channels").stdout


def test_channels_that_are_not_open_say_what_they_are(client: FakeClient, millrace: RunMillrace) -> None:
    """Channels that are being replayed or are damaged are distinguished from those that serve."""
    client.orders.state, client.orders.replayed_fraction = ChannelState.REPLAYING, 0.42
    client.admin.channels["audit"] = FakeChannel("audit", state=ChannelState.CORRUPT, fault="segment 3 is damaged")
    _, audit, orders = millrace("channels").stdout.splitlines()
    assert audit.split()[:2] == ["audit", "corrupt"]
    assert "  segment 3 is damaged  " in audit
    assert orders.split()[:3] == ["orders", "replaying", "42%"]
    shown = dict(
        line.split(maxsplit=1)
        for line in millrace("channel", "show", "audit").stdout.splitlines()
        if line[:1].strip() and " " in line
    )
    assert (shown["state"], shown["fault"]) == ("corrupt", "segment 3 is damaged")
    assert json.loads(millrace("channel", "show", "audit", "--json").stdout)["fault"] == "segment 3 is damaged"


def test_channels_as_json_are_one_array(client: FakeClient, millrace: RunMillrace) -> None:
    """The channels are in the server's order, by name."""
    client.admin.channels["audit"] = FakeChannel("audit")
    assert [channel["name"] for channel in json.loads(millrace("channels", "--json").stdout)] == ["audit", "orders"]


def test_channels_on_a_terminal_where_there_are_none_say_how_to_create_one(
    client: FakeClient, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty table alone would be no help in the first minutes."""
    monkeypatch.setattr(views, "note_to_terminal", note)
    client.admin.channels.clear()
    result = millrace("channels")
    assert result.stdout.startswith("CHANNEL  STATE")
    assert result.stderr == "millrace: there is no channel yet; create one with `millrace channel create NAME`\n"


def test_channels_where_there_are_none_are_an_empty_array(client: FakeClient, millrace: RunMillrace) -> None:
    """An empty result is not an error."""
    client.admin.channels.clear()
    result = millrace("channels", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_show_a_channel_tells_all_of_it(client: FakeClient, millrace: RunMillrace) -> None:
    """Limits, gauges and counters have the names of the protocol."""
    lines = dict(
        line.split(maxsplit=1) for line in millrace("channel", "show", "orders").stdout.splitlines() if " " in line
    )
    assert lines["name"] == "orders"
    assert lines["byte_capacity"] == "1,000,000"
    assert lines["lease_seconds"] == "30"
    assert lines["next_sequence"] == "1"
    assert lines["claim"] == "-"


def test_show_an_unknown_channel_ends_with_1(millrace: RunMillrace) -> None:
    """The sentence says where to find the names."""
    result = millrace("channel", "show", "nosuch", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "`millrace channels`" in result.stderr


def test_create_without_options_makes_a_file_channel(client: FakeClient, millrace: RunMillrace) -> None:
    """Only the type is sent; the limits are the server's."""
    assert millrace("channel", "create", "audit").exit_code == 0
    assert client.admin.last_config == ChannelConfig(type=ChannelType.FILE)


def test_create_responds_in_three_lines(millrace: RunMillrace) -> None:
    """What the channel holds, what survives, and what to do next."""
    assert millrace("channel", "create", "audit").stdout.splitlines() == [
        "audit: created, a memory channel for 100 events and 976.6 KiB",
        "its events are in memory only: a stop of the server loses them",
        "put events with `millrace put audit`, see all settings with `millrace channel show audit`",
    ]


def test_create_with_all_options_says_them(client: FakeClient, millrace: RunMillrace) -> None:
    """Sizes have units, and durations are in seconds."""
    options = (
        "--type file --capacity 5 --transaction-capacity 4 --byte-capacity 1.5MiB --byte-capacity-buffer-percentage 0"
        " --keep-alive 0 --lease 2.5 --open-transactions-max 3 --no-backup-checkpoint --checkpoint-interval 1.5"
        " --segment-bytes-max 64KiB --min-free-bytes 0 --fsync interval --fsync-interval 0.5 --compression zstd --json"
    )
    result = millrace("channel", "create", "audit", *options.split())
    assert client.admin.last_config == ChannelConfig(
        type=ChannelType.FILE,
        capacity=5,
        transaction_capacity=4,
        byte_capacity=1_572_864,
        byte_capacity_buffer_percentage=0,
        keep_alive_seconds=0.0,
        lease_seconds=2.5,
        open_transactions_max=3,
        backup_checkpoint=False,
        checkpoint_interval_seconds=1.5,
        segment_bytes_max=65_536,
        min_free_bytes=0,
        fsync=FsyncPolicy.INTERVAL,
        fsync_interval_seconds=0.5,
        compression=Compression.ZSTD,
    )
    assert json.loads(result.stdout)["name"] == "audit"


@pytest.mark.parametrize("command", [("create", "audit"), ("update", "orders")])
def test_limits_with_a_duration_that_the_server_shortens_say_so(
    millrace: RunMillrace, command: tuple[str, str]
) -> None:
    """A sentence on standard error has the value asked for and the value in force."""
    result = millrace("channel", *command, "--lease", "123456789", "--keep-alive", "0.5", "--json")
    assert result.exit_code == 0
    assert result.stderr == (
        f"millrace: {command[1]}: lease_seconds is 30, not 123,456,789: the server allows no more\n"
    )
    assert json.loads(result.stdout)["config"]["lease_seconds"] == 30


def test_update_of_a_channel_in_the_servers_file_says_how_long_it_lasts(
    client: FakeClient, millrace: RunMillrace
) -> None:
    """Standard error says that the next start or reload restores the file's limits; `show` has both fields."""
    assert millrace("channel", "update", "orders", "--capacity", "5").stderr == ""
    client.orders.is_configured = client.orders.is_overridden = True
    assert millrace("channel", "update", "orders", "--capacity", "5").stderr == (
        "millrace: orders: the server's file has other limits, and its next start or reload restores them\n"
    )
    shown = millrace("channel", "show", "orders").stdout.split()
    assert shown[shown.index("is_configured") + 1] == shown[shown.index("is_overridden") + 1] == "true"
    assert "the next start or reload restores those" in millrace("channels").stdout


def test_update_of_a_replicated_channel_says_that_other_servers_keep_their_limits(
    client: FakeClient, millrace: RunMillrace
) -> None:
    """The next owner has the limits of its own file."""
    client.orders.config = replace(client.orders.config, type=ChannelType.REPLICATED)
    assert millrace("channel", "update", "orders", "--capacity", "5").stderr == (
        "millrace: orders: only the owner has the new limits; change the files of all servers that share it\n"
    )


def test_create_of_a_spillable_channel_says_what_memory_holds(client: FakeClient, millrace: RunMillrace) -> None:
    """The limits are those of a channel with a log, and two more; both can be changed later."""
    memory = ("--memory-capacity", "500", "--memory-byte-capacity", "1MiB")
    millrace("channel", "create", "audit", "--type", "spillable", "--fsync", "commit", *memory)
    assert client.admin.last_config == ChannelConfig(
        type=ChannelType.SPILLABLE, fsync=FsyncPolicy.COMMIT, memory_capacity=500, memory_byte_capacity=1 << 20
    )
    millrace("channel", "update", "orders", *memory)
    assert client.admin.last_config == ChannelConfig(memory_capacity=500, memory_byte_capacity=1 << 20)


def test_create_a_channel_that_exists_ends_with_1(millrace: RunMillrace) -> None:
    """The sentence says how to change the channel instead."""
    result = millrace("channel", "create", "orders")
    assert result.exit_code == 1
    assert "`millrace channel update orders`" in result.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--type", "disk"),
        ("--capacity", "0"),
        ("--byte-capacity", "many"),
        ("--byte-capacity", "9" * 400 + ".5"),
        ("--byte-capacity-buffer-percentage", "100"),
        ("--keep-alive", "-1"),
        ("--lease", "nan"),
        ("--open-transactions-max", "0"),
        ("--checkpoint-interval", "-1"),
        ("--segment-bytes-max", "large"),
        ("--min-free-bytes", "-1"),
        ("--fsync", "never"),
        ("--fsync-interval", "nan"),
        ("--compression", "gzip"),
        ("--memory-capacity", "0"),
        ("--memory-byte-capacity", "some"),
    ],
)
def test_create_with_impossible_limits_is_a_usage_error(
    client: FakeClient, millrace: RunMillrace, option: tuple[str, str]
) -> None:
    """The option is named, and no channel is created."""
    result = millrace("channel", "create", "audit", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert "audit" not in client.admin.channels


def test_update_some_limits_leaves_the_others(client: FakeClient, millrace: RunMillrace) -> None:
    """Limits that are not given are not sent."""
    result = millrace("channel", "update", "orders", "--capacity", "500")
    assert (result.exit_code, result.stdout) == (0, "orders: capacity is 100\n")
    assert client.admin.last_config == ChannelConfig(capacity=500)


def test_update_of_a_log_says_what_is_to_change(client: FakeClient, millrace: RunMillrace) -> None:
    """Settings of file channels can be changed too, except those fixed at creation."""
    millrace("channel", "update", "orders", "--fsync", "commit", "--min-free-bytes", "1GiB")
    assert client.admin.last_config == ChannelConfig(fsync=FsyncPolicy.COMMIT, min_free_bytes=1 << 30)
    assert millrace("channel", "update", "orders", "--backup-checkpoint").exit_code == 2


def test_update_without_space_to_shrink_ends_with_5(client: FakeClient, millrace: RunMillrace) -> None:
    """Nothing was changed, which the exit code reports."""
    client.admin.update_message = "the channel holds 80 events, more than 50."
    result = millrace("channel", "update", "orders", "--capacity", "50", "--json")
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == (
        "millrace: nothing was changed: the channel holds 80 events, more than 50; take events out, then try again\n"
    )


def test_update_without_limits_is_a_usage_error(client: FakeClient, millrace: RunMillrace) -> None:
    """A command without effect is a mistake."""
    result = millrace("channel", "update", "orders")
    assert (result.exit_code, client.admin.last_config) == (2, None)


def test_delete_an_empty_channel_is_quiet(client: FakeClient, millrace: RunMillrace) -> None:
    """Success prints nothing."""
    result = millrace("channel", "delete", "orders")
    assert (result.exit_code, result.output, list(client.admin.channels)) == (0, "", [])


def test_delete_a_channel_with_events_needs_force(client: FakeClient, millrace: RunMillrace) -> None:
    """Events are lost only with an explicit option."""
    client.orders.add("one")
    refused = millrace("channel", "delete", "orders")
    assert (refused.exit_code, list(client.admin.channels)) == (1, ["orders"])
    assert "--force" in refused.stderr
    assert millrace("channel", "delete", "orders", "--force").exit_code == 0
    assert not client.admin.channels


def test_purge_without_a_terminal_does_not_ask(client: FakeClient, millrace: RunMillrace) -> None:
    """Scripts need no confirmation."""
    client.orders.add("one")
    result = millrace("channel", "purge", "orders")
    assert (result.exit_code, result.stdout) == (0, "orders: 1 event removed\n")


def test_find_prints_the_sequence_since_a_time(client: FakeClient, millrace: RunMillrace) -> None:
    """The first event that is young enough, or the next one; JSON tells its time too."""
    time = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)
    client.orders.add(Event(b"a", commit_time=time))
    assert millrace("channel", "find", "orders", "--since", "2026-05-04T03:02:01Z").stdout == "1\n"
    assert millrace("channel", "find", "orders", "--since", "1s").stdout == "2\n"
    found = millrace("channel", "find", "orders", "--since", "2026-05-04T05:02:01+02:00", "--json")
    assert json.loads(found.stdout) == {"sequence": 1, "commit_time": "2026-05-04T03:02:01.000007+00:00"}
    assert json.loads(millrace("channel", "find", "orders", "--since", "1s", "--json").stdout)["commit_time"] is None
    assert millrace("channel", "find", "orders").exit_code == 2


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43_200.0), ("0", 0.0), ("1.5", 1.5)])
def test_update_retention_takes_a_duration(
    client: FakeClient, millrace: RunMillrace, text: str, seconds: float
) -> None:
    """Seconds, or a time with a unit; 0 lifts the limit, and is a change."""
    assert millrace("channel", "update", "orders", "--retention", text).exit_code == 0
    assert client.admin.last_config == ChannelConfig(retention_seconds=seconds)


def test_purge_as_json_tells_the_count(client: FakeClient, millrace: RunMillrace) -> None:
    """The name of the field is that of the protocol."""
    assert json.loads(millrace("channel", "purge", "orders", "--json").stdout) == {"purged_count": 0}


def test_show_a_claimed_channel_names_the_reader(client: FakeClient, millrace: RunMillrace) -> None:
    """The output names the reader that holds the claim, and how long the claim lasts."""
    client.orders.claim = replace(ClaimStatus(reader_id="spark", epoch=2, remaining_seconds=0.25))
    shown = millrace("channel", "show", "orders").stdout
    assert "reader_id" in shown
    assert "spark" in shown
    assert "0.25" in shown


COLLECTOR = replace(
    ACCESS,
    kind=ComponentKind.SINK,
    name="collector",
    type="millrace",
    state=ComponentState.BACKING_OFF,
    reason="cannot reach collector-1:7070",
    counters=replace(ACCESS.counters, event_count=0, failure_count=7, missed_count=3),
    progress_age_seconds=None,
)


def test_components_in_a_pipe_writes_a_plain_table(client: FakeClient, millrace: RunMillrace) -> None:
    """Each component has one line, which ends with the reason of a failure."""
    client.admin.components = [COLLECTOR, ACCESS]
    heading, sink, source = millrace("components").stdout.splitlines()
    assert heading.split() == [*["COMPONENT", "STATE", "EVENTS", "LAST", "LOST", "FAILURES", "BYTES", "TYPE", "REASON"]]
    assert sink.split() == [
        *["sinks/collector", "backing_off", "0", "-", "3", "7", "2.0", "KiB", "millrace"],
        *["cannot", "reach", "collector-1:7070"],
    ]
    assert source.split() == [
        *["sources/access", "running", "1,234", "2", "min", "0", "0", "2.0", "KiB", "taildir", "-"]
    ]


def test_components_as_json_tells_everything(client: FakeClient, millrace: RunMillrace) -> None:
    """Programs get all fields of the protocol."""
    client.admin.components = [COLLECTOR]
    [document] = json.loads(millrace("components", "--json").stdout)
    assert document == document_of(COLLECTOR)
    assert (document["kind"], document["state"]) == ("sink", "backing_off")
    assert document["counters"]["failure_count"] == 7
    assert document["since"] == "2026-01-02T03:04:05+00:00"
    assert document["progress_age_seconds"] is None


def test_components_of_a_server_without_any_writes_an_empty_list(millrace: RunMillrace) -> None:
    """A server without an agent is not an error."""
    result = millrace("components", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_measure_of_components_gives_events_a_second_between_two_looks() -> None:
    """A component that is new, or whose counters restarted, has no rate."""
    times = iter([10.0, 12.0, 14.0])
    meter = RateMeter(lambda: next(times))
    assert meter.measure({"sources/access": [1_234]}) == {}
    assert meter.measure({"sources/access": [1_334], "sinks/collector": [7]}) == {"sources/access": [50.0]}
    assert meter.measure({"sources/access": [1_234], "sinks/collector": [7]}) == {"sinks/collector": [0.0]}


def test_top_with_components_shows_them_below_the_channels(client: FakeClient, millrace: RunMillrace) -> None:
    """A second table shows the components that move the events, and their failures."""
    client.admin.components = [COLLECTOR, ACCESS]
    lines = millrace("top", "--interval", "0.1").stdout.splitlines()
    assert lines[0].startswith("CHANNEL")
    assert lines[1].startswith("orders")
    assert lines[2] == ""
    assert lines[3].split()[:4] == ["COMPONENT", "STATE", "EVENTS/S", "EVENTS"]
    assert lines[4].split()[:4] == ["sinks/collector", "backing_off", "0", "0"]
    assert lines[5].split()[:4] == ["sources/access", "running", "0", "1,234"]


def test_top_of_named_channels_leaves_components_out(client: FakeClient, millrace: RunMillrace) -> None:
    """When channels are named, only those are shown."""
    client.admin.components = [ACCESS]
    assert "sources/access" not in millrace("top", "orders", "--interval", "0.1").stdout
