import os
from pathlib import Path

import pytest

from millrace_server.agent.sources.taildir.discovery import PathPatterns

FILES = ("a.log", "b.log", "b.txt", ".hidden.log", "x/a.log", "x/y/a.log", "x/y/z/b.log", ".git/a.log", "[1].log")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Some files in some directories, with links among them."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "x" / "circle").symlink_to(tmp_path)
    (tmp_path / "link.log").symlink_to(tmp_path / "b.txt")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nothing")
    return tmp_path


def found(tree: Path, *patterns: str, exclude: tuple[str, ...] = ()) -> list[str]:
    """The files found, relative to the tree; fails if a file is found twice or refused."""

    def refuse(path: str, error: OSError) -> None:
        raise AssertionError(path) from error

    each = list(PathPatterns([str(tree / pattern) for pattern in patterns], exclude, refuse).find())
    assert len({file.path for file in each}) == len(each)
    return [os.path.relpath(file.path, tree) for file in each]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.log", ["a.log"]),
        ("nothing.log", []),
        ("*.log", ["[1].log", "a.log", "b.log", "link.log"]),
        ("[ab].log", ["a.log", "b.log"]),
        ("[[]1].log", ["[1].log"]),
        ("?.txt", ["b.txt"]),
        (".*.log", [".hidden.log"]),
        ("x/*.log", ["x/a.log"]),
        ("*/*.log", ["x/a.log"]),
        ("x/circle/b.*", ["x/circle/b.log", "x/circle/b.txt"]),
        ("**/a.log", ["a.log", "x/a.log", "x/y/a.log"]),
        ("x/**/*.log", ["x/a.log", "x/y/a.log", "x/y/z/b.log"]),
        ("x/**", ["x/a.log", "x/y/a.log", "x/y/z/b.log"]),
        ("**/y/**/*.log", ["x/y/a.log", "x/y/z/b.log"]),
        (".git/*", [".git/a.log"]),
    ],
)
def test_find_by_a_pattern_returns_the_files_that_match(tree: Path, pattern: str, expected: list[str]) -> None:
    """A pattern works as in a shell; `**` follows no links, and hidden names must be matched explicitly."""
    assert found(tree, pattern) == expected


def test_find_by_several_patterns_assigns_each_file_to_the_first(tree: Path) -> None:
    """A file that matches two patterns is found once, by the first of them."""
    patterns = PathPatterns([str(tree / "b.*"), str(tree / "*.log")], (), lambda *_: None)
    assert [(Path(each.path).name, Path(each.pattern).name) for each in patterns.find()] == [
        ("b.log", "b.*"),
        ("b.txt", "b.*"),
        ("[1].log", "*.log"),
        ("a.log", "*.log"),
        ("link.log", "*.log"),
    ]


def test_find_without_what_is_excluded_leaves_it_out(tree: Path) -> None:
    """A name is excluded everywhere, a path with a slash as a whole."""
    assert found(tree, "**/*.log", exclude=("b.*", "link.*", "*/y/*")) == ["[1].log", "a.log", "x/a.log"]


def test_find_in_an_unreadable_directory_reports_it_and_continues(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable directory is reported, and the others are searched."""
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path) == str(tree / "x" / "y"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    reported: list[str] = []
    patterns = PathPatterns([str(tree / "**/*.log")], (), lambda path, _error: reported.append(path))
    names = [os.path.relpath(each.path, tree) for each in patterns.find()]
    assert names == ["[1].log", "a.log", "b.log", "link.log", "x/a.log"]
    assert set(reported) == {str(tree / "x" / "y")}


def test_find_by_a_relative_pattern_begins_at_the_working_directory(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path becomes absolute, so that headers and positions contain absolute paths."""
    monkeypatch.chdir(tree)
    assert [each.path for each in PathPatterns(["x/*.log"], (), lambda *_: None).find()] == [str(tree / "x/a.log")]
