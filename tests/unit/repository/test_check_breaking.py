"""`tools/check_breaking.py`, in temporary repositories."""

import subprocess
from pathlib import Path

import pytest

from tools import check_breaking


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit and no contract."""
    monkeypatch.setattr(check_breaking, "ROOT", tmp_path)
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    return tmp_path


def _commit_contract(repository: Path, content: str) -> str:
    (repository / "buf.yaml").write_text(content)
    _git(repository, "add", ".")
    _git(repository, "commit", "--quiet", "--message", content)
    return _git(repository, "rev-parse", "HEAD")


def test_previous_version_of_a_first_contract_is_none(repository: Path) -> None:
    """Neither a first commit nor the commit that adds the contract can break it."""
    assert check_breaking.previous_version() is None
    _commit_contract(repository, "one")
    assert check_breaking.previous_version() is None


def test_previous_version_without_releases_is_the_commit_before(repository: Path) -> None:
    """Before the first release a commit is compared with the one before."""
    first = _commit_contract(repository, "one")
    _commit_contract(repository, "two")
    assert check_breaking.previous_version() == first


def test_previous_version_after_a_release_is_the_release(repository: Path) -> None:
    """Released versions must stay compatible, however old they are."""
    _commit_contract(repository, "one")
    _git(repository, "tag", "v0.1.0")
    _commit_contract(repository, "two")
    _commit_contract(repository, "three")
    assert check_breaking.previous_version() == "v0.1.0"
