"""The workflows of continuous integration."""

import re
from typing import Any

import pytest
import yaml

from tests.unit.repository.checkout import ROOT, read_pyproject

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _jobs(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yaml").read_text())["jobs"]
    return jobs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_of_a_workflow_are_targets_of_the_makefile(path: Any) -> None:
    """What a workflow checks or builds can be run on any machine with make; each job ends some day."""
    for job in _jobs(path.stem).values():
        assert job["timeout-minutes"] > 0
        commands = [step["run"] for step in job["steps"] if "run" in step]
        for command in commands:
            made = re.match(r"make ([a-z]+)", command)
            assert command == ".ci/run" or (made and made[1] in TARGETS) or job.get("environment") == "release", command


def test_ci_tests_every_supported_version_of_python() -> None:
    """The versions of the matrix are those that the distributions name."""
    classifiers = read_pyproject("server")["project"]["classifiers"]
    named = [match[1] for line in classifiers if (match := re.search(r":: (3\.\d+)$", line))]
    assert _jobs("ci")["test"]["strategy"]["matrix"]["python"] == named


def test_release_publishes_without_a_stored_token() -> None:
    """Publishing is allowed by the workflow's identity, and only by the job that publishes."""
    jobs = _jobs("release")
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "permissions" not in jobs["build"]
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yaml").read_text()
