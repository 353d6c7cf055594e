"""The commands of `millrace`, each of which is imported when it is called.

gRPC, rich and pydantic take longer to import than most commands work. So modules of commands import what they need at
their top as usual, and nothing imports these modules before: `millrace --help` needs only what is here.
"""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand

_AS_MANY_AS_GIVEN = -1
"""The `nargs` of an argument that may be repeated."""

COMMANDS = {
    "channels": ("admin_commands:channels", "List all channels and their state."),
    "components": ("admin_commands:components", "List the server's sources, sinks and sink groups, and their state."),
    "put": ("put_command:put", "Put the lines of a file or of standard input into a channel."),
    "take": ("read_commands:take", "Take events out of a channel and print their bodies as lines."),
    "peek": ("read_commands:peek", "Show the oldest events of a channel without taking them."),
    "tail": ("read_commands:tail", "Show events as they are committed, until Ctrl-C, without taking them."),
    "top": (
        "top_command:top",
        "Watch depth, fill and rates of channels, and the server's sources and sinks, until `q` or Ctrl-C.",
    ),
    "channel": ("admin_commands:channel_app", "Create, show, change, move, delete, purge and search channels."),
    "transactions": ("activity_commands:transactions", "List open transactions and deliveries."),
    "transaction": ("activity_commands:transaction_app", "End transactions of any client."),
    "claim": ("activity_commands:claim_app", "End claims of any reader."),
    "consumers": ("activity_commands:consumers", "List the consumers of channels."),
    "producers": ("activity_commands:producers", "List the producers that a channel remembers."),
    "producer": ("activity_commands:producer_app", "Forget producers."),
    "component": ("activity_commands:component_app", "Make sources and sinks retry at once."),
    "report": ("report_command:report", "Report on the channels of several servers, with problems first."),
    "dead-letter": ("dead_letter_commands:dead_letter_app", "List and replay dead letters."),
    "context": ("context_commands:context_app", "Manage contexts: named sets of connection options."),
    "bench": ("bench_command:bench_app", "Measure the throughput and the latency of a channel."),
}
"""Where each command is, and the first sentence of its help."""


def add_commands(app: typer.Typer) -> None:
    """Adds the names and sentences of all commands, for the program's help."""
    for name, (_, sentence) in COMMANDS.items():
        app.command(name, help=sentence)(_not_loaded)


def _not_loaded() -> None:
    """Stands for a command until it is called."""


def loaded_command(name: str) -> Any:
    """Imports a command; returns what typer makes of it."""
    found = resolve_name(f"{__package__}.{COMMANDS[name][0]}")
    program = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        program.add_typer(found, name=name)
    else:
        program.command(name, cls=_Command)(found)
    return typer.main.get_group(program).commands[name]


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return unconverted(super().get_params(ctx))


def unconverted(parameters: Iterable[Any]) -> Iterable[Any]:
    """Returns parameters that stay None where they are not given: typer imports pydantic to convert even None."""
    for one in parameters:
        if not one.required and not one.multiple and one.nargs in {1, _AS_MANY_AS_GIVEN}:
            one.process_value = partial(_converted, one)
    return parameters


def _converted(parameter: Any, ctx: Any, value: Any) -> Any:
    return None if value is None or value == () else type(parameter).process_value(parameter, ctx, value)
