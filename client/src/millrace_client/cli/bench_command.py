"""`millrace bench`: how much a channel takes and gives, and how long that lasts."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from millrace_client import Client, MillraceError, Producer, ProducerConfig, SendAttempt
from millrace_client.cli.bench_load import STAMP_BYTES, Figures, Load, measure_put, measure_take
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.notes import note
from millrace_client.cli.session import ChannelArgument, JsonOption, seconds_option, with_client
from millrace_client.producer import ProducerHooks

SECONDS = 10.0
BODY_BYTES = 512
HEADER_COUNT = 2

_FOR_EVER = 1e9
_BUFFER_PATIENCE_SECONDS = 10.0
"""How much longer a send waits for room in the buffer than an event waits to be stored: so it is told why it waits."""

bench_app = typer.Typer(no_args_is_help=True, help="Measure how much a channel takes and gives.")

EventsOption = Annotated[
    int | None,
    typer.Option("--events", "-n", metavar="N", min=1, show_default=False, help="Stop after so many events."),
]
SecondsOption = Annotated[float, seconds_option("--seconds", min=0.01, help="Stop after so long.")]
BodyBytesOption = Annotated[
    int, typer.Option("--body-bytes", metavar="BYTES", min=STAMP_BYTES, help="Size of each body.")
]
HeadersOption = Annotated[int, typer.Option("--headers", metavar="N", min=0, max=256, help="Headers of each event.")]
KeysOption = Annotated[
    int, typer.Option("--keys", metavar="N", min=0, help="Use so many different keys; 0: events have none.")
]
RateOption = Annotated[
    float, typer.Option("--rate", metavar="EVENTS", min=0, help="Send at most so many a second; 0: as many as can be.")
]
BatchEventsOption = Annotated[
    int, typer.Option("--batch-events", metavar="N", min=1, help="Events of a batch at most.")
]
LingerOption = Annotated[float, seconds_option("--linger", min=0, help="How long an event waits for others.")]

_DEFAULTS = ProducerConfig()


@bench_app.command()
@with_client
def put(
    client: Client,
    channel: ChannelArgument,
    *,
    events: EventsOption = None,
    seconds: SecondsOption = SECONDS,
    body_bytes: BodyBytesOption = BODY_BYTES,
    headers: HeadersOption = HEADER_COUNT,
    keys: KeysOption = 0,
    rate: RateOption = 0.0,
    batch_events: BatchEventsOption = _DEFAULTS.batch_events_max,
    linger: LingerOption = _DEFAULTS.linger_seconds,
    as_json: JsonOption = False,
) -> None:
    """Send events into a channel, which keeps them.

    Latencies are from sending an event until the server has said that it is stored. A full channel is waited for, up to
    --timeout.
    """
    client.admin.get_channel(channel)
    load = Load(
        event_count=events,
        seconds=seconds,
        body_bytes=body_bytes,
        header_count=headers,
        key_count=keys,
        events_per_second=rate,
    )
    config = _config(client, batch_events, linger)
    _write({"put": _put(client, channel, load, config)}, as_json=as_json)


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
    """Take events out of a channel: they are gone afterwards.

    Ends when the channel is empty. Latencies are from when `millrace bench put` sent an event, on the same machine.
    """
    client.admin.get_channel(channel)
    taken = measure_take(client.channel(channel), events, lambda: _is_empty(client, channel), seconds)
    _write({"take": taken}, as_json=as_json)


@bench_app.command()
@with_client
def both(
    client: Client,
    channel: ChannelArgument,
    *,
    events: EventsOption = None,
    seconds: SecondsOption = SECONDS,
    body_bytes: BodyBytesOption = BODY_BYTES,
    headers: HeadersOption = HEADER_COUNT,
    keys: KeysOption = 0,
    rate: RateOption = 0.0,
    batch_events: BatchEventsOption = _DEFAULTS.batch_events_max,
    linger: LingerOption = _DEFAULTS.linger_seconds,
    as_json: JsonOption = False,
) -> None:
    """Send events into an empty channel and take them out again at the same time.

    Latencies of the takes are from sending an event until it is delivered.
    """
    if not _is_empty(client, channel):
        raise CommandError(
            ExitCode.REFUSED,
            f"the channel {channel} holds events, which would be taken; use another, or empty it with "
            f"`millrace channel purge {channel}`",
        )
    load = Load(
        event_count=events,
        seconds=seconds,
        body_bytes=body_bytes,
        header_count=headers,
        key_count=keys,
        events_per_second=rate,
    )
    config = _config(client, batch_events, linger)
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as taking:
        taken = taking.submit(
            measure_take,
            client.channel(channel),
            None,
            lambda: stopping.is_set() and _is_empty(client, channel),
            _FOR_EVER,
        )
        try:
            sent = _put(client, channel, load, config)
        except MillraceError:
            stopping.set()
            # A channel that nobody takes from is full in the end: where the takes have failed, that is why.
            taken.result()
            raise
        finally:
            stopping.set()
        _write({"put": sent, "take": taken.result()}, as_json=as_json)


def _is_empty(client: Client, channel: str) -> bool:
    return not client.admin.get_channel(channel).gauges.queued_events


class _TroubleNotes(ProducerHooks):
    """Tells what keeps events from being stored, each reason once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:  # noqa: ARG002 - as told
        if retry_seconds is not None and attempt.reason not in self._told:
            self._told.add(attempt.reason)
            note(f"{attempt.message}; waiting")


def _config(client: Client, batch_events: int, linger: float) -> ProducerConfig:
    patience = client.timeout_seconds
    return ProducerConfig(
        batch_events_max=batch_events,
        linger_seconds=linger,
        delivery_timeout_seconds=patience,
        max_block_seconds=patience + _BUFFER_PATIENCE_SECONDS,
    )


def _put(client: Client, channel: str, load: Load, config: ProducerConfig) -> Figures:
    with Producer(client.endpoint, channel, config=config, hooks=_TroubleNotes()) as producer:
        return measure_put(producer, load)


def _write(figures: dict[str, Figures], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({name: measured.document() for name, measured in figures.items()}))
        return
    for name, measured in figures.items():
        typer.echo(f"{name}: {measured.sentence('stored' if name == 'put' else 'taken')}")
