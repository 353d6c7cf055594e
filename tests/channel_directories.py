"""Directories of a channel that tests open, and refusals to open them."""

import os
from contextlib import closing, suppress
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import ChannelIdentity, DirectoryError
from millrace_server.channels.directories import (
    LOCK_FILE,
    ChannelDirectories,
    DirectoryInUseError,
    lock_directory,
    open_directories,
)
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.segments import segment_name

LOG_FILES = [segment_name(1), "segment-000000000002.new", NEWEST, PREVIOUS, "checkpoint.new"]
"""All names of a log's files in FORMAT.md."""


def opened(*names: Path, checkpoint_dir: Path | None = None, name: str = "orders") -> ChannelDirectories:
    """Data directories, with the checkpoints in the first one by default."""
    return open_directories(name, names, checkpoint_dir or names[0])


def made(*names: Path, checkpoint_dir: Path | None = None) -> ChannelIdentity:
    """The identity of a channel that was opened and closed."""
    with closing(opened(*names, checkpoint_dir=checkpoint_dir)) as directories:
        return directories.identity


def contents(*directories: Path) -> dict[Path, bytes]:
    """All files except the locks."""
    files = (file for directory in directories for file in directory.rglob("*"))
    return {file: file.read_bytes() for file in files if file.is_file() and file.name != LOCK_FILE}


def refusal_of(*names: Path, checkpoint_dir: Path | None = None, name: str = "orders") -> str:
    """The error with which directories are refused; nothing in them may change, and their locks must be free."""
    before = contents(*names)
    with pytest.raises(DirectoryError) as refusal:
        opened(*names, checkpoint_dir=checkpoint_dir, name=name)
    assert contents(*names) == before
    for path in names:
        if path.is_dir() and not isinstance(refusal.value, DirectoryInUseError):
            with suppress(DirectoryError):
                os.close(lock_directory(path))
    return str(refusal.value)
