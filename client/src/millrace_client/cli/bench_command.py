"""`millrace bench`: the throughput and the latency of a channel."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from millrace_client import Client, MillraceError, Producer, ProducerConfig, SendAttempt
from millrace_client.cli.bench_load import STAMP_BYTES, Figures, Load, measure_put, measure_take
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.session import ChannelArgument, JsonOption, Session, seconds_option, with_client, with_options
from millrace_client.cli.terminal import note, note_to_terminal
from millrace_client.cli.upload import CLOSE_SECONDS
from millrace_client.producer import ProducerHooks

SECONDS = 10.0
_NO_TIME_LIMIT = 1e9
_BUFFER_WAIT_SECONDS = 10.0
"""How much longer a send waits for the buffer than an event for its store: so the store's error is reported."""

bench_app = typer.Typer(no_args_is_help=True, help="Measure the throughput and the latency of a channel.")

EventsOption = Annotated[
    int | None,
    typer.Option("--events", "-n", metavar="N", min=1, help="Stop after this number of events."),
]
SecondsOption = Annotated[float, seconds_option("--seconds", min=0.01, help="Stop after this time.")]

_LOAD_OPTIONS: dict[str, Any] = {
    "event_count": EventsOption,
    "seconds": SecondsOption,
    "body_bytes": Annotated[
        int, typer.Option("--body-bytes", metavar="BYTES", min=STAMP_BYTES, help="Size of each body.")
    ],
    "header_count": Annotated[
        int, typer.Option("--headers", metavar="N", min=0, max=256, help="Headers of each event.")
    ],
    "key_count": Annotated[
        int, typer.Option("--keys", metavar="N", min=0, help="Number of different keys; 0: events have none.")
    ],
    "events_per_second": Annotated[
        float, typer.Option("--rate", metavar="EVENTS", min=0, help="Maximum events per second; 0: no limit.")
    ],
    "batch_events": Annotated[
        int, typer.Option("--batch-events", metavar="N", min=1, help="Maximum events of a batch.")
    ],
    "linger": Annotated[float, seconds_option("--linger", min=0, help="How long an event waits for others.")],
}
"""The options of what is sent, by the fields of Load, and those of the producer."""

_PRODUCER_DEFAULTS = ProducerConfig()
_LOAD_DEFAULTS = {
    "seconds": SECONDS,
    "body_bytes": 512,
    "header_count": 2,
    "key_count": 0,
    "events_per_second": 0.0,
    "batch_events": _PRODUCER_DEFAULTS.batch_events_max,
    "linger": _PRODUCER_DEFAULTS.linger_seconds,
}


@bench_app.command()
@with_client
@with_options(_LOAD_OPTIONS, defaults=_LOAD_DEFAULTS)
def put(
    client: Client, session: Session, channel: ChannelArgument, *, as_json: JsonOption = False, **load: Any
) -> None:
    """Send events into a channel, which keeps them.

    Latencies are from sending an event until the server has stored it. A full channel is waited for, up to --timeout.
    """
    client.admin.append_capacity(channel)
    note_to_terminal(f"sending events to {channel} {_extent(load)}")
    _write({"put": _put(client, session, channel, load)}, as_json=as_json)


@bench_app.command()
@with_client
def take(
    client: Client,
    channel: ChannelArgument,
    *,
    events: EventsOption = None,
    seconds: SecondsOption = SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Take events out of a channel, which removes them.

    Ends when the channel is empty. Latencies are from `millrace bench put` on the same machine until delivery.
    """
    client.admin.get_channel(channel)
    note_to_terminal(f"taking events of {channel} for up to {seconds:g} s, or until it is empty")
    taken = measure_take(client.channel(channel), events, lambda: _is_empty(client, channel), seconds)
    _write({"take": taken}, as_json=as_json)


@bench_app.command()
@with_client
@with_options(_LOAD_OPTIONS, defaults=_LOAD_DEFAULTS)
def both(
    client: Client, session: Session, channel: ChannelArgument, *, as_json: JsonOption = False, **load: Any
) -> None:
    """Send events into an empty channel, and take them out at the same time.

    Latencies of the takes are from sending an event until its delivery.
    """
    if not _is_empty(client, channel):
        raise CommandError(
            ExitCode.REFUSED,
            f"the channel {channel} holds events, which this command would remove; use another, or empty it with "
            f"`millrace channel purge {channel}`",
        )
    note_to_terminal(f"sending events to {channel} and taking them {_extent(load)}")
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as taking:
        taken = taking.submit(
            measure_take,
            client.channel(channel),
            None,
            lambda: stopping.is_set() and _is_empty(client, channel),
            _NO_TIME_LIMIT,
        )
        try:
            sent = _put(client, session, channel, load)
        except MillraceError:
            stopping.set()
            # If the takes failed, that is why the channel is full.
            taken.result()
            raise
        finally:
            stopping.set()
        _write({"put": sent, "take": taken.result()}, as_json=as_json)


def _extent(load: dict[str, Any]) -> str:
    seconds = f"for {load['seconds']:g} s"
    return seconds if load["event_count"] is None else f"until there are {load['event_count']:,}, or {seconds}"


def _is_empty(client: Client, channel: str) -> bool:
    return not client.admin.get_channel(channel).gauges.queued_events


class _TroubleNotes(ProducerHooks):
    """Notes why events cannot be stored and how long they are waited for, each reason once."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._noted: set[str] = set()

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:  # noqa: ARG002 - the signature of the hook
        if retry_seconds is not None and attempt.reason not in self._noted:
            self._noted.add(attempt.reason)
            note(f"{attempt.message}; waiting for up to {self._patience_seconds:g} s")


def _put(client: Client, session: Session, channel: str, load: dict[str, Any]) -> Figures:
    timeout_seconds = client.timeout_seconds
    config = ProducerConfig(
        batch_events_max=load.pop("batch_events"),
        linger_seconds=load.pop("linger"),
        delivery_timeout_seconds=timeout_seconds,
        max_block_seconds=timeout_seconds + _BUFFER_WAIT_SECONDS,
    )
    producer = Producer(
        client.endpoint, channel, config=config, hooks=_TroubleNotes(timeout_seconds), **session.security
    )
    try:
        return measure_put(producer, Load(**load))
    finally:
        # All events are stored, or the command was interrupted or has failed: then the rest is not worth a wait.
        producer.close(CLOSE_SECONDS)


def _write(figures: dict[str, Figures], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({name: measured.document() for name, measured in figures.items()}))
        return
    for name, measured in figures.items():
        typer.echo(f"{name}: {measured.sentence('stored' if name == 'put' else 'taken')}")
