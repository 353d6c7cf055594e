"""`millrace transactions|consumers|producers`, and what ends, releases, forgets and retries."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from rich.text import Text

from millrace.command_line.tables import plain_table
from millrace.units import counted, format_age, format_byte_size
from millrace_client import (
    Client,
    ComponentInfo,
    ComponentKind,
    ComponentNotFoundError,
    ComponentState,
    ConsumerInfo,
    OpenTransaction,
    ProducerInfo,
    TxnNotFoundError,
)
from millrace_client.cli.exit_status import CommandError, ExitCode, exit_code_of, sentence_of
from millrace_client.cli.session import (
    ChannelArgument,
    JsonOption,
    channel_names,
    check_sendable,
    completed,
    with_client,
)
from millrace_client.cli.similar_names import question
from millrace_client.cli.terminal import YesOption, note, require_confirmation
from millrace_client.cli.views import age_seconds, component_path, document_of, write_list

transaction_app = typer.Typer(no_args_is_help=True, help="End transactions of any client.")
claim_app = typer.Typer(no_args_is_help=True, help="End claims of any reader.")
producer_app = typer.Typer(no_args_is_help=True, help="Forget producers.")
component_app = typer.Typer(no_args_is_help=True, help="Make sources and sinks retry at once.")

OptionalChannelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CHANNEL",
        callback=lambda name: name and check_sendable(name),
        help="The channel's name; by default all channels.",
        show_default=False,
        autocompletion=completed(channel_names),
    ),
]


def _name_argument(metavar: str, help_text: str, names: Callable[[Client], Sequence[str]] | None = None) -> Any:
    return typer.Argument(
        metavar=metavar,
        callback=check_sendable,
        help=help_text,
        show_default=False,
        autocompletion=None if names is None else completed(names),
    )


def _txn_ids(client: Client) -> list[str]:
    return [txn.txn_id for txn in client.admin.list_transactions()]


def _component_names(client: Client, kind: ComponentKind | None = None) -> list[str]:
    """Returns the names of all components, with their kinds if one was given."""
    return [component_path(one) if kind else one.name for one in client.admin.list_components()]


def _print_result(sentence: str, document: dict[str, object], *, as_json: bool) -> None:
    typer.echo(json.dumps(document) if as_json else sentence)


@with_client
def transactions(client: Client, channel: OptionalChannelArgument = None, *, as_json: JsonOption = False) -> None:
    """List open transactions and deliveries.

    The oldest of each channel are first. LEASE is how long a transaction lives without another call. A delivery, to a
    consumer or a sink, has none. End one with `millrace transaction end TXN`.
    """
    columns: dict[str, Callable[[OpenTransaction], str | Text]] = {
        "TXN": lambda txn: Text(txn.txn_id),
        "KIND": lambda txn: "delivery" if txn.is_delivery else "transaction",
        "CHANNEL": lambda txn: Text(txn.channel),
        "AGE>": lambda txn: format_age(age_seconds(txn.start_time)),
        "LEASE>": lambda txn: format_age(txn.lease_remaining_seconds),
        "PUTS>": lambda txn: f"{txn.put_count:,}",
        "TAKES>": lambda txn: f"{txn.take_count:,}",
        "BYTES>": lambda txn: format_byte_size(txn.body_bytes),
        "IDENTITY": lambda txn: Text(txn.identity or "-"),
        "ADDRESS": lambda txn: Text(_address(txn.peer)),
    }
    listed = client.admin.list_transactions(channel or "")
    write_list(listed, partial(plain_table, columns=columns), "there is no open transaction", as_json=as_json)


@transaction_app.command()
@with_client
def end(
    client: Client,
    txn: Annotated[str, _name_argument("TXN", "The id of a transaction or delivery.", _txn_ids)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Roll back a transaction of any client, or a delivery; its events return to the channel.

    One that was rolled back before is left as it is; one that was committed is refused.
    """
    try:
        client.admin.end_transaction(txn)
    except TxnNotFoundError as error:
        raise CommandError(
            ExitCode.REFUSED, f"the server knows no transaction {txn}; see the open ones with `millrace transactions`"
        ) from error
    _print_result(f"{txn}: rolled back", {"txn_id": txn}, as_json=as_json)


