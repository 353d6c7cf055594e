"""The assignment of tests to the workers of `make test`."""

from functools import cache
from pathlib import Path

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


class SparkOnOneWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist carries no types
    """Gives each file to one worker, and all files that share a Spark to the same: its start takes seconds."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return _SPARK_SCOPE if uses_shared_spark(nodeid) else scope
