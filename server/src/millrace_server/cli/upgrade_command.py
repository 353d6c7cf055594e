"""The command `millraced upgrade`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace_server.cli.reporting import (
    EXIT_CONVERTS,
    EXIT_DAMAGED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    failure,
    load_or_exit,
    print_json,
)

if TYPE_CHECKING:
    from millrace_server.log_tools.upgrade import ChannelUpgrade


def upgrade(
    *,
    check: Annotated[bool, typer.Option("--check", help="Show what the upgrade would change.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The server's file. Default: none.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="Directory of the data; overrides server.data_dir.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show what starting this version would change on the disk, and whether it accepts the configuration.

    Run it with the new version, before the new server starts; it changes nothing. Files are converted as they are
    written, so there is no other step. Exits with 4 if an earlier version cannot open a channel afterwards, and with 1
    if a channel cannot be read.
    """
    if not check:
        raise failure(
            "files are converted as the server writes them; see what would change: millraced upgrade --check",
            EXIT_USAGE,
        )
    settings = load_or_exit(config, {} if data_dir is None else {"data_dir": data_dir})

    from millrace_server.cli.log_targets import configured_places, exit_on_error
    from millrace_server.log_tools.upgrade import inspect_channel

    with exit_on_error():
        upgrades = list(filter(None, map(inspect_channel, configured_places(config, data_dir))))
    if json:
        print_json({"channels": [upgrade.document() for upgrade in upgrades]})
    else:
        for found in upgrades:
            typer.echo(f"{found.channel}: {found.sentence}")
        if not upgrades:
            # So that a mistyped directory is noticed.
            missing = "" if settings.server.data_dir.is_dir() else ", which does not exist"
            place = f"{settings.server.data_dir}{missing}"
            typer.echo(f"There is nothing to convert: no channel has files yet. The data directory is {place}.")
    _exit_unless_unchanged(upgrades)


def _exit_unless_unchanged(upgrades: list["ChannelUpgrade"]) -> None:
    if any(upgrade.problem for upgrade in upgrades):
        raise failure(
            "some channels cannot be read, so it is not known what happens to them: repair them before the upgrade",
            EXIT_DAMAGED,
        )
    if not all(upgrade.versions.is_known for upgrade in upgrades):
        raise failure(
            "some channels are of a later version; start that version, or restore a backup from before it",
            EXIT_UNAVAILABLE,
        )
    if any(upgrade.versions.is_earlier for upgrade in upgrades):
        raise failure(
            "to be able to go back, stop the server and copy these channels first: millraced backup PATH TARGET",
            EXIT_CONVERTS,
        )
