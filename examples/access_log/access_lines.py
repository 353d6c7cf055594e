"""Lines of a web server's access log, in the common or combined format."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from examples.access_log.account import parquet_batches
from examples.access_log.tables import bar, table
from millrace_spark.landing.formats import ACCESS_LOG

NAME = "a web server's access log"
LINE_TYPE = "access_log"

_TOP = 10


def matches(sample: Iterable[bytes]) -> bool:
    """Whether most of the lines are of this kind."""
    pattern = re.compile(ACCESS_LOG)
    hits = [bool(pattern.fullmatch(line.decode(errors="replace"))) for line in sample if line]
    return sum(hits) * 2 > len(hits)


def tables(rows_folder: Path, bad_lines_folder: Path) -> Iterator[Table]:
    """Yields status codes, the most frequent paths, and requests by hour."""
    rows = pa.Table.from_batches(parquet_batches(rows_folder, ["time", "path", "status", "bytes"]))
    bad_count = sum(batch.num_rows for batch in parquet_batches(bad_lines_folder, []))
    count = rows.num_rows + bad_count
    statuses = [*_counts(rows.select(["status"]), "ascending"), *([("other lines", bad_count)] if bad_count else [])]
    yield table(
        "Status codes",
        ["status", "requests", "share %"],
        [(status, requests, 100 * requests / count) for status, requests in statuses],
    )
    paths = rows.filter(pc.field("path").is_valid())
    names = pc.replace_substring_regex(paths.column("path"), r"\?.*", "")
    grouped = pa.table({"path": names, "bytes": paths.column("bytes")}).group_by("path")
    top = grouped.aggregate([([], "count_all"), ("bytes", "sum")])
    top = top.sort_by([("count_all", "descending"), ("path", "ascending")]).slice(0, _TOP)
    yield table(
        "Top paths",
        ["path", "requests", "bytes"],
        zip(*(top.column(name).to_pylist() for name in ("path", "count_all", "bytes_sum")), strict=True),
    )
    hours = _counts(pa.table({"hour": pc.hour(rows.column("time").drop_null())}), "ascending")
    most = max((requests for _, requests in hours), default=0)
    yield table(
        "Requests by hour of the day (UTC)",
        ["hour", "requests", ""],
        [(f"{hour:02}:00", requests, bar(requests, most)) for hour, requests in hours],
    )


def _counts(rows: pa.Table, order: str) -> list[tuple[int, int]]:
    """Returns the values of the only column and their counts, ordered by value."""
    [name] = rows.column_names
    counted = rows.group_by(name).aggregate([([], "count_all")]).sort_by([(name, order)])
    return list(zip(counted.column(name).to_pylist(), counted.column("count_all").to_pylist(), strict=True))
