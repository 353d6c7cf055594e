"""Sends a growing log through two agents into Parquet, kills agents and landing, and accounts for each line."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import millrace_client as millrace
from examples.access_log import access_lines, plain_lines
from examples.access_log.account import Account, Fingerprint, fingerprint, landed_lines
from examples.access_log.agents import CHANNEL, Agents, RoundLimits
from examples.access_log.crashes import crash_during
from examples.access_log.landing import LandingPlan, LandingProcess, local_landing, replaced
from examples.access_log.live_log import LiveLog
from examples.access_log.local_server import ServerError
from examples.access_log.log_file import LogFile

_BATCHES = 3
"""The batches of a round, so that a killed landing has landed some of them. Each costs Spark seconds of a processor."""
_SHORT_RUN_BYTES_MAX = 256 << 20
_POLL_SECONDS = 0.25
"""Asking more often would take from Spark's processor time what it gains."""
_ARRIVAL_SECONDS_MAX = 300.0
"""Without a new event for this long, the agents are stuck."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Lets a log grow, and lands what the collector receives, in as many rounds as needed.

    While the log grows, agents are killed, and what else `agents.crashes` has. The landing is killed when it has landed
    and acknowledged some of the events, unless it is done before.
    """

    log: LogFile
    agents: Agents
    output: Path
    """The folder for the Parquet files, which replace those of an earlier run, and for logs."""
    console: Console
    limits: RoundLimits = field(default_factory=RoundLimits)

    @property
    def folder(self) -> Path:
        """The folder of the Parquet files and the checkpoint."""
        return self.output / "landed"

    @property
    def rows_folder(self) -> Path:
        """The folder of the landed rows."""
        return self.folder / "parquet"

    @property
    def bad_lines_folder(self) -> Path:
        """The folder of the lines that cannot be parsed."""
        return self.folder / "bad"

    def run(self) -> bool:
        """Runs the job; returns whether every line is landed, once, and the channels are empty.

        Raises:
            ServerError: An agent did not restart, or lines do not arrive.
            LandingError: The landing failed.
        """
        kind = access_lines if access_lines.matches(self.log.sample) else plain_lines
        self.console.print(
            f"{self.log.path}: {self.log.line_count:,} lines of {kind.NAME}", soft_wrap=True, markup=False
        )
        with millrace.connect(self.agents.collector.endpoint) as collector, replaced(self.folder) as replacement:
            account = self._land_all(collector, kind.LINE_TYPE)
            for table in kind.tables(self.rows_folder, self.bad_lines_folder):
                self.console.print(table)
            self.console.print(account.table())
            queued_count = _queued_count(collector) + self._queued_at_edge()
            is_good = replacement.is_whole = account.is_equal and not queued_count
        self.console.print(f"The Parquet is in {self.rows_folder}", soft_wrap=True, markup=False)
        if is_good:
            self.console.print("Every line was landed once and acknowledged; both channels are empty.")
        else:
            self.console.print(f"[bold red]The account is not equal[/]; {queued_count:,} events are not acknowledged.")
            if replacement.earlier.exists():
                self.console.print(f"The earlier result is in {replacement.earlier}", soft_wrap=True, markup=False)
        return is_good

    def _land_all(self, collector: millrace.Client, line_type: str) -> Account:
        account = Account(in_file=fingerprint(enumerate(self.log.lines(), 1)))
        with self._progress() as progress:
            written = progress.add_task("into the live log", total=self.log.line_count)
            acknowledged = progress.add_task("through Spark", total=self.log.line_count)

            def show() -> None:
                progress.update(acknowledged, completed=_acknowledged_count(collector))

            self._let_grow(collector, lambda line_count: progress.advance(written, line_count))
            self._land_round(collector, line_type, show, is_killed=True)
            while _acknowledged_count(collector) < self.log.line_count:
                self._land_round(collector, line_type, show, is_killed=False)
        # Sequences begin at 1 in a new channel, and unlike counters survive a restart of the server.
        account.events_committed = _gauges(collector).next_sequence - 1
        account.landed = self._landed_fingerprint()
        return account

    def _let_grow(self, collector: millrace.Client, on_written: Callable[[int], None]) -> None:
        live_log = LiveLog(self.agents.live_log, self.log)
        live_log.write_up_to(0.4, on_written)
        # So that the crashes happen while events are on their way.
        self._wait_for(collector, 1)
        for left, crash in reversed(list(enumerate(reversed(self.agents.crashes)))):
            with crash_during(crash, self.console):
                live_log.write_up_to(1.0 - 0.6 * left / len(self.agents.crashes), on_written)

    def _land_round(
        self, collector: millrace.Client, line_type: str, show: Callable[[], None], *, is_killed: bool
    ) -> None:
        """Lands the events of the collector once it holds all missing lines, or is full."""
        before = _acknowledged_count(collector)
        self._wait_for(collector, self.log.line_count - before)
        count = _queued_count(collector)
        plan = LandingPlan(
            endpoint=self.agents.collector.endpoint,
            rows_folder=self.rows_folder,
            bad_lines_folder=self.bad_lines_folder,
            line_type=line_type,
            batch_events_max=max(math.ceil(count / _BATCHES), 1),
            is_short=self.log.size_bytes <= _SHORT_RUN_BYTES_MAX,
        )
        if is_killed:
            first_batch = before + plan.batch_events_max
            with local_landing(plan) as landing:
                _wait_until(landing, lambda: _acknowledged_count(collector) >= first_batch, show)
                if not (landing.is_running and landing.kill()):
                    landing.wait()
                    self.console.print("The landing was done before it could be killed.")
                    return
            self.console.print(
                f"Killed the landing (SIGKILL) when {_acknowledged_count(collector) - before:,} lines were "
                "acknowledged; the next one continues from its checkpoint",
                soft_wrap=True,
            )
        with local_landing(plan) as landing:
            _wait_until(landing, lambda: False, show)
            landing.wait()

    def _wait_for(self, collector: millrace.Client, wanted_count: int) -> None:
        """Waits until the collector holds this many lines, or is full."""
        wanted_count = min(wanted_count, self.limits.lines_max)
        last_count = 0
        since = time.monotonic()
        while (count := _queued_count(collector)) < wanted_count:
            if _is_full(collector):
                return
            if count != last_count:
                last_count, since = count, time.monotonic()
            if time.monotonic() - since > _ARRIVAL_SECONDS_MAX:
                raise ServerError(
                    f"{wanted_count - count:,} lines did not arrive within {_ARRIVAL_SECONDS_MAX:.0f} s; see the logs "
                    "of edge and collector"
                )
            time.sleep(_POLL_SECONDS)

    def _landed_fingerprint(self) -> Fingerprint:
        return fingerprint(landed_lines(self.rows_folder, self.bad_lines_folder))

    def _queued_at_edge(self) -> int:
        with millrace.connect(self.agents.edge.endpoint) as edge:
            return _queued_count(edge)

    def _progress(self) -> Progress:
        text, count = TextColumn("{task.description:<16}"), MofNCompleteColumn()
        return Progress(SpinnerColumn(), text, BarColumn(), count, TimeElapsedColumn(), console=self.console)


def _wait_until(landing: LandingProcess, condition: Callable[[], bool], show: Callable[[], None]) -> None:
    """Waits until the landing has ended, or a condition holds."""
    while landing.is_running and not condition():
        show()
        time.sleep(_POLL_SECONDS)


def _gauges(client: millrace.Client) -> millrace.ChannelGauges:
    """Returns the gauges of the channel; waits while no server owns it."""
    give_up = time.monotonic() + _ARRIVAL_SECONDS_MAX
    while (channel := client.admin.get_channel(CHANNEL)).state is millrace.ChannelState.STANDING_BY:
        if time.monotonic() > give_up:
            raise ServerError(f"no server has taken channel {CHANNEL} over within {_ARRIVAL_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
    return channel.gauges


def _is_full(client: millrace.Client) -> bool:
    """Whether the next batch does not fit the channel, in events or in bytes."""
    return _gauges(client).waiting_commits > 0


def _queued_count(client: millrace.Client) -> int:
    return _gauges(client).queued_events


def _acknowledged_count(client: millrace.Client) -> int:
    gauges = _gauges(client)
    return gauges.next_sequence - 1 - gauges.queued_events
