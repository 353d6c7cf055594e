from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked
from millrace_spark import MillraceSparkError
from millrace_spark.shards import Shard
from millrace_spark.writing.options import WriteOptions, WriteRouting, parse_write_options
from millrace_spark.writing.routing import RowRouter

SERVERS = "a:1,b:1,c:1"
TEXT = pa.string()


def options_to(endpoints: str = SERVERS, channel: str = "", routing: WriteRouting = WriteRouting.KEY) -> WriteOptions:
    parsed = parse_write_options({"endpoints": endpoints, "channel": channel}, is_streaming=True)
    return replace(parsed, routing=routing)


def batch_of(rows: Sequence[tuple[int, str | None, str]], key_type: pa.DataType = TEXT) -> pa.RecordBatch:
    """Returns rows of number, key and channel; the number is the body and a header."""
    columns = [
        pa.array([row[1] for row in rows], pa.string()).cast(key_type),
        pa.array([b"%d" % row[0] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.string()),
        pa.array([[("id", str(row[0]))] for row in rows], pa.map_(pa.string(), pa.string())),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["KEY", "body", "Channel", "headers"])


def routed(options: WriteOptions, batch: pa.RecordBatch, turn: int = 0) -> dict[Shard, list[int]]:
    """Returns the numbers of the rows of each shard."""
    found: dict[Shard, list[int]] = {}
    for shard, events in RowRouter(options, turn).route(batch):
        assert events.schema.names == ["body", "headers"]
        rows = events.to_pylist()
        assert [row["headers"] for row in rows] == [[("id", row["body"].decode())] for row in rows]
        assert shard not in found
        found[shard] = [int(row["body"]) for row in rows]
    return found


def home_of(key: str) -> str:
    return ranked(crc32(key.encode()) % BUCKETS, SERVERS.split(","))[0]


@given(
    st.lists(st.tuples(st.none() | st.sampled_from("klmnopqrst"), st.sampled_from(["x", "y"])), max_size=30),
    st.integers(0, 5),
)
def test_route_by_key_shares_rows_out_as_a_producer_does(rows: list[tuple[str | None, str]], turn: int) -> None:
    """Each row is routed once, in order, by key and channel; rows without a key go to the server of this turn."""
    expected: dict[Shard, list[int]] = {}
    for number, (key, channel) in enumerate(rows):
        endpoint = SERVERS.split(",")[turn % 3] if key is None else home_of(key)
        expected.setdefault(Shard(channel, endpoint), []).append(number)
    batch = batch_of([(number, key, channel) for number, (key, channel) in enumerate(rows)])
    assert routed(options_to(), batch, turn) == expected


def test_route_by_key_when_a_server_comes_moves_keys_to_it_only() -> None:
    """Keys that do not move to the new server stay."""
    batch = batch_of([(number, f"key-{number}", "x") for number in range(500)])
    homes = {
        endpoints: {
            number: shard.endpoint for shard, rows in routed(options_to(endpoints), batch).items() for number in rows
        }
        for endpoints in ("a:1,b:1", SERVERS)
    }
    moved = {homes[SERVERS][number] for number in range(500) if homes[SERVERS][number] != homes["a:1,b:1"][number]}
    assert moved == {"c:1"}


@pytest.mark.parametrize("key_type", [pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_route_by_key_of_another_type_goes_to_the_same_server(key_type: pa.DataType) -> None:
    """Text and the same bytes are the same key."""
    rows = [(number, f"größe-{number % 9}", "x") for number in range(40)]
    assert routed(options_to(), batch_of(rows, key_type)) == routed(options_to(), batch_of(rows))


def test_route_round_robin_takes_one_server_by_turns() -> None:
    """All rows of a turn go to one server, and the option channel overrides the column."""
    batch = batch_of([(0, "k", "x"), (1, "l", "y")])
    options = options_to(channel="orders", routing=WriteRouting.ROUND_ROBIN)
    assert [routed(options, batch, turn) for turn in range(4)] == [
        {Shard("orders", endpoint): [0, 1]} for endpoint in ("a:1", "b:1", "c:1", "a:1")
    ]


def test_route_to_one_server_needs_no_key() -> None:
    """With one server, keys are not hashed."""
    batch = batch_of([(0, None, "x"), (1, "l", "x")])
    assert routed(options_to("a:1"), batch) == {Shard("x", "a:1"): [0, 1]}


def test_route_of_a_row_without_a_channel_is_refused() -> None:
    """A null channel is an error."""
    batch = batch_of([(0, "k", "x")]).set_column(2, "channel", pa.array([None], pa.string()))
    with pytest.raises(MillraceSparkError, match="column channel: is null in a row; fill it in, or set the option"):
        routed(options_to(), batch)


def test_route_to_a_channel_whose_name_is_no_text_is_refused() -> None:
    """Spark's strings may hold any bytes."""
    name = pa.array([b"\xff"]).view(pa.string())
    batch = batch_of([(0, "k", "x")]).set_column(2, "channel", name)
    with pytest.raises(MillraceSparkError, match=r"^column channel: a name is not UTF-8"):
        routed(options_to(), batch)


def test_route_gives_rows_of_their_own() -> None:
    """The rows of one shard do not keep those of others in memory."""
    batch = batch_of([(number, "k", "rare" if number == 0 else "usual") for number in range(10_000)])
    by_channel = {shard.channel: events for shard, events in RowRouter(options_to("a:1"), 0).route(batch)}
    assert by_channel["rare"].num_rows == 1
    assert by_channel["rare"].get_total_buffer_size() < 1_000 < by_channel["usual"].get_total_buffer_size()
