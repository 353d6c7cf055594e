"""The commands in the documentation: their syntax, and the options of the project's programs."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.fenced_blocks import all_blocks
from tests.unit.repository.checkout import project_files
from tests.unit.repository.documented_commands import command_lines, problem_of
from tools.site import cli_pages

PAGES = [path for path in project_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
SHELLS = {"bash", "sh", "console"}
_INLINE = re.compile(r"`((?:millraced?|millrace-spark) [^`\n]+(?:\n[^`\n]+)?)`")
_INDENTED = re.compile(r"^    (?:[A-Z_]+=\S+ )*(?:millraced?|millrace-spark|make|pip|curl|sudo) .*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _scripts(page: Path) -> list[str]:
    return [block.text for block in all_blocks(page) if block.language in SHELLS]


def test_shell_blocks_of_all_pages_are_parsed_by_bash() -> None:
    """Bash finds no error in the syntax of any block."""
    for page in PAGES:
        for script in _scripts(page):
            read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            assert read.returncode == 0, (page.name, script, read.stderr)


def test_command_lines_of_all_pages_have_options_that_exist() -> None:
    """The programs' own parsers accept each command line, whether a test can run it or not."""
    lines = [(page.name, line) for page in PAGES for script in _scripts(page) for line in command_lines(script)]
    assert len(lines) > 30
    assert [(name, problem) for name, line in lines if (problem := problem_of(line))] == []


def test_commands_named_in_sentences_exist() -> None:
    """What a sentence names in passing may lack arguments, and its placeholders are in brackets or capitals."""
    problems = []
    for page in PAGES:
        for match in _INLINE.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
            for line in command_lines(match[1].replace("[", "").replace("]", "").replace("...", "")):
                problem = problem_of(line, is_whole=False)
                problems += [(page.name, problem)] if problem else []
    assert problems == []


def test_commands_are_in_fenced_blocks() -> None:
    """A block that is only indented has no language, and no test would find it."""
    found = [(page.name, line) for page in PAGES for line in _INDENTED.findall(_FENCED.sub("", page.read_text()))]
    assert found == []


def test_reference_of_the_command_lines_has_all_options_and_exit_codes() -> None:
    """Commands that are imported late have their options, lists have whole sentences, and exit codes are a block."""
    page = cli_pages.page()
    assert "* `--transaction-capacity EVENTS`" in page
    assert "* `put`: Put the lines of a file or of standard input into a channel." in page
    assert "```text\nExit codes:\n" in page
    assert "\x08" not in page


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("millrace peek orders | head -1 # a look", [["millrace", "peek", "orders"]]),
        ("seq 3 | millrace put orders\n", [["millrace", "put", "orders"]]),
        (
            "A=1 bin/millraced serve \\\n  --log-level info",
            [["bin/millraced", "serve", "--log-level"]],
        ),
        ("(umask 077; millraced token make a > b)", [["millraced", "token", "make", "a"]]),
        ("# millrace peek orders", []),
        ("x=$(millrace channels --json)", [["millrace", "channels", "--json"]]),
    ],
)
def test_command_lines_in_a_script_are_found(script: str, lines: list[list[str]]) -> None:
    """Pipes, assignments, comments and redirections are no part of them."""
    found = [line[: len(expected)] for line, expected in zip(command_lines(script), lines, strict=True)]
    assert found == lines


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("millrace channel create orders --type file", None),
        ("millrace channel create orders --sort file", "--sort"),
        ("millrace chanel", "no command chanel"),
        ("millrace channel create", "without"),
        ("millrace peek orders payments", "surplus"),
        ("millraced serve --help", None),
    ],
)
def test_problem_of_a_command_line_is_named(line: str, problem: str | None) -> None:
    """Unknown commands and options, surplus arguments and missing ones are errors."""
    found = problem_of(line.split())
    assert found is None if problem is None else problem in (found or "")
