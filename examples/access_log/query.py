"""The streaming query as a program of its own, so that it can be killed as a crash would kill it.

It lands what the channel holds, once, then shows what is landed, and writes how much that is to a file.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console

from examples.access_log import access_lines, plain_lines
from examples.access_log.landing import Landing, LogKind
from examples.access_log.spark_session import local_spark
from millrace_spark import MillraceSparkError

KINDS: dict[str, LogKind] = {"access": access_lines, "plain": plain_lines}


def main() -> int:
    """Runs the query; returns its exit code."""
    parser = argparse.ArgumentParser(description="Lands what a channel of lines holds as Parquet.")
    parser.add_argument("endpoint", help="the channel's server, host:port")
    parser.add_argument("folder", type=Path, help="where Parquet and checkpoint are")
    parser.add_argument("kind", choices=KINDS, help="what the lines are")
    parser.add_argument("--batch-events-max", type=int, required=True, help="the most events of one batch")
    parser.add_argument("--spark-log", type=Path, required=True, help="where Spark's own talk goes")
    parser.add_argument("--short", action="store_true", help="have Spark start quickly rather than run fast")
    parser.add_argument("--tally", type=Path, required=True, help="where the count of all landed rows is written")
    arguments = parser.parse_args()
    try:
        with local_spark(arguments.spark_log, is_short_run=arguments.short) as spark:
            landing = Landing(spark, arguments.folder, KINDS[arguments.kind])
            landing.land(arguments.endpoint, arguments.batch_events_max)
            console = Console(highlight=False)
            for table in landing.kind.tables(landing.rows()):
                console.print(table)
            arguments.tally.write_text(json.dumps(dataclasses.asdict(landing.tally())))
    except MillraceSparkError as error:
        return _fail(str(error))
    except (PySparkException, Py4JError) as error:
        # The first line says what, the others are the JVM's stack.
        return _fail(f"Spark failed: {str(error).strip().splitlines()[0]}; {arguments.spark_log} tells more")
    return 0


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
