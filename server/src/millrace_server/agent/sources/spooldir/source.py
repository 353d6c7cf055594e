"""What becomes of files: done ones, and bad ones."""

import asyncio
import errno
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.agent.sources.line_stream import ReadAhead
from millrace_server.agent.sources.spooldir.chunks import Piece, PieceLimits, StoredRanges, open_pieces
from millrace_server.agent.sources.spooldir.config import (
    QUARANTINED_SUFFIX,
    REASON_SUFFIX,
    DeleteDone,
    MoveDone,
    RenameDone,
    SpooldirSourceConfig,
)
from millrace_server.agent.sources.spooldir.content import BadFileError, Content, FileGoneError, SpoolFile
from millrace_server.agent.sources.spooldir.scanner import FILES_MAX, Found, Lookout, Shape
from millrace_server.agent.supervision import ComponentError
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp

_NAMES_MAX = 1_000


class Disposal:
    """Takes files away once they are done or known to be bad, and never in the place of another file.

    All of it blocks on the filesystem.
    """

    def __init__(self, config: SpooldirSourceConfig) -> None:
        self._config = config

    def prepare(self) -> None:
        """Makes sure that files can be taken away, before the first of them is read.

        Raises:
            ComponentError: They cannot be; says why.
        """
        directory, done = self._config.directory, self._config.done
        target = done.directory if isinstance(done, MoveDone) else directory
        if not directory.is_dir():
            raise ComponentError(f"there is no directory {directory}; make it, or name another one in `directory`")
        # With a dot, so that no other source takes it for a file.
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
            raise ComponentError(f"done files cannot be taken from {directory} to {target}: {error.strerror}") from None
        moved.unlink()

    def finish(self, found: Found) -> None:
        """Takes a file away all of which is stored. Does nothing where it has gone, or another has its name now.

        Raises:
            OSError: It cannot be taken away.
        """
        path, done = found.path, self._config.done
        if not _is_there(found):
            return
        match done:
            case RenameDone():
                _rename_apart(path, path.parent, done.suffix)
            case DeleteDone():
                path.unlink()
            case MoveDone():
                _rename_apart(path, self._below(done.directory, path), "")

    def quarantine(self, found: Found, reason: str) -> Path:
        """Takes a bad file away, and leaves a file with the reason beside it.

        Args:
            found: The file.
            reason: Why it is bad, for people.

        Returns:
            Where it is now: where it was, if it has gone or another has its name.

        Raises:
            OSError: It cannot be taken away.
        """
        path = found.path
        if not _is_there(found):
            return path
        try:
            moved = _rename_apart(path, self._below(self._config.quarantine, path), "")
        except OSError:
            moved = _rename_apart(path, path.parent, QUARANTINED_SUFFIX)
        # The log has the reason too; a full disk must not make more of this.
        with suppress(OSError):
            _write_apart(moved.parent, moved.name + REASON_SUFFIX, reason)
        return moved

    def _below(self, target: Path, path: Path) -> Path:
        """The directory that stands below a target as a file's directory stands below the source's."""
        directory = target / path.parent.relative_to(self._config.directory)
        directory.mkdir(parents=True, exist_ok=True)
        return directory


def _is_there(found: Found) -> bool:
    try:
        return found.path.lstat().st_ino == found.shape.inode
    except FileNotFoundError:
        return False


def _rename_apart(path: Path, directory: Path, suffix: str) -> Path:
    """Renames a file to a name that nobody has."""
    for target in _free_names(directory, path.name, suffix):
        # Renaming takes the place of what has the name; so the name is taken first, as an empty file of our own.
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            return path.rename(target)
        except BaseException:
            target.unlink()
            raise
    raise FileExistsError(errno.EEXIST, "all names that it could have are taken", str(path))


def _write_apart(directory: Path, name: str, text: str) -> None:
    for target in _free_names(directory, name, ""):
        with suppress(FileExistsError), target.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            return


def _free_names(directory: Path, name: str, suffix: str) -> Iterator[Path]:
    """Names to try, the plain one first."""
    yield directory / f"{name}{suffix}"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    yield directory / f"{name}.{moment}{suffix}"
    for number in range(2, _NAMES_MAX):
        yield directory / f"{name}.{moment}-{number}{suffix}"


_ATTEMPTS_MAX = 3
"""A file that so often could not be read is bad."""

_SET_ASIDE_SECONDS = 60.0
"""A file that could not be taken away is tried again after so long: after longer than any pause that the source makes
for it, so that the others have their turn."""

_UNITS = {"lines": "bytes", "blob": "events", "avro": "records"}
"""What the numbers of a file count."""

_NO_FAULT_OF_THE_FILE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})

ReadT = TypeVar("ReadT")

_log = structlog.stdlib.get_logger(__name__)


