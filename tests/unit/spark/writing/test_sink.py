import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from millrace_spark import OptionError
from millrace_spark.shards import Shard
from millrace_spark.writing.options import WriteOptions, parse_write_options
from millrace_spark.writing.put_notes import ShardPuts, TaskPuts, gathered, told
from millrace_spark.writing.schema import options_for
from millrace_spark.writing.sink import MillraceStreamWriter, MillraceWriter, stamp_producer_id

HERE, THERE = Shard("orders", "a:1"), Shard("orders", "b:1")


def strings(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def options_to(endpoints: str, *columns: str) -> WriteOptions:
    parsed = parse_write_options({"endpoints": endpoints, "channel": "orders"}, is_streaming=True)
    return options_for(strings(*columns or ("body", "key")), parsed)


def test_gathered_puts_of_all_tasks_keep_their_order() -> None:
    """A shard's transactions stand in the order of the tasks; failed tasks have none."""
    messages: list[WriterCommitMessage | None] = [
        TaskPuts("p", (ShardPuts(THERE, ("t1",), 1), ShardPuts(HERE, ("t2", "t3"), 5))),
        None,
        TaskPuts("p", ()),
        TaskPuts("p", (ShardPuts(HERE, ("t4",), 2),)),
    ]
    assert gathered(messages) == [ShardPuts(HERE, ("t2", "t3", "t4"), 7), ShardPuts(THERE, ("t1",), 1)]
    assert len(told(messages)) == 3


def test_stamp_producer_id_differs_where_shares_may() -> None:
    """A server's share of a batch depends on the servers only where rows go by key to several of them."""
    assert stamp_producer_id("p", options_to("a:1")) == "p"
    assert stamp_producer_id("p", options_to("a:1,b:1", "body")) == "p"
    by_key = {stamp_producer_id("p", options_to(endpoints)) for endpoints in ("a:1,b:1", "b:1,a:1", "a:1,b:1,c:1")}
    assert len(by_key) == 2
    assert all(name.startswith("p/") and len(name) < 20 for name in by_key)


def test_writers_of_empty_batches_ask_no_server() -> None:
    """A batch without rows is committed and aborted without a call; nobody listens at these addresses."""
    options = options_to("127.0.0.1:1")
    message = TaskPuts("p", ())
    MillraceWriter(options).commit([message])
    MillraceWriter(options).abort([message, None])
    MillraceStreamWriter(options).commit([message], 3)
    MillraceStreamWriter(options).commit([], 3)
    MillraceStreamWriter(options).abort([None], 3)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (MillraceWriter, 'mode overwrite: does not go with channels, which are queues; use mode("append")'),
        (
            MillraceStreamWriter,
            "outputMode complete: does not go with channels, which are queues; use append, or update",
        ),
    ],
)
def test_planned_to_overwrite_is_refused(kind: type[MillraceWriter | MillraceStreamWriter], sentence: str) -> None:
    """A channel is not overwritten, and its content not replaced."""
    with pytest.raises(OptionError) as refused:
        kind.planned({"endpoints": "127.0.0.1:1"}, strings("body"), is_overwrite=True)
    assert str(refused.value).startswith(sentence)
