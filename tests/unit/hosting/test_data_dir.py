import os
from pathlib import Path

import pytest

from millrace_server.errors import StartError
from millrace_server.hosting.data_dir import locked_data_dir


def test_locked_data_dir_when_missing_makes_it(tmp_path: Path) -> None:
    """A first start needs no preparation."""
    with locked_data_dir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_locked_data_dir_when_in_use_refuses_the_second(tmp_path: Path) -> None:
    """Two servers never share a directory; the sentence names the first one's process."""
    with (
        locked_data_dir(tmp_path),
        pytest.raises(StartError, match=rf"another server \(process {os.getpid()}\) uses it"),
        locked_data_dir(tmp_path),
    ):
        pytest.fail("the lock was given twice")


def test_locked_data_dir_when_the_first_has_ended_is_free_again(tmp_path: Path) -> None:
    """What a server leaves behind does not keep the next one out."""
    with locked_data_dir(tmp_path):
        pass
    (tmp_path / "lock").write_bytes(b"\xff\xfe no process id")
    with locked_data_dir(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_locked_data_dir_when_a_file_is_in_the_way_says_so(tmp_path: Path, path: str) -> None:
    """What cannot be a directory is refused in a sentence that names the setting."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartError, match=r"cannot use .*file.* \(server\.data_dir\): "),
        locked_data_dir(tmp_path / path),
    ):
        pytest.fail("a file was taken for a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_locked_data_dir_when_read_only_says_so(tmp_path: Path) -> None:
    """A directory that cannot be written to is told at the start, not at the first write."""
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="Permission denied"), locked_data_dir(tmp_path):
        pytest.fail("a read-only directory was taken")