class SpooldirSource:
    """Stores one file after another, and takes each away once all of it is stored.

    Channels remember how much of a file they have stored, so that after a crash the rest follows. Nothing else needs to
    be remembered: a file that is done has another name, or has gone.
    """

    def __init__(self, name: str, config: SpooldirSourceConfig) -> None:
        self._config = config
        self._lookout = Lookout(config)
        self._disposal = Disposal(config)
        self._log = _log.bind(source=name)
        self._thread = WorkerThread(f"spooldir {name}")
        self._failed_attempts: dict[Path, int] = {}
        self._set_aside: dict[Path, tuple[Shape, float]] = {}

    async def run(self, writer: ChannelWriter) -> None:
        clock = asyncio.get_running_loop().time
        await self._thread.submit(self._disposal.prepare)
        while True:
            found = await self._thread.submit(self._lookout.look)
            writer.report_running()
            # Between files it looks again, as often as it may, since what has come might have to be taken first.
            look_again_at = clock() + self._lookout.pause_seconds
            for each in found:
                if not self._is_set_aside(each):
                    await self._take(each, writer)
                    if clock() >= look_again_at:
                        break
            else:
                await asyncio.sleep(self._lookout.pause_seconds)

    async def _take(self, found: Found, writer: ChannelWriter) -> None:
        progress = _Progress()
        try:
            async with _opened(found, self._thread) as file:
                await self._bring(file, writer, progress)
        except FileGoneError:
            return
        except BadFileError as error:
            await self._quarantine(found, str(error), progress)
        except _UnreadableError as error:
            if not self._is_last_attempt(found, error.cause):
                raise ComponentError(f"{found.path} cannot be read: {error.cause.strerror}") from None
            await self._quarantine(found, f"it cannot be read: {error.cause.strerror}", progress)
        else:
            await self._take_away(found, lambda: self._disposal.finish(found))
        self._failed_attempts.pop(found.path, None)

    async def _bring(self, file: SpoolFile, writer: ChannelWriter, progress: "_Progress") -> None:
        """Stores what is not stored yet of a file."""
        producer_id = file.producer_id(self._config.format.type)
        stored = StoredRanges(writer.stored_ranges(producer_id))
        progress.position = stored.position
        limits = PieceLimits(writer.events_max, writer.body_bytes_max)
        pieces = self._pieces(file, stored, limits)
        reading = ReadAhead(lambda: next(pieces, None), self._thread)
        try:
            while (piece := await _unless_unreadable(reading.next())) is not None:
                table = EventTable(piece.bodies, self._headers(file.path, piece))
                await writer.deliver(table, Stamp(producer_id, piece.first, piece.last))
                progress.position = piece.last + 1
                limits.events_max, limits.body_bytes_max = writer.events_max, writer.body_bytes_max
        finally:
            await reading.close()

    def _pieces(self, file: SpoolFile, stored: StoredRanges, limits: PieceLimits) -> Iterator[Piece]:
        """On a thread: opening them reads already."""
        reader = open_pieces(Content(file), self._config.format, stored, limits)
        while (piece := reader.next()) is not None:
            yield piece
        file.refuse_if_changed()

    def _headers(self, path: Path, piece: Piece) -> dict[str, HeaderValues]:
        headers: dict[str, HeaderValues] = {**piece.headers}
        if self._config.file_header is not None:
            headers[self._config.file_header] = str(path.absolute())
        if self._config.basename_header is not None:
            headers[self._config.basename_header] = path.name
        if self._config.offset_header is not None:
            headers[self._config.offset_header] = list(map(str, piece.offsets))
        return headers

    async def _quarantine(self, found: Found, reason: str, progress: "_Progress") -> None:
        unit = _UNITS[self._config.format.type]
        told = f"{found.path}: {reason}.\nIts first {progress.position} {unit} are stored.\n"
        moved = await self._take_away(found, lambda: self._disposal.quarantine(found, told))
        self._log.warning(
            "a file is bad",
            file=str(found.path),
            reason=reason,
            moved_to=str(moved),
            **{f"{unit}_stored": progress.position},
        )

    async def _take_away(self, found: Found, take: Callable[[], Path | None]) -> Path | None:
        try:
            return await self._thread.submit(take)
        except OSError as error:
            # The others go on, unless there is something that concerns them too: then `prepare` finds it.
            if len(self._set_aside) < FILES_MAX:
                self._set_aside[found.path] = found.shape, time.monotonic() + _SET_ASIDE_SECONDS
            raise ComponentError(f"{found.path} cannot be taken away: {error.strerror}") from None

    def _is_set_aside(self, found: Found) -> bool:
        shape, until = self._set_aside.get(found.path, (None, 0.0))
        if shape == found.shape and time.monotonic() < until:
            return True
        self._set_aside.pop(found.path, None)
        return False

    def _is_last_attempt(self, found: Found, error: OSError) -> bool:
        if error.errno in _NO_FAULT_OF_THE_FILE:
            return False
        if len(self._failed_attempts) >= FILES_MAX:
            self._failed_attempts.clear()
        attempts = self._failed_attempts[found.path] = self._failed_attempts.get(found.path, 0) + 1
        return attempts >= _ATTEMPTS_MAX


@dataclass
class _Progress:
    """How much of a file is stored."""

    position: int = 0


class _UnreadableError(Exception):
    """Returned when a file cannot be read now, apart from errors of whatever stores it."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _unless_unreadable(reading: Awaitable[ReadT]) -> ReadT:
    try:
        return await reading
    except OSError as error:
        raise _UnreadableError(error) from error


@asynccontextmanager
async def _opened(found: Found, thread: WorkerThread) -> AsyncGenerator[SpoolFile]:
    opening = thread.submit(lambda: SpoolFile.open(found))
    try:
        yield await _unless_unreadable(asyncio.shield(opening))
    finally:
        # A thread that opens goes on where this is cancelled.
        await asyncio.wait({opening})
        if opening.exception() is None:
            opening.result().close()
