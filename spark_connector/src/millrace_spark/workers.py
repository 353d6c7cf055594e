"""The Python of Spark's workers: checks it, and sends this package to it.

This package and the client are pure Python and can be sent along with an application. pyarrow, grpcio and protobuf are
not: they must be installed on the nodes, or come in a packed environment. `docs/spark_on_a_cluster.md` describes all
ways.
"""

import gc
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from millrace_spark.errors import MillraceSparkError

PACKAGES = ("millrace", "millrace_client", "millrace_spark", "pyspark_millrace")
"""The packages in the zip."""

_NEEDED = {"pyarrow": "pyarrow", "grpc": "grpcio", "google.protobuf": "protobuf"}
"""Modules that are not pure Python, and their distributions."""

# The oldest timestamp in the zip format, so that the same code always yields the same bytes.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def pack(path: Path | str) -> Path:
    """Writes a zip of this package and the client for `--py-files`. The same code yields the same bytes."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(_files()):
                archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise MillraceSparkError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None
    return path


def require_modules() -> None:
    """Checks that this Python has the modules that tasks need."""
    if missing := [distribution for module, distribution in _NEEDED.items() if not _is_there(module)]:
        raise MillraceSparkError(
            f"the Python of this task, {sys.executable} on {platform.node()}, has no {' and no '.join(missing)}; "
            "install it on every node, or send an environment with --archives and set PYSPARK_PYTHON to its Python"
        )


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            folder = Path(place)
            for path in folder.rglob("*.py"):
                yield str(path.relative_to(folder.parent)), path.read_bytes()


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The parent package is missing.
        return False


_PROBE = (
    "import importlib.util, sys; "
    "print('.'.join(map(str, sys.version_info[:2])), importlib.util.find_spec('millrace_spark') is not None)"
)
_PROBE_SECONDS_MAX = 30.0
_IS_LOCAL = re.compile(r"local(\[.*\])?")


def check_worker_python(spark: SparkSession) -> None:
    """Checks that the workers of a local session run the same Python version, with this package.

    Workers on other machines, and those of Spark Connect, cannot be checked from here.

    Raises:
        MillraceSparkError: They do not; every read would fail with a long stack trace.
    """
    if is_local(spark):
        _check(spark.sparkContext.pythonExec)


def is_local(spark: SparkSession) -> bool:
    """Whether the workers of a session run on this machine."""
    # A session of Spark Connect has no context.
    context = getattr(spark, "sparkContext", None)
    return context is not None and _IS_LOCAL.fullmatch(context.master) is not None


def _check(python: str) -> None:
    own_version = ".".join(map(str, sys.version_info[:2]))
    place = shutil.which(python)
    if place == sys.executable:
        return
    found = _probed(place) if place else None
    if found is None:
        what = "which cannot be run"
    elif found[0] != own_version:
        what = f"which is Python {found[0]}, while this is {own_version}"
    elif found[1] != "True":
        what = "which has no millrace_spark"
    else:
        return
    raise MillraceSparkError(
        f"Spark's workers run {python!r}, {what}; set the environment variable PYSPARK_PYTHON to {sys.executable} "
        "before the first SparkSession is created"
    )


def _probed(place: str) -> list[str] | None:
    """Returns the version of a Python, and whether it has this package."""
    try:
        probe = subprocess.run(  # noqa: S603 - the program that Spark runs anyway
            [place, "-c", _PROBE], capture_output=True, check=True, text=True, timeout=_PROBE_SECONDS_MAX
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return probe.stdout.split()


@cache
def freeze_loaded_objects() -> None:
    """Excludes all loaded objects from garbage collection, once per process.

    Spark's worker collects garbage after each task, which takes as long as reading 10,000 events.
    """
    gc.freeze()
