"""This package on a cluster whose nodes do not have it.

What is pure Python can be shipped with an application: this package and the client. What is not must be on the nodes,
or come in a packed environment: pyarrow, grpcio and protobuf. `docs/spark_on_a_cluster.md` tells all ways.
"""

import platform
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from millrace_spark.errors import MillraceSparkError

PACKAGES = ("millrace", "millrace_client", "millrace_spark", "pyspark_millrace")
"""What is packed."""

_NEEDED = {"pyarrow": "pyarrow", "grpc": "grpcio", "google.protobuf": "protobuf"}
"""Modules that are not pure Python, and the distributions that they come from."""

# The oldest that a zip file can tell: the same code gives the same bytes, whenever it is packed.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> None:
    """Sends this package and the client to all executors of a session, and makes `format("millrace")` known to it.

    Call it once, before the first read or write. The executors' Python still needs pyarrow, grpcio and protobuf.
    """
    from millrace_spark.source import register

    # Spark copies the file at once, but asks for it by its path again where an executor comes later.
    folder = Path(tempfile.mkdtemp(prefix="millrace-spark-"))
    spark.sparkContext.addPyFile(str(pack(folder / "millrace_spark.zip")))
    # Registered by name it would go to workers that look for it where it is installed, and not among files sent.
    register(spark)


def pack(path: Path | str) -> Path:
    """Writes a zip of this package and the client, for `--py-files` or `addPyFile`; the same code gives the same bytes.

    Returns:
        The path.

    Raises:
        MillraceSparkError: It cannot be written there.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(_files()):
                archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise MillraceSparkError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None
    return path


def require_modules() -> None:
    """Makes sure that this Python can do a task's work.

    Raises:
        MillraceSparkError: A module is missing; says which, on which machine, and how to get it there.
    """
    if missing := [distribution for module, distribution in _NEEDED.items() if not _is_there(module)]:
        raise MillraceSparkError(
            f"the Python of this task, {sys.executable} on {platform.node()}, has no {' and no '.join(missing)}; "
            "install that on every node, or ship an environment with --archives and set PYSPARK_PYTHON to its Python"
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
        # It is that of a package which is missing, too.
        return False
