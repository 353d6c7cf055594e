"""`millrace put`: stores the lines of a file or of standard input as events."""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from io import FileIO
from os import fstat
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, NamedTuple

import typer

from millrace_client import Client, NotAChannelError, Producer, ProducerConfig
from millrace_client._calls import KEEP_ALIVE_SECONDS
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.formatting import is_utf8
from millrace_client.cli.line_events import LineFormat, LineRouting
from millrace_client.cli.line_source import BatchLimits, InputError, LineSource
from millrace_client.cli.progress import PutProgress, shown_progress
from millrace_client.cli.session import (
    ChannelArgument,
    JsonOption,
    Session,
    check_sendable,
    checked,
    parse_server,
    seconds_option,
    with_client,
)
from millrace_client.cli.terminal import note_to_terminal
from millrace_client.cli.upload import Destination, PutAccount, TroubleHooks, Upload
from millrace_client.producing.config import EVENT_BYTES_MAX

BATCH_EVENTS = 4096
"""Default of `--batch-size`, if the channel's transaction capacity allows it."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a batch: far below the limit of a message, and little to send again."""
PATIENCE_SECONDS = 60.0
CONNECT_SECONDS = 3.0
"""Minimum patience with a server that cannot be reached, since connecting takes some time."""

_BUFFER_BYTES_MAX = 2 * EVENT_BYTES_MAX
_BLOCK_SECONDS = 86_400.0

_STDIN = 0
_ID_LENGTH_MAX = 128


def _parse_producer_id(text: str) -> str:
    if not (1 <= len(text) <= _ID_LENGTH_MAX and text.isascii() and text.isprintable()):
        raise ValueError(f"{text!r} is not an id; write 1 to {_ID_LENGTH_MAX} printable ASCII characters")
    return text


def parse_headers(texts: list[str]) -> dict[str, str]:
    """Parses `KEY=VALUE` texts; a value may contain `=` and may be empty."""
    headers: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{text!r} is not a header; write KEY=VALUE")
        if key in headers:
            raise ValueError(f"the header {key!r} is given twice; give it once")
        if not is_utf8(text):
            raise ValueError(f"{text!r} is not UTF-8; headers must be")
        headers[key] = value
    return headers


def _checked_headers(texts: list[str]) -> list[str]:
    parse_headers(texts)
    return texts


FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        callback=lambda path: None if path == Path("-") else path,
        help="The file with the lines; `-` or nothing: standard input.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="LINES",
        help=f"Maximum lines of a commit; by default {BATCH_EVENTS:,}, or what the channel allows.",
    ),
]
PatienceOption = Annotated[float, seconds_option(min=0, help="How long to wait for a full channel.")]
PutPatienceOption = Annotated[
    float, seconds_option(min=0, help="How long to wait for a full channel or an unavailable server.")
]
SkipLinesOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Skip the first lines, as an interrupted put suggests.")
]
ProducerIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        callback=checked(_parse_producer_id),
        help="The id of an interrupted put, whose lines are not stored again.",
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="KEY=VALUE",
        callback=checked(_checked_headers),
        help="A header for every event; repeatable.",
    ),
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json-lines", help="Read each line as JSON: `body` or `body_base64`, and `headers`.")
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="HOST:PORT",
        callback=checked(lambda texts: list(map(parse_server, texts))),
        help="Another server with this channel, to distribute the lines over; repeatable.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="HEADER",
        callback=check_sendable,
        help="With --also: events with the same value of this header go to the same server; others round-robin.",
    ),
]


