from pathlib import Path

import pytest


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory for files to be tailed."""
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


@pytest.fixture
def log(logs: Path) -> Path:
    """A file in it that is not there yet."""
    return logs / "app.log"
