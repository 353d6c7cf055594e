"""The plan of the main job's query, for tests that never get as far as a server."""

from pathlib import Path

from examples.access_log.local_query import QueryPlan


def query_plan(folder: Path, kind: str = "plain") -> QueryPlan:
    """A plan whose server answers nobody and whose files are all in the folder."""
    return QueryPlan(
        endpoint="127.0.0.1:1",
        folder=folder / "landed",
        kind=kind,
        batch_events_max=1,
        spark_log=folder / "spark.log",
        is_short=True,
        width=80,
    )
