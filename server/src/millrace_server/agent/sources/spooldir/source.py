"""The source `spooldir`, and its handling of completed and bad files."""

import asyncio
import errno
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.agent.sources.spooldir.chunks import Chunk, ChunkLimits, blob_chunks, line_chunks
from millrace_server.agent.sources.spooldir.config import (
    QUARANTINED_SUFFIX,
    REASON_SUFFIX,
    AnyFormat,
    AvroFormat,
    BlobFormat,
    DeleteDone,
    LinesFormat,
    MoveDone,
    RenameDone,
    SpooldirSourceConfig,
)
from millrace_server.agent.sources.spooldir.content import BadFileError, Content, FileGoneError, SpoolFile
from millrace_server.agent.sources.spooldir.scanner import FILES_MAX, DirectoryScanner, FileStatus, FoundFile
from millrace_server.agent.sources.stored_ranges import StoredRanges
from millrace_server.agent.supervision import ComponentError
from millrace_server.agent.worker_thread import ReadAhead, WorkerThread
from millrace_server.channels.stamps import Stamp

_NAMES_MAX = 1_000


class FileArchiver:
    """Renames, moves or deletes completed files, and quarantines bad ones. It never overwrites another file."""

    def __init__(self, config: SpooldirSourceConfig) -> None:
        self._config = config

    def check_directories(self) -> None:
        """Raises ComponentError if completed files could not be renamed, moved or deleted."""
        directory, done = self._config.directory, self._config.done
        target = done.directory if isinstance(done, MoveDone) else directory
        if not directory.is_dir():
            raise ComponentError(f"there is no directory {directory}; create it, or name another one in `directory`")
        # Its name begins with a dot, so that no other source reads it.
        trial = directory / f".millrace-{secrets.token_hex(8)}"
        try:
            if target != directory:
                target.mkdir(parents=True, exist_ok=True)
            trial.touch(exist_ok=False)
        except OSError as error:
            place = directory if error.filename == str(trial) else error.filename
            raise ComponentError(f"{place} cannot be written to: {error.strerror}") from None
        moved = target / f"{trial.name}-moved"
        try:
            trial.rename(moved)
        except OSError as error:
            trial.unlink()
            raise ComponentError(f"done files cannot be moved from {directory} to {target}: {error.strerror}") from None
        moved.unlink()

    def complete(self, found: FoundFile) -> None:
        """Renames, moves or deletes a stored file. Does nothing if the file is gone or was replaced."""
        path, done = found.path, self._config.done
        if not _still_exists(found):
            return
        match done:
            case RenameDone():
                _rename_unique(path, path.parent, done.suffix)
            case DeleteDone():
                path.unlink()
            case MoveDone():
                _rename_unique(path, self._below(done.directory, path), "")

    def quarantine(self, found: FoundFile, reason: str) -> Path:
        """Moves a bad file away, and puts a file with the reason next to it.

        Returns:
            The new path; the old one if the file is gone or was replaced.
        """
        path = found.path
        if not _still_exists(found):
            return path
        try:
            moved = _rename_unique(path, self._below(self._config.quarantine, path), "")
        except OSError:
            moved = _rename_unique(path, path.parent, QUARANTINED_SUFFIX)
        # The reason is also logged, so an error of a full disk can be ignored.
        with suppress(OSError):
            _write_unique(moved.parent, moved.name + REASON_SUFFIX, reason)
        return moved

    def _below(self, target: Path, path: Path) -> Path:
        """Returns the directory that corresponds to a file's directory in another tree."""
        directory = target / path.parent.relative_to(self._config.directory)
        directory.mkdir(parents=True, exist_ok=True)
        return directory


def _still_exists(found: FoundFile) -> bool:
    try:
        return found.path.lstat().st_ino == found.status.inode
    except FileNotFoundError:
        return False


