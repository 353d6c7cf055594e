"""Logs on a simulated disk, with accounts of what must and what may be found in them after a crash.

A `RunningLog` is a log with its account. A `Recording` keeps the disk and the account before each change of the disk,
so that one run gives the disk of a crash at any moment, and of many power cuts at each.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pytest

from millrace_server.wal import group_writer, writer, writer_threads
from millrace_server.wal.disk import Disk
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFullError, LogPosition, Record, Submission
from millrace_server.wal.segments import SegmentFiles
from tests.simulated_disk import SimulatedDisk

CHANNEL_ID = bytes(range(16))
DATA = Path("data")
TWO_DIRECTORIES = (Path("left"), Path("right"))

KEYS = {"old": bytes(32), "new": b"k" * 32}
PLAIN = PayloadCodec(keys=KEYS)
CODECS = [
    PLAIN,
    PayloadCodec(compresses=True, keys=KEYS),
    PayloadCodec(active_key_id="old", keys=KEYS),
    PayloadCodec(compresses=True, active_key_id="new", keys=KEYS),
]
"""All codecs; each decodes what the others encoded."""

_CHANGING_CALLS = {"create", "rename", "unlink", "write", "reserve", "truncate", "sync", "sync_directory"}
_RESPONSE_SECONDS_MAX = 60
_GOES_ON_PROBABILITY = 0.3

Found = tuple[Kind, bytes]


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs preallocate little, so that copies are cheap, and write a SYNC_POINT only when they close.

    Their threads end soon after them, rather than during later tests.
    """
    monkeypatch.setattr(writer, "PREALLOCATE_BYTES_MIN", 1024)
    monkeypatch.setattr(writer, "PREALLOCATE_BYTES_MAX", 2048)
    monkeypatch.setattr(writer, "RESERVE_BYTES", 100)
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 3600.0)
    monkeypatch.setattr(writer_threads, "IDLE_SECONDS", 0.01)


@dataclass(slots=True)
class _Entry:
    records: list[Found]
    begins_segment: bool
    generation: int
    is_refused: bool = False
    is_durable: bool = False


@dataclass(slots=True)
class Account:
    """The entries submitted to a log, and their outcomes."""

    entries: list[_Entry] = field(default_factory=list)
    first_indexes: list[int] = field(default_factory=lambda: [0])
    """The numbers of entries at which the log may begin, since earlier ones may be removed."""

    def check(self, found: Sequence[Found]) -> None:
        """Asserts that acknowledged entries are found in order, and no refused or unknown ones."""
        for first_index in self.first_indexes:
            entries = self.entries[first_index:]
            durable_count = max((index + 1 for index, entry in enumerate(entries) if entry.is_durable), default=0)
            must = _records(entries[:durable_count])
            may = _records(entries)
            if len(found) >= len(must) and may[: len(found)] == list(found):
                return
        raise AssertionError(f"{found} was found; the account is {self}")

    def copy(self) -> "Account":
        """A copy of the current account."""
        return Account([replace(entry) for entry in self.entries], list(self.first_indexes))


def _records(entries: Sequence[_Entry]) -> list[Found]:
    """The entries that may be found: none that was refused, nor later ones of its generation."""
    records: list[Found] = []
    refused_generation = -1
    for entry in entries:
        if entry.is_refused:
            refused_generation = max(refused_generation, entry.generation)
        elif entry.generation > refused_generation:
            records += entry.records
        else:
            assert not entry.is_durable, f"{entry} was built on what was refused"
    return records


def files_on(disk: Disk, directories: Sequence[Path] = (DATA,)) -> SegmentFiles:
    """The test channel's segments on a disk."""
    return SegmentFiles(disk, directories, CHANNEL_ID)


def replay(disk: Disk, directories: Sequence[Path] = (DATA,), start: LogPosition | None = None) -> list[Found]:
    """The entries of a log that is opened, without marks."""
    log = WriteAheadLog(files_on(disk, directories), PLAIN)
    try:
        return _found(log, start)
    finally:
        log.close()


def _found(log: WriteAheadLog, start: LogPosition | None) -> list[Found]:
    return [(record.kind, bytes(record.payload)) for record in log.replay(start) if record.kind is not Kind.SYNC_POINT]


