import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import CHANNEL_FILE, ChannelFile
from millrace_server.log_tools.layout import UnavailableError, UsageError, find_layout
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from tests.unit.log_tools.kept_channels import NAME, copied, flip, make_channel, segments


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The directories of one channel: two for segments, one for checkpoints."""
    folder = tmp_path_factory.mktemp("layout")
    make_channel(folder, data_dirs=[folder / "a", folder / "b"], checkpoint_dir=folder / "c")
    return folder / "a" / NAME, folder / "b" / NAME, folder / "c" / NAME


def test_find_layout_in_any_order_finds_the_channels_own(made: tuple[Path, Path, Path]) -> None:
    """The directories' own files determine the layout, not the order of the arguments."""
    a, b, c = made
    layout = find_layout([c, b, a])
    assert layout.directories == (a, b, c)
    assert layout.checkpoint_dir == c
    assert layout.name == NAME
    assert layout.identity is not None
    assert layout.log_id == layout.identity.log_id
    assert layout.problems == {}


def test_find_layout_without_any_channel_file_asks_the_segments(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A segment contains the channel's identity, and checkpoints are where they are found."""
    homes = [copied(path, tmp_path / str(index)) for index, path in enumerate(made)]
    for home in homes:
        (home / CHANNEL_FILE).unlink()
    flip(min(segment for home in homes for segment in segments(home)), 20)
    layout = find_layout(homes)
    assert layout.log_id == find_layout(made).log_id
    assert layout.identity is None
    assert len(layout.problems) == 3
    assert layout.checkpoint_dir == homes[2]


def test_find_layout_with_all_headers_damaged_asks_a_checkpoint(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """It contains the channel's identity, too; where it is damaged as well, the sentence says what is needed."""
    homes = [copied(path, tmp_path / str(index)) for index, path in enumerate(made)]
    for home in homes:
        (home / CHANNEL_FILE).unlink()
        for segment in segments(home):
            flip(segment, 20)
    flip(homes[2] / NEWEST, 70)
    assert find_layout(homes).log_id == find_layout(made).log_id
    flip(homes[2] / PREVIOUS, 20)
    with pytest.raises(UsageError, match=r"nothing states which channel this is.*restore channel\.json from a backup"):
        find_layout(homes)


def test_find_layout_of_segments_that_disagree_is_refused(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Without a channel file, nothing says which of them are the channel's own."""
    home = copied(made[1], tmp_path / NAME)
    (home / CHANNEL_FILE).unlink()
    (stranger,) = segments(make_channel(tmp_path / "other", rounds=0))
    (home / stranger.name).write_bytes(stranger.read_bytes())
    with pytest.raises(UsageError, match=f"{stranger.name} belongs to .*; move away those that do not belong here"):
        find_layout([home])


def test_find_layout_without_one_of_the_directories_is_refused(made: tuple[Path, Path, Path]) -> None:
    """A part of a log would look damaged."""
    with pytest.raises(UsageError, match="has 2 data directories, numbered from 0; 1 is not among those given"):
        find_layout([made[0], made[2]])


def test_find_layout_of_two_channels_is_refused(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The directories do not belong together."""
    other = make_channel(tmp_path)
    with pytest.raises(UsageError, match="belong to different channels"):
        find_layout([*made, other])


def test_find_layout_of_a_directory_twice_is_refused(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """This holds for different names of one directory, too."""
    (tmp_path / "link").symlink_to(made[0])
    with pytest.raises(UsageError, match="are the same directory; name it once"):
        find_layout([*made, tmp_path / "link"])


def test_find_layout_of_what_is_no_channel_says_why(tmp_path: Path) -> None:
    """The sentence names the path, and what is expected."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, words in [
        ("nowhere", "is not a directory; name the directory that holds the channel's files"),
        ("file", "is not a directory"),
        ("file/below", "is not a directory"),
        ("empty", "holds no channel; name a channel's own directory"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "is not a directory"),
    ]:
        with pytest.raises(UsageError, match=words):
            find_layout([tmp_path / name])


def test_find_layout_of_another_versions_channel_is_refused(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Such a channel is not damaged, and must not be repaired."""
    home = copied(made[0], tmp_path / NAME)
    content = json.loads((home / CHANNEL_FILE).read_text())
    (home / CHANNEL_FILE).write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(UnavailableError, match="its version is '2', and this server knows version 1 only"):
        find_layout([home, *made[1:]])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": "x"}', "\xff", "[" * 100_000])
def test_find_layout_with_a_channel_file_of_nonsense_tells_it(
    made: tuple[Path, Path, Path], tmp_path: Path, content: str
) -> None:
    """The other directories still state the channel's identity."""
    home = copied(made[0], tmp_path / NAME)
    (home / CHANNEL_FILE).write_text(content, encoding="latin-1")
    layout = find_layout([home, *made[1:]])
    assert list(layout.problems) == [home]


def test_find_layout_of_a_deleted_channel_is_refused(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A deleted channel has no valid content."""
    home = copied(made[0], tmp_path / NAME)
    file = ChannelFile.read(home)
    assert file is not None
    replace(file, is_deleted=True).write(home)
    with pytest.raises(UnavailableError, match="the channel was being deleted"):
        find_layout([home, *made[1:]])


@pytest.mark.parametrize("name", ["segment-000000000009.log", NEWEST])
def test_open_view_of_a_pipe_does_not_wait_for_it(made: tuple[Path, Path, Path], tmp_path: Path, name: str) -> None:
    """Other files that are not regular do not block the tool either."""
    homes = [copied(path, tmp_path / str(index)) for index, path in enumerate(made)]
    (homes[2] / name).unlink(missing_ok=True)
    os.mkfifo(homes[2] / name)
    refused = pytest.raises(UsageError, match=f"{name}: is not a regular file; move it away")
    with refused, open_view(find_layout(homes)):
        pass


def test_open_view_of_a_link_that_leads_nowhere_says_so(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A dangling link does not block the tool."""
    homes = [copied(path, tmp_path / str(index)) for index, path in enumerate(made)]
    (homes[2] / NEWEST).unlink()
    (homes[2] / NEWEST).symlink_to(tmp_path / "nowhere")
    with open_view(find_layout(homes)) as view:
        assert [path.name for path in view.checkpoint_paths] == ["checkpoint.previous"]
