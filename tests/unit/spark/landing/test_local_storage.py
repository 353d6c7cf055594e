import os
from pathlib import Path

import pytest

from millrace_spark.landing import local_storage
from millrace_spark.landing.local_storage import LocalStorage, check_same_disk
from millrace_spark.landing.storage import StorageError


def test_files_finds_all_below_a_folder_in_order(tmp_path: Path) -> None:
    """Files have their size and time; a missing folder has no files."""
    storage = LocalStorage()
    for name in ("b/2", "b/1", "a"):
        storage.write(str(tmp_path / name), "abc")
    os.utime(tmp_path / "a", (5, 5))
    found = storage.files(str(tmp_path))
    assert [Path(file.path).relative_to(tmp_path).as_posix() for file in found] == ["a", "b/1", "b/2"]
    assert (found[0].size_bytes, found[0].modified_seconds) == (3, 5)
    assert storage.files(str(tmp_path / "none")) == []


def test_write_replaces_a_file_whole(tmp_path: Path) -> None:
    """The file has the old text or the new text, and no temporary file is left."""
    storage = LocalStorage()
    path = str(tmp_path / "x" / "record")
    for text in ("first", "ünd"):
        storage.write(path, text)
        assert storage.read(path) == text
    assert [file.path for file in storage.files(str(tmp_path))] == [path]


def test_rename_makes_the_folders_above(tmp_path: Path) -> None:
    """A rename creates the folder of a partition, and sync makes it durable."""
    storage = LocalStorage()
    source, target = str(tmp_path / "a"), str(tmp_path / "date=1" / "hour=2" / "b")
    storage.write(source, "x")
    storage.rename(source, target)
    storage.sync([target])
    assert (storage.exists(source), storage.read(target)) == (False, "x")


def test_sync_goes_above_the_folders_of_a_landing_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders above the landing are synced once, and others once per batch."""
    synced: list[Path] = []
    monkeypatch.setattr(local_storage, "_sync_folder", synced.append)
    target, work = tmp_path / "landed" / "web", tmp_path / "work" / "web.landing"
    files = [target / "date=1" / "a", target / "date=2" / "a", work / "checkpoint" / "offsets" / "1"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    storage = LocalStorage(str(target), str(work))
    below = {folder for file in files for folder in file.parents if folder.is_relative_to(tmp_path)} - {tmp_path}
    for wanted in ({*below, tmp_path, *tmp_path.parents}, below):
        storage.sync(map(str, files))
        assert sorted(synced) == sorted(wanted)
        synced.clear()
    storage.sync([str(tmp_path / "landed" / "web" / "date=1" / "a")])
    assert sorted(synced) == [tmp_path / "landed", target, target / "date=1"]
    synced.clear()
    LocalStorage().sync([str(files[0])])
    assert set(synced) == set(files[0].parents)


def test_create_leaves_a_file_alone_that_is_there(tmp_path: Path) -> None:
    """The first file is kept, and only existing files have a size."""
    storage = LocalStorage()
    path = str(tmp_path / "x" / "record")
    assert storage.size_bytes(path) is None
    assert [storage.create(path, text) for text in ("first", "second one")] == [True, False]
    assert (storage.read(path), storage.size_bytes(path)) == ("first", 5)


def test_remove_takes_files_folders_and_nothing(tmp_path: Path) -> None:
    """A repeated removal is not an error, and the target of a link stays."""
    storage = LocalStorage()
    storage.write(str(tmp_path / "kept" / "a"), "x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("link", "link", "none"):
        storage.remove(str(tmp_path / name))
    assert storage.exists(str(tmp_path / "kept" / "a"))
    storage.remove(str(tmp_path / "kept"))
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_path(tmp_path: Path) -> None:
    """The error is one sentence with the path."""
    storage = LocalStorage()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="none: No such file"):
        storage.read(str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"Not a directory|File exists"):
        storage.write(str(tmp_path / "file" / "x"), "")
    with pytest.raises(StorageError, match="No such file"):
        storage.rename(str(tmp_path / "none"), str(tmp_path / "b"))
    with pytest.raises(StorageError, match="No such file"):
        storage.sync([str(tmp_path / "none")])


def test_check_one_disk_refuses_a_target_on_another(tmp_path: Path) -> None:
    """The disk of a missing folder is that of its nearest parent."""
    check_same_disk(str(tmp_path / "work"), str(tmp_path / "a" / "b"), str(tmp_path))
    with pytest.raises(StorageError, match=r"/proc/x: is on another disk than .*; set target\.work_path"):
        check_same_disk(str(tmp_path / "work"), "/proc/x")
