import asyncio
import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.channel_file import CHANNEL_FILE, ChannelFile
from millrace_server.channels.config import EncryptionConfig
from millrace_server.channels.directories import DirectoryInUseError, lock_directory
from millrace_server.log_tools import view
from millrace_server.log_tools.backup import ToolContext, back_up, restore
from millrace_server.log_tools.layout import DamagedError, FilesPlace, ToolError, UnavailableError, UsageError
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import Report
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.disk import OsDisk, OsFile
from millrace_server.wal.payload_codec import PayloadCodec
from tests.channel_events import append, numbered
from tests.unit.log_tools.full_disk import FullDisk
from tests.unit.log_tools.kept_channels import (
    NAME,
    TOOLS,
    contents,
    copied,
    durable_state_of,
    fill,
    flip,
    layout_of,
    make_channel,
    open_channel,
    opened_again,
    segments,
)

KEY = bytes(range(32))


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    back_up(layout_of(made), tmp_path / "backup", TOOLS)
    return tmp_path / "backup"


def target_of(directory: Path) -> FilesPlace:
    return FilesPlace([directory], PayloadCodec())


# Backup.


def test_back_up_of_a_closed_channel_copies_what_it_is(made: Path, backup: Path) -> None:
    """Only the zeros after its end are omitted, and the channel is not changed."""
    assert durable_state_of(backup) == durable_state_of(made)
    assert ChannelFile.read(backup) == ChannelFile.read(made)
    assert [path.name for path in segments(backup)] == [path.name for path in segments(made)]
    assert not (backup / PREVIOUS).exists()


async def test_back_up_of_an_open_channel_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    """The backup takes no lock and does not delay the channel; uncommitted events are not in it."""
    # The proof that the backup waits for.
    async with open_channel(tmp_path, sync_point_seconds=0.05) as channel:
        for number in range(5):
            await fill(channel, 2, first_round=2 * number)
            await append(channel, b"the last of %d" % number)
            events = numbered(list(channel._contents.queue))
            target = tmp_path / f"backup-{number}"
            report = await asyncio.to_thread(back_up, layout_of(tmp_path / NAME), target, TOOLS)
            assert report.is_good
            assert report.recovered is not None
            assert report.recovered.next_sequence == channel._contents.next_sequence
            assert report.recovered.queue.event_count == len(events)
            restored = tmp_path / f"restored-{number}" / NAME
            await asyncio.to_thread(restore, target, target_of(restored), TOOLS)
            async with open_channel(restored.parent) as other:
                assert numbered(list(other._contents.queue)) == events


def test_back_up_of_several_directories_merges_them(tmp_path: Path) -> None:
    """A backup is one directory, like a channel with one."""
    data_dirs = [tmp_path / "disk-a", tmp_path / "disk-b"]
    make_channel(tmp_path, data_dirs=data_dirs, checkpoint_dir=tmp_path / "disk-c")
    homes = [path / NAME for path in (*data_dirs, tmp_path / "disk-c")]
    assert back_up(layout_of(*homes), tmp_path / "backup", TOOLS).is_good
    file = ChannelFile.read(tmp_path / "backup")
    assert file is not None
    assert (file.index, file.count) == (0, 1)
    assert len(segments(tmp_path / "backup")) == sum(len(segments(home)) for home in homes)
    assert (tmp_path / "backup" / NEWEST).exists()


def test_back_up_without_a_newest_checkpoint_takes_the_one_before(made: Path, tmp_path: Path) -> None:
    """Between the two renames of a checkpoint there is no newest one."""
    home = copied(made, tmp_path / NAME)
    (home / NEWEST).unlink()
    back_up(layout_of(home), tmp_path / "backup", TOOLS)
    assert (tmp_path / "backup" / NEWEST).read_bytes() == (home / PREVIOUS).read_bytes()


def test_back_up_of_a_damaged_channel_tells_what_is_damaged(made: Path, tmp_path: Path) -> None:
    """The copy has the same damage as the channel."""
    home = copied(made, tmp_path / NAME)
    flip(segments(home)[0], 300)
    report = back_up(layout_of(home), tmp_path / "backup", TOOLS)
    assert not report.is_good
    assert report.scan.damages[0].segment_id == 1


def test_back_up_of_a_channel_that_does_not_say_who_it_is_is_refused(made: Path, tmp_path: Path) -> None:
    """A restored channel needs the identity."""
    home = copied(made, tmp_path / NAME)
    (home / CHANNEL_FILE).unlink()
    with pytest.raises(DamagedError, match="is missing; repair it with: millraced log repair"):
        back_up(layout_of(home), tmp_path / "backup", TOOLS)
    assert not (tmp_path / "backup").exists()


