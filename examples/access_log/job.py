"""From a log file through a channel into Parquet, every line accounted for, although the server is killed twice."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import millrace_client as millrace
from examples.access_log import access_lines, plain_lines
from examples.access_log.account import Account, tally
from examples.access_log.crashes import crash_half_way, tell
from examples.access_log.landing import Landing, LogKind, replaced
from examples.access_log.local_server import LocalServer
from examples.access_log.log_file import LogFile
from examples.access_log.sending import BATCH_BYTES_MAX, BATCH_LINES_MAX, RoundLimits, Sender
from millrace_spark import claim_ranges

CHANNEL = "lines"
READER_ID = "access-log-job"


def server_toml(limits: RoundLimits) -> str:
    """The configuration of a server whose channel holds one round."""
    return f"""\
[channels.{CHANNEL}]
type = "file"
capacity = {limits.lines_max}
transaction_capacity = {min(BATCH_LINES_MAX, limits.lines_max)}
# A fifth of it is set aside for headers.
byte_capacity = {2 * (limits.bytes_max + BATCH_BYTES_MAX)}
"""


class StoppedError(Exception):
    """Returned when the job was told to stop."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Sends a file, and lands and acknowledges what it sent, in as many rounds as the channel's capacity asks for.

    The server is killed twice meanwhile: half-way through the sending, and when Spark has claimed what it is to read.
    """

    log: LogFile
    server: LocalServer
    spark: SparkSession
    folder: Path
    """Where the Parquet files go, in place of those of an earlier run."""
    console: Console
    limits: RoundLimits = field(default_factory=RoundLimits)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    """Set where the job is to end soon."""

    def run(self) -> bool:
        """Shows what it does; returns whether every line arrived, once, and the channel is empty.

        Raises:
            StoppedError: It was told to stop.
        """
        kind: LogKind = access_lines if access_lines.matches(self.log.sample) else plain_lines
        self.console.print(
            f"{self.log.path}: {self.log.line_count:,} lines of {kind.NAME}", soft_wrap=True, markup=False
        )
        with millrace.connect(self.server.endpoint) as client, replaced(self.folder) as fresh:
            landing = Landing(self.spark, fresh, kind)
            account = self._land_all(client, landing)
            for table in kind.tables(landing.rows()):
                self.console.print(table)
            self.console.print(account.table())
            queued_count = client.admin.get_channel(CHANNEL).gauges.queued_events
        told = f"Spark read in {landing.partition_count} partitions; the Parquet is in {self.folder}"
        self.console.print(told, soft_wrap=True, markup=False)
        is_good = account.is_equal and not queued_count
        if is_good:
            self.console.print("Every line arrived, once, and is acknowledged: the channel is empty.")
        else:
            self.console.print(f"[bold red]The account is not equal[/]; {queued_count:,} events are not acknowledged.")
        return is_good

    def _land_all(self, client: millrace.Client, landing: Landing) -> Account:
        account = Account(in_file=tally(self.log.lines()))
        sender = Sender(client.channel(CHANNEL), self.log, self.limits, self._pause)
        with (
            self._progress() as progress,
            crash_half_way(self.server, self.log.line_count) as crash,
        ):
            sent = progress.add_task("into the channel", total=self.log.line_count)
            landed = progress.add_task("through Spark", total=self.log.line_count)

            def on_sent(line_count: int) -> None:
                self._pause(0)
                crash.on_sent(line_count)
                progress.advance(sent, line_count)

            while not sender.is_done:
                sender.send_round(on_sent)
                comeback = crash.comeback()
                if comeback:
                    tell(self.console, "half-way through the sending", comeback)
                # A new channel gives sequences from 1 on. The server's counters begin anew when it does, this does not.
                account.events_committed = client.admin.get_channel(CHANNEL).gauges.next_sequence - 1
                with claim_ranges(self.server.endpoint, CHANNEL, reader_id=READER_ID) as claimed:
                    if comeback:
                        again = self.server.kill_and_start()
                        tell(self.console, "again, when Spark had claimed the channel", again)
                    account.read += landing.land(claimed)
                    written_count = landing.rows().count()
                    if not written_count == account.read.count == account.events_committed:
                        break
                    # Only now are the events of this round safe.
                    claimed.acknowledge()
                progress.update(landed, completed=written_count)
        account.written = landing.written()
        return account

    def _pause(self, seconds: float) -> None:
        if self.is_stopping.wait(seconds):
            raise StoppedError

    def _progress(self) -> Progress:
        text, count = TextColumn("{task.description:<16}"), MofNCompleteColumn()
        return Progress(SpinnerColumn(), text, BarColumn(), count, TimeElapsedColumn(), console=self.console)
