"""Fenced blocks of a page; those that a test runs come after a comment `<!-- run: KIND -->`."""

import re
from pathlib import Path
from typing import NamedTuple

SYNTAX_ONLY = "syntax"
"""The kind of blocks that need what tests do not have, such as a cluster: their syntax and options are checked."""

CHECKED = "check"
"""The kind of configurations that `millraced check` must accept as they are."""

_BLOCK = re.compile(
    r"^(?:<!-- run: (?P<kind>[\w./-]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block: how a test runs it, if it says so, its language and its content."""

    kind: str | None
    language: str
    text: str


def all_blocks(page: Path) -> list[Block]:
    """All blocks of a page, in its order."""
    return [Block(*match.groups()) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def blocks_of(page: Path, kind: str) -> list[str]:
    """The blocks of one kind, in the page's order."""
    return [block.text for block in all_blocks(page) if block.kind == kind]


def block_with(page: Path, kind: str, text: str) -> str:
    """The only block of a kind that contains a text."""
    [found] = [block for block in blocks_of(page, kind) if text in block]
    return found
