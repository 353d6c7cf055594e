"""`millrace channels SERVER...`: the channels of several servers, each once, and which of them owns it."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import typer
from rich.text import Text

from millrace.command_line.tables import plain_table, show
from millrace.units import counted
from millrace_client import ChannelInfo, ChannelState, ChannelType, MillraceError
from millrace_client.cli.exit_status import CommandError, ExitCode, sentence_of
from millrace_client.cli.session import Session
from millrace_client.cli.several_servers import ask_together, sessions_of
from millrace_client.cli.terminal import note
from millrace_client.cli.views import cells_of_info, document_of


@dataclass(slots=True)
class SharedChannel:
    """A channel as its owner shows it; as any of them does where none of the servers owns it."""

    server: str
    info: ChannelInfo
    standbys: list[str] = field(default_factory=list)
    """The servers that stand by."""


def list_together(session: Session, names: Sequence[str], *, as_json: bool) -> None:
    """Writes the channels of several servers to standard output; raises CommandError if one does not respond."""
    asked = ask_together(sessions_of(session, names), _listed)
    found, silent = {}, 0
    for name, listing in asked.items():
        try:
            found[name] = listing.result()
        except MillraceError as error:
            silent += 1
            note(sentence_of(error, name))
    channels = joined(found.items())
    if as_json:
        typer.echo(json.dumps([_document(channel) for channel in channels], indent=2))
    else:
        show(plain_table(channels, _cells(), {"FAULT": lambda channel: channel.info.fault}))
    if silent:
        raise CommandError(ExitCode.UNREACHABLE, f"{counted(silent, 'server')} of {len(asked)} did not respond")


def _listed(_name: str, session: Session) -> list[ChannelInfo]:
    with session.open() as client:
        return client.admin.list_channels()


def joined(listings: Iterable[tuple[str, Sequence[ChannelInfo]]]) -> list[SharedChannel]:
    """Returns the channels by name, replicated ones once, others once for each server."""
    found: dict[tuple[str, str], SharedChannel] = {}
    for server, listed in listings:
        for info in listed:
            key = info.name, "" if _is_shared(info) else server
            channel = found.setdefault(key, SharedChannel(server, info))
            if info.state is ChannelState.STANDING_BY:
                channel.standbys.append(server)
            else:
                channel.server, channel.info = server, info
    return [found[key] for key in sorted(found)]


def _cells() -> dict[str, Callable[[SharedChannel], str | Text]]:
    return {
        **cells_of_info("CHANNEL STATE"),
        "SERVER": lambda channel: Text(_owner(channel)),
        "STANDBY>": lambda channel: str(len(channel.standbys)) if _is_shared(channel.info) else "-",
        **cells_of_info("QUEUED> FILL> AGE> BYTES> TYPE CAPACITY> TAKEN> TXNS> NEXT> CLAIM"),
    }


def _is_shared(info: ChannelInfo) -> bool:
    return info.config.type is ChannelType.REPLICATED


def _owner(channel: SharedChannel) -> str:
    """The server that has the channel, which may be one that was not asked; empty if none owns it."""
    return channel.info.owner if channel.info.state is ChannelState.STANDING_BY else channel.server


def _document(channel: SharedChannel) -> dict[str, object]:
    return {"server": _owner(channel) or None, "standbys": channel.standbys, **document_of(channel.info)}
