import errno
import fcntl
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import (
    CHANNEL_FILE,
    CHECKPOINTS_ONLY,
    ChannelFile,
    ChannelIdentity,
    DirectoryError,
)
from millrace_server.channels.directories import LOCK_FILE, DirectoryInUseError, lock_directory, open_directories
from millrace_server.wal.checkpoints import NEWEST
from millrace_server.wal.segments import segment_name
from tests.channel_directories import LOG_FILES, contents, made, opened, refusal_of


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tmp_path / "disk-a" / "orders"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "disk-b" / "orders"


@pytest.fixture
def c(tmp_path: Path) -> Path:
    return tmp_path / "disk-c" / "orders"


# The first start, and later ones.


def test_open_directories_when_missing_makes_them(a: Path, b: Path, c: Path) -> None:
    """A first start needs no preparation, and assigns the same new identity to all directories."""
    with closing(opened(a, b, checkpoint_dir=c)) as directories:
        identity = directories.identity
        assert (directories.data_dirs, directories.checkpoint_dir) == ((a, b), c)
    assert identity.name == "orders"
    assert identity.channel_id == identity.log_id
    assert [ChannelFile.read(path) for path in (a, b, c)] == [
        ChannelFile(identity, index, 2) for index in (0, 1, CHECKPOINTS_ONLY)
    ]
    assert {path.stat().st_mode & 0o777 for path in (a, b, c)} == {0o700}
    assert {(path / file).stat().st_mode & 0o777 for path in (a, b, c) for file in (LOCK_FILE, CHANNEL_FILE)} == {0o600}


def test_open_directories_again_changes_nothing(a: Path, b: Path, c: Path) -> None:
    """The identity stays the same at each start, whatever files the log has added."""
    identity = made(a, b, checkpoint_dir=c)
    for name in LOG_FILES:
        (b / name).write_bytes(b"events")
    before = contents(a, b, c)
    assert made(a, b, checkpoint_dir=c) == identity
    assert contents(a, b, c) == before


def test_open_directories_in_another_order_keeps_the_identity(a: Path, b: Path, c: Path) -> None:
    """An index only identifies a missing directory, so the order is free, and a directory may move."""
    identity = made(a, b)
    elsewhere = a.rename(a.parent / "elsewhere")
    assert made(b, elsewhere, checkpoint_dir=c) == identity
    assert ChannelFile.read(elsewhere) == ChannelFile(identity, 0, 2)


def test_open_directories_with_more_of_them_adds_them(a: Path, b: Path, c: Path) -> None:
    """Another disk is added by its name, at any place of the list; all directories then count it."""
    identity = made(a)
    assert made(b, a, c) == identity
    files = [ChannelFile.read(path) for path in (a, b, c)]
    assert files == [ChannelFile(identity, index, 3) for index in (0, 1, 2)]


def test_open_directories_with_the_former_checkpoint_directory_adds_it(a: Path, b: Path) -> None:
    """A directory that held only checkpoints may hold segments from now on."""
    identity = made(a, checkpoint_dir=b)
    (b / NEWEST).write_bytes(b"state")
    assert made(a, b) == identity
    assert ChannelFile.read(b) == ChannelFile(identity, 1, 2)


def test_open_directories_of_a_restored_channel_keeps_both_ids(a: Path, b: Path) -> None:
    """A channel restored from a backup has an id of its own, and its log that of the original."""
    restored = replace(ChannelIdentity.make("orders"), log_id=bytes(16))
    a.mkdir(parents=True)
    ChannelFile(restored, 0, 1).write(a)
    assert made(a, checkpoint_dir=b) == restored


def test_open_directories_through_a_link_uses_its_target(a: Path, b: Path, c: Path) -> None:
    """A channel's directory may be a link to another disk, and two names of one directory are one directory."""
    identity = made(a)
    b.parent.mkdir()
    b.symlink_to(a)
    assert made(b) == identity
    assert made(a, checkpoint_dir=b) == identity
    assert "same data directory twice" in refusal_of(a, b)
    assert "another channel or server" in str(in_use(a, b))
    assert not c.exists()


def in_use(first: Path, second: Path) -> DirectoryInUseError:
    with closing(opened(first)), pytest.raises(DirectoryInUseError) as refusal:
        opened(second)
    return refusal.value


# One user at a time.


def test_open_directories_of_another_channel_of_this_process_refuses(a: Path, b: Path, c: Path) -> None:
    """Two channels of one server never share a directory, not even for checkpoints."""
    with closing(opened(a, checkpoint_dir=c)):
        with pytest.raises(DirectoryInUseError, match=rf"cannot use {c}: .*\(process {os.getpid()}\) uses it"):
            opened(b, checkpoint_dir=c, name="other")
        os.close(lock_directory(b))


