"""The file systems for finished files."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.arrow import HadoopFileSystem
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from millrace_server.agent.sinks.files.local_target import LocalTarget
from millrace_server.agent.sinks.files.targets import FileSystem, RemoteTarget, open_file_system
from tests.fake_s3 import FakeS3, fake_s3
from tests.waiting import WAIT_SECONDS_MAX

ROOT = "memory://bucket/logs"


@pytest.fixture
def local(tmp_path: Path) -> LocalTarget:
    """A directory, opened."""
    target = LocalTarget(tmp_path)
    target.open("sink-1")
    return target


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty file system in memory."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def _remote(tmp_path: Path) -> RemoteTarget:
    target = RemoteTarget(lambda: open_file_system(ROOT, {}), ROOT, tmp_path / "staging")
    target.open("sink-1")
    return target


def _staged(target: LocalTarget | RemoteTarget, content: bytes) -> Path:
    path = target.staging / "000001.part"
    path.write_bytes(content)
    return path


def test_publish_local_makes_directories_and_moves(local: LocalTarget, tmp_path: Path) -> None:
    """The file is at its final name only, and other users may enter its directory."""
    staged = _staged(local, b"x")
    final = tmp_path / "a" / "b" / "file.txt"
    local.publish(staged, str(final))
    assert final.read_bytes() == b"x"
    assert not staged.exists()
    assert final.stat().st_nlink == 1
    umask = os.umask(0)
    os.umask(umask)
    assert final.parent.stat().st_mode & 0o777 == 0o777 & ~umask
    assert local.size_of(str(final)) == 1
    assert local.size_of(str(tmp_path / "a" / "other")) is None


@pytest.mark.parametrize("has_links", [True, False])
def test_publish_local_where_there_is_such_a_file_changes_nothing(
    local: LocalTarget,
    tmp_path: Path,
    has_links: bool,  # noqa: FBT001 - pytest passes it by name
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finished file is never replaced by another one, whatever the file system supports."""
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse_link)
    taken = tmp_path / "file.txt"
    taken.write_bytes(b"mine")
    staged = _staged(local, b"x")
    with pytest.raises(FileExistsError):
        local.publish(staged, str(taken))
    assert (taken.read_bytes(), staged.read_bytes()) == (b"mine", b"x")