def test_back_up_into_a_place_that_is_taken_is_refused(made: Path, tmp_path: Path) -> None:
    """Existing files are never mixed in or overwritten."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file\n").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(made)
    for target, words in [
        ("full", r"is not empty, it contains 'file\\n'"),
        ("file", "cannot be used"),
        ("file/below", "cannot be used"),
        ("a\0b", "it is not a valid path"),
        ("link", "lies in"),
        ("link/below", "lies in"),
    ]:
        with pytest.raises(UsageError, match=words):
            back_up(layout_of(made), tmp_path / target, TOOLS)
    assert not (made / "below").exists()


@pytest.mark.parametrize("nth", range(1, 20))
def test_back_up_on_a_full_disk_leaves_no_complete_backup(made: Path, tmp_path: Path, nth: int) -> None:
    """An interrupted copy is not taken for a backup."""
    tools = ToolContext(PayloadCodec(), ToolProgress(), FullDisk(nth))
    with pytest.raises(ToolError, match="No space left on device; free some space"):
        back_up(layout_of(made), tmp_path / "backup", tools)
    with pytest.raises(UsageError):
        restore(tmp_path / "backup", target_of(tmp_path / "restored"), TOOLS)
    assert not (tmp_path / "restored").exists()


def test_back_up_with_a_full_disk_for_the_last_file_leaves_no_complete_backup(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that completes a backup is written last."""

    def refuse(*_arguments: object) -> None:
        raise FullDisk(1).error()

    with monkeypatch.context() as patched:
        patched.setattr(ChannelFile, "write", refuse)
        with pytest.raises(ToolError, match="No space left on device"):
            back_up(layout_of(made), tmp_path / "backup", TOOLS)
    with pytest.raises(UsageError, match="is not a complete backup"):
        restore(tmp_path / "backup", target_of(tmp_path / "restored"), TOOLS)


# Consistent views.


class Removing(OsDisk):
    """Removes the segment that is opened, as a server may do after a checkpoint."""

    def __init__(self, count: int) -> None:
        self.count = count

    def open(self, path: Path, *, writable: bool = False) -> OsFile:
        if self.count:
            self.count -= 1
            path.unlink()
        return super().open(path, writable=writable)