def test_open_directories_of_another_process_refuses_until_it_is_killed(a: Path) -> None:
    """The error names the process of the first server; a killed server leaves no lock behind."""
    program = (
        "import sys, pathlib; from millrace_server.channels.directories import open_directories as o; "
        "a = pathlib.Path(sys.argv[1]); d = o('orders', [a], a); "
        "print(d.identity.channel_id.hex(), flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(a)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        channel_id = other.stdout.readline().strip()
        with pytest.raises(DirectoryInUseError, match=rf"\(process {other.pid}\) uses it"):
            opened(a)
        other.kill()
        other.wait()
    assert made(a).channel_id.hex() == channel_id


def test_close_when_repeated_releases_the_locks_once(a: Path) -> None:
    """The directories can be locked again, and repeating the close does not unlock them."""
    first = opened(a)
    first.close()
    with closing(opened(a)):
        first.close()
        with pytest.raises(DirectoryInUseError):
            opened(a)


def test_lock_directory_of_an_owner_without_a_number_names_none(a: Path) -> None:
    """The content of the lock file is only used in the message, and need not be a process id."""
    with closing(opened(a)):
        (a / LOCK_FILE).write_bytes(b"\xff\x1b[31m")
        with pytest.raises(DirectoryInUseError, match="another channel or server uses it"):
            opened(a)


def test_lock_directory_on_a_full_disk_still_locks(a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock needs no space."""
    a.mkdir(parents=True)
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    descriptor = lock_directory(a)
    with pytest.raises(DirectoryInUseError, match="another channel or server uses it"):
        lock_directory(a)
    os.close(descriptor)


def test_lock_directory_while_the_file_is_removed_refuses(a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a file without a name would not exclude other servers."""
    a.mkdir(parents=True)
    flock = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        (a / LOCK_FILE).unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(DirectoryInUseError, match="it was being removed; try again"):
        lock_directory(a)


def test_lock_directory_where_locks_are_not_to_be_had_reports_it(a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks is refused, rather than shared by accident."""
    a.mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(DirectoryError, match=f"cannot lock {a}: No locks available"):
        lock_directory(a)


def test_lock_directory_of_a_link_does_not_follow_it(a: Path, tmp_path: Path) -> None:
    """A link in place of the lock neither creates nor changes a file elsewhere."""
    a.mkdir(parents=True)
    (a / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    assert f"cannot use {a / LOCK_FILE}: it is a link" in refusal_of(a)
    assert not (tmp_path / "elsewhere").exists()


# Refusals.


def test_open_directories_of_another_name_refuses(a: Path) -> None:
    """A directory belongs to one channel, and contains its name."""
    made(a)
    assert f"{a / CHANNEL_FILE}: belongs to channel 'orders'; give 'other' a directory of its own" in refusal_of(
        a, name="other"
    )


def test_open_directories_of_two_channels_of_one_name_refuses(a: Path, b: Path) -> None:
    """Directories that come from different channels are never mixed, though the names are the same."""
    made(a)
    made(b)
    assert f"{b / CHANNEL_FILE}: belongs to a channel 'orders' that was created at another time" in refusal_of(a, b)


def test_open_directories_without_one_of_them_refuses(a: Path, b: Path, c: Path) -> None:
    """Reports a disk that is not mounted, whether its directory is not named, is missing, or is empty."""
    made(a, b, checkpoint_dir=c)
    sentence = f"has 2 data directories, numbered from 0; 1 is not among those given, {a}"
    assert sentence in refusal_of(a, checkpoint_dir=c)
    assert sentence in refusal_of(a, checkpoint_dir=b)
    b.rename(b.parent / "unmounted")
    assert sentence in refusal_of(a, b, checkpoint_dir=c)
    (b / LOCK_FILE).unlink()
    assert "1 is not among" in refusal_of(a, b, checkpoint_dir=c)
    assert f"0, 1 is not among those given, {b}" in refusal_of(b, checkpoint_dir=c)


def test_open_directories_with_a_copy_of_one_refuses(a: Path, b: Path, c: Path) -> None:
    """If two directories claim the same identity, it is unknown which one is valid."""
    made(a, b)
    c.mkdir(parents=True)
    (c / CHANNEL_FILE).write_bytes((b / CHANNEL_FILE).read_bytes())
    sentence = f"{c} and {b} both say that they are data directory 1 of channel 'orders'; one is a copy"
    assert sentence in refusal_of(a, b, c)
    assert sentence in refusal_of(a, b, checkpoint_dir=c)


@pytest.mark.parametrize("name", LOG_FILES)
def test_open_directories_of_a_log_without_identity_refuses(a: Path, b: Path, name: str) -> None:
    """A directory with a log but without an identity is never used as a new directory."""
    made(a)
    b.mkdir(parents=True)
    (b / name).write_bytes(b"events")
    for directories in ([b], [a, b]):
        words = f"{b / CHANNEL_FILE}: is missing, but there is {name}; `millraced log repair` rebuilds it"
        assert words in refusal_of(*directories)


def test_open_directories_of_a_damaged_or_later_file_refuses(a: Path, b: Path) -> None:
    """The file is not repaired from the other directories, and nothing is changed."""
    made(a, b)
    content = (b / CHANNEL_FILE).read_bytes()
    (b / CHANNEL_FILE).write_bytes(content.replace(b'"index": 1', b'"index": 0'))
    assert f"{b / CHANNEL_FILE} is damaged: its checksum" in refusal_of(a, b)
    (b / CHANNEL_FILE).write_bytes(content.replace(b'"version": 1', b'"version": 2'))
    assert "its version is '2'" in refusal_of(a, b)


def test_open_directories_where_a_file_is_in_the_way_reports_it(a: Path, b: Path) -> None:
    """A path that cannot be a directory is refused with a sentence, whose cause is the system's error."""
    a.parent.mkdir()
    a.touch()
    for path in (a, a / "below"):
        with pytest.raises(DirectoryError, match=f"cannot use {path}") as refusal:
            opened(b, path)
        assert isinstance(refusal.value.__cause__, OSError)


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_open_directories_when_any_call_fails_reports_it_and_can_be_repeated(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of any call no lock is held, and the next start succeeds."""
    for nth in range(100):
        path, checkpoint_dir = tmp_path / str(nth) / "orders", tmp_path / str(nth) / "checkpoints"
        path.parent.mkdir()
        with monkeypatch.context() as patch:
            fail_nth(nth, patch, number)
            refusal = outcome_of(path, checkpoint_dir)
        made(path, checkpoint_dir=checkpoint_dir)
        if refusal is None:
            assert nth > 15
            return
        assert isinstance(refusal.__cause__, OSError)
    pytest.fail("there was no end of calls")


def outcome_of(path: Path, checkpoint_dir: Path) -> DirectoryError | None:
    try:
        made(path, checkpoint_dir=checkpoint_dir)
    except DirectoryError as error:
        return error
    return None


def fail_nth(nth: int, patch: pytest.MonkeyPatch, number: int) -> None:
    """Makes the nth call that changes the disk fail, counted from 0."""
    left = itertools.count(nth, -1)

    def count(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(left) == 0:
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return call

    for name in ("mkdir", "open", "fsync", "replace"):
        patch.setattr(os, name, count(getattr(os, name)))


def test_open_directories_below_a_directory_that_may_not_be_read_works(
    a: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the directory need not grant access to its parent."""
    a.mkdir(parents=True)
    open_file = os.open

    def refuse_above(path: Path, *arguments: int) -> int:
        if path == a.parent:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, *arguments)

    monkeypatch.setattr(os, "open", refuse_above)
    made(a)


# Deletion.


def test_remove_leaves_nothing(a: Path, b: Path, c: Path) -> None:
    """Not even the directories of a deleted channel remain."""
    directories = opened(a, b, checkpoint_dir=c)
    for path in (a, b, c):
        for name in (*LOG_FILES, CHANNEL_FILE + ".tmp"):
            (path / name).write_bytes(b"events")
    directories.mark_deleted()
    directories.remove()
    assert not any(path.exists() for path in (a, b, c))
    assert all(path.parent.exists() for path in (a, b, c))


def test_remove_keeps_files_of_others(a: Path, b: Path) -> None:
    """Files that the server did not create stay, and so does a link to a directory."""
    a.mkdir(parents=True)
    b.parent.mkdir()
    (b.parent / "target").mkdir()
    b.symlink_to(b.parent / "target")
    others = ["notes.txt", "segment-1.log", "segment-000000000001.log.gz", "checkpoint.old", "channel.json.bak"]
    directories = opened(a, b)
    for name in others:
        (a / name).write_bytes(b"theirs")
    directories.mark_deleted()
    directories.remove()
    assert sorted(path.name for path in a.iterdir()) == sorted(others)
    assert b.is_symlink()
    assert not list(b.iterdir())


def test_remove_when_it_fails_can_be_repeated(a: Path, b: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error keeps the locks and leaves the rest to another call."""
    directories = opened(a, b)
    (b / LOG_FILES[0]).write_bytes(b"events")
    directories.mark_deleted()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            directories.remove()
    with pytest.raises(DirectoryInUseError):
        opened(a)
    directories.remove()
    assert not a.exists()
    assert not b.exists()


@pytest.mark.parametrize("marked", [[0], [1], [0, 1]])
def test_open_directories_when_one_is_marked_creates_the_channel_again(
    a: Path, b: Path, c: Path, marked: Sequence[int]
) -> None:
    """A deletion that was decided is finished at the next start, whichever mark the crash has left."""
    before = made(a, b, checkpoint_dir=c)
    for path in (a, b, c):
        for name in LOG_FILES:
            (path / name).write_bytes(b"events")
    for index in marked:
        ChannelFile(before, index, 2, is_deleted=True).write((a, b)[index])
    after = made(a, b, checkpoint_dir=c)
    assert after.channel_id != before.channel_id
    assert [sorted(file.name for file in path.iterdir()) for path in (a, b, c)] == [[CHANNEL_FILE, LOCK_FILE]] * 3


@pytest.mark.parametrize("marked", [[0], [1], [0, 1]])
def test_open_directories_of_a_channel_that_was_moved_refuses_unless_it_is_to_be_forgotten(
    a: Path, b: Path, marked: Sequence[int]
) -> None:
    """One mark is enough. Forgotten, it can be deleted like any other."""
    before = made(a, b)
    for index in marked:
        ChannelFile(before, index, 2, moved_to="stream MILLRACE_orders").write((a, b)[index])
    assert refusal_of(a, b) == (
        f"{(a, b)[marked[0]] / CHANNEL_FILE}: channel 'orders' was moved to stream MILLRACE_orders; start the server "
        f"with the configuration file that says so, or move {a} and {b} away to begin with an empty channel"
    )
    directories = open_directories("orders", [a, b], a, forgets_moved=True)
    assert directories.identity.channel_id != before.channel_id
    directories.mark_deleted()
    directories.remove()
    assert not a.exists()
    assert not b.exists()


def test_mark_deleted_when_the_disk_is_full_takes_everything_back(
    a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused deletion does not happen at the next start."""
    with closing(opened(a, b)) as directories:
        identity = directories.identity
        before = contents(a, b)
        with monkeypatch.context() as patch:
            fail_in(b, patch, errno.ENOSPC, "replace")
            with pytest.raises(OSError, match="No space left"):
                directories.mark_deleted()
        assert contents(a, b) == before
        directories.mark_deleted()
    assert made(a, b) != identity


def fail_in(directory: Path, patch: pytest.MonkeyPatch, number: int, call: str, *, after: int = 0) -> None:
    """Makes a call in one directory fail after some that succeed."""
    real = getattr(os, call)
    left = after

    def fail(target: Path | int, *arguments: object, **options: object) -> object:
        nonlocal left
        path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
        if path == directory or (path.parent == directory and call != "fsync"):
            left -= 1
            if left < 0:
                raise OSError(number, os.strerror(number))
        return real(target, *arguments, **options)

    patch.setattr(os, call, fail)


def test_mark_deleted_when_a_mark_cannot_be_removed_reports_an_unknown_outcome(
    a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that may be deleted at the next start refuses events; marking it again resolves the outcome."""
    with closing(opened(a, b)) as directories:
        identity = directories.identity
        with monkeypatch.context() as patch:
            fail_in(b, patch, errno.ENOSPC, "replace")
            fail_in(a, patch, errno.ENOSPC, "replace", after=1)
            with pytest.raises(DirectoryError, match="it is unknown whether") as refusal:
                directories.mark_deleted()
        assert isinstance(refusal.value.__cause__, OSError)
        directories.mark_deleted()
    assert made(a, b) != identity


def test_mark_deleted_when_a_name_is_not_synced_reports_an_unknown_outcome(
    a: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark may have a name that is not on the disk."""
    with closing(opened(a)) as directories:
        with monkeypatch.context() as patch:
            fail_in(a, patch, errno.EIO, "fsync")
            with pytest.raises(DirectoryError, match="the sync of its name failed"):
                directories.mark_deleted()
        directories.mark_deleted()
        directories.remove()
    assert not a.exists()


def test_log_files_are_those_of_the_format(a: Path) -> None:
    """The removed names are those that FORMAT.md lists."""
    page = (Path(segment_name.__code__.co_filename).parent / "FORMAT.md").read_text()
    named = set(
        re.findall(r"^\| `([^`]+)` \| (?:one of the data|the same|the checkpoint) director", page, re.MULTILINE)
    )
    assert named == {name.replace("2", "1") for name in LOG_FILES}
