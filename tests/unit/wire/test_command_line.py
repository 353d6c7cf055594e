import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from millrace.command_line import tables
from millrace.command_line.notes import printable
from millrace.command_line.tables import plain_table

REASON = "cannot reach a Millrace server at collector-1.example:7070; is millraced running there?"
LONG_NAME = "a-name-of-more-than-forty-characters-that-people-chose"
ROWS = [("access", "running", 12, ""), (LONG_NAME, "failed", 1_234_567, REASON)]


def test_printable_with_control_characters_escapes_them() -> None:
    """Escape sequences, newlines and C1 controls are escaped; tabs and letters stay."""
    assert printable("a\tä\x1b[31m\n\x9b\x7f") == "a\tä\\x1b[31m\\n\\x9b\\x7f"


def test_printable_with_surrogates_escapes_them() -> None:
    """Arguments that are not UTF-8 can be shown."""
    assert printable("\udcff") == "\\udcff"


def drawn(rows: list[tuple[str, str, int, str]], width: int) -> list[str]:
    """The lines of a table on a terminal of this width."""
    table = plain_table(
        rows,
        {
            "NAME": lambda row: row[0],
            "STATE": lambda row: Text(row[1], style="red"),
            "EVENTS>": lambda row: f"{row[2]:,}",
            "TYPE": lambda _: "of a rather long type",
        },
        {"REASON": lambda row: row[3]},
    )
    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=True, color_system=None).print(table)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 300])
def test_plain_table_of_any_width_has_all_names_states_and_reasons(width: int) -> None:
    """Whatever the width, no line is longer, and neither names, states nor reasons lose a character."""
    heading, *lines = drawn(ROWS, width)
    assert heading.split()[:2] == ["NAME", "STATE"]
    assert max(map(len, lines)) <= width
    together = "".join("".join(lines).split())
    assert REASON.replace(" ", "") in together
    assert "running" in together
    assert "failed" in together
    folded = "".join(line.split()[0] for line in lines[1:] if not line.startswith(" "))
    assert folded == LONG_NAME


def test_plain_table_on_a_narrow_terminal_leaves_out_the_last_columns() -> None:
    """A column is shown as a whole or not at all."""
    assert drawn(ROWS[:1], 80)[0].split() == ["NAME", "STATE", "EVENTS", "TYPE"]
    assert drawn(ROWS[:1], 30)[0].split() == ["NAME", "STATE", "EVENTS"]


def test_plain_table_without_rows_has_its_headings() -> None:
    """Nobody takes an empty list for a failure."""
    assert drawn([], 80)[0].split() == ["NAME", "STATE", "EVENTS", "TYPE"]


def test_plain_table_in_a_pipe_aligns_its_columns_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid would take seconds for thousands of channels; characters of two columns count as two."""
    monkeypatch.setattr(tables, "_grid", None)
    table = plain_table(
        [("注文", 7, ""), ("a-name", 1_234, REASON)],
        {"NAME": lambda row: row[0], "EVENTS>": lambda row: f"{row[1]:,}"},
        {"REASON": lambda row: row[2]},
    )
    screen = io.StringIO()
    Console(file=screen, width=300, force_terminal=False).print(table)
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == [
        "NAME    EVENTS  REASON",
        "注文         7  -",
        f"a-name   1,234  {REASON}",
    ]


@pytest.mark.parametrize("program", ["millrace", "millraced", "millrace-spark"])
def test_each_program_onto_a_full_disk_ends_in_a_sentence(program: str) -> None:
    """Even its help writes no traceback."""
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [Path(sys.executable).with_name(program), "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr.decode() == f"{program}: cannot write the output: No space left on device\n"


def test_plain_table_with_two_long_columns_folds_both() -> None:
    """Neither squeezes the other out."""
    table = plain_table(["a" * 30], {"CONSUMER": str, "CHANNEL": lambda _: "c" * 60})
    screen = io.StringIO()
    Console(file=screen, width=40, force_terminal=True, color_system=None).print(table)
    heading, *lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert heading.split() == ["CONSUMER", "CHANNEL"]
    assert lines[0].split() == ["a" * 20, "c" * 18]
    assert "".join(lines).count("a") == 30
    assert "".join(lines).count("c") == 60
