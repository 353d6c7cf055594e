"""Merges files of lines, as Spark merges files of Parquet."""

from collections.abc import Sequence
from pathlib import Path


def merge_lines(files: Sequence[str], staged: str) -> None:
    """Writes the lines of all files into one."""
    merged = Path(staged) / "part-0.zstd.parquet"
    merged.parent.mkdir(parents=True)
    merged.write_text("".join(Path(file).read_text() for file in files))
    (Path(staged) / "_SUCCESS").touch()
