"""From a log that grows through two agents into Parquet, each line accounted for, while agents and query are killed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

import millrace_client as millrace
from examples.access_log import access_lines, plain_lines
from examples.access_log.account import Account, tally
from examples.access_log.agents import CHANNEL, Agents, RoundLimits
from examples.access_log.crashes import crash_meanwhile
from examples.access_log.landing import replaced
from examples.access_log.live_log import LiveLog
from examples.access_log.local_query import Landed, LocalQuery, QueryPlan, local_query
from examples.access_log.local_server import ServerError
from examples.access_log.log_file import LogFile

_BATCHES = 5
"""So many batches land a round, so that a query that is killed has landed some of them."""
_SHORT_RUN_BYTES_MAX = 256 << 20
_LOOK_SECONDS = 0.05
_STILL_SECONDS = 5.0
"""A round that is not full begins once nothing more has come for so long."""
_SECONDS_TO_COME_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Lets a log grow, and has a streaming query land what the collector gets of it, in as many rounds as that needs.

    The agents are killed while the log grows, first the edge and then the collector; and the query when it has landed
    and acknowledged some of what the collector holds; a query that is done before that is said to be.
    """

    log: LogFile
    agents: Agents
    output: Path
    """A folder for the Parquet files, in place of those of an earlier run, and for what helps to find mistakes."""
    console: Console
    limits: RoundLimits = field(default_factory=RoundLimits)

    @property
    def folder(self) -> Path:
        """Where the Parquet files and the query's checkpoint go."""
        return self.output / "landed"

    def run(self) -> bool:
        """Shows what it does; returns whether every line is landed, once, and the channels are empty.

        Raises:
            ServerError: An agent did not come back, or no line comes any more.
            QueryError: The query failed.
        """
        kind = access_lines if access_lines.matches(self.log.sample) else plain_lines
        self.console.print(
            f"{self.log.path}: {self.log.line_count:,} lines of {kind.NAME}", soft_wrap=True, markup=False
        )
        with millrace.connect(self.agents.collector.endpoint) as collector, replaced(self.folder) as replacement:
            account, landed = self._land_all(collector, "access" if kind is access_lines else "plain")
            # Text, since what comes out of a log may look like rich's markup.
            self.console.print(Text(landed.shown.rstrip("\n")), soft_wrap=True)
            self.console.print(account.table())
            queued_count = _queued_count(collector) + self._queued_at_edge()
            is_good = replacement.is_whole = account.is_equal and not queued_count
        self.console.print(f"The Parquet is in {self.folder / 'parquet'}", soft_wrap=True, markup=False)
        if is_good:
            self.console.print("Every line is landed, once, and acknowledged: both channels are empty.")
        else:
            self.console.print(f"[bold red]The account is not equal[/]; {queued_count:,} events are not acknowledged.")
            if replacement.earlier.exists():
                self.console.print(f"The earlier result is in {replacement.earlier}", soft_wrap=True, markup=False)
        return is_good

    def _land_all(self, collector: millrace.Client, kind: str) -> tuple[Account, Landed]:
        account = Account(in_file=tally(self.log.lines()))
        with self._progress() as progress:
            written = progress.add_task("into the live log", total=self.log.line_count)
            acknowledged = progress.add_task("through Spark", total=self.log.line_count)

            def look() -> None:
                progress.update(acknowledged, completed=_acknowledged_count(collector))

            self._let_grow(collector, lambda line_count: progress.advance(written, line_count))
            landed = self._land_round(collector, kind, look, is_killed=True)
            while _acknowledged_count(collector) < self.log.line_count:
                landed = self._land_round(collector, kind, look, is_killed=False)
        # A new channel gives sequences from 1 on. The server's counters begin anew when it does, this does not.
        account.events_committed = collector.admin.get_channel(CHANNEL).gauges.next_sequence - 1
        account.landed = landed.tally
        return account, landed

    def _let_grow(self, collector: millrace.Client, on_written: Callable[[int], None]) -> None:
        live_log = LiveLog(self.agents.live_log, self.log)
        live_log.write_up_to(0.4, on_written)
        # So that the crashes find events on their way.
        self._wait_for(collector, 1)
        with crash_meanwhile(self.agents.edge, self.console, "while the log went on to grow"):
            live_log.write_up_to(0.7, on_written)
        with crash_meanwhile(self.agents.collector, self.console, "while the edge forwarded to it"):
            live_log.write_up_to(1.0, on_written)

    def _land_round(
        self, collector: millrace.Client, kind: str, look: Callable[[], None], *, is_killed: bool
    ) -> Landed:
        """Lands what the collector holds once it holds all that is missing, or as much as it can."""
        before = _acknowledged_count(collector)
        self._wait_for(collector, self.log.line_count - before)
        count = _queued_count(collector)
        plan = QueryPlan(
            endpoint=self.agents.collector.endpoint,
            folder=self.folder,
            kind=kind,
            batch_events_max=max(count // _BATCHES, 1),
            spark_log=self.output / "spark.log",
            is_short=self.log.size_bytes <= _SHORT_RUN_BYTES_MAX,
            width=self.console.width,
        )
        if is_killed:
            half_way = before + 2 * plan.batch_events_max
            with local_query(plan) as query:
                _wait_until(query, lambda: _acknowledged_count(collector) >= half_way, look)
                if not (query.is_running and query.kill()):
                    landed = query.landed()
                    self.console.print("The query was done before it could be killed.")
                    return landed
            self.console.print(
                f"Killed the query (SIGKILL) when {_acknowledged_count(collector) - before:,} lines were acknowledged; "
                "the next one goes on from its checkpoint",
                soft_wrap=True,
            )
        with local_query(plan) as query:
            _wait_until(query, lambda: False, look)
            return query.landed()

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
            time.sleep(_LOOK_SECONDS)

    def _queued_at_edge(self) -> int:
        with millrace.connect(self.agents.edge.endpoint) as edge:
            return _queued_count(edge)

    def _progress(self) -> Progress:
        text, count = TextColumn("{task.description:<16}"), MofNCompleteColumn()
        return Progress(SpinnerColumn(), text, BarColumn(), count, TimeElapsedColumn(), console=self.console)


def _wait_until(query: LocalQuery, is_enough: Callable[[], bool], look: Callable[[], None]) -> None:
    """Waits until the query has ended, or it is enough."""
    while query.is_running and not is_enough():
        look()
        time.sleep(_LOOK_SECONDS)


def _queued_count(client: millrace.Client) -> int:
    return client.admin.get_channel(CHANNEL).gauges.queued_events


def _acknowledged_count(client: millrace.Client) -> int:
    gauges = client.admin.get_channel(CHANNEL).gauges
    return gauges.next_sequence - 1 - gauges.queued_events
