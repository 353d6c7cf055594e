"""Checks that the audit log has a file of its own, since it appends to any file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from millrace.setting_lines import SettingPath
from millrace.setting_problems import Problem, shown_path, shown_value
from millrace_server.agent.setting_types import table_at
from millrace_server.configuration.declared_texts import declared_texts

_AUDIT_FILE = ("auth", "audit_file")
_OWN_ENTRIES = ("catalog.json", "channels", "lock", "sinks", "sources")
"""The server's entries in `server.data_dir`, which may hold other files too."""


def audit_conflicts(
    tables: Mapping[str, Any], model: type[BaseModel], default_data_dir: Path, file: Path | None
) -> list[Problem]:
    """Returns a problem if `auth.audit_file` has another use, judged by its path with links resolved.

    That is: a file or directory that another setting names, the server's own data, a file in the directory of a source
    that moves or deletes its files, or the configuration in `file`.
    """
    text = table_at(tables, "auth").get("audit_file")
    audit_file = _resolved(text)
    if audit_file is None:
        return []
    if audit_file == _resolved(file):
        return [_problem(text, "the configuration file itself")]
    others = dict(_named_paths(tables, model))
    uses = [
        *(f"which is also {shown_path(path)}" for path, other in others.items() if audit_file == other),
        *(
            f"which lies in {shown_path(path)}"
            for path, directory in _used_directories(others, tables, default_data_dir)
            if audit_file.is_relative_to(directory)
        ),
    ]
    return [_problem(text, use) for use in uses[:1]]


def _problem(text: object, use: str) -> Problem:
    return Problem(_AUDIT_FILE, f"is {shown_value(text)}, {use}; the audit log needs a file of its own")


def _named_paths(tables: Mapping[str, Any], model: type[BaseModel]) -> Iterator[tuple[SettingPath, Path]]:
    for path, text, annotation, _ in declared_texts(tables, model):
        if annotation is Path and path != _AUDIT_FILE and (resolved := _resolved(text)) is not None:
            yield path, resolved


def _used_directories(
    named: Mapping[SettingPath, Path], tables: Mapping[str, Any], default_data_dir: Path
) -> Iterator[tuple[SettingPath, Path]]:
    """Yields the server's entries in its data directory, other directories of channels, and those of `spooldir`."""
    data_dir = ("server", "data_dir")
    for entry in _OWN_ENTRIES:
        yield data_dir, named.get(data_dir, default_data_dir.resolve()) / entry
    for path, directory in named.items():
        if path[0] == "channels" and path[2:3] in {("data_dirs",), ("checkpoint_dir",)}:
            yield path, directory / str(path[1])
        elif (
            path[0] == "sources" and path[2:] == ("directory",) and tables["sources"][path[1]].get("type") == "spooldir"
        ):
            yield path, directory


def _resolved(path: object) -> Path | None:
    """Returns a path with links resolved; None if it is invalid, which is reported elsewhere."""
    try:
        return Path(path).resolve() if isinstance(path, str | Path) else None
    except (ValueError, OSError, RuntimeError):
        return None
