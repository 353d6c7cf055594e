"""The rows that Spark makes of lines: columns, partitions, bad lines with their reason, and files."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from typer.testing import CliRunner

from millrace_spark import OptionError
from millrace_spark.landing import commands
from millrace_spark.landing.bad_lines import dead_letters, folder_writer
from millrace_spark.landing.batch_lander import BAD_LINES, ROWS, BatchLander, StoppedError
from millrace_spark.landing.compaction import MergeError, spark_merger
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.config_file import check_config
from millrace_spark.landing.hadoop_storage import HadoopStorage, storage_for
from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.program import app
from millrace_spark.landing.publication import BatchCounts, Publisher
from millrace_spark.landing.rows import rows_of
from millrace_spark.landing.storage import StorageError
from millrace_spark.source import EVENT_SCHEMA
from tests.crashing_storage import CrashError, CrashingStorage
from tests.fenced_blocks import blocks_of

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "landing.md"
QUERY = "3f2a91c0-4b7d-4c11-9a55-0123456789ab"
ACCESS = '1.2.3.4 - - [17/May/2015:23:55:03 +0000] "GET /a b?c HTTP/1.1" 200 - "-" "M\\"x"'


def config(folder: Path = Path("/landed"), **tables: Mapping[str, Any]) -> LandingConfig:
    source = {"endpoints": ["a:1"], "channels": ["web"]}
    target = {"path": f"{folder}/web", **tables.pop("target", {})}
    return check_config({"source": source, "target": target, **tables}, "web.toml")


def events(spark: SparkSession, lines: Sequence[str | bytes | None], **headers: str) -> DataFrame:
    """Returns events with these bodies, numbered from 1."""
    bodies = [line.encode() if isinstance(line, str) else line for line in lines]
    rows = [("web", "a:1", number, headers, body, None) for number, body in enumerate(bodies, start=1)]
    return spark.createDataFrame(rows, EVENT_SCHEMA)


def landed(
    spark: SparkSession, lines: Sequence[str | bytes | None], parse: Mapping[str, Any]
) -> tuple[list[Row], list[tuple[int, str]]]:
    """Returns the good rows in order, and the sequence and reason of each bad line."""
    rows = rows_of(events(spark, lines), config(parse=parse))
    bad = [(row.sequence, row.reason) for row in rows.bad().collect()]
    return sorted(rows.good().collect(), key=lambda row: row.sequence), sorted(bad)


def test_lines_of_text_are_good_unless_they_are_no_text(spark: SparkSession) -> None:
    """Line ends are removed, empty lines are kept, and invalid UTF-8, long lines and null bodies are bad lines."""
    lines = ["a\r\n", "", b"\xff", None, "x" * 101]
    good, bad = landed(spark, lines, {"type": "text", "line_bytes_max": 100})
    assert [row.line for row in good] == ["a", ""]
    assert bad == [
        (3, "is not UTF-8"),
        (4, "has no body"),
        (5, "has 101 bytes; at most 100 are parsed, see parse.line_bytes_max"),
    ]
    replaced, _ = landed(spark, lines[:3], {"type": "text", "invalid_utf8": "replace"})
    assert replaced[2].line == "\ufffd"


def test_lines_of_json_are_objects_of_the_schema_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """A line becomes a row only if no value would be dropped or set to null silently."""
    lines = [
        '{"id": 1, "at": "2026-01-02T03:04:05Z", "more": 1}',
        ' {"id": 2, "tags": ["}{", "a"]}',
        '{"id": "x"}',
        '{"id": 3',
        "",
        "null",
        '[{"id": 4}]',
        '{"id": 5}{"id": 6}',
        '{"id": 7}, {"id": 8}',
        '{"id": 9} junk',
        '{"at": "2026-01-02T03:04:05Z"}',
        '{"id": 10, "at": "yesterday"}',
    ]
    file = tmp_path / "schema.ddl"
    file.write_text("id bigint, at timestamp, tags array<string>\n")
    good, bad = landed(spark, lines, {"type": "json", "columns_file": str(file), "required": ["id"]})
    assert [(row.id, row.tags) for row in good] == [(1, None), (2, ["}{", "a"])]
    type_told, follows = "is JSON, but a value does not have the type of the schema", "more text follows it"
    assert bad == [
        (3, type_told),
        (4, "is not JSON"),
        *((number, "is not a JSON object") for number in (5, 6, 7)),
        *((number, f"is not one JSON object: {follows}") for number in (8, 9, 10)),
        (11, "has no id"),
        (12, type_told),
    ]


@pytest.mark.parametrize(
    ("tables", "reported"),
    [
        ({"parse": {"type": "json", "columns": "id big"}}, "parse.columns: is not a schema such as"),
        ({"parse": {"type": "json", "columns_file": "/none"}}, "parse.columns_file: /none cannot be read"),
        ({"parse": {"type": "json", "columns": "id int", "required": ["x"]}}, "parse.required: 'x' is not a column"),
        (
            {"parse": {"type": "json", "columns": "sequence int"}},
            "the column 'sequence' would be duplicated; set target",
        ),
        ({"parse": {"type": "json", "columns": "a int"}, "partitions": {"by": ["b"]}}, "partitions.by: 'b' is neither"),
        (
            {"parse": {"type": "json", "columns": "a array<int>"}, "partitions": {"by": ["date"], "time": "a"}},
            "partitions.time: a is array<int>; it must be a timestamp",
        ),
        (
            {"parse": {"type": "json", "columns": "date int, time int"}, "partitions": {"by": ["date"]}},
            "'date' is both a part",
        ),
    ],
)
def test_rows_of_columns_that_cannot_be_are_refused(
    spark: SparkSession, tables: Mapping[str, Any], reported: str
) -> None:
    """The error names the setting, before any event is read."""
    with pytest.raises(OptionError) as refused:
        rows_of(events(spark, []), config(**tables))
    assert reported in str(refused.value)


def test_lines_matched_by_a_pattern_have_typed_columns(spark: SparkSession) -> None:
    """The whole line must match, and a value of another type makes a bad line instead of a null."""
    pattern = r"(?P<n_1>\d+) (?:(?P<word>[a-z]+)|-) (?P<at>\S+)(?: (?P<price>[\d.]+))?"
    types = {"n_1": "int", "at": "timestamp", "price": "decimal(5,2)"}
    lines = [
        "12 ab 2026-01-02T03:04:05Z 1.50",
        "13 - 2026-01-02T03:04:05.25+01:00",
        "x ab 2026-01-02T03:04:05Z",
        "14 ab 2026-01-02T03:04:05Z 1.50 more",
        "99999999999 ab 2026-01-02T03:04:05Z",
        "15 ab 2026-99-02T03:04:05Z",
        "16 a\x01 2026-01-02T03:04:05Z",
    ]
    good, bad = landed(spark, lines, {"type": "regex", "pattern": pattern, "types": types})
    assert [(row.n_1, row.word, str(row.price)) for row in good] == [(12, "ab", "1.50"), (13, None, "None")]
    assert good[1].at == datetime(2026, 1, 2, 2, 4, 5, 250_000)  # noqa: DTZ001 - Spark gives local times, here UTC's
    assert bad == [
        (3, "does not match parse.pattern"),
        (4, "does not match parse.pattern"),
        (5, "n_1 is '99999999999', which is not a value of type int"),
        (6, "at is '2026-99-02T03:04:05Z', which is not a timestamp"),
        (7, "has the control character U+0001"),
    ]


def test_lines_of_access_logs_become_columns(spark: SparkSession) -> None:
    """A dash becomes null, an invalid request is kept as text, and 60,000 quotes do not overflow the stack."""
    lines = [
        ACCESS,
        '::1 - bob [17/May/2015:10:05:03 +0200] "\\x16\\x03" 400 226',
        ACCESS.replace("May", "Mai"),
        ACCESS[:-1],
        ACCESS.replace('M\\"x', '\\"' * 30_000),
    ]
    good, bad = landed(spark, lines, {"type": "access_log"})
    assert (good[0].method, good[0].path, good[0].protocol) == ("GET", "/a b?c", "HTTP/1.1")
    assert (good[0].status, good[0].bytes, good[0].user, good[0].agent) == (200, None, None, 'M\\"x')
    assert len(good[2].agent) == 60_000
    assert (good[1].method, good[1].request, good[1].user, good[1].agent) == (None, "\\x16\\x03", "bob", None)
    assert bad == [
        (3, "time is '17/Mai/2015:23:55:03 +0000', which is not a time"),
        (4, "is not a line of an access log"),
    ]


def test_lines_of_syslog_of_both_kinds_become_the_same_columns(spark: SparkSession) -> None:
    """A time without a year is the latest in the past, and an invalid priority makes a bad line."""
    lines = [
        '<165>1 2003-10-11T22:14:15.003Z host app 12 ID47 [a@1 x="]\\""] two\nlines',
        "<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
        "Jan  2 01:02:03 host cron[12]: -",
        "<34>1 - - - - - -",
        "<999>Oct 11 22:14:15 h a: x",
        "<34>1 soon h a p m - x",
        "nonsense",
    ]
    good, bad = landed(spark, lines, {"type": "syslog"})
    assert (good[0].facility, good[0].severity, good[0].structured_data) == (20, 5, '[a@1 x="]\\""]')
    assert (good[0].message, good[0].message_id) == ("two\nlines", "ID47")
    assert (good[1].host, good[1].app, good[1].process_id, good[1].facility) == ("mymachine", "su", None, 4)
    assert (good[2].process_id, good[2].message, good[2].severity) == ("12", "-", None)
    now = datetime.now(UTC).replace(tzinfo=None)
    assert all((now - row.time).days in range(-2, 367) for row in good[1:3])
    assert (good[3].time, good[3].host, good[3].message) == (None, None, None)
    assert bad == [
        (5, "facility is '999', which is not a priority"),
        (6, "time is 'soon', which is not a time"),
        (7, "is not a syslog message"),
    ]


def test_partitions_are_parts_of_the_time_columns_and_headers(spark: SparkSession) -> None:
    """Times are rounded in the configured zone; rows without a time use the landing time or are bad lines."""
    frame = events(spark, [ACCESS, "x"], host="h-1", timestamp="1700000000123")
    by = ["headers.host", "year", "month", "week", "day", "date", "hour", "minute"]
    partitions = {"by": by, "time_zone": "Asia/Kolkata", "round_minutes": 15}
    rows = rows_of(frame, config(parse={"type": "access_log"}, partitions=partitions))
    assert rows.partitions == ("host", *by[1:])
    [row] = rows.good().collect()
    assert [row[name] for name in rows.partitions] == [
        *("h-1", "2015", "05", "2015-W21", "18", "2015-05-18", "05", "15"),
    ]
    from_header = {"by": ["date"], "time": "headers.timestamp", "no_time": "bad"}
    assert [row.date for row in rows_of(frame, config(partitions=from_header)).good().collect()] == ["2023-11-14"] * 2
    missing = rows_of(frame, config(partitions={**from_header, "time": "headers.none"}))
    assert [row.reason for row in missing.bad().collect()] == ["has no time, see partitions.time"] * 2
    landing = rows_of(frame, config(partitions={"by": ["year"], "time": "landing"})).good().collect()
    assert {int(row.year) for row in landing} <= {datetime.now(UTC).year, datetime.now(UTC).year - 1}


def test_letters_of_bad_lines_say_why_and_from_where(spark: SparkSession) -> None:
    """Dead letters have an agent's headers, which replace those of an earlier letter."""
    frame = events(spark, ["x"], **{"host": "h", "millrace.dead_letter.reason": "before"})
    [letter] = dead_letters(rows_of(frame, config(parse={"type": "access_log"})).bad(), "land-web").collect()
    assert letter.headers.pop("millrace.dead_letter.time")
    assert letter.headers == {
        "host": "h",
        "millrace.dead_letter.reason": "is not a line of an access log",
        "millrace.dead_letter.sink": "land-web",
        "millrace.dead_letter.channel": "web",
        "millrace.dead_letter.sequence": "1",
        "millrace.dead_letter.endpoint": "a:1",
    }
    assert bytes(letter.body) == b"x"


