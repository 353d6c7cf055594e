"""Spool directories for tests of the source `spooldir`."""

import os
from pathlib import Path
from typing import Any

from millrace_server.agent.sources.spooldir.config import SpooldirSourceConfig
from millrace_server.agent.sources.spooldir.content import SpoolFile
from millrace_server.agent.sources.spooldir.scanner import FileStatus, FoundFile


def spool_config(directory: Path, **settings: Any) -> SpooldirSourceConfig:
    """A source of this directory, without delays unless the test sets them."""
    quick = {"poll_seconds": 0.05, "settle_seconds": 0.0}
    tables = {"type": "spooldir", "channels": ["lines"], "directory": str(directory), **quick, **settings}
    return SpooldirSourceConfig.model_validate(tables, strict=True)


def put(directory: Path, name: str, content: bytes = b"", *, modified_seconds: float | None = None) -> Path:
    """Puts a complete file into a spool directory with a single rename."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f".{path.name}"
    hidden.write_bytes(content)
    if modified_seconds is not None:
        os.utime(hidden, (modified_seconds, modified_seconds))
    return hidden.rename(path)


def locate(path: Path) -> FoundFile:
    """A file as the source's scan finds it."""
    return FoundFile(path, FileStatus.of(path.lstat()))


def opened(path: Path) -> SpoolFile:
    """A file that is open for reading."""
    return SpoolFile.open(locate(path))


def names_in(directory: Path) -> list[str]:
    """The paths of all files below a directory, without hidden ones, which are temporary."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not path.name.startswith("."))
