"""The command `millraced import-flume`."""

import errno
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.units import counted
from millrace_server.cli.reporting import EXIT_CANNOT_START, EXIT_USAGE, failure, print_error

if TYPE_CHECKING:
    from millrace_server.flume_import import ImportedAgent, ImportSettings, Property

_FILE_BYTES_MAX = 16 << 20


def import_flume(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Flume's properties files; later ones override earlier ones."),
    ],
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent to convert, if the files have several.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to standard output.")
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("--define", "-D", metavar="NAME=VALUE", help="A Java system property, for ${sys:NAME}."),
    ] = None,
    tls_directory: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Write certificates and keys of PKCS #12 keystores to PEM files there."),
    ] = None,
    *,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext", help="Let sources listen without TLS on addresses that other machines can reach."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, and write nothing, if anything has no counterpart.")
    ] = False,
) -> None:
    """Convert a Flume agent's configuration; report on standard error what differs or has no counterpart.

    Values may refer to environment variables: ${env:NAME} is read from the environment of this command.
    """
    from millrace_server.flume_import import ImportSettings

    settings = ImportSettings(dict(os.environ), _definitions(define or []), allow_plaintext, tls_directory)
    imported, lines = _import(files, agent, settings)
    _report(imported, lines)
    if strict and not imported.is_complete:
        for path in imported.written_files:
            path.unlink(missing_ok=True)
        raise failure("nothing was written, since something is left out, and --strict was given", EXIT_USAGE)
    toml = imported.toml()
    if output is None:
        typer.echo(toml, nl=False)
    else:
        _write_new(output, toml)
    _check(toml, output)


def _definitions(texts: list[str]) -> dict[str, str]:
    split = [text.partition("=") for text in texts]
    if wrong := [name for name, equals, _ in split if not (name and equals)]:
        raise failure(f"--define {wrong[0]}: must be NAME=VALUE", EXIT_USAGE)
    return {name: value for name, _, value in split}


def _import(files: list[Path], agent: str | None, settings: "ImportSettings") -> "tuple[ImportedAgent, dict[str, str]]":
    """Returns an agent, and the place of each property as `FILE:LINE`; exits with an error if there is no agent."""
    from millrace_server.flume_import import FlumeImportError, import_agent

    properties: list[Property] = []
    lines: dict[str, str] = {}
    for file in files:
        found = _properties(file)
        properties.extend(found)
        lines |= {item.key: f"{file}:{item.line}" for item in found}
    try:
        return import_agent(properties, agent, settings), lines
    except FlumeImportError as error:
        raise failure(f"{' and '.join(map(str, files))}: cannot be imported: {error}", EXIT_USAGE) from None


def _properties(file: Path) -> "list[Property]":
    from millrace_server.flume_import import PropertiesError, parse_properties

    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX + 1)
        if len(content) <= _FILE_BYTES_MAX:
            return parse_properties(content.decode("utf-8-sig"))
        reason = f"is larger than {_FILE_BYTES_MAX} bytes"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        reason = f"line {line}: is not UTF-8"
    except (PropertiesError, ValueError) as error:
        reason = str(error)
    raise failure(f"{file}: cannot be imported: {reason}", EXIT_USAGE)


def _report(imported: "ImportedAgent", lines: dict[str, str]) -> None:
    """Writes a note for each property that has one, and a summary."""
    from millrace_server.flume_import import OUTCOME_WORDS, Outcome

    for note in imported.notes:
        place = f"{lines[note.key]}: " if note.key in lines else ""
        outcome = "note" if note.outcome is Outcome.CONVERTED else OUTCOME_WORDS[note.outcome]
        print_error(f"{place}{note.key}: {outcome}: {note.sentence}")
    for agent, count in imported.other_agents.items():
        owner = f"agent {agent}" if agent else "no agent"
        print_error(f"{counted(count, 'property', 'properties')} of {owner}: ignored")
    total = sum(imported.counts.values())
    parts = ", ".join(f"{imported.counts.get(outcome, 0)} {word}" for outcome, word in OUTCOME_WORDS.items())
    defaults = ", ".join(f"{count} {OUTCOME_WORDS[outcome]}" for outcome, count in imported.default_counts.items())
    of_defaults = f"; of Flume's defaults: {defaults}" if defaults else ""
    print_error(f"agent {imported.agent}, {counted(total, 'property', 'properties')}: {parts}{of_defaults}")


def _check(toml: str, output: Path | None) -> None:
    from millrace.setting_file import SettingsError
    from millrace_server.configuration.settings import check_settings, load_settings

    try:
        if output is None:
            check_settings(tomllib.loads(toml), "the result")
        else:
            load_settings(output)
    except SettingsError as error:
        for problem in error.problems:
            print_error(f"to be fixed manually: {problem.located(error.source)}")
        raise typer.Exit(EXIT_USAGE) from None


def _write_new(path: Path, text: str) -> None:
    from millrace_server.files import write_atomically

    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        # For its owner only, since it may contain the passwords of the imported file.
        write_atomically(path, text.encode(), mode=0o600)
    except OSError as error:
        raise failure(f"{path}: cannot be written: {error.strerror}", EXIT_CANNOT_START) from None
