"""`millrace put`: lines of a file or of standard input become events."""

import json
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from os import fstat
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

import typer

from millrace_client import ChannelInfo, Client
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
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
    seconds_option,
    with_client,
)
from millrace_client.cli.upload import Patience, Upload

BATCH_EVENTS = 1000
"""Lines of a batch where `--batch-size` is not said and the channel's transaction capacity allows as many."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a batch: far below a message's limit, and little to send again."""

PATIENCE_SECONDS = 60.0

_STDIN = 0

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
SkipLinesOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Leave out the first lines, as an interrupted put said.")
]
ProducerIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        callback=check_sendable,
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


@with_client
def put(
    client: Client,
    channel: ChannelArgument,
    file: FileArgument = None,
    *,
    headers: HeaderOption = None,
    json_lines: JsonLinesOption = False,
    batch_size: BatchSizeOption = None,
    patience: PatienceOption = PATIENCE_SECONDS,
    skip_lines: SkipLinesOption = 0,
    producer_id: ProducerIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the lines of a file or of standard input into a channel.

    Each line is an event: its bytes without the newline. Empty lines count, and so does a last line without a newline.
    With --json-lines each line is a JSON object as `millrace take --json` writes it, with headers of its own.
    Lines are stored in order and in batches, each exactly once. A full channel is waited for. A put that has to stop
    says which command stores the rest.
    """
    account = PutAccount(channel, producer_id or f"put-{uuid.uuid4().hex}", skipped_lines=skip_lines)
    with _opened(file) as lines_file:
        limits = _limits(client.admin.get_channel(channel), batch_size)
        upload = Upload(
            client.channel(channel), parse_headers(headers or []), account, Patience(patience), is_json=json_lines
        )
        try:
            _put_lines(lines_file, upload, limits, skip_lines)
        except BaseException as error:
            if account.lines_read:
                options = [
                    *_resume_options(client, headers or [], batch_size),
                    *(["--json-lines"] if json_lines else []),
                ]
                error.add_note(_how_to_resume(account, file, options))
            if as_json:
                typer.echo(json.dumps(account.document(is_complete=False)))
            raise
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


def _limits(channel: ChannelInfo, batch_size: int | None) -> BatchLimits:
    allowed = channel.config.transaction_capacity
    if batch_size is not None and batch_size > allowed:
        raise CommandError(
            ExitCode.USAGE,
            f"--batch-size {batch_size:,} is above the transaction capacity of {channel.name}, {allowed:,}; use at most"
            f" that, or raise it with `millrace channel update {channel.name} --transaction-capacity {batch_size}`",
        )
    return BatchLimits(
        events_max=min(batch_size or BATCH_EVENTS, allowed),
        body_bytes_max=min(BATCH_BYTES_MAX, channel.gauges.body_bytes_max),
    )


def _put_lines(file: FileIO, upload: Upload, limits: BatchLimits, skip_lines: int) -> None:
    source = LineSource(file)
    try:
        source.skip(skip_lines)
        with _progress(file, source) as progress:
            for batch in source.batches(limits):
                upload.send(batch, progress)
    except InputError as error:
        raise CommandError(ExitCode.REFUSED if upload.account.lines_read else ExitCode.USAGE, str(error)) from error


def _progress(file: FileIO, source: LineSource) -> AbstractContextManager[PutProgress]:
    # A bar would write between the lines that a person types.
    if file.isatty():
        return nullcontext(NotedProgress())
    status = fstat(file.fileno())
    return shown_progress("put", status.st_size - source.byte_count if S_ISREG(status.st_mode) else None)


def _resume_options(client: Client, headers: list[str], batch_size: int | None) -> list[str]:
    options = [f"--header={header}" for header in headers]
    if batch_size is not None:
        options.append(f"--batch-size={batch_size}")
    if client.endpoint != Session().address:
        options.append(f"--server={client.endpoint}")
    return options


def _how_to_resume(account: PutAccount, file: Path | None, options: list[str]) -> str:
    how = "run" if file else "give the same input to"
    return f"{account.sentence()}; to store the rest, {how} `{account.resume_command(file, options)}`"
