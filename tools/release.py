"""Releases the version that the changelog begins with: dates it, builds the packages, commits and tags.

Nothing is published: pushing the tag starts the workflow that tests, builds and publishes. With `--next`, it opens the
following version instead: the changelog gets its heading, and the distributions get its number.
"""

import argparse
import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

from tools import build_distributions

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
_HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d\d-\d\d)$", re.MULTILINE)
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_OWN_REQUIREMENT = re.compile(r'"(millrace-[a-z]+)==([^"]+)"')


class ReleaseError(Exception):
    """Raised when the checkout is not ready; its message says what to do."""


def date_version(today: dt.date) -> str:
    """Replaces `unreleased` in the changelog's first heading, and returns the version."""
    version, date = _newest()
    if date != "unreleased":
        raise ReleaseError(f"{version} was released on {date}; open the next version with: make release NEXT=X.Y.Z")
    text = CHANGELOG.read_text()
    CHANGELOG.write_text(text.replace(f"## [{version}] - unreleased", f"## [{version}] - {today.isoformat()}", 1))
    return version


def open_version(version: str) -> None:
    """Begins the changelog of a version, and gives its number to the distributions."""
    newest, date = _newest()
    if date == "unreleased":
        raise ReleaseError(f"{newest} has not been released yet; release it with: make release")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or _parts(version) <= _parts(newest):
        raise ReleaseError(f"the next version is X.Y.Z and above {newest}, not {version}")
    text = CHANGELOG.read_text()
    heading = f"## [{newest}] - {date}"
    CHANGELOG.write_text(text.replace(heading, f"## [{version}] - unreleased\n\n{heading}", 1))
    number_distributions(version)


def number_distributions(version: str) -> None:
    """Gives a number to the distributions, and to what they require of each other."""
    for path in _projects():
        project = _VERSION.sub(f'version = "{version}"', path.read_text(), count=1)
        path.write_text(_OWN_REQUIREMENT.sub(rf'"\1=={version}"', project))


def _projects() -> list[Path]:
    return [ROOT / name / "pyproject.toml" for name in build_distributions.DISTRIBUTIONS]


def _refuse_other_versions(version: str) -> None:
    for path in _projects():
        project = path.read_text()
        found = {*_VERSION.findall(project)[:1], *(number for _, number in _OWN_REQUIREMENT.findall(project))}
        if found != {version}:
            raise ReleaseError(
                f"{path.relative_to(ROOT)} has version {' and '.join(sorted(found)) or '-'}, and {CHANGELOG.name} "
                f"begins with {version}; they must be the same"
            )


def _newest() -> tuple[str, str]:
    """The version that the changelog begins with, and its date or `unreleased`."""
    heading = _HEADING.search(CHANGELOG.read_text())
    if heading is None:
        raise ReleaseError(f"{CHANGELOG.name} has no heading like: ## [0.1.0] - unreleased")
    return heading[1], heading[2]


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"`git {arguments[0]}` says: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def _refuse_unless_ready() -> None:
    if _git("status", "--porcelain"):
        raise ReleaseError("there are uncommitted changes; commit them first")
    if _git("rev-parse", "--abbrev-ref", "HEAD") != "main":
        raise ReleaseError("releases are made from the branch main; check it out first")


def _release() -> None:
    version, date = _newest()
    _refuse_other_versions(version)
    # Checked before the build: a release commit without its tag would have to be undone.
    if date == "unreleased" and _git("tag", "--list", f"v{version}"):
        raise ReleaseError(f"there is a tag v{version} already; if it is not of a release: git tag --delete v{version}")
    date_version(dt.datetime.now(dt.UTC).date())
    try:
        build_distributions.build(ROOT / "dist")
    except BaseException:
        # So that the next run finds a clean checkout.
        _git("restore", CHANGELOG.name)
        raise
    _git("commit", "--all", "--message", f"Release {version}")
    _git("tag", "--annotate", f"v{version}", "--message", f"Millrace {version}")
    print(f"Tagged v{version}. To publish it: git push --follow-tags")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--next", metavar="X.Y.Z", help="open this version, after a release")
    following = parser.parse_args().next
    try:
        _refuse_unless_ready()
        if following is not None:
            open_version(following)
            _git("commit", "--all", "--message", f"Begin version {following}")
        else:
            _release()
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"Not released: {error}")


if __name__ == "__main__":
    main()
