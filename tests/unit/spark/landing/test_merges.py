import random

import pytest

from millrace_spark.landing.compaction import FILES_MAX, plan_merges
from millrace_spark.landing.config import CompactionConfig
from millrace_spark.landing.storage import StoredFile

LIMITS = CompactionConfig(target_bytes=100, files_min=3, quiet_seconds=60)
NOW = 1_000.0


def landed(number: int, size_bytes: int = 10, modified_seconds: float = 0, folder: str = "/web/date=1") -> StoredFile:
    return StoredFile(f"{folder}/3f2a91c04b7d-b{number:09}-00000.zstd.parquet", size_bytes, modified_seconds)


def sizes(files: list[StoredFile], limits: CompactionConfig = LIMITS) -> list[list[int]]:
    return [[file.size_bytes for file in merge.files] for merge in plan_merges(files, limits, NOW)]


@pytest.mark.parametrize(
    ("found", "merged"),
    [
        ([10, 10], []),
        ([10, 10, 10], [[10, 10, 10]]),
        ([10, 50, 10, 90, 10], [[10, 10, 10]]),
        ([40, 40, 40], [[40, 40]]),
        ([40, 40, 40, 30], [[40, 40], [40, 30]]),
        ([49, 49, 49], [[49, 49]]),
        ([], []),
    ],
)
def test_plan_merges_takes_small_files_up_to_the_target(found: list[int], merged: list[list[int]]) -> None:
    """Files of at least half the target size, too few small files, and a single file are not merged."""
    assert sizes([landed(number, size) for number, size in enumerate(found)]) == merged


def test_plan_merges_leaves_a_folder_alone_that_is_not_quiet() -> None:
    """One new file postpones its folder, but not other folders."""
    busy = [landed(number, folder="/web/date=2") for number in range(5)] + [landed(9, 10, NOW - 59, "/web/date=2")]
    quiet = [landed(number, 10, NOW - 60) for number in range(5)]
    assert [merge.folder for merge in plan_merges(busy + quiet, LIMITS, NOW)] == ["/web/date=1"]


def test_plan_merges_leaves_files_of_others_alone() -> None:
    """Files with other names are ignored."""
    others = [StoredFile(f"/web/date=1/{name}", 1, 0) for name in ("part-0.parquet", "a.txt", "_SUCCESS", ".x.parquet")]
    assert sizes([*others, landed(1), landed(2)]) == []


def test_plan_merges_bounds_what_one_merge_reads() -> None:
    """A merge has a maximum number of files."""
    assert [len(group) for group in sizes([landed(number, 0) for number in range(2 * FILES_MAX + 2)])] == [
        FILES_MAX,
        FILES_MAX,
        2,
    ]


@pytest.mark.parametrize("seed", [20_261_122])
def test_plan_merges_of_random_files_keeps_its_promises(seed: int) -> None:
    """No file is merged twice, no large file is merged, and merges respect the target size and end."""
    random_numbers = random.Random(seed)
    for _ in range(200):
        files = [landed(number, random_numbers.randrange(120)) for number in range(random_numbers.randrange(60))]
        merges = plan_merges(files, LIMITS, NOW)
        taken = [file for merge in merges for file in merge.files]
        assert len(taken) == len(set(taken))
        assert all(2 * file.size_bytes < LIMITS.target_bytes for file in taken)
        assert all(merge.size_bytes <= LIMITS.target_bytes and len(merge.files) > 1 for merge in merges)
        left = [file for file in files if file not in taken]
        again = left + [landed(1_000 + number, merge.size_bytes) for number, merge in enumerate(merges)]
        assert len(plan_merges(again, LIMITS, NOW)) <= len(merges)
