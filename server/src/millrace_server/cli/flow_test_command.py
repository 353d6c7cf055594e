"""The command `millraced test`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from millrace.units import counted
from millrace_server.cli.reporting import EXIT_FAILED, EXIT_USAGE, print_json, print_problems

if TYPE_CHECKING:
    from millrace_server.configuration.settings import Settings
    from millrace_server.flow_tests.cases import CaseFile
    from millrace_server.flow_tests.runner import CaseResult

LoadedT = TypeVar("LoadedT")


def run_flow_tests(
    flows: Annotated[Path, typer.Argument(metavar="FLOWS", help="The configuration file with the flows.")],
    cases: Annotated[Path, typer.Argument(metavar="CASES", help="The TOML file with the cases.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Write the results as JSON.")] = False,
) -> None:
    """Test flows: feed events into the interceptors and the selector of sources, and compare what comes out where.

    Nothing is started, connected to or stored.
    """
    from millrace_server.flow_tests.runner import run_cases

    settings, file = _load_both(flows, cases)
    results = list(run_cases(settings, file))
    failed_count = sum(not result.is_passed for result in results)
    if as_json:
        print_json({"is_passed": not failed_count, "cases": [result.document() for result in results]})
    else:
        _show(results, failed_count)
    if failed_count:
        raise typer.Exit(EXIT_FAILED)


def _load_both(flows: Path, cases: Path) -> "tuple[Settings, CaseFile]":
    """Reads both files; writes the problems of both and exits if there are any."""
    from millrace_server.configuration.settings import load_settings
    from millrace_server.flow_tests.cases import load_cases

    settings = _loaded(lambda: load_settings(flows))
    file = _loaded(lambda: load_cases(cases, settings))
    if settings is None or file is None:
        raise typer.Exit(EXIT_USAGE)
    return settings, file


def _loaded(load: Callable[[], LoadedT]) -> LoadedT | None:
    from millrace.setting_file import SettingsError

    try:
        return load()
    except SettingsError as error:
        print_problems(error)
        return None


def _show(results: "list[CaseResult]", failed_count: int) -> None:
    from millrace_server.logs import safe_text

    for result in results:
        typer.echo(safe_text(f"{'ok    ' if result.is_passed else 'FAILED'}  {result.name}"))
        for difference in result.differences:
            typer.echo(safe_text(f"        {difference}"))
    typer.echo(f"{counted(len(results), 'case')}: {len(results) - failed_count} passed, {failed_count} failed.")
