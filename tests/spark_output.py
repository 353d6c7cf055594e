"""The files that a streaming query has written and committed."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

_LOG = "_spark_metadata"


def committed_rows(folder: Path, column: str) -> Iterator[bytes]:
    """The values of one binary column, in all files that Spark's file sink has committed, as its readers see them.

    Files of batches that a kill interrupted lie in the same directory and are ignored.
    """
    for path in committed_files(folder):
        yield from pq.read_table(path, columns=[column])[column].to_pylist()


def committed_files(folder: Path) -> list[Path]:
    """The paths of the committed files."""
    logs = {_batch_number(path): path for path in (folder / _LOG).glob("[0-9]*")}
    compact = max((number for number, path in logs.items() if path.suffix == ".compact"), default=-1)
    paths = []
    for number in sorted(logs):
        if number >= compact:
            # The first line contains the format's version.
            entries = [json.loads(line) for line in logs[number].read_text().splitlines()[1:]]
            paths += [Path(unquote(urlsplit(entry["path"]).path)) for entry in entries if entry["action"] == "add"]
    return paths


def done_batches(checkpoint: Path) -> int:
    """The number of a query's micro-batches that its checkpoint records as completed."""
    return max((int(path.name) + 1 for path in (checkpoint / "commits").glob("[0-9]*")), default=0)


def _batch_number(path: Path) -> int:
    return int(path.name.removesuffix(".compact"))
