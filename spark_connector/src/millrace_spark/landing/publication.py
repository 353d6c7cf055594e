"""How a batch's files get among the landed ones: all of them, and once, whatever is killed when.

A batch takes these steps:

1. Spark writes its files to a staging folder of this try's own, where no reader looks.
2. The files and Spark's own log are synced, then a *record* of the batch is written, in one step: which staged file
   gets which name.
3. Each file is renamed into place.
4. The staging folder and the records of earlier batches are removed.

A crash before the record is there leaves nothing that counts: the batch's next try begins anew and removes what the
other left. From the record on the batch is decided: its next try writes nothing, and renames what is still staged. So
a file that was renamed is never taken back, and one that has been merged into another since is not brought again.
Spark repeats only its last batch, so only the last record of a query is needed; it stays until the next is there.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from millrace_spark.landing.paths import WorkFolder, data_files, landed_name, suffix_of
from millrace_spark.landing.storage import Storage, StorageError, joined, move_into_place, relative_to

_LOGGED_FILES = 12
"""More than Spark logs for two batches: ranges, what is done, and a checksum of each. What is older was synced then."""

_RECORD = re.compile(r"(?P<query>.+)-(?P<batch>[0-9]+)\.json(?P<new>.*\.new)?")


@dataclass(frozen=True)
class BatchCounts:
    """What a try wrote, as it counted."""

    events: int = 0
    rows: int = 0
    bad_lines: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """A batch that is decided.

    Attributes:
        query_id: What Spark named the query.
        batch_id: The batch's number.
        moves: For each file where it was staged and where it belongs.
        written: What is in it.
        staged: The staging folder.
        files_bytes: How large all files are together.
    """

    query_id: str
    batch_id: int
    moves: tuple[tuple[str, str], ...]
    written: BatchCounts
    staged: str
    files_bytes: int = 0

    def as_text(self) -> str:
        """The record as it is stored."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_text(cls, text: str) -> "BatchRecord":
        """What `as_text` gave.

        Raises:
            StorageError: Somebody else wrote it.
        """
        try:
            stored = json.loads(text)
            moves = tuple((source, target) for source, target in stored.pop("moves"))
            return cls(moves=moves, written=BatchCounts(**stored.pop("written")), **stored)
        except (TypeError, ValueError, KeyError) as error:
            raise StorageError(f"a batch's record is not what millrace-spark writes: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Gets the files of one query's batches into place; see the module for how.

    Attributes:
        storage: Where all is; staging, records and targets on one file system.
        work: Where staging folders and records are.
        query_id: What Spark named the query in its checkpoint.
        targets: Where the files belong that are staged under each name.
        prefix: What all files' names begin with.
    """

    storage: Storage
    work: WorkFolder
    query_id: str
    targets: Mapping[str, str]
    prefix: str = ""

    def publish(self, batch_id: int, write: Callable[[str], BatchCounts]) -> tuple[BatchRecord, bool]:
        """Has a batch written, unless an earlier try has decided it, and gets its files into place.

        Args:
            batch_id: The batch's number.
            write: Gets a staging folder and writes below it, in a folder for each of `targets`.

        Returns:
            The batch's record, and whether this try wrote it.

        Raises:
            StorageError: Files cannot be written, or another program has landed the batch meanwhile. Nothing of this
                try is landed then.
        """
        path = joined(self.work.batches, _record_name(self.query_id, batch_id))
        is_new = not self.storage.exists(path)
        record = self._write(batch_id, path, write) if is_new else BatchRecord.from_text(self.storage.read(path))
        finish(self.storage, record)
        self._remove_before(batch_id)
        return record, is_new

    def _write(self, batch_id: int, path: str, write: Callable[[str], BatchCounts]) -> BatchRecord:
        for folder in {_staging_of(file.path, self.work) for file in self.storage.files(self.work.staging)}:
            if folder.startswith(f"{self.query_id}-"):
                self.storage.remove(joined(self.work.staging, folder))
        staged = joined(self.work.staging, f"{self.query_id}-{batch_id}-{uuid.uuid4().hex}")
        written = write(staged)
        moves = []
        files_bytes = 0
        for name, target in self.targets.items():
            beginning = joined(staged, name)
            for number, file in enumerate(data_files(self.storage.files(beginning), beginning)):
                *folders, _ = relative_to(file.path, beginning).split("/")
                landed = landed_name(self.query_id, batch_id, number, suffix_of(file.path), self.prefix)
                moves.append((file.path, joined(target, *folders, landed)))
                files_bytes += file.size_bytes
        self.storage.sync(source for source, _ in moves)
        sync_checkpoint(self.storage, self.work)
        record = BatchRecord(
            query_id=self.query_id,
            batch_id=batch_id,
            moves=tuple(moves),
            written=written,
            staged=staged,
            files_bytes=files_bytes,
        )
        self._commit(path, record)
        return record

    def _commit(self, path: str, record: BatchRecord) -> None:
        """Writes a record, unless another landing did since this one looked.

        Only where there is no lock: a landing whose claim was ended may go on until it notices that.
        """
        is_first = self.storage.create(path, record.as_text())
        # An answer may get lost and the call be repeated; then what is there is this try's own.
        is_own = is_first or self.storage.read(path) == record.as_text()
        # Whoever went on with later batches has removed the record of this one.
        is_late = any(
            known.batch_id > record.batch_id for known in _stored_records(self.storage, self.work, self.query_id)
        )
        if is_own and not is_late:
            return
        if is_own:
            self.storage.remove(path)
        self.storage.remove(record.staged)
        raise StorageError(
            f"{self.work.path}: another millrace-spark has landed batch {record.batch_id} meanwhile, so this one ends; "
            "let one at a time work on a folder"
        )

    def _remove_before(self, batch_id: int) -> None:
        for known in _stored_records(self.storage, self.work, self.query_id):
            if known.batch_id < batch_id:
                self.storage.remove(known.path)


def sync_checkpoint(storage: Storage, work: WorkFolder) -> None:
    """Makes safe what Spark has logged so far, which it does not do itself: what batches are, and which are done."""
    newest = sorted(storage.files(work.checkpoint), key=lambda file: file.modified_seconds)[-_LOGGED_FILES:]
    paths = [file.path for file in newest]
    while True:
        try:
            # All at once, so that each folder above them is synced once.
            storage.sync(paths)
        except StorageError:
            # Spark removes old ones when it likes.
            left = [path for path in paths if storage.exists(path)]
            if len(left) == len(paths):
                raise
            paths = left
        else:
            return


def finish(storage: Storage, record: BatchRecord) -> None:
    """Renames what is still staged of a decided batch, and makes it all safe."""
    for source, target in record.moves:
        move_into_place(storage, source, target)
    # Also what was renamed before: a kill may have come between that and this. What was merged since was safe before.
    storage.sync([target for _, target in record.moves if storage.exists(target)])
    storage.remove(record.staged)


def finish_all(storage: Storage, work: WorkFolder) -> None:
    """Finishes what was decided and not ended, of whichever query."""
    last: dict[str, _StoredRecord] = {}
    for known in _stored_records(storage, work):
        if not known.is_unfinished and (known.query_id not in last or last[known.query_id].batch_id < known.batch_id):
            last[known.query_id] = known
    # A query's earlier batches were finished before its last one began.
    for known in last.values():
        finish(storage, BatchRecord.from_text(storage.read(known.path)))


class _StoredRecord(NamedTuple):
    """A record's file."""

    query_id: str
    batch_id: int
    path: str
    is_unfinished: bool
    """Whether a crash left it half-written."""


def _stored_records(storage: Storage, work: WorkFolder, query_id: str | None = None) -> list[_StoredRecord]:
    """The records of a query, or of all."""
    found = ((file.path, _RECORD.fullmatch(file.path.rpartition("/")[2])) for file in storage.files(work.batches))
    known = [_StoredRecord(name["query"], int(name["batch"]), path, bool(name["new"])) for path, name in found if name]
    return [record for record in known if query_id in {None, record.query_id}]


def _record_name(query_id: str, batch_id: int) -> str:
    return f"{query_id}-{batch_id}.json"


def _staging_of(path: str, work: WorkFolder) -> str:
    return relative_to(path, work.staging).partition("/")[0]
