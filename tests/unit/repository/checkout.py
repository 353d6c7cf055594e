"""The files of the project, as a commit of everything would contain them."""

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTIONS = ("client", "server", "spark_connector")


@cache
def project_files() -> list[Path]:
    """All files that are tracked, or would be if they were added; skips the test without git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode != 0:
        pytest.skip(f"only git knows which files belong to the project: {git.stderr.strip()}")
    return [path for name in git.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def python_files() -> list[Path]:
    """The Python files except generated ones."""
    return [path for path in project_files() if path.suffix == ".py" and "_pb2" not in path.name]


def read_pyproject(distribution: str) -> dict[str, Any]:
    """The pyproject.toml of a distribution."""
    return tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())
