"""The Makefile, with which developers start."""

import os
import re
import subprocess
from pathlib import Path

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


def test_ci_read_as_script_only_makes_test() -> None:
    """CI runs the same command as a new developer."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    lines = script.read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
