import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.table import Table

from millrace_client import ChannelState, ChannelType, ClaimStatus, Compression, FsyncPolicy
from millrace_client.cli.views import channel_page, channels_table, created_sentences, document_of, fill_of
from tests.unit.cli.fake_channel import COUNTERS, GAUGES, LIMITS, ORDERS


def drawn(table: RenderableType) -> str:
    screen = io.StringIO()
    Console(file=screen, width=200, force_terminal=True, color_system="standard").print(table)
    return screen.getvalue()


def test_document_of_of_a_channel_is_json() -> None:
    """Every field has its name, and times are in a standard format."""
    claim = ClaimStatus(reader_id="spark", epoch=3, remaining_seconds=1.5)
    document = json.loads(json.dumps(document_of(replace(ORDERS, claim=claim))))
    assert document["config"]["type"] == "memory"
    assert document["config"]["keep_alive_seconds"] == 3.0
    assert document["gauges"]["body_bytes_max"] == 800_000
    assert document["counters"]["event_put_success_count"] == 0
    assert (document["config"]["fsync"], document["config"]["active_key"]) == (None, "")
    assert (document["state"], document["fault"], document["replayed_fraction"]) == ("open", "", 1.0)
    assert document["claim"] == {"reader_id": "spark", "epoch": 3, "remaining_seconds": 1.5}
    assert document["start_time"] == "2026-01-02T03:04:05+00:00"


def test_document_of_times_inside_is_json() -> None:
    """Times are in a standard format in gauges too, and refusals are counted by their reason."""
    gauges = replace(GAUGES, oldest_commit_time=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC))
    info = replace(ORDERS, gauges=gauges, counters=replace(COUNTERS, refused={"CHANNEL_FULL": 1_234, "X": 1}))
    document = json.loads(json.dumps(document_of(info)))
    assert document["gauges"]["oldest_commit_time"] == "2026-05-04T03:02:01+00:00"
    assert document["gauges"]["last_put_time"] is None
    assert document["counters"]["refused"] == {"CHANNEL_FULL": 1_234, "X": 1}
    rows = rows_of(channel_page(info))
    assert (rows["refused"], rows["last_put_time"]) == ("CHANNEL_FULL 1,234, X 1", "-")
    assert rows_of(channel_page(ORDERS))["refused"] == "-"


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (40, "40 s"), (7_300, "2 h"), (-5, "0 s")])
def test_channels_table_tells_the_age_of_the_oldest_event(seconds: float | None, shown: str) -> None:
    """A dash where there is no event or no time; never negative, though clocks differ."""
    time = None if seconds is None else datetime.now(UTC) - timedelta(seconds=seconds)
    table = channels_table([replace(ORDERS, gauges=replace(GAUGES, oldest_commit_time=time))])
    assert f" {shown} " in drawn(table)


def test_document_of_without_a_claim_says_null() -> None:
    """Programs can rely on the key."""
    assert document_of(ORDERS)["claim"] is None


@pytest.mark.parametrize(
    ("queued", "taken", "body_bytes", "fill"),
    [(0, 0, 0, 0.0), (40, 10, 0, 0.5), (10, 0, 600_000, 0.75), (100, 0, 9, 1.0)],
)
def test_fill_of_a_channel_is_the_nearer_limit(queued: int, taken: int, body_bytes: int, fill: float) -> None:
    """Events and bytes both fill a channel, including taken events."""
    gauges = replace(GAUGES, queued_events=queued, taken_events=taken, body_bytes=body_bytes)
    assert fill_of(replace(ORDERS, gauges=gauges)) == fill


def test_fill_of_a_channel_without_space_is_a_number() -> None:
    """Limits of 0 cause no division by zero."""
    assert fill_of(replace(ORDERS, config=replace(LIMITS, capacity=0), gauges=replace(GAUGES, body_bytes_max=0))) == 0.0


def rows_of(table: Table) -> dict[str, str]:
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(map(str.strip, names), values, strict=True))


def test_channel_page_of_a_file_channel_tells_how_it_keeps_its_log() -> None:
    """Switches are words, sizes are numbers, and an absent value is a dash."""
    limits = replace(
        LIMITS,
        type=ChannelType.FILE,
        backup_checkpoint=True,
        segment_bytes_max=1 << 20,
        fsync=FsyncPolicy.INTERVAL,
        fsync_interval_seconds=0.5,
        compression=Compression.ZSTD,
        active_key="2026",
    )
    rows = rows_of(channel_page(replace(ORDERS, config=limits, gauges=replace(GAUGES, log_bytes=4096, segments=2))))
    assert (rows["type"], rows["backup_checkpoint"], rows["segment_bytes_max"]) == ("file", "true", "1,048,576")
    assert (rows["fsync"], rows["fsync_interval_seconds"], rows["compression"]) == ("interval", "0.5", "zstd")
    assert (rows["active_key"], rows["min_free_bytes"], rows["fault"]) == ("2026", "-", "-")
    assert (rows["log_bytes"], rows["segments"], rows["state"]) == ("4,096", "2", "open")


@pytest.mark.parametrize(
    ("state", "shown", "color"),
    [
        (ChannelState.OPEN, "open", " "),
        (ChannelState.UNKNOWN, "unknown", " "),
        (ChannelState.REPLAYING, "replaying 50%", "\x1b[33m"),
        (ChannelState.LOG_FAILED, "log_failed", "\x1b[31m"),
        (ChannelState.CORRUPT, "corrupt", "\x1b[31m"),
        (ChannelState.STANDING_BY, "owned by mill-2:7070", " "),
    ],
)
def test_channels_table_of_each_state_shows_it(state: ChannelState, shown: str, color: str) -> None:
    """States other than open are coloured."""
    text = drawn(channels_table([replace(ORDERS, state=state, owner="mill-2:7070", replayed_fraction=0.5)]))
    assert f"{color}{shown}" in text


@pytest.mark.parametrize(
    ("limits", "durability"),
    [
        ({"type": ChannelType.MEMORY}, "its events are in memory only: a stop of the server loses them"),
        ({"type": ChannelType.FILE, "fsync": FsyncPolicy.COMMIT}, "its commits survive crashes and power failures"),
        (
            {"type": ChannelType.REPLICATED},
            "its commits survive the loss of a machine; the servers where it is created can take it over",
        ),
        (
            {"type": ChannelType.FILE, "fsync": FsyncPolicy.INTERVAL, "fsync_interval_seconds": 0.5},
            "its commits survive crashes of the server; a power failure may lose those of the last 0.5 s",
        ),
        (
            {"type": ChannelType.SPILLABLE, "memory_capacity": 50_000},
            "up to 50,000 events are in memory only, and a crash of the server loses them",
        ),
    ],
)
def test_created_sentences_of_each_type_tell_what_survives(limits: dict[str, Any], durability: str) -> None:
    """The second of three lines is about crashes."""
    first, second, _ = created_sentences(replace(ORDERS, config=replace(LIMITS, **limits))).splitlines()
    assert first == f"orders: created, a {limits['type']} channel for 100 events and 976.6 KiB"
    assert second == durability
