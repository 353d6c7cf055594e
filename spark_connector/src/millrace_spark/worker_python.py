"""Which Python Spark's workers run."""

import re
import shutil
import subprocess
import sys

from pyspark.sql import SparkSession

from millrace_spark.errors import MillraceSparkError

_PROBE = (
    "import importlib.util, sys; "
    "print('.'.join(map(str, sys.version_info[:2])), importlib.util.find_spec('millrace_spark') is not None)"
)
_PROBE_SECONDS_MAX = 30.0
_IS_LOCAL = re.compile(r"local(\[.*\])?")


def check_worker_python(spark: SparkSession) -> None:
    """Makes sure that the workers of a session on this machine run a Python of this version, with this package.

    Of workers elsewhere, and of Spark Connect's, nothing is known here.

    Raises:
        MillraceSparkError: They do not, so that every read would fail with a long tale.
    """
    # A session of Spark Connect has no context.
    context = getattr(spark, "sparkContext", None)
    if context is not None and _IS_LOCAL.fullmatch(context.master):
        _check(context.pythonExec)


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
        "before the first SparkSession is made"
    )


def _probed(place: str) -> list[str] | None:
    """Its version, and whether it has this package."""
    try:
        told = subprocess.run(  # noqa: S603 - the program that Spark runs anyway
            [place, "-c", _PROBE], capture_output=True, check=True, text=True, timeout=_PROBE_SECONDS_MAX
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.split()