def test_open_view_while_segments_go_begins_again(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed segments are not needed by a checkpoint any more; the next attempt sees a consistent state."""
    home = copied(made, tmp_path / NAME)
    removing = Removing(2)
    monkeypatch.setattr(view, "OsDisk", lambda: removing)
    with open_view(layout_of(home)) as seen:
        assert [segment.segment_id for segment in seen.segments] == list(range(3, len(segments(made)) + 1))


def test_open_view_while_segments_never_rest_gives_up(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts are bounded."""
    home = copied(made, tmp_path / NAME)
    monkeypatch.setattr(view, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(view, "segment_paths", iter_of_ever_other_segments(home))
    message = "segments are created and removed faster than they can be read; try again"
    with pytest.raises(UnavailableError, match=message), open_view(layout_of(home)):
        pass


def iter_of_ever_other_segments(home: Path) -> Any:
    numbers = iter(range(1, 1000))
    return lambda _directories: [(number := next(numbers), home / f"segment-{number:012}.log")]


def test_open_view_of_what_may_not_be_read_says_so(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files may be valid, but the user of the tool cannot read them."""

    class Refusing(OsDisk):
        def open(self, path: Path, *, writable: bool = False) -> OsFile:
            raise PermissionError(errno.EACCES, "Permission denied")

    home = copied(made, tmp_path / NAME)
    monkeypatch.setattr(view, "OsDisk", Refusing)
    with pytest.raises(UnavailableError, match=r"cannot read .*: Permission denied"), open_view(layout_of(home)):
        pass


def test_open_view_with_a_checkpoint_that_may_not_be_read_says_so(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing permission is not damage; a read error of the disk is."""
    home = copied(made, tmp_path / NAME)
    refusal: OSError = PermissionError(errno.EACCES, "Permission denied")

    def refuse(_path: Path) -> bytes:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        refused = pytest.raises(UnavailableError, match=r"cannot read .*checkpoint: Permission denied")
        with refused, open_view(layout_of(home)):
            pass
        refusal = OSError(errno.EIO, "Input/output error")
        with open_view(layout_of(home)) as seen:
            assert [seen.disk.open(path).size() for path in seen.checkpoint_paths] == [0, 0]


# Restore.


def test_restore_makes_a_channel_that_a_server_opens(made: Path, backup: Path, tmp_path: Path) -> None:
    """Events, stamps and ended transactions are restored; for readers it is another channel."""
    restored = tmp_path / "data" / NAME
    report, layout = restore(backup, target_of(restored), TOOLS)
    assert report.is_good
    former, identity = ChannelFile.read(made), layout.identity
    assert former is not None
    assert identity is not None
    assert identity.channel_id != former.identity.channel_id
    assert identity.log_id == former.identity.log_id
    assert identity.made_at_microseconds > former.identity.made_at_microseconds
    assert durable_state_of(restored) == durable_state_of(made)
    events, next_sequence = opened_again(restored.parent)
    assert (len(events), next_sequence) == (47, 72)


def test_restore_to_a_directory_that_is_named_twice_writes_nothing(backup: Path, tmp_path: Path) -> None:
    """Half of the segments would be counted in a second directory, which does not exist."""
    home = tmp_path / "restored" / NAME
    home.parent.mkdir()
    (tmp_path / "link").symlink_to(home.parent)
    for twin in (home, tmp_path / "link" / NAME):
        with pytest.raises(UsageError, match="are the same directory; name it once"):
            restore(backup, FilesPlace([home, twin], PayloadCodec()), TOOLS)
    assert not home.exists()


def test_restore_to_several_directories_spreads_the_segments(made: Path, backup: Path, tmp_path: Path) -> None:
    """The segments are distributed as a server does; checkpoints may be in another directory."""
    data_dirs = [tmp_path / disk / NAME for disk in ("disk-a", "disk-b", "disk-c")]
    checkpoint_dir = tmp_path / "disk-d" / NAME
    report, _ = restore(backup, FilesPlace(data_dirs, PayloadCodec(), checkpoint_dir), TOOLS)
    assert report.is_good
    for index, directory in enumerate(data_dirs):
        assert {int(path.stem[-12:]) % 3 for path in segments(directory)} <= {index}
        file = ChannelFile.read(directory)
        assert file is not None
        assert (file.index, file.count) == (index, 3)
    assert [path.name for path in sorted(checkpoint_dir.iterdir())] == [CHANNEL_FILE, NEWEST, "lock"]
    limits: dict[str, Any] = {
        "data_dirs": [path.parent for path in data_dirs],
        "checkpoint_dir": checkpoint_dir.parent,
    }
    assert opened_again(tmp_path, **limits)[1] == 72
    assert durable_state_of(made).next_sequence == 72


def test_restore_under_another_name_makes_a_channel_of_that_name(backup: Path, tmp_path: Path) -> None:
    """The channel can exist next to the original."""
    _, layout = restore(backup, target_of(tmp_path / "copy"), TOOLS, "copy")
    assert layout.name == "copy"
    assert opened_again(tmp_path, "copy")[1] == 72
    with pytest.raises(UsageError, match="--name: is 'Not a name'; it must match"):
        restore(backup, target_of(tmp_path / "other"), TOOLS, "Not a name")


def test_restore_of_a_damaged_backup_makes_nothing(backup: Path, tmp_path: Path) -> None:
    """The backup is verified first."""
    flip(segments(backup)[1], 200)
    with pytest.raises(DamagedError, match=r"the backup is damaged: segment-000000000002\.log"):
        restore(backup, target_of(tmp_path / NAME), TOOLS)
    assert not (tmp_path / NAME).exists()


def test_restore_to_a_place_in_use_changes_nothing(backup: Path, tmp_path: Path) -> None:
    """No existing file is overwritten."""
    home = tmp_path / NAME
    home.mkdir()
    (home / "file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        restore(backup, target_of(home), TOOLS)
    (home / "file").unlink()
    lock = lock_directory(home)
    try:
        with pytest.raises(DirectoryInUseError):
            restore(backup, target_of(home), TOOLS)
    finally:
        os.close(lock)
    assert restore(backup, target_of(home), TOOLS)[0].is_good
    with pytest.raises(UsageError, match="lies in"):
        restore(backup, target_of(backup / "below"), TOOLS)


@pytest.mark.parametrize("nth", [1, 2, 3, 5, 9, 17, 19])
def test_restore_on_a_full_disk_leaves_what_no_server_takes_for_a_channel(
    backup: Path, tmp_path: Path, nth: int
) -> None:
    """The file that completes a channel is written last."""
    home = tmp_path / NAME
    with pytest.raises(ToolError, match="No space left on device"):
        restore(backup, target_of(home), ToolContext(PayloadCodec(), ToolProgress(), FullDisk(nth)))
    assert not (home / CHANNEL_FILE).exists()
    shutil.rmtree(home)
    assert restore(backup, target_of(home), TOOLS)[0].is_good


# Keys.


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    return file


def test_back_up_and_restore_without_the_key_compare_checksums(key_file: Path, tmp_path: Path) -> None:
    """A backup needs no keys, and reports those that are needed to read it."""
    encryption = EncryptionConfig(keys={"2026": key_file}, active_key="2026")
    limits: dict[str, Any] = {"encryption": encryption, "compression": "zstd"}
    home = make_channel(tmp_path, **limits)

    def check(report: Report, *, is_decoded: bool) -> None:
        assert report.is_good
        assert report.scan.is_decoded is is_decoded
        assert report.scan.key_ids == {"2026"}

    check(back_up(layout_of(home), tmp_path / "closed", TOOLS), is_decoded=False)
    opened = replace(TOOLS, codec=PayloadCodec(keys={"2026": KEY}))
    check(back_up(layout_of(home), tmp_path / "opened", opened), is_decoded=True)
    assert {path.name: content for path, content in contents(tmp_path / "closed").items()} == {
        path.name: content for path, content in contents(tmp_path / "opened").items()
    }
    check(restore(tmp_path / "closed", target_of(tmp_path / "data" / NAME), TOOLS)[0], is_decoded=False)
    assert opened_again(tmp_path / "data", **limits)[1] == 72
