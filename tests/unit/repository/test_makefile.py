"""The Makefile, with which developers start."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.repository.checkout import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # These tests may run inside `make test`, whose flags are not meant for them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_help_run_by_default_lists_every_target() -> None:
    """Plain `make` shows each target with a description."""
    targets = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
    listed = re.findall(r"^  make ([a-z]+) +\w", _make().stdout, re.MULTILINE)
    assert listed == targets
    assert {"setup", "run", "test", "check", "proto", "fmt", "lint", "type", "bench", "torture", "fuzz", "clean"} <= {
        *targets
    }


def test_targets_compared_with_phony_are_the_same() -> None:
    """No file with a target's name keeps the target from running."""
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert phony[1].split() == re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)


def test_setup_with_an_old_python_says_what_is_needed(tmp_path: Path) -> None:
    """The sentence says how to use another interpreter."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    make = _make("setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert make.returncode != 0
    assert f"needs Python 3.11 or newer, and {old} is not" in make.stderr
    assert "make setup PYTHON=" in make.stderr
    assert not (tmp_path / "venv").exists()


def test_scripts_started_by_targets_exist() -> None:
    """Each script that a recipe starts exists."""
    scripts = re.findall(r"\$\((?:BIN\)/python|PYTHON\)) ([\w/]+\.py)", MAKEFILE)
    assert "tools/set_up.py" in scripts
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def _run_ci(programs: Path, installed: list[str], *, apt_exit_code: int = 0) -> list[str]:
    """What CI's script runs as root where only these packages are installed."""
    calls = programs / "calls"
    stubs = dict.fromkeys(("make", *installed), "") | {"apt-get": f"exit {apt_exit_code}", "id": "echo 0"}
    for name, command in stubs.items():
        (programs / name).write_text(f'#!/bin/sh\n[ {name} = id ] || echo {name} "$@" >> {calls}\n{command}\n')
        (programs / name).chmod(0o755)
    (programs / "dirname").symlink_to("/usr/bin/dirname")
    bash = subprocess.run(["/bin/bash", ROOT / ".ci" / "run"], env={"PATH": str(programs)}, check=False)
    assert bash.returncode == 0
    return calls.read_text().splitlines()


def test_ci_with_all_packages_only_makes_test(tmp_path: Path) -> None:
    """CI runs the same command as a new developer."""
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert _run_ci(tmp_path, ["prometheus", "chromium"]) == ["make test"]


@pytest.mark.parametrize("apt_exit_code", [0, 100])
def test_ci_without_a_package_tries_to_install_it_and_makes_test(tmp_path: Path, apt_exit_code: int) -> None:
    """What cannot be installed keeps no test from running."""
    install = ["apt-get install --yes --no-install-recommends chromium"] * (apt_exit_code == 0)
    assert _run_ci(tmp_path, ["prometheus"], apt_exit_code=apt_exit_code) == ["apt-get update", *install, "make test"]
