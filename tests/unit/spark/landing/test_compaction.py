import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace_spark.landing.compaction import Compactor, MergeError
from millrace_spark.landing.config import CompactionConfig
from millrace_spark.landing.paths import WorkFolder
from tests.crashing_storage import CrashError, CrashingStorage, lines_below
from tests.unit.spark.landing.line_merger import merge_lines

LIMITS = CompactionConfig(files_min=2, quiet_seconds=0)


def land(folder: Path, count: int = 4) -> None:
    for partition, number in itertools.product(("date=1", "date=2"), range(count)):
        file = folder / partition / f"3f2a91c04b7d-b{number:09}-00000.zstd.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{partition} {number}\n")
        os.utime(file, (0, 0))


def compactor(folder: Path, storage: CrashingStorage | None = None) -> Compactor:
    work = WorkFolder(str(folder.with_name("work")))
    return Compactor(storage or CrashingStorage(), str(folder), work, LIMITS, merge_lines)


def test_compact_merges_each_folder_by_itself(tmp_path: Path) -> None:
    """Each partition ends with one file, and the counts are right."""
    folder = tmp_path / "web"
    land(folder)
    before = lines_below(folder)
    merging = compactor(folder)
    merging.compact()
    assert lines_below(folder) == before
    assert [len(list(path.iterdir())) for path in sorted(folder.iterdir())] == [1, 1]
    assert (merging.totals.files_before, merging.totals.files_after) == (8, 2)
    merging.compact()
    assert merging.totals.files_after == 2


def test_compact_killed_at_each_step_has_each_line_once_after_the_next_start(tmp_path: Path) -> None:
    """Each line is there once after the recovery from each step, and after the next compaction."""
    for step in itertools.count():
        folder = tmp_path / str(step) / "web"
        land(folder, 3)
        before = lines_below(folder)
        try:
            compactor(folder, CrashingStorage(step)).compact()
        except CrashError:
            assert set(lines_below(folder)) == set(before)
        else:
            assert step > 12
            return
        merging = compactor(folder)
        merging.recover()
        assert lines_below(folder) == before
        merging.compact()
        assert lines_below(folder) == before
        assert [len(list(path.iterdir())) for path in sorted(folder.iterdir())] == [1, 1]
        assert lines_below(folder.with_name("work")) == []


def test_compact_of_files_that_cannot_be_one_leaves_them_and_goes_on(tmp_path: Path) -> None:
    """The counts name each refusal once, with its reason."""

    def merge(files: Sequence[str], staged: str) -> None:
        merge_lines(files, staged)
        if "date=1" in files[0]:
            raise MergeError("a column is text in one and a number in another")

    folder = tmp_path / "web"
    land(folder)
    before = lines_below(folder)
    merging = Compactor(CrashingStorage(), str(folder), WorkFolder(str(tmp_path / "work")), LIMITS, merge)
    merging.compact()
    merging.compact()
    assert lines_below(folder) == before
    assert [len(list(path.iterdir())) for path in sorted(folder.iterdir())] == [4, 1]
    [refusal] = merging.totals.refusals
    assert "date=1: its small files were not merged, a column is text" in refusal
    assert lines_below(tmp_path / "work") == []


@pytest.mark.parametrize("merges", [0, 1])
def test_compact_when_stopping_ends_between_two_merges(tmp_path: Path, merges: int) -> None:
    """Merges that have not begun are left for the next run."""
    land(tmp_path / "web")
    merging = compactor(tmp_path / "web")
    merging.compact(lambda: merging.totals.files_after == merges)
    assert merging.totals.files_after == merges
