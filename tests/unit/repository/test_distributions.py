"""The three distributions that users install, built."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.repository.checkout import ROOT, read_pyproject

PACKAGES = {
    "client": ["millrace", "millrace_client"],
    "server": ["millrace_server"],
    "spark_connector": ["millrace_spark"],
}


@pytest.mark.parametrize("distribution", PACKAGES)
def test_wheel_of_a_distribution_holds_all_of_it(distribution: str, tmp_path: Path) -> None:
    """A wheel has every module and stub, the console's page, py.typed, the license, and its programs."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / distribution, source, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "build"))
    # The call that pip finally makes.
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    packages = [source / "src" / package for package in PACKAGES[distribution]]
    modules = {str(path.relative_to(source / "src")) for package in packages for path in package.rglob("*.py*")}
    modules = {name for name in modules if "__pycache__" not in name}
    modules |= {str(path.relative_to(source / "src")) for path in source.glob("src/*/console/page/**/*.*")}
    assert modules <= names
    assert {f"{package}/py.typed" for package in PACKAGES[distribution]} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for program, target in read_pyproject(distribution)["project"].get("scripts", {}).items():
        assert f"{program} = {target}" in entry_points[0]
