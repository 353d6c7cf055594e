"""Fixtures of the tests of the log's tools."""

from pathlib import Path

import pytest

from tests.unit.log_tools.kept_channels import NAME, copied, make_channel


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel that tests only read."""
    return make_channel(tmp_path_factory.mktemp("made"))


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return copied(made, tmp_path / NAME)
