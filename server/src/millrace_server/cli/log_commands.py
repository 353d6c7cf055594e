"""The commands of `millraced` that verify, dump, repair, export, back up and restore a log without a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from millrace_server.cli.reporting import EXIT_DAMAGED, print_error, print_json

if TYPE_CHECKING:
    from millrace_server.log_tools.layout import ChannelLayout
    from millrace_server.log_tools.verify import Report

_LINE_LENGTH_MAX = 100_000
"""Longer lines of a dump are cut; --json shows them in full."""

log_app = typer.Typer(
    help="Read a channel's log without a server, and repair one in files. Exit codes: 0 the log is intact, 1 it is "
    "damaged, 2 the command line is wrong, 3 the log is in use, a key is missing, its engine does not respond, or "
    "another version wrote it.",
    no_args_is_help=True,
)

Directories = Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="All directories of the channel.")]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Find directories and keys in the server's file.")
]
Channel = Annotated[str | None, typer.Option(metavar="NAME", help="The channel in the --config file.")]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="ID=FILE", help="An encryption key of the log; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@log_app.command()
def verify(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Compare checksums only, and decrypt nothing.")] = False,
    json: AsJson = False,
) -> None:
    """Check that a channel's log is intact, in files or in an engine. Changes nothing; a server may be using it."""
    from millrace_server.cli.log_targets import exit_on_error, readable_log, shown_progress
    from millrace_server.log_tools.reports import report_document, report_lines

    with (
        exit_on_error(),
        shown_progress() as progress,
        readable_log(directories, config, channel, key) as log,
    ):
        report = log.verify(progress, decodes=not no_keys)
        document = report_document(log.layout, report)
        lines = list(report_lines(log.layout, report, log.torn_bytes))
    if json:
        print_json(document)
    else:
        _print(*lines)
        _show_report(report)
    _exit_if_damaged(report)


@log_app.command()
def dump(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="SEGMENT[:BYTE]", help="Start at this position, such as 3:64.")
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show events too: headers, and bodies in base64.")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show the recovered state of the channel, and no records.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show a log, one record per line; damage is reported and skipped. Changes nothing."""
    is_damaged = False
    from millrace_server.cli.log_targets import exit_on_error, readable_log
    from millrace_server.log_tools.dump import DumpStart, record_line
    from millrace_server.log_tools.reports import detailed_state_document

    with exit_on_error():
        first = None if start is None else DumpStart.parse(start)
        with readable_log(directories, config, channel, key) as log:
            if state:
                print_json(detailed_state_document(log.recover()))
                return
            for document in log.dump(first, shows_bodies=bodies):
                is_damaged = is_damaged or "damage" in document
                if json:
                    print_json(document, indent=None)
                else:
                    _print(record_line(document))
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


@log_app.command()
def repair(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where all files are copied to first; by default next to the channel."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Repair; without it, only show what would be done.")] = False,
    json: AsJson = False,
) -> None:
    """Repair a damaged channel so that it opens again. Stop its server first; without --yes nothing changes."""
    from millrace_server.cli.log_targets import exit_on_error, find_log, shown_progress
    from millrace_server.log_tools.backup import ToolContext
    from millrace_server.log_tools.repair import repair as repair_log
    from millrace_server.log_tools.reports import report_document
    from millrace_server.log_tools.salvage import Salvage

    with exit_on_error(), shown_progress() as progress:
        layout, codec = find_log(directories, config, channel, key)
        done = repair_log(layout, ToolContext(codec, progress), keep=keep, applies=yes)
    if json:
        found = done.salvage or Salvage()
        print_json(
            {
                "steps": done.steps,
                "sequences_lost": found.lost,
                "sequences_bound_from": found.bound_from or None,
                "sequences_redelivered": found.redelivered,
                "stamps_lost": found.unstamped,
                "is_renumbered": found.is_renumbered,
                "is_done": done.report is not None,
                "keep": str(done.keep) if done.keep else None,
                "report": report_document(layout, done.report) if done.report else None,
            }
        )
    elif not done.steps:
        _print("Nothing is damaged; nothing was changed.")
    else:
        _print("Done:" if done.report else "This would be done with --yes:", *(f"  {step}" for step in done.steps))
    if done.report is None:
        raise typer.Exit(EXIT_DAMAGED if done.steps else 0)
    if not json:
        _print(f"The original files are in {done.keep}.")
        _show_report(done.report)
    _exit_if_damaged(done.report)


