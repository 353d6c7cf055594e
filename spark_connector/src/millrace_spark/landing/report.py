"""What a landing has done, in the end."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.landing_run import LandingState

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_UNIT_FACTOR = 1024


def report_json(state: LandingState, config: LandingConfig, seconds: float, outcome: str) -> dict[str, Any]:
    """The report for scripts.

    Args:
        state: How the landing ended.
        config: What was wanted.
        seconds: How long it took, Spark's start included.
        outcome: `done`, `stopped` or `failed`.
    """
    return {
        "outcome": outcome,
        "path": config.target.path,
        "seconds": round(seconds, 3),
        **asdict(state.account),
        "lag": state.lag,
        "compacted_files_before": state.compaction.files_before,
        "compacted_files_after": state.compaction.files_after,
        "not_compacted": list(state.compaction.refusals),
        "swaps_finished": state.swaps_finished,
    }


def report_table(state: LandingState, config: LandingConfig, seconds: float) -> Table:
    """The report for people."""
    account, compaction = state.account, state.compaction
    made = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in (
        ("landed in", config.target.path),
        ("events", f"{account.events:,} in {counted(account.batches, 'batch', 'batches')}"),
        ("rows", f"{account.rows:,}"),
        ("bad lines", _bad_lines(state, config)),
        ("files", _files(state)),
        (
            "compacted",
            f"{compaction.files_before:,} files into {compaction.files_after:,}" if compaction.files_before else "",
        ),
        ("finished", _finished(state)),
        ("left", f"{state.lag:,} events that came meanwhile" if state.lag else ""),
        ("time", f"{seconds:.1f} s, {rate(account.events, seconds)}"),
        *(("note", refusal) for refusal in compaction.refusals),
    ):
        if value:
            # Text, since a path may look like rich's markup.
            made.add_row(name, Text(value))
    return made


def shown_bytes(size_bytes: float) -> str:
    """A size for people."""
    unit = 0
    while size_bytes >= _UNIT_FACTOR and unit < len(_UNITS) - 1:
        size_bytes /= _UNIT_FACTOR
        unit += 1
    return f"{size_bytes:.1f} {_UNITS[unit]}" if unit else f"{size_bytes:.0f} bytes"


def rate(count: int, seconds: float) -> str:
    """Events a second."""
    return f"{count / max(seconds, 0.001):,.0f} events/s"


def counted(count: int, one: str, more: str) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else more}"


def bad_lines_place(config: LandingConfig) -> str:
    """Where bad lines go."""
    if config.bad_lines.channel:
        return f"channel {config.bad_lines.channel}"
    return config.bad_lines_path


def _bad_lines(state: LandingState, config: LandingConfig) -> str:
    count = state.account.bad_lines
    return f"{count:,} in {bad_lines_place(config)}" if count else "0"


def _files(state: LandingState) -> str:
    account = state.account
    folders = counted(account.partitions, "folder", "folders")
    return f"{account.files:,} in {folders}, {shown_bytes(account.files_bytes)}" if account.files else "0"


def _finished(state: LandingState) -> str:
    told = []
    if state.account.decided_before:
        told.append(counted(state.account.decided_before, "batch", "batches"))
    if state.swaps_finished:
        told.append(counted(state.swaps_finished, "compaction", "compactions"))
    return f"{' and '.join(told)} that a killed run had left half done" if told else ""
