"""`millraced import-flume`, as far as `tests/integration/test_flume_import.py` does not test it."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_server.cli import app


def test_import_flume_to_a_full_disk_leaves_no_part_of_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command works once there is space."""
    flume, toml = tmp_path / "f.conf", tmp_path / "to" / "millrace.toml"
    flume.write_text("a.channels = c\na.channels.c.type = memory\n")
    toml.parent.mkdir()

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        refused = CliRunner().invoke(app, ["import-flume", str(flume), "--output", str(toml)])
    assert (refused.exit_code, "cannot be written: No space left" in refused.stderr) == (1, True), refused.output
    assert list(toml.parent.iterdir()) == []
    assert CliRunner().invoke(app, ["import-flume", str(flume), "--output", str(toml)]).exit_code == 0
    assert CliRunner().invoke(app, ["import-flume", str(flume), "--output", str(toml)]).exit_code == 1
