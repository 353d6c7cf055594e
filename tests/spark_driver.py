"""A Spark driver as a program of its own, so that it and its executors may be killed.

`python -m tests.spark_driver PLAN` reads a plan as JSON from a file, see `Plan`, starts its flows, and runs until its
standard input ends or a flow fails. Flows that end by themselves end it too.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from pyspark.sql.streaming.query import StreamingQuery

from millrace_spark import ship
from tests.spark_session import spark_session

_LOOK_SECONDS = 0.05
_HELD_SECONDS_MAX = 60.0
_HELD_EVERY = 500


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A query or job from a source to a target."""

    source: str
    """A format: `millrace`, or one of Spark's own."""
    source_options: Mapping[str, str]
    source_schema: str | None = None
    """The schema, if the format needs one."""
    columns: Sequence[str] = ("*",)
    """A condition on the rows to write, as SQL."""
    target: str
    """A format: `millrace`, or one of Spark's own."""
    target_options: Mapping[str, str]
    checkpoint: str | None = None
    """The checkpoint directory of a streaming query; a batch job has none."""
    is_continuous: bool = False
    """Whether the streaming query continues after it has processed all available events."""
    hold: str | None = None
    """A file into which the first task that reaches it writes its process id; the task then waits to be killed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a driver."""

    master: str
    config: Mapping[str, str] = field(default_factory=dict)
    flows: Sequence[Flow]
    is_shipped: bool = False
    """Whether the driver ships the package to the executors."""

    def save(self, path: Path) -> None:
        """Writes the plan to the place where a driver expects it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Reads the plan that `save` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**values | {"flows": [Flow(**flow) for flow in values["flows"]]})


def main(plan_path: str) -> None:
    """Runs a plan."""
    plan = Plan.load(Path(plan_path))
    spark = spark_session(plan.master, "ERROR", **plan.config)
    if plan.is_shipped:
        ship(spark)
    is_told_to_stop = threading.Event()
    threading.Thread(target=_wait_for_the_end_of_input, args=(is_told_to_stop,), daemon=True).start()
    queries = [query for flow in plan.flows if (query := _start(spark, flow))]
    while any(query.isActive for query in queries) and not any(query.exception() for query in queries):
        if is_told_to_stop.wait(_LOOK_SECONDS):
            break
    for query in queries:
        query.stop()
        if failure := query.exception():
            raise failure
    spark.stop()


def _start(spark: SparkSession, flow: Flow) -> StreamingQuery | None:
    """Starts a streaming query, or runs a batch job."""
    if flow.checkpoint is None:
        reader = spark.read.format(flow.source).options(**flow.source_options)
        rows = (reader.schema(flow.source_schema) if flow.source_schema else reader).load()
        _held(rows, flow).selectExpr(*flow.columns).write.format(flow.target).options(**flow.target_options).mode(
            "append"
        ).save()
        return None
    stream = spark.readStream.format(flow.source).options(**flow.source_options)
    rows = (stream.schema(flow.source_schema) if flow.source_schema else stream).load()
    query = _held(rows, flow).selectExpr(*flow.columns).writeStream.format(flow.target)
    query = query.options(**flow.target_options, checkpointLocation=flow.checkpoint)
    return (query if flow.is_continuous else query.trigger(availableNow=True)).start()


def _held(events: DataFrame, flow: Flow) -> DataFrame:
    if flow.hold is None:
        return events
    return events.where(F.udf(partial(passes, flow.hold), "boolean", useArrow=False)("sequence"))


def passes(hold: str, sequence: int) -> bool:
    """Lets an event pass; the first worker to reach this point waits to be killed in the middle of its work."""
    if sequence % _HELD_EVERY == _HELD_EVERY - 1:
        try:
            with open(hold, "x", encoding="utf-8") as file:  # noqa: PTH123 - goes to the workers without its imports
                file.write(str(os.getppid()))
            time.sleep(_HELD_SECONDS_MAX)
        except FileExistsError:
            pass
    return True


def _wait_for_the_end_of_input(is_told_to_stop: threading.Event) -> None:
    sys.stdin.read()
    is_told_to_stop.set()


if __name__ == "__main__":
    main(sys.argv[1])
