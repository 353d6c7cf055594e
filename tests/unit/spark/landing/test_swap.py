import itertools
from pathlib import Path

import pytest

from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.storage import StorageError
from millrace_spark.landing.swap import STAGING_PREFIX, Intent, recover, swap
from tests.crashing_storage import CrashError, CrashingStorage, lines_below

LINES = ["a", "b", "c"]


class Place:
    """Three files, and a staged file that replaces them."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "web"
        self.work = WorkFolder(str(folder / "web.landing"))
        self.target.mkdir(parents=True)
        for line in LINES:
            (self.target / f"{line}.parquet").write_text(f"{line}\n")
        staged = Path(self.work.staging) / f"{STAGING_PREFIX}1" / "part-0.parquet"
        staged.parent.mkdir(parents=True)
        staged.write_text("".join(f"{line}\n" for line in LINES))
        self.intent = Intent(
            staged=str(staged),
            target=str(self.target / "merged.parquet"),
            replaces=tuple(str(self.target / f"{line}.parquet") for line in LINES),
        )

    def lines(self) -> list[str]:
        return lines_below(self.target)


def is_clean(place: Place) -> bool:
    return lines_below(Path(place.work.staging)) == lines_below(Path(place.work.intents)) == []


@pytest.mark.parametrize("is_store", [False, True])
def test_swap_after_a_crash_at_each_step_and_one_in_each_step_of_its_recovery_has_each_line_once(
    tmp_path: Path, *, is_store: bool
) -> None:
    """No line is ever missing, and after a complete recovery each is there once."""
    folders = (tmp_path / str(number) for number in itertools.count())
    for step, second in itertools.product(range(12), range(12)):
        place = Place(next(folders))
        try:
            swap(CrashingStorage(step, is_store=is_store), place.work, place.intent)
        except CrashError:
            pass
        else:
            assert step > 6
        for crash_at in (second, None):
            assert set(place.lines()) == set(LINES)
            try:
                recover(CrashingStorage(crash_at, is_store=is_store), place.work)
            except CrashError:
                continue
        assert place.lines() == LINES
        assert is_clean(place)


def test_recover_after_a_crash_at_each_step_syncs_the_merged_file_before_the_others_go(tmp_path: Path) -> None:
    """The merged file is synced before the others are removed, even if it was renamed before the crash."""

    class Ordered(CrashingStorage):
        def remove(self, path: str) -> None:
            assert path not in place.intent.replaces or place.intent.target in self.synced
            super().remove(path)

    for step in range(8):
        place = Place(tmp_path / str(step))
        with pytest.raises(CrashError):
            swap(CrashingStorage(step), place.work, place.intent)
        recover(Ordered(), place.work)
        assert place.lines() == LINES


def test_recover_tells_how_many_swaps_it_finished(tmp_path: Path) -> None:
    """A swap with an intent is finished, and one without leaves the files unchanged."""
    for step, finished in ((1, 0), (2, 1)):
        place = Place(tmp_path / str(step))
        with pytest.raises(CrashError):
            swap(CrashingStorage(step), place.work, place.intent)
        assert recover(CrashingStorage(), place.work) == finished
        assert (place.target / "merged.parquet").exists() == bool(finished)


def test_recover_without_the_merged_file_removes_nothing_else(tmp_path: Path) -> None:
    """If the merged file is gone, the remaining files are kept."""
    place = Place(tmp_path)
    with pytest.raises(CrashError):
        swap(CrashingStorage(4), place.work, place.intent)
    (place.target / "merged.parquet").unlink()
    left = place.lines()
    recover(CrashingStorage(), place.work)
    assert place.lines() == left
    assert is_clean(place)


def test_invalid_intent_is_refused() -> None:
    """An invalid intent is an error."""
    for text in ("", "[]", "{}", '{"staged": "a", "target": "b"}'):
        with pytest.raises(StorageError, match="was not written by millrace-spark"):
            Intent.from_text(text)
