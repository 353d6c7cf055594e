"""The streaming query as a process of the job's, which can be killed and begun anew."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from examples.access_log.account import Tally

_ROOT = Path(__file__).resolve().parents[2]


class QueryError(Exception):
    """Returned when the query failed; its message is for the user."""


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """What a query lands, and where."""

    endpoint: str
    """The channel's server."""
    folder: Path
    """Where Parquet and checkpoint are."""
    kind: str
    """What the lines are: a name of `query.KINDS`."""
    batch_events_max: int
    spark_log: Path
    is_short: bool
    """Whether what is to be done takes not much longer than Spark's own start."""
    width: int
    """How wide its tables may be."""


@dataclass(frozen=True)
class Landed:
    """What is landed, once a query has come to its end."""

    tally: Tally
    shown: str
    """Tables of it."""


class LocalQuery:
    """A query's process, made by `local_query`."""

    def __init__(self, plan: QueryPlan, scratch: Path) -> None:
        self._tally = scratch / "tally.json"
        self._shown = scratch / "shown"
        self._complaints = scratch / "complaints"
        options = [
            *("--batch-events-max", str(plan.batch_events_max)),
            *("--spark-log", str(plan.spark_log)),
            *("--tally", str(self._tally)),
            *(["--short"] if plan.is_short else []),
        ]
        with self._shown.open("wb") as shown, self._complaints.open("wb") as complaints:
            # A group of its own, with the JVM: so that Ctrl-C reaches the job alone, and a kill ends both.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.access_log.query", plan.endpoint, plan.folder, plan.kind, *options],
                env=os.environ | {"PYTHONPATH": str(_ROOT), "COLUMNS": str(plan.width)},
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=complaints,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> bool:
        """Ends it and its JVM as a crash would; tells whether that ended it, or it had ended by then."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def landed(self) -> Landed:
        """What is landed, once it has ended.

        Raises:
            QueryError: It failed.
        """
        if self._process.wait():
            raise QueryError(self._complaints.read_text().strip() or f"the query ended with {self._process.returncode}")
        return Landed(Tally(**json.loads(self._tally.read_text())), self._shown.read_text())


@contextmanager
def local_query(plan: QueryPlan) -> Iterator[LocalQuery]:
    """Runs a query for as long as the block runs; where it has not ended then, it is killed."""
    with tempfile.TemporaryDirectory(prefix="query-", dir=plan.folder.parent) as scratch:
        query = LocalQuery(plan, Path(scratch))
        try:
            yield query
        finally:
            query.kill()
