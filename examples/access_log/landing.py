"""The landing of the collector's channel: `millrace-spark land` as a process that can be killed and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from examples.access_log.agents import CHANNEL, LINE_BYTES_MAX
from examples.access_log.interruptions import scratch_folder, uninterrupted

# Spark's settings of other programs must not apply here.
_REMOVED_VARIABLES = {"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"}

# The second compiler, several garbage collector threads and the verification of Spark's classes take half of the CPU
# time of a short run.
_SHORT_RUN_JAVA_OPTIONS = (
    "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_SHORT_RUN_CONF = f'"spark.driver.extraJavaOptions" = "{_SHORT_RUN_JAVA_OPTIONS}"'


class LandingError(Exception):
    """Raised when the landing failed; the message is for the user."""


@dataclass(frozen=True, kw_only=True)
class LandingPlan:
    """What to land, and where."""

    endpoint: str
    """The server of the channel."""
    rows_folder: Path
    """The folder of the landed rows; the checkpoint is beside it."""
    bad_lines_folder: Path
    """The folder of the lines that cannot be parsed."""
    line_type: str
    """The format of the lines: `parse.type` of `millrace-spark`."""
    batch_events_max: int
    is_short: bool
    """Whether the landing takes little longer than Spark's start."""

    def config(self) -> str:
        """Returns the configuration of `millrace-spark land`."""
        return f"""\
[source]
endpoints = ["{self.endpoint}"]
channels = ["{CHANNEL}"]
reader_id = "access-log-job"
events_per_batch_max = {self.batch_events_max}

[parse]
type = "{self.line_type}"
invalid_utf8 = "replace"
line_bytes_max = {LINE_BYTES_MAX}

[target]
path = {json.dumps(str(self.rows_folder.absolute()))}
event_columns = ["sequence", "body"]

[bad_lines]
path = {json.dumps(str(self.bad_lines_folder.absolute()))}

[spark.conf]
"spark.sql.shuffle.partitions" = "2"
{_SHORT_RUN_CONF if self.is_short else ""}
"""


class LandingProcess:
    """A running landing, created by `local_landing`."""

    def __init__(self, plan: LandingPlan, scratch: Path) -> None:
        self._errors = scratch / "errors"
        config = scratch / "landing.toml"
        config.write_text(plan.config())
        with self._errors.open("wb") as errors:
            # A process group with the JVM, so that Ctrl-C reaches only the job, and a kill ends both.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millrace_spark.cli", "land", config],
                env={name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> bool:
        """Ends the process and its JVM as a crash would; returns False if it had ended before."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def wait(self) -> None:
        """Waits for the end.

        Raises:
            LandingError: The landing failed.
        """
        if self._process.wait():
            lines = self._errors.read_text(errors="replace").splitlines()
            raise LandingError(lines[-1] if lines else f"the landing ended with {self._process.returncode}")


@contextmanager
def local_landing(plan: LandingPlan) -> Iterator[LandingProcess]:
    """Runs a landing, and kills it if it has not ended at the end of the block."""
    with scratch_folder("landing-", plan.rows_folder.parent.parent) as scratch:
        landing: LandingProcess | None = None
        try:
            with uninterrupted():
                landing = LandingProcess(plan, scratch)
            yield landing
        finally:
            if landing is not None:
                with uninterrupted():
                    landing.kill()


@dataclass
class Replacement:
    """A folder that replaces an earlier one."""

    earlier: Path
    """The earlier folder, if there was one."""
    is_whole: bool = True
    """Whether the new folder is complete, so that the earlier one can be removed."""


@contextmanager
def replaced(folder: Path) -> Iterator[Replacement]:
    """Replaces a folder: removes the earlier one if the block succeeds, and restores it if the block fails.

    If the block reports an incomplete result, both folders stay, and the next call replaces the incomplete one.
    """
    earlier = folder.with_name(f"{folder.name}.earlier")
    replacement = Replacement(earlier)
    if earlier.exists():
        # A killed run left it, and its own result is incomplete.
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        folder.rename(earlier)
    try:
        yield replacement
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise
    if replacement.is_whole:
        shutil.rmtree(earlier, ignore_errors=True)