@log_app.command()
def export(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write; it must not exist.")],
    file_format: Annotated[
        Literal["json", "avro"],
        typer.Option("--format", help="JSON lines, which `millrace put --json-lines` reads back, or Avro."),
    ] = "json",
    json: AsJson = False,
) -> None:
    """Write the events in a channel to a file, as far as they can be read. Changes nothing in the channel."""
    from millrace_server.cli.log_targets import exit_on_error, readable_log
    from millrace_server.log_tools.event_index import shown_ranges

    with exit_on_error(), readable_log(directories, config, channel, key) as log:
        layout = log.layout
        found = log.export(to, is_avro=file_format == "avro")
    if json:
        print_json(
            {
                "events": found.event_count,
                "sequences_lost": found.lost,
                "sequences_bound_from": found.bound_from or None,
                "sequences_redelivered": found.redelivered,
            }
        )
    else:
        _print(f"Wrote {found.event_count} events of channel {layout.name} to {to}.")
        if found.lost:
            print_error(f"missing: {found.lost_sentence}")
        if found.redelivered:
            print_error(f"sequences {shown_ranges(found.redelivered)} may have been consumed")
    if found.lost or found.redelivered:
        raise typer.Exit(EXIT_DAMAGED)


def backup(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[PATH...] TARGET", help="The channel's directories, then an empty one to copy to."),
    ],
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    json: AsJson = False,
) -> None:
    """Copy a file channel, even while a server uses it. The copy has every commit that was acknowledged before."""
    *directories, target = paths
    from millrace_server.cli.log_targets import exit_on_error, find_log, shown_progress
    from millrace_server.log_tools.backup import ToolContext, back_up
    from millrace_server.log_tools.layout import find_layout

    with exit_on_error(), shown_progress() as progress:
        layout, codec = find_log(directories, config, channel, key)
        report = back_up(layout, target, ToolContext(codec, progress))
        copied = find_layout([target])
    _show_copy(copied, report, f"Copied channel {layout.name} to {target}.", json=json)


def restore(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="BACKUP [TARGET...]",
            help="A backup, then the channel's data directories, empty or missing; the first gets the checkpoints.",
        ),
    ],
    *,
    config: Config = None,
    channel: Channel = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="A new name for the channel.")] = None,
    key: Keys = None,
    json: AsJson = False,
) -> None:
    """Restore a file channel from a backup; the server opens it at its next start."""
    backup_dir, *targets = paths
    from millrace_server.cli.log_targets import exit_on_error, files_place, shown_progress
    from millrace_server.log_tools.backup import ToolContext
    from millrace_server.log_tools.backup import restore as restore_channel

    with exit_on_error(), shown_progress() as progress:
        target = files_place(targets, config, channel, key)
        report, layout = restore_channel(backup_dir, target, ToolContext(target.codec, progress), name or channel)
    _show_copy(
        layout, report, f"Restored channel {layout.name} to {' and '.join(map(str, layout.directories))}.", json=json
    )
    if not json:
        _print(
            "Stamps and claims are as they were at the backup, and readers see a new channel id. Tell them that events "
            "committed after the backup are lost."
        )


def _show_copy(layout: "ChannelLayout", report: "Report", sentence: str, *, json: bool) -> None:
    from millrace_server.log_tools.reports import report_document

    if json:
        print_json(report_document(layout, report))
    else:
        _print(sentence)
        if report.scan.key_ids:
            _print(f"To read it, keep the keys: {', '.join(sorted(report.scan.key_ids))}.")
        _show_report(report)
    _exit_if_damaged(report)


def _show_report(report: "Report") -> None:
    from millrace_server.log_tools.reports import summary

    for sentence in report.sentences:
        print_error(sentence)
    _print(summary(report))


def _exit_if_damaged(report: "Report") -> None:
    if not report.is_good:
        raise typer.Exit(EXIT_DAMAGED)


def _print(*lines: str) -> None:
    from millrace_server.logs import safe_text

    for line in lines:
        typer.echo(safe_text(line, _LINE_LENGTH_MAX))
