"""Executable fenced blocks of a page, each after a comment `<!-- run: KIND -->`."""

import re
from pathlib import Path

_BLOCK = re.compile(r"<!-- run: (?P<kind>[\w.]+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)


def blocks_of(page: Path, kind: str) -> list[str]:
    """The blocks of one kind, in the page's order."""
    return [match["text"] for match in _BLOCK.finditer(page.read_text(encoding="utf-8")) if match["kind"] == kind]