def _rename_unique(path: Path, directory: Path, suffix: str) -> Path:
    """Renames a file to an unused name."""
    for target in _candidate_names(directory, path.name, suffix):
        # Renaming would overwrite an existing file, so the name is first reserved with an empty file.
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            return path.rename(target)
        except BaseException:
            target.unlink()
            raise
    raise FileExistsError(errno.EEXIST, "all candidate names are in use", str(path))


def _write_unique(directory: Path, name: str, text: str) -> None:
    for target in _candidate_names(directory, name, ""):
        with suppress(FileExistsError), target.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            return


def _candidate_names(directory: Path, name: str, suffix: str) -> Iterator[Path]:
    """Yields names to try, the plain one first."""
    yield directory / f"{name}{suffix}"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    yield directory / f"{name}.{moment}{suffix}"
    for number in range(2, _NAMES_MAX):
        yield directory / f"{name}.{moment}-{number}{suffix}"


_ATTEMPTS_MAX = 3
"""A file that cannot be read in this many attempts is bad."""

_DEFER_SECONDS = 60.0
"""A file that could not be renamed, moved or deleted is retried after this time, which is longer than any back-off of
the source, so that other files are read in between."""

_UNITS = {"lines": "bytes", "blob": "events", "avro": "records"}
"""What is counted by the numbers of a file's events."""

_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})

ReadT = TypeVar("ReadT")

_log = structlog.stdlib.get_logger(__name__)


