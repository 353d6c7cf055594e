import os
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from millrace_spark import ClaimedRange, MillraceDataSource, MillraceSparkError, OptionError, register, source
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.reading.ranges import RangePartition, ranges_to_json
from millrace_spark.reading.stream_reader import MillraceStreamReader
from millrace_spark.source import EVENT_SCHEMA, check_schema

OPTIONS = {"endpoints": "a:1", "channels": "orders"}


def claimed(count: int) -> ClaimedRange:
    return ClaimedRange(
        endpoint="a:1",
        channel="orders",
        reader_id="r",
        epoch=1,
        first_sequence=1,
        next_sequence=1 + count,
        lease_seconds=30.0,
        channel_id="id",
        is_held=True,
    )


def test_data_source_without_pyarrow_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command to run."""
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(MillraceSparkError, match='needs pyarrow, and this Python has none; run: pip install "pyarrow'):
        MillraceDataSource(OPTIONS)


def test_schema_refuses_bad_options_at_once() -> None:
    """load() reports a misspelt option, not the first action."""
    with pytest.raises(OptionError, match=r"did you mean channels\?"):
        MillraceDataSource(OPTIONS | {"chanels": "orders"}).schema()


@pytest.mark.parametrize("option", ["endingSequences", "maxEventsPerTrigger"])
def test_schema_takes_options_of_batch_reads_and_of_streams(option: str) -> None:
    """Spark requests the columns before it distinguishes batch reads and streams."""
    value = '{"orders": 5}' if option == "endingSequences" else "5"
    assert MillraceDataSource(OPTIONS | {option: value}).schema() is EVENT_SCHEMA


def test_readers_refuse_options_of_the_other_kind() -> None:
    """The error says which reads the option is for."""
    with pytest.raises(
        OptionError, match=r"option maxEventsPerTrigger: is for streams; leave it out, or use spark\.readS"
    ):
        MillraceDataSource(OPTIONS | {"MAXEVENTSPERTRIGGER": "5"}).reader(EVENT_SCHEMA)
    # Spark stops the reader that it received, and without a reader it raises only another error.
    refused = MillraceDataSource(OPTIONS | {"ack": "never"}).streamReader(EVENT_SCHEMA)
    shipped = pickle.loads(pickle.dumps(refused))  # noqa: S301 - made here
    for call in (
        shipped.initialOffset,
        lambda: shipped.latestOffset({}, ReadAllAvailable()),
        lambda: shipped.partitions({}, {}),
        lambda: shipped.read(InputPartition(None)),
    ):
        with pytest.raises(OptionError, match=r"option ack: is for batch reads; leave it out, or use spark\.read"):
            call()
    shipped.stop()


def test_reader_when_shipped_keeps_its_reader_id() -> None:
    """All plans of an application use one reader id."""
    made = MillraceDataSource(OPTIONS)
    shipped = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    options = shipped.reader(EVENT_SCHEMA)._options
    assert isinstance(options.source, ClaimOptions)
    assert options.source.reader_id.endswith(f"-{os.getppid()}")


def test_stream_reader_when_shipped_is_small_and_makes_no_call() -> None:
    """Spark pickles the reader into every task."""
    reader = MillraceDataSource(OPTIONS).streamReader(EVENT_SCHEMA)
    assert isinstance(reader, MillraceStreamReader)
    pickled = pickle.dumps(reader)
    assert len(pickled) < 2_500
    shipped = pickle.loads(pickled)  # noqa: S301 - made here
    assert shipped._options == reader._options
    shipped.stop()


def test_partitions_of_claimed_ranges_ask_no_server() -> None:
    """Claimed ranges are planned equally for each action, and an empty one has no task."""
    options = {"ranges": ranges_to_json([claimed(5), claimed(0)]), "maxEventsPerPartition": "3"}
    partitions = MillraceDataSource(options).reader(EVENT_SCHEMA).partitions()
    parts = [part for part in partitions if isinstance(part, RangePartition)]
    assert [(part.from_sequence, part.to_sequence) for part in parts] == [(1, 3), (3, 6)]


def test_read_of_spark_s_own_partition_gives_nothing() -> None:
    """Spark's own partition, in place of none, has no rows."""
    made = MillraceDataSource(OPTIONS)
    for reader in (made.reader(EVENT_SCHEMA), made.streamReader(EVENT_SCHEMA)):
        assert list(reader.read(InputPartition(None))) == []


def test_import_brings_neither_grpc_nor_pyarrow() -> None:
    """Spark imports this module in every session, so it must be light and must not fail."""
    script = "import pyspark_millrace, sys; print(sorted({'grpc', 'pyarrow', 'millrace_client'} & set(sys.modules)))"
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert reported.stdout == "[]\n"


@pytest.mark.parametrize(
    "schema",
    [
        EVENT_SCHEMA,
        StructType([StructField("BODY", BinaryType(), nullable=False), StructField("sequence", LongType())]),
        StructType([StructField("headers", MapType(StringType(), StringType(), valueContainsNull=False))]),
    ],
)
def test_check_schema_of_events_columns_is_fine(schema: StructType) -> None:
    """Columns may be omitted, reordered, nullable, and in any case."""
    check_schema(schema)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"value": BinaryType()}, "schema: has the column 'value'; the columns of events are channel string, endpoint"),
        ({"body": StringType()}, "schema: body is string; it must be binary. Read it with that type, then cast it"),
        ({"headers": MapType(StringType(), BinaryType())}, "schema: headers is map<string,binary>; it must be"),
        ({"body": BinaryType(), "Body": BinaryType()}, "schema: has the column 'Body' twice"),
    ],
)
def test_check_schema_of_other_columns_is_refused(columns: dict[str, DataType], sentence: str) -> None:
    """The error names the column and the columns of events."""
    with pytest.raises(OptionError) as refused:
        check_schema(StructType([StructField(name, data_type) for name, data_type in columns.items()]))
    assert str(refused.value).startswith(sentence)


class _Session:
    """Stands for a session, with the formats that it knows."""

    def __init__(self, master: str, formats: list[str]) -> None:
        self.formats = formats
        self.dataSource = self
        self.sparkContext = SimpleNamespace(master=master, pythonExec=sys.executable)
        manager = SimpleNamespace(dataSourceExists=self.formats.__contains__)
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)

    def register(self, format_class: type[MillraceDataSource]) -> None:
        self.formats.append(format_class.name())


@pytest.mark.parametrize(
    ("master", "formats", "after"),
    [
        ("local[2]", [], ["millrace"]),
        ("local[2]", ["millrace"], ["millrace"]),
        ("spark://here:7077", ["millrace"], ["millrace", "millrace"]),
    ],
)
def test_register_in_a_session_that_has_the_format_only_repeats_it_for_other_machines(
    master: str, formats: list[str], after: list[str]
) -> None:
    """Spark warns of each repetition; other machines need it, since what Spark found is started without files sent."""
    session = _Session(master, formats)
    register(cast("Any", session))
    assert session.formats == after
