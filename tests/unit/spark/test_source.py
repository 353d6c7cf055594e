import os
import pickle
import subprocess
import sys

import pytest
from pyspark.sql.datasource import InputPartition

from millrace_spark import ClaimedRange, MillraceDataSource, MillraceSparkError, OptionError, source
from millrace_spark.options import ClaimOptions
from millrace_spark.ranges import RangePartition, ranges_to_json
from millrace_spark.schema import EVENT_SCHEMA

OPTIONS = {"endpoints": "a:1", "channel": "orders"}


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
    """One sentence with the command to run."""
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(MillraceSparkError, match='needs pyarrow, and this Python has none; run: pip install "pyarrow'):
        MillraceDataSource(OPTIONS)


def test_data_source_refuses_bad_options_at_once() -> None:
    """A typing error is told by load(), not by the first action."""
    with pytest.raises(OptionError, match="did you mean channel"):
        MillraceDataSource(OPTIONS | {"chanel": "orders"})


def test_data_source_when_shipped_keeps_its_reader_id() -> None:
    """Spark makes it in one process and plans in another; all plans renew one claim."""
    made = MillraceDataSource(OPTIONS)
    shipped = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    assert shipped._options == made._options
    assert isinstance(made._options.source, ClaimOptions)
    assert made._options.source.reader_id.endswith(f"-{os.getppid()}")


def test_partitions_of_claimed_ranges_ask_no_server() -> None:
    """Ranges that `claim_ranges` fixed are planned the same at each action; an empty one makes no task."""
    options = {"ranges": ranges_to_json([claimed(5), claimed(0)]), "maxEventsPerPartition": "3"}
    partitions = MillraceDataSource(options).reader(EVENT_SCHEMA).partitions()
    parts = [part for part in partitions if isinstance(part, RangePartition)]
    assert [(part.from_sequence, part.to_sequence) for part in parts] == [(1, 3), (3, 6)]


def test_read_of_spark_s_own_partition_gives_nothing() -> None:
    """Where there is no partition Spark makes one, which is nobody's range."""
    reader = MillraceDataSource(OPTIONS).reader(EVENT_SCHEMA)
    assert list(reader.read(InputPartition(None))) == []


def test_import_brings_neither_grpc_nor_pyarrow() -> None:
    """Spark imports the module that registers the format in every session; it must be light, and must not fail."""
    script = "import pyspark_millrace, sys; print(sorted({'grpc', 'pyarrow', 'millrace_client'} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "[]\n"
