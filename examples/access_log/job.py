"""From a log that grows through two agents into Parquet, every line accounted for, although both agents are killed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import millrace_client as millrace
from examples.access_log import access_lines, plain_lines
from examples.access_log.account import Account, tally
from examples.access_log.agents import CHANNEL, Agents, RoundLimits
from examples.access_log.crashes import crash_meanwhile, tell
from examples.access_log.landing import Landing, LogKind, replaced
from examples.access_log.live_log import LiveLog
from examples.access_log.local_server import ServerError
from examples.access_log.log_file import LogFile
from millrace_spark import claim_ranges

READER_ID = "access-log-job"

_LOOK_SECONDS = 0.05
_STILL_SECONDS = 5.0
"""A round that is not full begins once nothing more has come for so long."""
_SECONDS_TO_COME_MAX = 60.0


class StoppedError(Exception):
    """Returned when the job was told to stop."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Lets a log grow, and lands and acknowledges what the collector gets of it, in as many rounds as that needs.

    The agents are killed while the log grows, first the edge and then the collector, and the collector once more when
    Spark has claimed what it is to read.
    """

    log: LogFile
    agents: Agents
    spark: SparkSession
    folder: Path
    """Where the Parquet files go, in place of those of an earlier run."""
    console: Console
    limits: RoundLimits = field(default_factory=RoundLimits)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    """Set where the job is to end soon."""

    def run(self) -> bool:
        """Shows what it does; returns whether every line arrived, once, and the channels are empty.

        Raises:
            StoppedError: It was told to stop.
            ServerError: An agent did not come back, or no line comes any more.
        """
        kind: LogKind = access_lines if access_lines.matches(self.log.sample) else plain_lines
        self.console.print(
            f"{self.log.path}: {self.log.line_count:,} lines of {kind.NAME}", soft_wrap=True, markup=False
        )
        with millrace.connect(self.agents.collector.endpoint) as collector, replaced(self.folder) as fresh:
            landing = Landing(self.spark, fresh, kind)
            account = self._land_all(collector, landing)
            for table in kind.tables(landing.rows()):
                self.console.print(table)
            self.console.print(account.table())
            queued_count = _queued_count(collector) + self._queued_at_edge()
        told = f"Spark read in {landing.partition_count} partitions; the Parquet is in {self.folder}"
        self.console.print(told, soft_wrap=True, markup=False)
        is_good = account.is_equal and not queued_count
        if is_good:
            self.console.print("Every line arrived, once, and is acknowledged: both channels are empty.")
        else:
            self.console.print(f"[bold red]The account is not equal[/]; {queued_count:,} events are not acknowledged.")
        return is_good

    def _land_all(self, collector: millrace.Client, landing: Landing) -> Account:
        account = Account(in_file=tally(self.log.lines()))
        with self._progress() as progress:
            written = progress.add_task("into the live log", total=self.log.line_count)
            landed = progress.add_task("through Spark", total=self.log.line_count)

            def on_written(line_count: int) -> None:
                self._pause(0)
                progress.advance(written, line_count)

            self._let_grow(collector, on_written)
            is_first = True
            while account.read.count < self.log.line_count:
                self._wait_for(collector, self.log.line_count - account.read.count)
                with claim_ranges(self.agents.collector.endpoint, CHANNEL, reader_id=READER_ID) as claimed:
                    if is_first:
                        again = self.agents.collector.kill_and_start()
                        tell(
                            self.console, self.agents.collector.name, "again, when Spark had claimed its channel", again
                        )
                        is_first = False
                    account.read += landing.land(claimed)
                    written_count = landing.rows().count()
                    if written_count != account.read.count:
                        break
                    # Only now are the events of this round safe.
                    claimed.acknowledge()
                progress.update(landed, completed=written_count)
        # A new channel gives sequences from 1 on. The server's counters begin anew when it does, this does not.
        account.events_committed = collector.admin.get_channel(CHANNEL).gauges.next_sequence - 1
        account.written = landing.written()
        return account

    def _let_grow(self, collector: millrace.Client, on_written: Callable[[int], None]) -> None:
        live_log = LiveLog(self.agents.live_log, self.log)
        live_log.write_up_to(0.4, on_written)
        # So that the crashes find events on their way.
        self._wait_for(collector, 1)
        with crash_meanwhile(self.agents.edge, self.console, "while the log went on to grow"):
            live_log.write_up_to(0.7, on_written)
        with crash_meanwhile(self.agents.collector, self.console, "while the edge forwarded to it"):
            live_log.write_up_to(1.0, on_written)

    def _wait_for(self, collector: millrace.Client, wanted_count: int) -> None:
        """Waits until the collector holds so many lines, or as many as it can."""
        wanted_count = min(wanted_count, self.limits.lines_max)
        last_count = 0
        since = time.monotonic()
        while (count := _queued_count(collector)) < wanted_count:
            if count != last_count:
                last_count, since = count, time.monotonic()
            waited_seconds = time.monotonic() - since
            if count and waited_seconds > _STILL_SECONDS:
                # Full in bytes, or the edge is slow: an early round harms nothing.
                return
            if waited_seconds > _SECONDS_TO_COME_MAX:
                raise ServerError(
                    f"{wanted_count - count:,} lines did not arrive within {_SECONDS_TO_COME_MAX:.0f} s; the logs of "
                    "edge and collector tell more"
                )
            self._pause(_LOOK_SECONDS)

    def _queued_at_edge(self) -> int:
        with millrace.connect(self.agents.edge.endpoint) as edge:
            return _queued_count(edge)

    def _pause(self, seconds: float) -> None:
        if self.is_stopping.wait(seconds):
            raise StoppedError

    def _progress(self) -> Progress:
        text, count = TextColumn("{task.description:<16}"), MofNCompleteColumn()
        return Progress(SpinnerColumn(), text, BarColumn(), count, TimeElapsedColumn(), console=self.console)


def _queued_count(client: millrace.Client) -> int:
    return client.admin.get_channel(CHANNEL).gauges.queued_events