class RunningLog:
    """A log that was replayed and started, with its account; a context manager.

    Args:
        disk: The disk of the log.
        directories: Its directories on the disk.
        codec: Encodes payloads.
    """

    def __init__(self, disk: Disk, directories: Sequence[Path] = (DATA,), codec: PayloadCodec = PLAIN) -> None:
        self.log = WriteAheadLog(files_on(disk, directories), codec)
        self.found = _found(self.log, None)
        self.account = Account([_Entry([record], record[0] is Kind.STATE, 0, is_durable=True) for record in self.found])
        self._is_refused = False
        self._first_segment_id = self.log.first_segment_id or 1
        # Guards the account, which the writer's thread changes too.
        self._lock = threading.Lock()
        # Results arrive on the writer's thread.
        self.log.start(lambda call: call())
        assert self.log._writer is not None
        self._writer = self.log._writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.log.close()

    def submit(
        self, *payloads: bytes, needs_sync: bool = True, begins_segment: bool = False, resumes: bool = True
    ) -> "Future[Submission]":
        """Submits a PUT record for each payload; with `begins_segment` the first is a STATE.

        After a refusal it resumes the log first, if `resumes` allows it.
        """
        if self._is_refused and resumes:
            self._is_refused = False
            self.log.resume()
        kinds = [Kind.PUT] * len(payloads)
        if begins_segment:
            kinds[0] = Kind.STATE
        entry = _Entry(list(zip(kinds, payloads, strict=True)), begins_segment, self.log._generation)
        # Cut in two, since payloads come in pieces.
        records: list[Record] = [(kind, [load[:3], load[3:]]) for kind, load in entry.records]
        response: Future[Submission] = Future()

        def done(submission: Submission, error: Exception | None) -> None:
            with self._lock:
                entry.is_refused = isinstance(error, LogFullError)
                entry.is_durable = error is None and needs_sync
                self._is_refused |= entry.is_refused
            if error is None:
                response.set_result(submission)
            else:
                response.set_exception(error)

        with self._lock:
            self.account.entries.append(entry)
        self.log.submit(records, needs_sync=needs_sync, begins_segment=begins_segment, done=done)
        return response

    def append(
        self, *payloads: bytes, needs_sync: bool = True, begins_segment: bool = False, resumes: bool = True
    ) -> Submission:
        """Submits an entry, and waits for the result."""
        response = self.submit(*payloads, needs_sync=needs_sync, begins_segment=begins_segment, resumes=resumes)
        return response.result(_RESPONSE_SECONDS_MAX)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Holds the writer's lock, so that the writer finds all submissions at once."""
        with self._writer._lock:
            yield

    def remove_before(self, segment_id: int) -> int:
        """Removes segments from the log, and records that in the account."""
        entries = enumerate(self.account.entries)
        begun = [index for index, entry in entries if entry.begins_segment and not entry.is_refused]
        first_index = begun[segment_id - self._first_segment_id]
        # A call that failed may have removed the names of segments that a later call leaves.
        earlier = self.account.first_indexes
        last_index = max(first_index, *earlier)
        self.account.first_indexes = [index for index in begun if min(earlier) <= index <= last_index]
        removed_count = self.log.remove_before(segment_id)
        self.account.first_indexes = [index for index in begun if first_index <= index <= last_index]
        return removed_count

    def account_now(self) -> Account:
        """A copy of the account."""
        with self._lock:
            return self.account.copy()


@dataclass(frozen=True, slots=True)
class Moment:
    """The disk and the account right before a change, or at the end."""

    change: str
    disk: SimulatedDisk
    account: Account


class Recording:
    """Records all moments of a disk from now on."""

    def __init__(self, disk: SimulatedDisk, account: Callable[[], Account]) -> None:
        self._disk = disk
        self._account = account
        self.moments: list[Moment] = []
        disk.before_call = self._before_call

    def end(self) -> list[Moment]:
        """Stops, and returns all moments, this one included."""
        self._disk.before_call = lambda _kind, _name: None
        self._keep("end")
        return self.moments

    def _before_call(self, kind: str, name: str) -> None:
        if kind in _CHANGING_CALLS:
            self._keep(f"{kind} of {name}")

    def _keep(self, change: str) -> None:
        self.moments.append(Moment(change, self._disk.copy(), self._account()))


def recorded(
    disk: SimulatedDisk, history: Callable[[RunningLog], None], directories: Sequence[Path] = (DATA,)
) -> list[Moment]:
    """Runs a history on an empty log from its opening to its closing, and returns all its moments."""
    running: list[RunningLog] = []
    recording = Recording(disk, lambda: running[0].account_now() if running else Account())
    with RunningLog(disk, directories) as log:
        running.append(log)
        history(log)
    return recording.end()


def check_recovery(disk: SimulatedDisk, account: Account, directories: Sequence[Path], chance: random.Random) -> None:
    """Opens a log after a crash and checks its entries against the account, also after crashes during the opening."""
    openings = Recording(disk, Account)
    found = replay(disk, directories)
    account.check(found)
    moments = openings.end()
    for moment in [chance.choice(moments), moments[-1]]:
        again = moment.disk.crashed(chance.randrange(1 << 32))
        found_again = replay(again, directories)
        account.check(found_again)
        # Entries that were found once stay.
        assert moment is not moments[-1] or found_again == found
    if chance.random() < _GOES_ON_PROBABILITY:
        _check_going_on(disk, found, directories, chance)


def _check_going_on(
    disk: SimulatedDisk, found: Sequence[Found], directories: Sequence[Path], chance: random.Random
) -> None:
    with RunningLog(disk, directories) as log:
        assert log.found == found
        log.append(b"a new state", begins_segment=True)
        log.append(b"goes on")
        disk_at_last = disk.crashed(chance.randrange(1 << 32))
    log.account.check(replay(disk_at_last, directories))
