"""Pages of the documentation that are generated from the code."""

import argparse
import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


@cache
def docstrings_of(declaring: type) -> dict[str, str]:
    """Returns the docstring below each attribute of a class, in one line."""
    [definition] = ast.parse(inspect.getsource(declaring)).body
    assert isinstance(definition, ast.ClassDef), "the source of a class"
    return dict(_docstrings(definition))


def _docstrings(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            yield ast.unparse(target), " ".join(ast.literal_eval(below.value).split())


def write_or_check(name: str, content: str, description: str | None) -> None:
    """Writes a page, or with the argument `--check` exits with an error if the committed page differs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the page is stale")
    page = DOCS / name
    if not parser.parse_args().check:
        page.write_text(content, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != content:
        sys.exit(f"stale docs/{name}, run `make docs`")
