import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

import millrace_client as millrace
from millrace_spark import MillraceSparkError, OptionError
from millrace_spark.shards import Shard
from millrace_spark.writing import driver, tasks
from millrace_spark.writing.driver import (
    BatchCommit,
    ShardPuts,
    TaskPuts,
    check_targets,
    puts_by_shard,
    stamp_producer_id,
    task_puts,
)
from millrace_spark.writing.options import WriteOptions, parse_write_options
from millrace_spark.writing.schema import options_for
from millrace_spark.writing.sink import MillraceStreamWriter, MillraceWriter
from tests.unit.spark.fake_servers import FakeServers

HERE, THERE = Shard("orders", "a:1"), Shard("orders", "b:1")


def strings(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def options_to(endpoints: str, *columns: str) -> WriteOptions:
    parsed = parse_write_options({"endpoints": endpoints, "channel": "orders"}, is_streaming=True)
    return options_for(strings(*columns or ("body", "key")), parsed)


def test_puts_by_shard_keep_the_order_of_tasks() -> None:
    """Transactions are in the order of the tasks, without failed tasks."""
    messages: list[WriterCommitMessage | None] = [
        TaskPuts("p", (ShardPuts(THERE, ("t1",), 1), ShardPuts(HERE, ("t2", "t3"), 5))),
        None,
        TaskPuts("p", ()),
        TaskPuts("p", (ShardPuts(HERE, ("t4",), 2),)),
    ]
    assert puts_by_shard(messages) == [ShardPuts(HERE, ("t2", "t3", "t4"), 7), ShardPuts(THERE, ("t1",), 1)]
    assert len(task_puts(messages)) == 3


def test_stamp_producer_id_differs_where_shares_may() -> None:
    """The stamp depends on the set of servers only with routing by key."""
    assert stamp_producer_id("p", options_to("a:1")) == "p"
    assert stamp_producer_id("p", options_to("a:1,b:1", "body")) == "p"
    by_key = {stamp_producer_id("p", options_to(endpoints)) for endpoints in ("a:1,b:1", "b:1,a:1", "a:1,b:1,c:1")}
    assert len(by_key) == 2
    assert all(name.startswith("p/") and len(name) < 20 for name in by_key)


def test_check_targets_of_a_server_that_is_away_waits_in_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has each new process check them, so also during a short outage. A save may name a wrong server."""
    fakes = FakeServers()
    monkeypatch.setattr(millrace, "connect", fakes.connect)
    fakes.make("a:1")
    fakes.away.add("a:1")
    with pytest.raises(MillraceSparkError, match=r"^channel orders at a:1: cannot reach a:1"):
        check_targets(options_to("a:1"), is_streaming=False)
    returning = threading.Timer(0.05, fakes.away.clear)
    returning.start()
    check_targets(options_to("a:1"), is_streaming=True)
    returning.join()


class _Task:
    """A fake task context."""

    def __init__(self, number: int = 0, properties: Mapping[str, str] = MappingProxyType({})) -> None:
        self._number = number
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


@pytest.fixture
def run_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[_Task], None]:
    """Replaces the task context, and records puts instead of sending them."""

    def run(task: _Task) -> None:
        monkeypatch.setattr(TaskContext, "get", lambda: task)

    def put_all(_rows: object, options: WriteOptions, turn: int) -> tuple[ShardPuts, ...]:
        return (ShardPuts(Shard("orders", options.endpoints[turn % len(options.endpoints)]), ("t",), 1),)

    monkeypatch.setattr(tasks, "put_all", put_all)
    return run


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[BatchCommit]:
    """Records commits instead of sending them."""
    said: list[BatchCommit] = []
    monkeypatch.setattr(driver, "commit_all", lambda _puts, commit: said.append(commit))
    return said


def saved_at(options: WriteOptions, run_in: Callable[[_Task], None], task_count: int) -> set[str]:
    """Returns where the tasks of a save put rows without a key."""
    writer = MillraceWriter(options)
    servers = set()
    for number in range(task_count):
        run_in(_Task(number))
        servers |= {puts.shard.endpoint for puts in writer.write(iter(())).puts}
    return servers


def test_write_of_a_save_by_key_puts_rows_where_its_repeat_does(
    run_in: Callable[[_Task], None], commits: list[BatchCommit]
) -> None:
    """Rows without a key of all tasks go to one server, which is the same for a repeated save."""
    options = options_to("a:1,b:1,c:1")
    for _ in range(10):
        writer = MillraceWriter(options)
        placed = []
        for number in range(4):
            run_in(_Task(number))
            placed.append(writer.write(iter(())))
        writer.commit(placed)
        servers = {puts.shard.endpoint for message in placed for puts in message.puts}
        assert len(servers) == 1
        assert saved_at(replace(options, producer_id=commits[-1].producer_id), run_in, 7) == servers
    assert len(saved_at(options_to("a:1,b:1,c:1", "body"), run_in, 3)) == 3


def test_commit_of_a_save_tells_the_id_that_a_repeat_is_given(
    run_in: Callable[[_Task], None], commits: list[BatchCommit]
) -> None:
    """The advised id repeats the stamp of the first save, and generated ids have their own prefix."""
    run_in(_Task())
    options = options_to("a:1,b:1")
    for options_of_save in (options, replace(options, producer_id="nightly", batch_number=3)):
        first = MillraceWriter(options_of_save)
        first.commit([first.write(iter(()))])
        again = MillraceWriter(replace(options_of_save, producer_id=commits[-1].producer_id))
        again.commit([again.write(iter(()))])
        assert commits[-1] == commits[-2]
    assert commits[0].stamp_id.startswith("passing/spark-save-")
    assert (commits[-1].producer_id, commits[-1].number) == ("nightly", 3)
    assert commits[-1].stamp_id.startswith("nightly/")


@pytest.mark.parametrize("missing", ["sql.streaming.queryId", "streaming.sql.batchId"])
def test_write_of_a_stream_that_spark_does_not_name_is_refused(missing: str, run_in: Callable[[_Task], None]) -> None:
    """Without the query's id or batch number, batches would be taken for repeats."""
    properties = {"sql.streaming.queryId": "7f", "streaming.sql.batchId": "5"}
    run_in(_Task(properties=properties))
    assert MillraceStreamWriter(options_to("a:1")).write(iter(())).producer_id == "spark-7f"
    del properties[missing]
    with pytest.raises(MillraceSparkError, match=f"property {missing}: is missing in a task"):
        MillraceStreamWriter(options_to("a:1")).write(iter(()))


def test_commit_of_a_stream_whose_tasks_did_not_call_write_is_refused() -> None:
    """With the trigger continuous, Spark counts rows as written that it gives to no sink in Python."""
    writer = MillraceStreamWriter(options_to("127.0.0.1:1"))
    for messages in ([None, None], [TaskPuts("p", ()), None]):
        with pytest.raises(
            MillraceSparkError, match="if the trigger is continuous, use processingTime or availableNow"
        ):
            writer.commit(messages, 3)


def test_writers_of_empty_batches_ask_no_server() -> None:
    """A batch without rows is committed and aborted without a call."""
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
        (MillraceWriter, 'mode overwrite: is not supported by channels, which are queues; use mode("append")'),
        (
            MillraceStreamWriter,
            "outputMode complete: is not supported by channels, which are queues; use append, or foreachBatch",
        ),
    ],
)
def test_planned_to_overwrite_is_refused(kind: type[MillraceWriter | MillraceStreamWriter], sentence: str) -> None:
    """Channels do not support overwrite."""
    with pytest.raises(OptionError) as refused:
        kind.planned({"endpoints": "127.0.0.1:1"}, strings("body"), is_overwrite=True)
    assert str(refused.value).startswith(sentence)
