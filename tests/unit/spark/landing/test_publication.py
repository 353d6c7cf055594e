import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from millrace_spark.landing.compaction import Compactor
from millrace_spark.landing.config import CompactionConfig
from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.publication import BatchCounts, BatchRecord, Publisher, finish_all, sync_checkpoint
from millrace_spark.landing.storage import StorageError
from tests.crashing_storage import CrashError, CrashingStorage, lines_below
from tests.unit.spark.landing.line_merger import merge_lines

QUERY = "3f2a91c0-4b7d-4c11-9a55-0123456789ab"
ROWS = {"date=1/part-0.zstd.parquet": ["a", "b"], "date=2/part-0.zstd.parquet": ["c"]}
LANDED = ["a", "b", "c"]


class Place:
    """A target with its work folder, and the lines to write."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "web"
        self.work = WorkFolder(str(folder / "web.landing"))
        self.tries = 0

    def publisher(self, storage: CrashingStorage) -> Publisher:
        return Publisher(storage=storage, work=self.work, query_id=QUERY, targets={"rows": str(self.target)})

    def write(self, staged: str) -> BatchCounts:
        self.tries += 1
        for name, lines in ROWS.items():
            file = Path(staged) / "rows" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in lines))
        (Path(staged) / "rows" / "_SUCCESS").touch()
        return BatchCounts(events=4, rows=3, bad_lines=1)

    def lines(self) -> list[str]:
        return lines_below(self.target)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def crashes(place_of: Iterable[Path], *, is_store: bool) -> Iterable[Place]:
    """Yields a crash for each step."""
    for step, folder in zip(itertools.count(), place_of, strict=False):
        place = Place(folder)
        try:
            place.publisher(CrashingStorage(step, is_store=is_store)).publish(0, place.write)
        except CrashError:
            yield place
        else:
            # A batch syncs, writes its record, renames two files, and removes its staging folder.
            assert step >= 6
            return


def folders_below(folder: Path) -> Iterable[Path]:
    return (folder / str(number) for number in itertools.count())


def test_publish_gets_files_into_place_under_names_of_query_and_batch(place: Place) -> None:
    """Partition folders are kept, Spark's own files are left out, and staging ends empty."""
    record, is_new = place.publisher(CrashingStorage()).publish(12, place.write)
    assert is_new
    assert record.written == BatchCounts(events=4, rows=3, bad_lines=1)
    assert sorted(str(path.relative_to(place.target)) for path in place.target.rglob("*.*")) == [
        "date=1/3f2a91c04b7d-b000000012-00000.zstd.parquet",
        "date=2/3f2a91c04b7d-b000000012-00001.zstd.parquet",
    ]
    assert lines_below(Path(place.work.staging)) == []


def test_publish_repeated_writes_nothing_again(place: Place) -> None:
    """A committed batch returns its record without writing."""
    first, _ = place.publisher(CrashingStorage()).publish(0, place.write)
    again, is_new = place.publisher(CrashingStorage()).publish(0, place.write)
    assert (again, is_new) == (first, False)
    assert place.tries == 1
    assert place.lines() == LANDED


@pytest.mark.parametrize("is_store", [False, True])
def test_publish_after_a_crash_at_each_step_lands_each_line_once(tmp_path: Path, *, is_store: bool) -> None:
    """After a crash before any step, the next attempt lands all lines once and withdraws no file."""
    for place in crashes(folders_below(tmp_path), is_store=is_store):
        seen = place.lines()
        assert len(seen) == len(set(seen))
        tries = place.tries
        place.publisher(CrashingStorage(is_store=is_store)).publish(0, place.write)
        assert place.lines() == LANDED
        assert not seen or place.tries == tries
        place.publisher(CrashingStorage(is_store=is_store)).publish(1, place.write)
        assert place.lines() == sorted(2 * LANDED)
        assert lines_below(Path(place.work.staging)) == []


@pytest.mark.parametrize("is_store", [False, True])
def test_publish_after_a_crash_and_a_compaction_lands_each_line_once(tmp_path: Path, *, is_store: bool) -> None:
    """Files that were merged after a crash are not published again."""
    merged_count = 0
    for place in crashes(folders_below(tmp_path), is_store=is_store):
        older = place.target / "date=1" / "3f2a91c04b7d-b000000777-00000.zstd.parquet"
        older.parent.mkdir(parents=True, exist_ok=True)
        older.write_text("older\n")
        storage = CrashingStorage(is_store=is_store)
        finish_all(storage, place.work)
        limits = CompactionConfig(files_min=2, quiet_seconds=0)
        compactor = Compactor(storage, str(place.target), place.work, limits, merge_lines)
        compactor.compact()
        merged_count += compactor.totals.files_after
        place.publisher(storage).publish(0, place.write)
        assert place.lines() == sorted([*LANDED, "older"])
    # The crash came after the commit of the batch.
    assert merged_count >= 4


def test_publish_removes_what_other_tries_of_its_query_have_left(place: Place) -> None:
    """Staged files of earlier attempts are removed, but not those of another query."""
    for name in (f"{QUERY}-4-x", "other-4-x"):
        left = Path(place.work.staging) / name / "rows" / "part-0.parquet"
        left.parent.mkdir(parents=True)
        left.write_text("left\n")
    place.publisher(CrashingStorage()).publish(4, place.write)
    assert place.lines() == LANDED
    assert [path.name for path in Path(place.work.staging).iterdir()] == ["other-4-x"]


