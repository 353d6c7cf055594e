"""The account: whether every line of the file is landed, once."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from rich.table import Table

from examples.access_log.tables import table


@dataclass(frozen=True)
class Fingerprint:
    """The count of some lines, and a checksum of the lines with their numbers."""

    count: int = 0
    checksum: int = 0
    """The sum of the CRC-32 of each line, with its number and a space in front."""


def fingerprint(lines: Iterable[tuple[int, bytes]]) -> Fingerprint:
    """Returns the fingerprint of numbered lines, which does not depend on their order."""
    count = checksum = 0
    for number, line in lines:
        count += 1
        checksum += zlib.crc32(line, zlib.crc32(b"%d " % number))
    return Fingerprint(count, checksum)


def landed_lines(*folders: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the sequence and the line of each landed row or bad line."""
    for folder in folders:
        for batch in parquet_batches(folder, ["sequence", "body"]):
            yield from zip(batch.column("sequence").to_pylist(), batch.column("body").to_pylist(), strict=True)


def parquet_batches(folder: Path, columns: list[str]) -> Iterator[Any]:
    """Yields the rows of a folder of Parquet files as RecordBatches; none if the folder does not exist."""
    if folder.exists():
        yield from ds.dataset(str(folder), format="parquet").to_batches(columns=columns)


@dataclass(kw_only=True)
class Account:
    """The same lines in each place that they passed."""

    in_file: Fingerprint
    events_committed: int = 0
    """By the sequences that the server assigned."""
    landed: Fingerprint = Fingerprint()
    """In the Parquet files, bad lines included."""

    @property
    def is_equal(self) -> bool:
        """Whether no line is missing or duplicated, and each has its number in the file as its sequence."""
        return self.in_file == self.landed and self.in_file.count == self.events_committed

    def table(self) -> Table:
        return table(
            "The account",
            ["", "count", "checksum"],
            [
                ("lines in the file", self.in_file.count, f"{self.in_file.checksum:x}"),
                ("events committed", self.events_committed, None),
                ("rows landed", self.landed.count, f"{self.landed.checksum:x}"),
            ],
        )