def test_publish_local_without_hard_links_renames(
    local: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems without hard links are supported."""
    monkeypatch.setattr(os, "link", _refuse_link)
    staged = _staged(local, b"x")
    local.publish(staged, str(tmp_path / "file.txt"))
    assert (tmp_path / "file.txt").read_bytes() == b"x"
    assert not staged.exists()


def _refuse_link(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_publish_local_that_fails_leaves_no_file(
    local: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is reported, and there is no partial file."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="Input/output error"):
        local.publish(_staged(local, b"x"), str(tmp_path / "file.txt"))
    assert not (tmp_path / "file.txt").exists()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base directory."""
    made = tmp_path / "out"
    made.mkdir()
    return made


def _target_at(base: Path) -> LocalTarget:
    target = LocalTarget(base)
    target.open("sink-1")
    return target


@pytest.mark.parametrize("is_there_another", [False, True])
def test_calls_of_a_local_base_that_went_away_write_nowhere(base: Path, *, is_there_another: bool) -> None:
    """It is not created again, and another directory of its name, such as a mount point, is not used."""
    target = _target_at(base)
    staged = _staged(target, b"x")
    base.rename(base.with_name("away"))
    if is_there_another:
        base.mkdir()
    calls: list[Callable[[], object]] = [
        lambda: target.open("sink-1"),
        lambda: target.create(staged),
        lambda: target.publish(staged, str(base / "a" / "file.txt")),
        lambda: target.size_of(str(base / "file.txt")),
    ]
    complaint = "no longer the same directory" if is_there_another else "not a directory; create it, or mount"
    for call in calls:
        with pytest.raises(NotADirectoryError, match=complaint):
            call()
    target.close()
    if is_there_another:
        assert list(base.iterdir()) == []
        base.rmdir()
    assert not base.exists()
    base.with_name("away").rename(base)
    target.publish(staged, str(base / "a" / "file.txt"))
    assert (base / "a" / "file.txt").read_bytes() == b"x"


@pytest.mark.parametrize("call", ["mkdir", "link", "fsync"])
def test_publish_local_whose_base_goes_away_in_the_meantime_stays_in_it(
    base: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is published in the directory that was checked, even if that was renamed since."""
    target, away = _target_at(base), base.with_name("away")
    staged = _staged(target, b"x")
    real = getattr(os, call)

    def move_before(*args: Any, **options: Any) -> Any:
        if not away.exists():
            base.rename(away)
        return real(*args, **options)

    monkeypatch.setattr(os, call, move_before)
    target.publish(staged, str(base / "a" / "b" / "file.txt"))
    assert (away / "a" / "b" / "file.txt").read_bytes() == b"x"
    assert not base.exists()


def test_create_local_whose_base_goes_away_in_the_meantime_stays_in_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unfinished file is created in the directory that was checked."""
    target, away = _target_at(base), base.with_name("away")
    real = os.fstat

    def move_before(descriptor: int) -> os.stat_result:
        if not away.exists():
            base.rename(away)
            (base / ".millrace" / "sink-1").mkdir(parents=True)
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", move_before)
    target.create(target.staging / "000001.part").close()
    assert (away / ".millrace" / "sink-1" / "000001.part").exists()
    assert not (target.staging / "000001.part").exists()


def test_size_of_a_file_below_an_earlier_base_is_found(base: Path, tmp_path: Path) -> None:
    """The path in the configuration may have changed since a crash."""
    (tmp_path / "earlier.txt").write_bytes(b"12")
    assert _target_at(base).size_of(str(tmp_path / "earlier.txt")) == 2


def test_open_remote_removes_its_own_parts_only(tmp_path: Path, memory: Any) -> None:
    """Partial uploads of a crash are removed, and files of others stay."""
    memory.pipe_file("/bucket/logs/.millrace/sink-1/000009.part", b"left")
    memory.pipe_file("/bucket/logs/.millrace/sink-2/000001.part", b"another's")
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "000009.part").touch()
    target = _remote(tmp_path)
    assert memory.find("/bucket") == ["/bucket/logs/.millrace/sink-2/000001.part"]
    assert list(target.staging.iterdir()) == []


def test_publish_remote_sends_and_renames(tmp_path: Path, memory: Any) -> None:
    """Only the complete file is there, at its final name."""
    target = _remote(tmp_path)
    target.publish(_staged(target, b"content"), f"{ROOT}/dt=1/file.txt")
    assert memory.find("/bucket") == ["/bucket/logs/dt=1/file.txt"]
    assert memory.cat_file("/bucket/logs/dt=1/file.txt") == b"content"
    assert target.size_of(f"{ROOT}/dt=1/file.txt") == 7
    assert target.size_of(f"{ROOT}/dt=1/other.txt") is None
    assert list(target.staging.iterdir()) == []


def test_publish_remote_that_fails_on_the_way_shows_no_file(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted upload is not visible at the final name."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    target = _remote(tmp_path)
    staged = _staged(target, b"x")
    monkeypatch.setattr(type(memory), "mv", fail)
    with pytest.raises(OSError, match="Input/output error"):
        target.publish(staged, f"{ROOT}/file.txt")
    assert not memory.exists("/bucket/logs/file.txt")
    assert staged.exists()


def test_call_that_raises_anything_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    """File system libraries raise errors of any type; the sink retries after all of them."""

    class StrangeError(Exception):
        pass

    def make() -> FileSystem:
        raise StrangeError("no token")

    target = RemoteTarget(make, ROOT, tmp_path / "staging")
    with pytest.raises(OSError, match="StrangeError: no token"):
        target.open("sink-1")


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands in for the disks of Hadoop, whose host must be that of `HDFS_ROOT`."""
    disks = tmp_path / "disks"
    disks.mkdir()

    def connect(host: str, port: int, **_: object) -> SubTreeFileSystem:
        assert (host, port) == ("name", 8020)
        return SubTreeFileSystem(str(disks), LocalFileSystem())

    monkeypatch.setattr("pyarrow.fs.HadoopFileSystem", connect)
    # Of a former test, with other disks.
    HadoopFileSystem.clear_instance_cache()
    return disks


HDFS_ROOT = "hdfs://name:8020/logs"


def _hdfs_target(tmp_path: Path) -> RemoteTarget:
    target = RemoteTarget(lambda: open_file_system(HDFS_ROOT, {}), HDFS_ROOT, tmp_path / "staging")
    target.open("sink-1")
    return target


def test_publish_to_hdfs_sends_and_renames_below_its_directory(hdfs: Path, tmp_path: Path) -> None:
    """Hadoop gets the host of the URL and paths without it; what an earlier run left is removed."""
    (hdfs / "logs" / ".millrace" / "sink-1").mkdir(parents=True)
    (hdfs / "logs" / ".millrace" / "sink-1" / "000007.part").touch()
    target = _hdfs_target(tmp_path)
    target.publish(_staged(target, b"content"), f"{HDFS_ROOT}/dt=1/file.txt")
    assert [path for path in hdfs.rglob("*") if path.is_file()] == [hdfs / "logs" / "dt=1" / "file.txt"]
    assert (hdfs / "logs" / "dt=1" / "file.txt").read_bytes() == b"content"
    assert target.size_of(f"{HDFS_ROOT}/dt=1/file.txt") == 7
    assert target.size_of(f"{HDFS_ROOT}/dt=1/other.txt") is None


@pytest.mark.parametrize("directory", ["a?b=1", "a#b", "a%3Fb"])
def test_publish_to_hdfs_takes_no_part_of_a_path_for_a_query(hdfs: Path, tmp_path: Path, directory: str) -> None:
    """A header's value in a path may contain characters that mean something else in a URL."""
    target = _hdfs_target(tmp_path)
    target.publish(_staged(target, b"content"), f"{HDFS_ROOT}/{directory}/file.txt")
    assert (hdfs / "logs" / directory / "file.txt").read_bytes() == b"content"
    assert target.size_of(f"{HDFS_ROOT}/{directory}/other.txt") is None


def test_size_of_a_file_of_an_earlier_root_is_found(hdfs: Path, tmp_path: Path) -> None:
    """A receipt may name a file of an earlier configuration of the sink."""
    (hdfs / "elsewhere").mkdir()
    (hdfs / "elsewhere" / "file.txt").write_bytes(b"content")
    assert _hdfs_target(tmp_path).size_of("hdfs://name:8020/elsewhere/file.txt") == 7


S3_ROOT = "s3://bucket/logs"


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    """A fake S3."""
    with fake_s3() as made:
        yield made


def _s3_target(s3: FakeS3, tmp_path: Path) -> RemoteTarget:
    # By default, a server that does not respond for three seconds is given up.
    patient = dict.fromkeys(["request_timeout", "connect_timeout"], WAIT_SECONDS_MAX)
    options = {"endpoint_override": s3.endpoint, "scheme": "http", "access_key": "a", "secret_key": "b", **patient}
    target = RemoteTarget(lambda: open_file_system(S3_ROOT, options), S3_ROOT, tmp_path / "staging")
    target.open("sink-1")
    return target


def test_publish_to_s3_makes_one_whole_object(s3: FakeS3, tmp_path: Path) -> None:
    """An object is complete or absent, however many parts were uploaded."""
    target = _s3_target(s3, tmp_path)
    content = bytes(range(256)) * (80 << 10)
    target.publish(_staged(target, content), f"{S3_ROOT}/dt=1/large.txt")
    target.publish(_staged(target, b""), f"{S3_ROOT}/dt=1/empty.txt")
    assert s3.objects == {"bucket/logs/dt=1/large.txt": content, "bucket/logs/dt=1/empty.txt": b""}
    assert target.size_of(f"{S3_ROOT}/dt=1/large.txt") == len(content)
    assert target.size_of(f"{S3_ROOT}/dt=1/other.txt") is None


def test_publish_to_s3_of_a_file_that_cannot_be_read_leaves_no_object(
    s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial file never stays at the final name."""

    def fail_after_a_part(source: Any, copy: Any, _: int) -> None:
        copy.write(source.read(10))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    target = _s3_target(s3, tmp_path)
    monkeypatch.setattr(shutil, "copyfileobj", fail_after_a_part)
    with pytest.raises(OSError, match="Input/output error"):
        target.publish(_staged(target, b"x" * 100), f"{S3_ROOT}/file.txt")
    assert "bucket/logs/file.txt" not in s3.objects
