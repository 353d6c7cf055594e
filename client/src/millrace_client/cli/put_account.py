"""What a `millrace put` did, and how to go on where it did not do all."""

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace_client import SendSummary
from millrace_client.cli.notes import counted


@dataclass(slots=True)
class PutAccount:
    """Counts while lines become events. Lines are numbered from 0 through the whole input, skipped ones included."""

    channel: str
    producer_id: str
    skipped_lines: int = 0
    """Lines at the beginning that were left out because the caller said so."""
    lines_read: int = 0
    """Lines read after those."""
    lines_committed: int = 0
    """Of these, lines that the server has answered for: stored now, or stored before under the same producer."""
    events_committed: int = 0
    """Events that this run stored."""
    first_sequence: int = field(default=0)
    """Sequence of the first of them; 0 where there is none."""
    last_sequence: int = field(default=0)
    """Sequence of the last of them. Events of other producers may lie between."""
    server_count: int = 1
    """Over how many servers the lines are spread; with several, sequences are not told."""

    def add(self, summary: SendSummary) -> None:
        """Counts lines that the server has answered for."""
        self.lines_committed += summary.stored_count
        self.events_committed += summary.stored_count - summary.repeated_count
        if self.server_count > 1:
            return
        self.first_sequence = self.first_sequence or summary.first_sequence or 0
        self.last_sequence = summary.last_sequence or self.last_sequence

    @property
    def next_line(self) -> int:
        """The number of the first line that the server has not answered for."""
        return self.skipped_lines + self.lines_committed

    def document(self, *, is_complete: bool) -> dict[str, object]:
        """The account for programs."""
        return {**asdict(self), "complete": is_complete, "resume_skip_lines": self.next_line}

    def sentence(self) -> str:
        """The account for people."""
        parts = [counted(self.lines_read, "line") + " read", counted(self.events_committed, "event") + " committed"]
        if self.skipped_lines:
            parts.insert(0, counted(self.skipped_lines, "line") + " skipped")
        if repeats := self.lines_committed - self.events_committed:
            parts.append(f"{repeats:,} of the lines stored before")
        if self.first_sequence:
            parts.append(f"sequences {self.first_sequence:,} to {self.last_sequence:,}")
        return f"{self.channel}: {', '.join(parts)}"

    def resume_command(self, file: Path | None, options: list[str]) -> str:
        """The command that stores the rest, and only the rest, of the same input."""
        words = ["millrace", "put", self.channel, *([str(file)] if file else []), *options]
        words += ["--skip-lines", str(self.next_line), "--producer-id", self.producer_id]
        return shlex.join(words)