def test_publish_keeps_the_record_of_the_last_batch_alone(place: Place) -> None:
    """Records of earlier batches are removed."""
    publisher = place.publisher(CrashingStorage())
    for batch_id in range(12):
        publisher.publish(batch_id, place.write)
    assert [path.name for path in Path(place.work.batches).iterdir()] == [f"{QUERY}-11.json"]


def test_publish_of_an_empty_batch_is_decided_too(place: Place) -> None:
    """A batch without files has a record."""
    record, _ = place.publisher(CrashingStorage()).publish(0, lambda staged: BatchCounts())
    assert (record.moves, record.files_bytes) == ((), 0)
    assert place.publisher(CrashingStorage()).publish(0, place.write) == (record, False)


def test_invalid_record_is_refused() -> None:
    """An invalid record is an error."""
    for text in ("", "[]", "{}", '{"moves": [["a"]], "written": {}}'):
        with pytest.raises(StorageError, match="was not written by millrace-spark"):
            BatchRecord.from_text(text)


@pytest.mark.parametrize("is_store", [False, True])
def test_publish_after_a_crash_at_each_step_syncs_each_file_in_its_place(tmp_path: Path, *, is_store: bool) -> None:
    """Files that were renamed before a crash are synced too."""
    for place in crashes(folders_below(tmp_path), is_store=is_store):
        storage = CrashingStorage(is_store=is_store)
        record, _ = place.publisher(storage).publish(0, place.write)
        assert {target for _, target in record.moves} <= set(storage.synced)


def test_publish_after_a_crash_within_an_object_stores_rename_leaves_what_readers_found(tmp_path: Path) -> None:
    """A complete copy stays, and its source is removed."""
    for place in crashes(folders_below(tmp_path), is_store=True):
        storage = CrashingStorage(is_store=True)
        found = {str(path) for path in place.target.rglob("*.parquet")}
        place.publisher(storage).publish(0, place.write)
        assert not found & set(storage.removed)


@pytest.mark.parametrize("later_count", [0, 1, 2])
def test_publish_of_a_batch_that_another_landing_decided_in_the_meantime_lands_nothing(
    place: Place, later_count: int
) -> None:
    """Without locks, a landing whose claim has ended may still write, but must not publish."""
    other = place.publisher(CrashingStorage())

    def write(staged: str) -> BatchCounts:
        for batch_id in range(later_count + 1):
            other.publish(batch_id, place.write)
        return place.write(staged)

    with pytest.raises(StorageError, match="another millrace-spark has landed batch 0 in the meantime"):
        place.publisher(CrashingStorage()).publish(0, write)
    finish_all(CrashingStorage(), place.work)
    assert place.lines() == sorted((later_count + 1) * LANDED)
    assert lines_below(Path(place.work.staging)) == []
    assert [path.name for path in Path(place.work.batches).iterdir()] == [f"{QUERY}-{later_count}.json"]


def test_publish_of_which_the_response_got_lost_lands_its_own_batch(place: Place) -> None:
    """A record that was written twice because a response was lost still belongs to this attempt."""

    class Deaf(CrashingStorage):
        def create(self, path: str, text: str) -> bool:
            super().create(path, text)
            return super().create(path, text)

    place.publisher(Deaf()).publish(0, place.write)
    assert place.lines() == LANDED


def test_finish_all_leaves_records_alone_that_later_ones_follow(place: Place) -> None:
    """Only the last record of a query is finished."""
    publisher = place.publisher(CrashingStorage())

    def write(staged: str) -> BatchCounts:
        for batch_id in range(2):
            publisher.publish(batch_id, place.write)
        for landed in place.target.rglob("*-b000000000-*"):
            landed.rename(landed.with_name("merged.parquet"))
        return place.write(staged)

    class Killed(CrashingStorage):
        def create(self, path: str, text: str) -> bool:
            super().create(path, text)
            raise CrashError

    with pytest.raises(CrashError):
        place.publisher(Killed()).publish(0, write)
    finish_all(CrashingStorage(), place.work)
    assert place.lines() == sorted(2 * LANDED)


def test_sync_checkpoint_bears_files_that_spark_removes_in_the_meantime(place: Place) -> None:
    """A file that Spark removes meanwhile is skipped, and any other failure is an error."""

    class Purging(CrashingStorage):
        def __init__(self, *, is_gone: bool) -> None:
            super().__init__()
            self.is_gone = is_gone
            self.asked: list[list[str]] = []

        def sync(self, paths: Iterable[str]) -> None:
            wanted = list(paths)
            self.asked.append([Path(path).name for path in wanted])
            for path in wanted:
                if path.endswith("/9"):
                    if self.is_gone:
                        Path(path).unlink()
                    raise StorageError("no such file")

    offsets = Path(place.work.checkpoint) / "offsets"
    offsets.mkdir(parents=True)
    for number in range(20):
        (offsets / str(number)).touch()
        os.utime(offsets / str(number), (number, number))
    with pytest.raises(StorageError):
        sync_checkpoint(Purging(is_gone=False), place.work)
    storage = Purging(is_gone=True)
    sync_checkpoint(storage, place.work)
    newest = [str(number) for number in range(8, 20)]
    assert storage.asked == [newest, [name for name in newest if name != "9"]]
