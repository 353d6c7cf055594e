"""The version in the three distributions and the changelog."""

import re

from packaging.requirements import Requirement

from tests.unit.repository.checkout import DISTRIBUTIONS, ROOT, read_pyproject


def test_versions_of_distributions_are_one() -> None:
    """The three distributions have the same version, and require each other in it."""
    projects = [read_pyproject(name)["project"] for name in DISTRIBUTIONS]
    versions = {project["version"] for project in projects}
    assert len(versions) == 1
    needed = [Requirement(line) for project in projects for line in project["dependencies"]]
    own = {str(need.specifier) for need in needed if need.name.startswith("millrace")}
    assert own == {f"=={versions.pop()}"}


def test_changelog_begins_with_the_current_version() -> None:
    """The changelog begins with the distributions' version, followed by older ones."""
    reported = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert reported[0] == read_pyproject("client")["project"]["version"]
    assert reported == sorted(reported, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