@claim_app.command()
@with_client
def release(
    client: Client,
    channel: ChannelArgument,
    *,
    epoch: Annotated[
        int | None, typer.Option(metavar="EPOCH", min=0, help="Only the claim of this epoch; by default any.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """End the claim on a channel, whichever reader has it; calls of that reader fail from now on.

    The events that it has not acknowledged stay in the channel.
    """
    claim = client.admin.release_claim(channel, epoch)
    sentence = f"{channel}: released the claim of {claim.reader_id}, epoch {claim.epoch}"
    _print_result(sentence, {"channel": channel, "reader_id": claim.reader_id, "epoch": claim.epoch}, as_json=as_json)


@with_client
def consumers(client: Client, channel: OptionalChannelArgument = None, *, as_json: JsonOption = False) -> None:
    """List the consumers of channels.

    They are Consume streams and the server's sinks that are at work, the oldest of each channel first. UNACKED are
    events that were delivered and not acknowledged yet.
    """
    columns: dict[str, Callable[[ConsumerInfo], str | Text]] = {
        "CONSUMER": lambda consumer: Text(_address(consumer.peer)),
        "CHANNEL": lambda consumer: Text(consumer.channel),
        "UNACKED>": lambda consumer: f"{consumer.open_events:,}",
        "DELIVERIES>": lambda consumer: f"{consumer.open_deliveries:,}",
        "AGE>": lambda consumer: format_age(age_seconds(consumer.start_time)),
        "IDENTITY": lambda consumer: Text(consumer.identity or "-"),
    }
    listed = client.admin.list_consumers(channel or "")
    write_list(listed, partial(plain_table, columns=columns), "there is no consumer", as_json=as_json)


@with_client
def producers(client: Client, channel: ChannelArgument, *, as_json: JsonOption = False) -> None:
    """List the producers that a channel remembers.

    It stores none of their events twice. LAST is the last of a producer's own numbers, SEEN how long ago it last sent
    an event. The least recently active is first. Only the first 1,000 are listed.
    """
    columns: dict[str, Callable[[ProducerInfo], str | Text]] = {
        "PRODUCER": lambda producer: Text(producer.producer_id),
        "SEEN>": lambda producer: format_age(age_seconds(producer.last_seen)),
        "LAST>": lambda producer: f"{producer.last_sequence:,}",
        "GAPS>": lambda producer: f"{producer.gap_count:,}",
        "IDENTITY": lambda producer: Text(producer.identity or "-"),
    }
    listed = client.admin.list_producers(channel)
    write_list(listed, partial(plain_table, columns=columns), "the channel remembers no producer", as_json=as_json)
    if (count := client.admin.get_channel(channel).gauges.producers) > len(listed):
        note(f"these are {len(listed):,} of {counted(count, 'producer')}, the least recently active ones")


@producer_app.command()
@with_client
def forget(
    client: Client,
    channel: ChannelArgument,
    producer_id: Annotated[str, _name_argument("ID", "The producer's id; see `millrace producers`.")],
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a channel forget a producer: events that it sends again are stored again.

    Asks for confirmation on a terminal.
    """
    if not yes:
        require_confirmation(lambda: f"Forget what {producer_id} has stored in {channel}?", "nothing was forgotten")
    client.admin.forget_producer(channel, producer_id)
    _print_result(f"{channel}: forgot {producer_id}", {"channel": channel, "producer_id": producer_id}, as_json=as_json)


@component_app.command()
@with_client
def retry(
    client: Client,
    name: Annotated[str, _name_argument("NAME", "A component, such as out or sinks/out.", _component_names)],
    *,
    kind: Annotated[
        ComponentKind | None, typer.Option(help="Its kind, where two components have the same name.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a component that is backing off, or has failed, retry at once. For a sink group, all of its sinks retry.

    The response shows the state before the retry; see the result with `millrace components`.
    """
    name, kind = _named(name, kind)
    try:
        before = client.admin.retry_component(name, kind)
    except ComponentNotFoundError as error:
        asked = question(f"{kind}s/{name}" if kind else name, lambda: _component_names(client, kind))
        raise CommandError(exit_code_of(error), sentence_of(error, client.endpoint, asked)) from error
    _print_result(f"{component_path(before)}: {_retried(before)}", document_of(before), as_json=as_json)


def _named(name: str, kind: ComponentKind | None) -> tuple[str, ComponentKind | None]:
    """Returns the name and the kind of a component; a name may have its kind, as in `millrace components`."""
    kinds = {f"{one}s": one for one in ComponentKind}
    plural, _, bare = name.partition("/")
    return (bare, kinds[plural]) if bare and plural in kinds else (name, kind)


def _retried(before: ComponentInfo) -> str:
    if before.state in {ComponentState.BACKING_OFF, ComponentState.FAILED}:
        failures = counted(before.counters.failure_count, "failure")
        return f"tries again now, after {failures}, the last of them: {before.reason}"
    if before.kind is ComponentKind.SINK_GROUP:
        return f"{before.state}; those of its sinks that waited try again now"
    return f"{before.state}, so there is nothing to retry"


def _address(peer: str) -> str:
    """Returns an address as gRPC writes it, `ipv4:127.0.0.1:1234`, as people do."""
    return unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:")) or "-"
