"""The assignment of tests to the workers of `make test`."""

from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_ROOT = Path(__file__).resolve().parents[1]
_SPARK_PARAMETER = "spark: SparkSession"
_SPARK_SCOPE = "tests with the shared Spark"


def uses_shared_spark(node_id: str) -> bool:
    """Whether a test is in a file whose tests use the session's shared Spark as a fixture."""
    return _names_spark(_ROOT / node_id.partition("::")[0])


@cache
def _names_spark(path: Path) -> bool:
    return path.is_file() and _SPARK_PARAMETER in path.read_text(encoding="utf-8")


def import_share(config: pytest.Config) -> None:
    """Imports this worker's share of the test modules before it collects all of them.

    In a fresh clone nothing is compiled, and workers that import the same modules at the same time would all compile
    each of them, which takes twice as long as everything else in the collection.
    """
    given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]  # xdist sets it
    # By their names, so that each worker compiles other packages, too.
    modules = sorted(module for argument in config.args for module in _test_modules(argument.partition("::")[0]))
    for module in modules[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        # The collection will say why.
        with suppress(Exception, pytest.skip.Exception):
            import_module(module)


def _test_modules(argument: str) -> list[str]:
    path = Path(argument).absolute()
    files = path.rglob("test_*.py") if path.is_dir() else [path]
    return [".".join(file.relative_to(_ROOT).with_suffix("").parts) for file in files if file.is_relative_to(_ROOT)]


class SparkOnOneWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist carries no types
    """Gives each file to one worker, and all files that share a Spark to the same: its start takes seconds."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return _SPARK_SCOPE if uses_shared_spark(nodeid) else scope
