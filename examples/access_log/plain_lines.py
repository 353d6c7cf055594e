"""Lines of any text log."""

import heapq
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from examples.access_log.account import parquet_batches
from examples.access_log.tables import bar, table

NAME = "text"
LINE_TYPE = "text"

_TIME = re.compile(r"\s*\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s*")
_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_FIRST_WORD = re.compile(r"\s*([^\s:=(]+)")
_TOP = 10
_LONGEST = 3
_SHOWN_CHARACTERS = 100


def tables(rows_folder: Path, _bad_lines_folder: Path) -> Iterator[Table]:
    """Yields levels, the most frequent first words, and the longest lines."""
    levels: Counter[str] = Counter()
    words: Counter[str] = Counter()
    longest: list[tuple[int, int, str]] = []
    for sequence, line in _lines(rows_folder):
        if level := _LEVEL.search(line):
            levels[level[1]] += 1
        if word := _FIRST_WORD.match(_TIME.sub("", line, count=1)):
            words[word[1]] += 1
        longest = heapq.nlargest(_LONGEST, [*longest, (len(line), -sequence, line.strip()[:_SHOWN_CHARACTERS])])
    if levels:
        yield table("Levels", ["level", "lines"], levels.most_common())
    top = words.most_common(_TOP)
    most = max((lines for _, lines in top), default=0)
    yield table("Lines begin with", ["word", "lines", ""], [(word, lines, bar(lines, most)) for word, lines in top])
    shown = [(-sequence, characters, line) for characters, sequence, line in longest]
    yield table("Longest lines", ["line", "characters", "begins"], shown)


def _lines(folder: Path) -> Iterator[tuple[int, str]]:
    for batch in parquet_batches(folder, ["sequence", "line"]):
        yield from zip(batch.column("sequence").to_pylist(), batch.column("line").to_pylist(), strict=True)
