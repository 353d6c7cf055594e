import io

import pytest
from rich.console import Console
from rich.progress import Progress

from millrace_client import ChannelFullError
from millrace_client.cli.progress import BarProgress, PutProgress, progress_columns, shown_progress

FULL = ChannelFullError("no capacity for 100 more", channel="orders")


def drawn(total_bytes: int | None, *, is_waiting: bool, noun: str = "lines") -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with Progress(*progress_columns(total_bytes, noun), console=console, auto_refresh=False) as progress:
        bar = BarProgress(progress, "put", total_bytes)
        bar.committed(1000, 50_000)
        bar.committed(1000, 50_000)
        if is_waiting:
            bar.waiting(FULL, 60.0)
        progress.refresh()
        with console.capture() as captured:
            console.print(progress.get_renderable())
    return captured.get()


def test_bar_of_a_file_tells_bytes_and_lines() -> None:
    """The bar shows the position and the total."""
    text = drawn(200_000, is_waiting=False)
    assert "100.0/200.0 kB" in text
    assert "2,000 lines" in text


def test_bar_of_a_pipe_tells_lines() -> None:
    """Without a size the total is unknown."""
    text = drawn(None, is_waiting=False)
    assert "2,000 lines" in text
    assert "/" not in text.replace("/s", "")


def test_bar_of_something_else_names_it() -> None:
    """The counted items need not be lines."""
    assert "2,000 events" in drawn(None, is_waiting=False, noun="events")


def test_bar_while_waiting_says_why_and_how_long() -> None:
    """The text is short enough to leave room for the bar."""
    assert "put: channel full, waiting up to 60 s" in drawn(200_000, is_waiting=True)


def test_notes_of_one_wait_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The next wait has its own note."""
    progress = PutProgress()
    progress.waiting(FULL, 60.0)
    progress.waiting(FULL, 60.0)
    progress.committed(1, 1)
    progress.waiting(FULL, 0.5)
    assert capsys.readouterr().err.splitlines() == [
        "millrace: no capacity for 100 more; trying again for up to 60 s",
        "millrace: no capacity for 100 more; trying again for up to 0.5 s",
    ]


def test_shown_progress_without_a_terminal_writes_notes() -> None:
    """Without a terminal sentences are written instead of a bar."""
    with shown_progress("put", 100) as progress:
        assert type(progress) is PutProgress
