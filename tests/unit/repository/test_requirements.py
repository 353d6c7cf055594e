"""The locked requirements."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.repository.checkout import DISTRIBUTIONS, ROOT, read_pyproject

FOLDER = ROOT / "requirements"
LOCKS = ("build", "dev", "server")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\Z")


def _locked(lock: str) -> dict[str, tuple[str, list[str]]]:
    """The version and the hashes of each name."""
    text = (FOLDER / f"{lock}.txt").read_text().replace("\\\n", " ")
    entries: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+(?=--)", line)
        parsed = Requirement(requirement)
        entries[canonicalize_name(parsed.name)] = (str(parsed.specifier).removeprefix("=="), hashes)
    return entries


def _wanted(lock: str) -> list[Requirement]:
    """The requirements of a lock file, with own distributions replaced by their requirements."""
    lines = (line.strip() for line in (FOLDER / f"{lock}.in").read_text().splitlines())
    wanted = []
    for line in lines:
        if line.startswith("-e ./"):
            distribution, _, extras = line.removeprefix("-e ./").partition("[")
            project = read_pyproject(distribution)["project"]
            wanted += project["dependencies"]
            for extra in filter(None, extras.rstrip("]").split(",")):
                wanted += project["optional-dependencies"][extra]
        elif line and not line.startswith("#"):
            wanted.append(line)
    return [need for line in wanted if not (need := Requirement(line)).name.startswith("millrace")]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_read_has_hashes_and_nothing_else(lock: str) -> None:
    """Each requirement is one version with hashes; there are no addresses and no options."""
    entries = _locked(lock)
    assert entries
    for name, (version, hashes) in entries.items():
        assert re.fullmatch(r"[\w.!+-]+", version), name
        assert hashes, name
        assert all(HASH.match(entry) for entry in hashes), name


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_compared_with_what_is_wanted_satisfies_it(lock: str) -> None:
    """Everything that a distribution or a `.in` file requires is locked in an allowed version."""
    entries = _locked(lock)
    for need in _wanted(lock):
        version, _ = entries[canonicalize_name(need.name)]
        assert need.specifier.contains(version), need


def test_locks_compared_with_each_other_have_the_same_versions() -> None:
    """The container installs the versions that were tested."""
    dev = _locked("dev")
    for lock in ("build", "server"):
        entries = _locked(lock)
        shared = entries.keys() & dev.keys()
        assert {name: entries[name] for name in shared} == {name: dev[name] for name in shared}
    assert _locked("server").keys() <= dev.keys()


def test_builds_without_isolation_find_their_backend_locked() -> None:
    """The build backend is in the lock file that is installed first."""
    entries = _locked("build")
    for name in DISTRIBUTIONS:
        for line in tomllib.loads((ROOT / name / "pyproject.toml").read_text())["build-system"]["requires"]:
            need = Requirement(line)
            assert need.specifier.contains(entries[need.name][0])
