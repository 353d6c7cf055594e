"""`millrace put`: lines of a file or of standard input become events."""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from io import FileIO
from os import fstat
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

import typer

from millrace_client import ChannelInfo, Client, Producer, ProducerConfig
from millrace_client._calls import KEEP_ALIVE_SECONDS
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.line_format import LineFormat
from millrace_client.cli.line_routing import LineRouting
from millrace_client.cli.line_source import BatchLimits, InputError, LineSource
from millrace_client.cli.notes import note_to_terminal
from millrace_client.cli.plain_text import is_utf8
from millrace_client.cli.put_account import PutAccount
from millrace_client.cli.put_progress import NotedProgress, PutProgress, shown_progress
from millrace_client.cli.session import (
    ChannelArgument,
    JsonOption,
    Session,
    check_sendable,
    current_session,
    parse_server,
    seconds_option,
    with_client,
)
from millrace_client.cli.upload import Destination, TroubleHooks, Upload
from millrace_client.producing.config import EVENT_BYTES_MAX

BATCH_EVENTS = 4096
"""Lines of a batch where `--batch-size` is not said and the channel's transaction capacity allows as many."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a batch: far below a message's limit, and little to send again."""

PATIENCE_SECONDS = 60.0
CONNECT_SECONDS = 3.0
"""The least patience with a server that cannot be reached: making a connection takes some time itself."""

_BUFFER_BYTES_MAX = 2 * EVENT_BYTES_MAX
_BLOCK_SECONDS = 86_400.0

_STDIN = 0
_ID_LENGTH_MAX = 128


def _check_producer_id(text: str | None) -> str | None:
    if text is not None and not (1 <= len(text) <= _ID_LENGTH_MAX and text.isascii() and text.isprintable()):
        raise typer.BadParameter(f"{text!r} is no id; write 1 to {_ID_LENGTH_MAX} printable ASCII characters")
    return text


def _check_further(texts: list[str] | None) -> list[str]:
    try:
        return [parse_server(text) for text in texts or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        callback=lambda path: None if path == Path("-") else path,
        help="Where the lines are; `-` or nothing: standard input.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="LINES",
        show_default=False,
        help=f"Most lines committed at once; {BATCH_EVENTS:,} where not said, or what the channel allows.",
    ),
]
PatienceOption = Annotated[float, seconds_option(min=0, help="How long a full channel is waited for.")]
PutPatienceOption = Annotated[
    float, seconds_option(min=0, help="How long a full channel, or a server that went away, is waited for.")
]
SkipLinesOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Leave out the first lines, as an interrupted put said.")
]
ProducerIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        callback=_check_producer_id,
        show_default=False,
        help="The interrupted put's id: what it stored is not stored again.",
    ),
]


def parse_headers(texts: list[str]) -> dict[str, str]:
    """Reads `KEY=VALUE` texts; a value may hold `=` and may be empty.

    Raises:
        ValueError: A text has no key, a key comes twice, or a text is not UTF-8.
    """
    headers: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{text!r} is no header; write KEY=VALUE")
        if key in headers:
            raise ValueError(f"the header {key!r} comes twice; give it once")
        if not is_utf8(text):
            raise ValueError(f"{text!r} is not UTF-8; headers must be")
        headers[key] = value
    return headers


def _check_headers(texts: list[str] | None) -> list[str]:
    try:
        parse_headers(texts or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return texts or []


HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="KEY=VALUE",
        callback=_check_headers,
        show_default=False,
        help="A header for every event; may be repeated.",
    ),
]

JsonLinesOption = Annotated[
    bool,
    typer.Option("--json-lines", help="Read each line as JSON: `body` or `body_base64`, and `headers`."),
]


AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="HOST:PORT",
        callback=_check_further,
        show_default=False,
        help="A further server with such a channel, to spread the lines over; may be repeated.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="HEADER",
        callback=check_sendable,
        show_default=False,
        help="With --also: events with the same value of this header go to the same server; others go in turn.",
    ),
]


