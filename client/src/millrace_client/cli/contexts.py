"""Contexts: how to connect to servers, each under a name, in a file that only its user may read."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace_client.cli.exit_status import CommandError, ExitCode

FIELDS = ("server", "tls_ca", "tls_certificate", "tls_key", "token_file", "token")
"""What a context may hold: the fields of a session."""


@dataclass
class Contexts:
    """All contexts, and the one in use."""

    path: Path
    by_name: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)
    current: str | None = None

    def options(self, name: str) -> Mapping[str, str]:
        if name not in self.by_name:
            raise CommandError(
                ExitCode.USAGE,
                f"there is no context {name!r} in {self.path}; see the names with `millrace context list`",
            )
        return self.by_name[name]

    def save(self) -> None:
        """Replaces the file, as a whole or not at all."""
        # TOML's basic strings are JSON's strings, except that DEL must be escaped.
        lines = [f"current = {_quoted(self.current)}"] if self.current in self.by_name else []
        for name, options in self.by_name.items():
            lines += ["", f"[contexts.{_quoted(name)}]", *(f"{key} = {_quoted(text)}" for key, text in options.items())]
        beside = self.path.with_name(f".contexts-{os.getpid()}")
        try:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            with os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
                file.write("\n".join(lines).lstrip() + "\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            raise CommandError(ExitCode.REFUSED, f"cannot write {self.path}: {error.strerror}") from error
        finally:
            beside.unlink(missing_ok=True)


def load_contexts() -> Contexts:
    """Reads the contexts; none if there is no file.

    Raises:
        CommandError: Others may read the file, or it is malformed.
    """
    home = os.path.expanduser("~/.config")  # noqa: PTH111 - that of Path raises where there is no home directory
    path = Path(os.environ.get("XDG_CONFIG_HOME") or home, "millrace", "contexts.toml")
    try:
        with path.open(encoding="utf-8") as file:
            rights = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        return Contexts(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CommandError(ExitCode.USAGE, f"cannot read {path}: {reason}") from error
    if rights & 0o077:
        raise CommandError(
            ExitCode.USAGE, f"{path} may hold tokens, and others may read or change it; run: chmod 600 {path}"
        )
    return _parsed(path, text)


def context_names(incomplete: str) -> list[str]:
    """Returns the names that begin so, to complete them in a shell; none if the contexts cannot be read."""
    try:
        return [name for name in load_contexts().by_name if name.startswith(incomplete)]
    except CommandError:
        return []


def _parsed(path: Path, text: str) -> Contexts:
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(ExitCode.USAGE, f"{path} is not TOML: {error}") from error
    by_name, current = document.get("contexts", {}), document.get("current")
    if not (isinstance(by_name, dict) and all(isinstance(options, dict) for options in by_name.values())):
        raise CommandError(ExitCode.USAGE, f"{path}: contexts is wrong; it has a table [contexts.NAME] for each")
    for name, options in by_name.items():
        if unknown := [key for key, value in options.items() if key not in FIELDS or not isinstance(value, str)]:
            raise CommandError(
                ExitCode.USAGE, f"{path}: {unknown[0]} of the context {name!r} is wrong; it has {', '.join(FIELDS)}"
            )
    return Contexts(path, by_name, current if isinstance(current, str) else None)


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
