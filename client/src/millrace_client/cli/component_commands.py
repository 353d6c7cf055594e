"""`millrace components`: what fills and empties the channels by itself."""

import json

import typer

from millrace_client import Client
from millrace_client.cli.component_view import component_document, components_table
from millrace_client.cli.notes import note_to_terminal
from millrace_client.cli.screen import show
from millrace_client.cli.session import JsonOption, with_client


@with_client
def components(client: Client, *, as_json: JsonOption = False) -> None:
    """List the server's sources, sinks and sink groups, and how they are.

    LOST are events that a source could not bring where they were meant to be, LAST is the time since a component did
    any work, and WHY is why it does none.
    """
    listed = client.admin.list_components()
    if as_json:
        typer.echo(json.dumps([component_document(component) for component in listed], indent=2))
        return
    show(components_table(listed))
    if not listed:
        note_to_terminal("the server has no sources and no sinks; they belong to its configuration file")
