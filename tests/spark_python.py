"""A Python for Spark that starts fast: Spark's own modules in it are forked from a process that has imported them.

Spark starts a Python for each streaming query, and one for each kind of work on a data source, whose workers import
all modules again after they are forked. That took half of the processor time of the tests with Spark.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module

from tests.fork_server import fork_server, serve

_DAEMON = "pyspark.daemon"
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_IMPORTED_BY_WORKERS = (
    "millrace_spark.source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)
_SCRIPT = """\
#!/bin/sh
case "$1 $2" in
{cases}
esac
exec {python} "$@"
"""
_CASE = '"-m {module}") shift 2; exec {stand_in} "$@" ;;'


@cache
def spark_python() -> str:
    """Returns a program for `PYSPARK_PYTHON`, which goes with this process; it runs all else with this Python."""
    server = fork_server("tests.spark_python")
    cases = (_CASE.format(module=module, stand_in=server.stand_in(module)) for module in (_DAEMON, _RUNNER))
    path = server.folder / "python"
    path.write_text(_SCRIPT.format(cases="\n".join(cases), python=sys.executable))
    path.chmod(0o755)
    return str(path)


def _main() -> None:
    """Serves Spark's modules."""
    from pyspark.daemon import manager
    from pyspark.sql.streaming import python_streaming_source_runner as runner
    from pyspark.worker_util import get_sock_file_to_executor

    for module in _IMPORTED_BY_WORKERS:
        import_module(module)

    def run_source() -> None:
        with get_sock_file_to_executor(timeout=None) as connection:
            runner.main(connection, connection)

    programs: dict[str, Callable[[], None]] = {_DAEMON: manager, _RUNNER: run_source}
    serve(programs)


if __name__ == "__main__":
    _main()
