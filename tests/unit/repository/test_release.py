"""`make release`: dates, numbers and tags."""

import datetime as dt
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.repository.checkout import DISTRIBUTIONS, ROOT
from tools import build_distributions, release

TODAY = dt.date(2027, 1, 31)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the changelog and the distributions' metadata, in version 1.2.3, unreleased."""
    for name in DISTRIBUTIONS:
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / "pyproject.toml", tmp_path / name)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "CHANGELOG", tmp_path / "CHANGELOG.md")
    release.number_distributions("1.2.3")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - unreleased\n\n- A change.\n")
    (tmp_path / ".gitignore").write_text("dist/\n")
    _git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    _git(tmp_path, "config", "user.email", "tests@example.com")
    _git(tmp_path, "config", "user.name", "Tests")
    _git(tmp_path, "add", "--all")
    _git(tmp_path, "commit", "--quiet", "--message", "Begin")
    monkeypatch.setattr(build_distributions, "build", lambda folder: folder.mkdir())
    return tmp_path


def _git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["release", *arguments])
    release.main()


def test_release_of_a_clean_checkout_dates_commits_and_tags(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag is at a commit whose changelog has the date, and the packages are built."""
    before = dt.datetime.now(dt.UTC).date()
    _run(monkeypatch)
    days = {before, dt.datetime.now(dt.UTC).date()}
    changelog = _git(checkout, "show", "v1.2.3:CHANGELOG.md")
    assert any(f"## [1.2.3] - {day}" in changelog for day in days)
    assert _git(checkout, "log", "-1", "--format=%s") == "Release 1.2.3"
    assert _git(checkout, "cat-file", "-t", "v1.2.3") == "tag"
    assert (checkout / "dist").is_dir()


def test_release_with_next_numbers_the_distributions(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a release, `--next` opens the changelog's next version and writes it into all distributions."""
    release.date_version(TODAY)
    _git(checkout, "commit", "--quiet", "--all", "--message", "Release 1.2.3")
    _run(monkeypatch, "--next", "1.3.0")
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert changelog.index("## [1.3.0] - unreleased") < changelog.index("## [1.2.3] - 2027-01-31")
    for name in DISTRIBUTIONS:
        project = (checkout / name / "pyproject.toml").read_text()
        assert 'version = "1.3.0"' in project
        assert name == "client" or '"millrace-client==1.3.0"' in project


@pytest.mark.parametrize("version", ["1.2.3", "1.2.2", "2", "1.10", "v2.0.0"])
def test_open_version_not_above_the_newest_is_refused(checkout: Path, version: str) -> None:
    """A version that is no number above the newest changes nothing."""
    release.date_version(TODAY)
    before = (checkout / "CHANGELOG.md").read_text()
    with pytest.raises(release.ReleaseError, match=r"above 1\.2\.3"):
        release.open_version(version)
    assert (checkout / "CHANGELOG.md").read_text() == before


def test_release_twice_or_out_of_order_is_refused(checkout: Path) -> None:
    """A version is released once, and the next one is opened after that."""
    with pytest.raises(release.ReleaseError, match="not been released yet"):
        release.open_version("1.3.0")
    release.date_version(TODAY)
    with pytest.raises(release.ReleaseError, match="was released on 2027-01-31"):
        release.date_version(TODAY)


def test_release_with_uncommitted_changes_is_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release contains what is committed and nothing else."""
    (checkout / "new.txt").write_text("new")
    with pytest.raises(SystemExit, match="uncommitted changes"):
        _run(monkeypatch)
    assert _git(checkout, "tag") == ""


def test_release_whose_packages_cannot_be_built_leaves_the_checkout_clean(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the fault is mended, `make release` runs again."""

    def fail(_folder: Path) -> None:
        raise subprocess.CalledProcessError(1, "uv")

    monkeypatch.setattr(build_distributions, "build", fail)
    with pytest.raises(SystemExit, match=r"Not released: .*uv"):
        _run(monkeypatch)
    assert _git(checkout, "status", "--porcelain") == ""
    assert _git(checkout, "tag") == ""


def test_release_whose_tag_exists_is_refused_before_it_changes_anything(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit without its tag would look like a release."""
    _git(checkout, "tag", "v1.2.3")
    with pytest.raises(SystemExit, match=r"Not released: there is a tag v1\.2\.3 already"):
        _run(monkeypatch)
    assert _git(checkout, "log", "--format=%s") == "Begin"
    assert _git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(("name", "number"), [("client", "1.2.4"), ("server", "1.2.3 and 1.2.4")])
def test_release_of_distributions_with_another_version_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: str
) -> None:
    """Neither their own version nor one that they require of each other may differ from the changelog's."""
    project = checkout / name / "pyproject.toml"
    last = project.read_text().rindex("1.2.3")
    project.write_text(project.read_text()[:last] + "1.2.4" + project.read_text()[last + 5 :])
    _git(checkout, "commit", "--quiet", "--all", "--message", "Mistake")
    refused = f"Not released: {name}/pyproject.toml has version {number}, and CHANGELOG.md begins with 1.2.3"
    with pytest.raises(SystemExit, match=refused):
        _run(monkeypatch)
    assert _git(checkout, "status", "--porcelain") == ""


def test_release_outside_a_repository_says_what_git_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in an unpacked sdist."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SystemExit, match=r"Not released: `git status` says: fatal: not a git repository"):
        _run(monkeypatch)


def test_release_with_an_empty_next_is_no_release(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable in a script must not publish the current version."""
    release.date_version(TODAY)
    _git(checkout, "commit", "--quiet", "--all", "--message", "Release 1.2.3")
    with pytest.raises(SystemExit, match=r"the next version is X\.Y\.Z and above 1\.2\.3"):
        _run(monkeypatch, "--next", "")


def test_release_from_another_branch_is_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases are made from main."""
    _git(checkout, "checkout", "--quiet", "-b", "topic")
    with pytest.raises(SystemExit, match="branch main"):
        _run(monkeypatch)