class SpooldirSource:
    """Stores one file after another, and completes each once all of it is stored.

    Channels remember how much of a file they have stored, so that the source continues with the rest after a crash.
    Nothing else must be remembered: a completed file has another name, or no longer exists.
    """

    def __init__(self, name: str, config: SpooldirSourceConfig) -> None:
        self._config = config
        self._scanner = DirectoryScanner(config)
        self._archiver = FileArchiver(config)
        self._log = _log.bind(source=name)
        self._thread = WorkerThread(f"spooldir {name}")
        self._position = 0
        """How much of the current file is stored."""
        self._failed_attempts: dict[Path, int] = {}
        self._deferred: dict[Path, tuple[FileStatus, float]] = {}

    async def run(self, writer: ChannelWriter) -> None:
        clock = asyncio.get_running_loop().time
        await self._thread.submit(self._archiver.check_directories)
        while True:
            found = await self._thread.submit(self._scanner.scan)
            writer.report_running()
            # Also scans between files, since a new file may have to be read first.
            next_scan_at = clock() + self._scanner.pause_seconds
            for each in found:
                if not self._is_deferred(each):
                    await self._process(each, writer)
                    if clock() >= next_scan_at:
                        break
            else:
                await asyncio.sleep(self._scanner.pause_seconds)

    async def _process(self, found: FoundFile, writer: ChannelWriter) -> None:
        self._position = 0
        try:
            async with _opened(found, self._thread) as file:
                await self._deliver(file, writer)
        except FileGoneError:
            return
        except BadFileError as error:
            await self._quarantine(found, str(error))
        except _UnreadableError as error:
            if not self._is_last_attempt(found, error.cause):
                raise ComponentError(f"{found.path} cannot be read: {error.cause.strerror}") from None
            await self._quarantine(found, f"it cannot be read: {error.cause.strerror}")
        else:
            await self._archive(found, lambda: self._archiver.complete(found))
        self._failed_attempts.pop(found.path, None)

    async def _deliver(self, file: SpoolFile, writer: ChannelWriter) -> None:
        producer_id = file.producer_id(self._config.format.type)
        stored = StoredRanges(writer.stored_ranges(producer_id))
        self._position = stored.position
        limits = ChunkLimits(writer.events_max, writer.body_bytes_max)
        chunks = self._chunks(file, stored, limits)
        reading = ReadAhead(lambda: next(chunks, None), self._thread)
        try:
            while (chunk := await _wrap_read_errors(reading.next())) is not None:
                table = EventTable(chunk.bodies, self._headers(file.path, chunk))
                await writer.deliver(table, Stamp(producer_id, chunk.first, chunk.last))
                self._position = chunk.last + 1
                limits.events_max, limits.body_bytes_max = writer.events_max, writer.body_bytes_max
        finally:
            await reading.close()

    def _chunks(self, file: SpoolFile, stored: StoredRanges, limits: ChunkLimits) -> Iterator[Chunk]:
        """Runs on a thread, since opening already reads."""
        yield from open_chunks(Content(file), self._config.format, stored, limits)
        file.check_unchanged()

    def _headers(self, path: Path, chunk: Chunk) -> dict[str, HeaderValues]:
        headers: dict[str, HeaderValues] = {**chunk.headers}
        if self._config.file_header is not None:
            headers[self._config.file_header] = str(path.absolute())
        if self._config.basename_header is not None:
            headers[self._config.basename_header] = path.name
        if self._config.offset_header is not None:
            headers[self._config.offset_header] = list(map(str, chunk.offsets))
        return headers

    async def _quarantine(self, found: FoundFile, reason: str) -> None:
        unit = _UNITS[self._config.format.type]
        text = f"{found.path}: {reason}.\nIts first {self._position} {unit} are stored.\n"
        moved = await self._archive(found, lambda: self._archiver.quarantine(found, text))
        self._log.warning(
            "a file is bad",
            file=str(found.path),
            reason=reason,
            moved_to=str(moved),
            **{f"{unit}_stored": self._position},
        )

    async def _archive(self, found: FoundFile, take: Callable[[], Path | None]) -> Path | None:
        try:
            return await self._thread.submit(take)
        except OSError as error:
            # Other files are still read, unless the problem affects them too, which `check_directories` detects.
            if len(self._deferred) < FILES_MAX:
                self._deferred[found.path] = found.status, time.monotonic() + _DEFER_SECONDS
            raise ComponentError(f"{found.path} cannot be moved or deleted: {error.strerror}") from None

    def _is_deferred(self, found: FoundFile) -> bool:
        status, until = self._deferred.get(found.path, (None, 0.0))
        if status == found.status and time.monotonic() < until:
            return True
        self._deferred.pop(found.path, None)
        return False

    def _is_last_attempt(self, found: FoundFile, error: OSError) -> bool:
        if error.errno in _RESOURCE_ERRORS:
            return False
        if len(self._failed_attempts) >= FILES_MAX:
            self._failed_attempts.clear()
        attempts = self._failed_attempts[found.path] = self._failed_attempts.get(found.path, 0) + 1
        return attempts >= _ATTEMPTS_MAX


class _UnreadableError(Exception):
    """Raised when a file cannot be read at the moment, as opposed to an error of storing it."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _wrap_read_errors(reading: Awaitable[ReadT]) -> ReadT:
    try:
        return await reading
    except OSError as error:
        raise _UnreadableError(error) from error


@asynccontextmanager
async def _opened(found: FoundFile, thread: WorkerThread) -> AsyncGenerator[SpoolFile]:
    opening = thread.submit(lambda: SpoolFile.open(found))
    try:
        yield await _wrap_read_errors(asyncio.shield(opening))
    finally:
        # The thread opens the file even if this is cancelled.
        await asyncio.wait({opening})
        if opening.exception() is None:
            opening.result().close()


def open_chunks(content: Content, file_format: AnyFormat, stored: StoredRanges, limits: ChunkLimits) -> Iterator[Chunk]:
    """Yields the part of a file that some channels have not stored."""
    match file_format:
        case LinesFormat():
            return line_chunks(content, file_format, stored, limits)
        case BlobFormat():
            return blob_chunks(content, file_format, stored)
        case AvroFormat():
            from millrace_server.agent.sources.spooldir.avro import avro_chunks

            return avro_chunks(content, file_format, stored, limits)
