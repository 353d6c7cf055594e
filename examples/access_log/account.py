"""What became of the lines, step by step."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from examples.access_log.tables import table


@dataclass(frozen=True)
class Tally:
    """Lines in one place: how many, and a checksum that tells each line at each number from all others."""

    count: int = 0
    checksum: int = 0
    """The sum of the CRC-32 of each line, as UTF-8, with its number and a space before it."""


def tally(lines: Iterable[bytes]) -> Tally:
    """Counts lines that are numbered from 1."""
    count = checksum = 0
    for count, line in enumerate(lines, 1):
        # What is no UTF-8 is replaced, as Spark does it.
        text = line.decode(errors="replace").encode()
        checksum += zlib.crc32(text, zlib.crc32(b"%d " % count))
    return Tally(count, checksum)


@dataclass(kw_only=True)
class Account:
    """The same lines in each place that they went through."""

    in_file: Tally
    events_committed: int = 0
    """By the server: the sequences that it gave."""
    landed: Tally = Tally()
    """In the Parquet files, read again."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing is missing, nothing is there twice, and each line has the number that it has in the file."""
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