@with_client
def put(
    client: Client,
    context: typer.Context,
    channel: ChannelArgument,
    file: FileArgument = None,
    *,
    headers: HeaderOption = None,
    json_lines: JsonLinesOption = False,
    also: AlsoOption = None,
    key: KeyOption = None,
    batch_size: BatchSizeOption = None,
    patience: PutPatienceOption = PATIENCE_SECONDS,
    skip_lines: SkipLinesOption = 0,
    producer_id: ProducerIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the lines of a file or of standard input into a channel.

    Each line is an event: its bytes without the newline. Empty lines count, and so does a last line without a newline.
    With --json-lines each line is a JSON object as `millrace take --json` writes it, with headers of its own.
    Lines are stored in order, whatever they hold, and each exactly once. A full channel is waited for, and so is a
    server that goes away. A put that has to stop says how many lines are stored for sure, and which command stores the
    rest: lines are numbered, so that what was stored beyond that is not stored again.
    With --also each server gets a part of the lines, in order: by --key, or in turn. No line goes to another server
    than its own, so a put that is resumed needs the same servers in the same order.
    """
    options = [f"--header={header}" for header in headers or []]
    options += ["--json-lines"] * json_lines + [f"--also={address}" for address in also or []]
    options += [f"--key={key}"] * bool(key) + ([f"--batch-size={batch_size}"] if batch_size is not None else [])
    if client.endpoint != Session().address:
        options.append(f"--server={client.endpoint}")
    account = PutAccount(
        channel,
        producer_id or f"put-{uuid.uuid4().hex}",
        skipped_lines=skip_lines,
        server_count=1 + len(also or []),
    )
    with _opened(file) as lines_file, ExitStack() as opened:
        session = current_session(context)
        clients = [
            client,
            *(opened.enter_context(session.with_options(address, None).open()) for address in also or []),
        ]
        limits = _limits([each.admin.get_channel(channel) for each in clients], batch_size)
        lines = _Lines(LineSource(lines_file), LineFormat(parse_headers(headers or []), is_json=json_lines), limits)
        routing = LineRouting([each.endpoint for each in clients], key)
        first_numbers = lines.skip(skip_lines, routing)
        destinations = [
            Destination(each.endpoint, _producer(each, channel, config, hooks := TroubleHooks()), hooks)
            for each, config in zip(clients, _configs(account, first_numbers, limits, patience), strict=True)
        ]
        upload = Upload(destinations, lines.format, routing, account, patience)
        try:
            lines.put(lines_file, upload)
        except BaseException as error:
            upload.end()
            if account.lines_read:
                error.add_note(_how_to_resume(account, file, options))
            if as_json:
                typer.echo(json.dumps(account.document(is_complete=False)))
            raise
        upload.end()
    typer.echo(json.dumps(account.document(is_complete=True)) if as_json else account.sentence())


@contextmanager
def _opened(file: Path | None) -> Iterator[FileIO]:
    try:
        opened = FileIO(file) if file else FileIO(_STDIN, closefd=False)
    except OSError as error:
        finding = f"cannot read {file or 'standard input'}: {error.strerror}"
        raise CommandError(ExitCode.USAGE, f"{finding}; name a file that can be read") from error
    with opened:
        if opened.isatty():
            note_to_terminal("reading lines from the terminal; Ctrl-D ends them")
        yield opened


def _limits(channels: Sequence[ChannelInfo], batch_size: int | None) -> BatchLimits:
    least = min(channels, key=lambda channel: channel.config.transaction_capacity)
    allowed = least.config.transaction_capacity
    if batch_size is not None and batch_size > allowed:
        raise CommandError(
            ExitCode.USAGE,
            f"--batch-size {batch_size:,} is above the transaction capacity of {least.name}, {allowed:,}; use at most"
            f" that, or raise it with `millrace channel update {least.name} --transaction-capacity {batch_size}`",
        )
    return BatchLimits(
        events_max=min(batch_size or BATCH_EVENTS, allowed),
        body_bytes_max=min(BATCH_BYTES_MAX, *(channel.gauges.body_bytes_max for channel in channels)),
    )


def _configs(
    account: PutAccount, first_numbers: Sequence[int], limits: BatchLimits, patience: float
) -> list[ProducerConfig]:
    """For each server what its producer may do."""
    config = ProducerConfig(
        batch_events_max=limits.events_max,
        batch_bytes_max=BATCH_BYTES_MAX,
        event_bytes_max=EVENT_BYTES_MAX,
        buffer_bytes_max=_BUFFER_BYTES_MAX,
        max_block_seconds=_BLOCK_SECONDS,
        delivery_timeout_seconds=max(patience, CONNECT_SECONDS),
        attempts_max=None if patience else 1,
    )
    # Two names may be one server's: so each has an id of its own, lest lines be taken for each other's repeats.
    suffixes = [f"/{place}" for place in range(len(first_numbers))] if len(first_numbers) > 1 else [""]
    return [
        replace(config, producer_id=account.producer_id + suffix, first_number=first_number)
        for suffix, first_number in zip(suffixes, first_numbers, strict=True)
    ]


def _producer(client: Client, channel: str, config: ProducerConfig, hooks: TroubleHooks) -> Producer:
    # A full channel lets an append wait for as long as its keep-alive.
    patient = replace(config, timeout_seconds=client.timeout_seconds + KEEP_ALIVE_SECONDS)
    return Producer(client.endpoint, channel, config=patient, hooks=hooks)


@dataclass(frozen=True)
class _Lines:
    """The input, and what its lines are."""

    source: LineSource
    format: LineFormat
    limits: BatchLimits

    def skip(self, count: int, routing: LineRouting) -> list[int]:
        """Leaves lines out; gives for each server how many of them are its own."""
        counts = [0] * routing.server_count
        skipped = 0
        try:
            for lines in self.source.skipped(count):
                if routing.server_count == 1:
                    counts[0] += len(lines)
                    continue
                events, error = self.format.events(lines, skipped)
                if error is not None:
                    raise error
                for server, places in enumerate(routing.places(events, skipped)):
                    counts[server] += len(places)
                skipped += len(lines)
        except InputError as error:
            raise CommandError(ExitCode.USAGE, str(error)) from error
        return counts

    def put(self, file: FileIO, upload: Upload) -> None:
        """Sends all lines that are left, and waits until they are stored."""
        with _progress(file, self.source) as progress:
            try:
                for batch in self.source.batches(self.limits):
                    upload.send(batch, progress)
            except InputError as error:
                # The lines before it are good.
                upload.finish(progress)
                code = ExitCode.REFUSED if upload.account.lines_read else ExitCode.USAGE
                raise CommandError(code, str(error)) from error
            upload.finish(progress)


def _progress(file: FileIO, source: LineSource) -> AbstractContextManager[PutProgress]:
    # A bar would write between the lines that a person types.
    if file.isatty():
        return nullcontext(NotedProgress())
    status = fstat(file.fileno())
    return shown_progress("put", status.st_size - source.byte_count if S_ISREG(status.st_mode) else None)


def _how_to_resume(account: PutAccount, file: Path | None, options: list[str]) -> str:
    how = "run" if file else "give the same input to"
    return f"{account.sentence()}; to store the rest, {how} `{account.resume_command(file, options)}`"