def lander(wanted: LandingConfig, storage: CrashingStorage) -> BatchLander:
    publisher = Publisher(
        storage=storage,
        work=wanted.work,
        query_id=QUERY,
        targets={ROWS: wanted.target.path, BAD_LINES: wanted.bad_lines_path},
    )
    return BatchLander(wanted, lambda: publisher, lambda: folder_writer(wanted), threading.Event())


@contextmanager
def shared(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark


def test_batches_landed_and_compacted_by_the_documented_command_have_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A landing that is killed before each rename, repeated and compacted has one file per hour with each row once."""
    wanted = config(tmp_path / "landed", parse={"type": "access_log"}, partitions={"by": ["date", "hour"]})
    lines = [ACCESS.replace("23:", f"{hour}:") for hour in (10, 11)] * 2
    crashed = 0
    for batch_id, step in enumerate((3, 4, None)):
        batch = events(spark, [*lines, f"bad {batch_id}"])
        landing = lander(wanted, CrashingStorage(step))
        try:
            landing(batch, batch_id)
        except CrashError:
            crashed += 1
            landing = lander(wanted, CrashingStorage())
            landing(batch, batch_id)
        totals = landing.totals
        assert (totals.events, totals.rows, totals.bad_lines, totals.files) == (5, 4, 1, 3)
        assert totals.decided_before == (step is not None)
    assert crashed == 2
    folder = Path(wanted.target.path)
    assert sorted(ds.dataset(folder, partitioning="hive").to_table()["hour"].to_pylist()) == [10] * 6 + [11] * 6
    bad = pq.ParquetDataset(wanted.bad_lines_path).read()
    assert sorted(bad["body"].to_pylist()) == [b"bad 0", b"bad 1", b"bad 2"]
    assert set(bad["reason"].to_pylist()) == {"is not a line of an access log"}

    monkeypatch.setattr(commands, "spark_session", lambda *_: shared(spark))
    [command] = blocks_of(PAGE, "compact")
    arguments = command.replace("landed/web", str(folder)).split()[1:]
    compacted = CliRunner().invoke(app, arguments)
    assert compacted.exit_code == 0, compacted.output
    assert "merged 6 files into 2" in compacted.output
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert sorted(ds.dataset(folder, partitioning="hive").to_table()["hour"].to_pylist()) == [10] * 6 + [11] * 6
    assert "there was nothing to merge" in CliRunner().invoke(app, arguments).output


def test_batch_after_the_stop_is_left_to_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that begins after the stop writes nothing."""
    wanted = config(tmp_path)
    stopping = threading.Event()
    stopping.set()
    landing = BatchLander(wanted, lambda: pytest.fail("begun"), lambda: folder_writer(wanted), stopping)
    with pytest.raises(StoppedError):
        landing(events(spark, ["x"]), 0)
    assert (landing.failure, list(tmp_path.iterdir())) == (None, [])


def test_merger_keeps_columns_of_all_files_and_refuses_types_that_differ(spark: SparkSession, tmp_path: Path) -> None:
    """Merged files keep the columns of all files, and a conflict of types is an error."""
    for name, ddl, row in (("a", "x int", (1,)), ("b", "x int, y string", (2, "b")), ("c", "x string", ("c",))):
        spark.createDataFrame([row], ddl).coalesce(1).write.parquet(str(tmp_path / name))
    files = {name: str(next((tmp_path / name).glob("*.parquet"))) for name in "abc"}
    merge = spark_merger(spark, "zstd")
    merge([files["a"], files["b"]], str(tmp_path / "merged"))
    rows = pq.ParquetDataset(tmp_path / "merged").read().to_pylist()
    assert sorted(rows, key=lambda row: row["x"]) == [{"x": 1, "y": None}, {"x": 2, "y": "b"}]
    with pytest.raises(MergeError, match=r"(?i)merge"):
        merge([files["a"], files["c"]], str(tmp_path / "never"))


def test_hadoop_storage_does_what_this_machines_does(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's storage behaves like the local one, and publishes a batch, on a local folder."""
    folder = f"file:{tmp_path}"
    storage = HadoopStorage(spark, folder)
    assert storage.files(f"{folder}/none") == []
    for text in ("first", "ünd"):
        storage.write(f"{folder}/x/record", text)
        assert storage.read(f"{folder}/x/record") == text
    assert [storage.create(f"{folder}/x/{name}", "other") for name in ("record", "more")] == [False, True]
    assert [storage.size_bytes(f"{folder}/x/{name}") for name in ("record", "more", "none")] == [4, 5, None]
    storage.remove(f"{folder}/x/more")
    storage.rename(f"{folder}/x/record", f"{folder}/date=1/b")
    assert not storage.exists(f"{folder}/x/record")
    [found] = [file for file in storage.files(folder) if not file.path.endswith(".crc")]
    assert (found.path, found.size_bytes) == (f"{folder}/date=1/b", 4)
    for _ in range(2):
        storage.remove(f"{folder}/date=1")
    with pytest.raises(StorageError, match="none"):
        storage.rename(f"{folder}/none", f"{folder}/b")
    with pytest.raises(StorageError, match="none"):
        storage.read(f"{folder}/none")
    with pytest.raises(StorageError, match=r"(?i)scheme"):
        HadoopStorage(spark, "nonsense://x/y")
    assert type(storage_for(spark, str(tmp_path))) is not type(storage)

    work = WorkFolder(f"{folder}/web.landing")
    publisher = Publisher(storage=storage, work=work, query_id=QUERY, targets={"rows": f"{folder}/web"})

    def write(staged: str) -> BatchCounts:
        storage.write(f"{staged}/rows/date=1/part-0.parquet", "rows")
        return BatchCounts(rows=1)

    for _ in range(2):
        publisher.publish(3, write)
    landed_files = [path for path in (tmp_path / "web").rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    assert [path.name for path in landed_files] == ["3f2a91c04b7d-b000000003-00000.parquet"]
    assert not (tmp_path / "web.landing" / "staging").exists() or storage.files(work.staging) == []
