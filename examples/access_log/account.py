"""What became of the lines, step by step."""

from dataclasses import dataclass

from rich.table import Table

from examples.access_log.tables import table


@dataclass(kw_only=True)
class Account:
    """Counts of the same lines in each place that they went through."""

    lines_in_file: int
    events_committed: int = 0
    """By the server's own counter."""
    rows_read: int = 0
    """By Spark, in the job that wrote them."""
    rows_written: int = 0
    """In the Parquet files, read again."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing is missing and nothing is there twice."""
        return self.lines_in_file == self.events_committed == self.rows_read == self.rows_written

    def table(self) -> Table:
        return table(
            "The account",
            ["", "count"],
            [
                ("lines in the file", self.lines_in_file),
                ("events committed", self.events_committed),
                ("rows read", self.rows_read),
                ("rows written", self.rows_written),
            ],
        )
