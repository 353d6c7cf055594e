"""What commands tell people besides their output: sentences on standard error."""

import sys

import typer

from millrace_client.cli.plain_text import printable


def note(sentence: str) -> None:
    """Writes one sentence for people, as one line."""
    typer.echo(f"millrace: {printable(sentence)}", err=True)


def note_to_terminal(sentence: str) -> None:
    """The same, but only where a person is likely to read it: scripts and logs stay quiet."""
    if sys.stderr is not None and sys.stderr.isatty():
        note(sentence)


def counted(count: int, noun: str) -> str:
    """Writes `1 event` or `2,000 events`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