@with_client
def put(
    client: Client,
    session: Session,
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
    With --json-lines each line is a JSON object as `millrace take --json` writes it, with its own headers.
    Lines are stored in order, each exactly once. The command waits for a full channel or an unavailable server. If it
    has to stop, it reports how many lines are stored, and the command that stores the rest without duplicates.
    With --also each server gets a part of the lines, in order: by --key, or round-robin. A line never moves to another
    server, so a resumed put needs the same servers in the same order.
    """
    options = [f"--header={header}" for header in headers or []]
    options += ["--json-lines"] * json_lines + [f"--also={address}" for address in also or []]
    options += [f"--key={key}"] * bool(key) + [f"--batch-size={batch_size}"] * (batch_size is not None)
    options += [f"--patience={patience:.15g}"] * (patience != PATIENCE_SECONDS) + ["--json"] * as_json
    options += session.repeated_options
    reached = session.resolved()
    account = PutAccount(
        channel, producer_id or f"put-{uuid.uuid4().hex}", skip_lines, server_count=1 + len(also or [])
    )
    with _opened(file) as lines_file, ExitStack() as opened:
        others = [opened.enter_context(reached.with_options(server=address).open()) for address in also or []]
        clients = [client, *others]
        limits = _limits([_Space.of(each, channel) for each in clients], channel, batch_size)
        lines = _Lines(LineSource(lines_file), LineFormat(parse_headers(headers or []), is_json=json_lines), limits)
        routing = LineRouting([each.endpoint for each in clients], key)
        config = _config(limits, patience)
        destinations = [*_destinations(clients, account, lines.skip(skip_lines, routing), config, reached)]
        upload = Upload(destinations, lines.format, routing, account, patience)
        try:
            lines.put(lines_file, upload)
        except BaseException as error:
            if account.lines_read:
                error.add_note(_how_to_resume(account, file, options))
            if as_json:
                typer.echo(json.dumps(account.document(is_complete=False)))
            raise
    try:
        typer.echo(json.dumps(account.document(is_complete=True)) if as_json else account.sentence())
    except OSError as error:
        # Otherwise the lines might be put again.
        error.add_note(f"all lines are stored: {account.sentence()}")
        raise


@contextmanager
def _opened(file: Path | None) -> Iterator[FileIO]:
    try:
        opened = FileIO(file) if file else FileIO(_STDIN, closefd=False)
    except OSError as error:
        finding = f"cannot read {file or 'standard input'}: {error.strerror}"
        raise CommandError(ExitCode.USAGE, f"{finding}; name a file that can be read") from error
    with opened:
        if opened.isatty():
            note_to_terminal("reading lines from the terminal; end with Ctrl-D")
        yield opened


class _Space(NamedTuple):
    """What a channel or a source takes at once."""

    event_count: int
    body_bytes: int
    is_of_source: bool = False

    @classmethod
    def of(cls, client: Client, name: str) -> "_Space":
        try:
            channel = client.admin.get_channel(name)
        except NotAChannelError:
            return cls(client.admin.append_capacity(name), BATCH_BYTES_MAX, is_of_source=True)
        return cls(channel.config.transaction_capacity, channel.gauges.body_bytes_max)


def _limits(free: Sequence[_Space], name: str, batch_size: int | None) -> BatchLimits:
    smallest = min(free, key=lambda space: space.event_count)
    allowed = smallest.event_count
    if batch_size is not None and batch_size > allowed:
        target, whose = ("CHANNEL", "that of the source's channels") if smallest.is_of_source else (name, "it")
        raise CommandError(
            ExitCode.USAGE,
            f"--batch-size {batch_size:,} is above the transaction capacity of {name}, {allowed:,}; use at most"
            f" that, or raise {whose} with `millrace channel update {target} --transaction-capacity {batch_size}`",
        )
    return BatchLimits(
        events_max=min(batch_size or BATCH_EVENTS, allowed),
        body_bytes_max=min(BATCH_BYTES_MAX, *(space.body_bytes for space in free)),
    )


def _config(limits: BatchLimits, patience: float) -> ProducerConfig:
    return ProducerConfig(
        batch_events_max=limits.events_max,
        batch_bytes_max=BATCH_BYTES_MAX,
        event_bytes_max=EVENT_BYTES_MAX,
        buffer_bytes_max=_BUFFER_BYTES_MAX,
        max_block_seconds=_BLOCK_SECONDS,
        delivery_timeout_seconds=max(patience, CONNECT_SECONDS),
        attempts_max=None if patience else 1,
    )


def _destinations(
    clients: Sequence[Client],
    account: PutAccount,
    first_numbers: Sequence[int],
    config: ProducerConfig,
    session: Session,
) -> Iterator[Destination]:
    for index, (client, first_number) in enumerate(zip(clients, first_numbers, strict=True)):
        own = replace(
            config,
            # Two names may belong to one server: distinct ids keep their lines from being taken for repeats.
            producer_id=f"{account.producer_id}/{index}" if len(clients) > 1 else account.producer_id,
            first_number=first_number,
            # An append to a full channel waits for the channel's keep-alive.
            timeout_seconds=client.timeout_seconds + KEEP_ALIVE_SECONDS,
        )
        hooks = TroubleHooks()
        producer = Producer(client.endpoint, account.channel, config=own, hooks=hooks, **session.security)
        yield Destination(client.endpoint, producer, hooks)


@dataclass(frozen=True)
class _Lines:
    """The input and the format of its lines."""

    source: LineSource
    format: LineFormat
    limits: BatchLimits

    def skip(self, count: int, routing: LineRouting) -> list[int]:
        """Skips lines; returns how many of them belong to each server."""
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
                for server, indexes in enumerate(routing.indexes_by_server(events, skipped)):
                    counts[server] += len(indexes)
                skipped += len(lines)
        except InputError as error:
            raise CommandError(ExitCode.USAGE, str(error)) from error
        return counts

    def put(self, file: FileIO, upload: Upload) -> None:
        """Sends all lines that are left, and waits until they are stored."""
        with closing(upload), _progress(file, self.source) as progress:
            try:
                for batch in self.source.batches(self.limits):
                    upload.send(batch, progress)
            except InputError as error:
                # The lines before it are valid.
                upload.finish(progress)
                code = ExitCode.REFUSED if upload.account.lines_read else ExitCode.USAGE
                raise CommandError(code, str(error)) from error
            upload.finish(progress)


def _progress(file: FileIO, source: LineSource) -> AbstractContextManager[PutProgress]:
    # A bar would overwrite the lines that the user types.
    if file.isatty():
        return nullcontext(PutProgress())
    status = fstat(file.fileno())
    return shown_progress("put", status.st_size - source.byte_count if S_ISREG(status.st_mode) else None)


def _how_to_resume(account: PutAccount, file: Path | None, options: list[str]) -> str:
    how = "run" if file else "give the same input to"
    return f"{account.sentence()}; to store the rest, {how} `{account.resume_command(file, options)}`"
