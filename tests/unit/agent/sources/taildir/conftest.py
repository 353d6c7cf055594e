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
    """The path of a log in that directory, which does not exist yet."""
    return logs / "app.log"
