"""Publishes the files of a batch: all of them, once, whenever the process is killed.

The steps for a batch:

1. Spark writes the files to a staging folder of this attempt, where readers do not look.
2. The files and Spark's log are synced. Then a *record* of the batch is written atomically: which staged file gets
   which name.
3. Each file is renamed into place.
4. The staging folder and the records of earlier batches are removed.

A crash before the record has no effect: the next attempt starts over and removes the staged files. The record commits
the batch: the next attempt writes nothing, and renames the files that are still staged. So a published file is never
withdrawn, and a file that has been merged since is not published again. Spark repeats only its last batch, so only the
last record of a query is needed; it stays until the next one is written.
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
"""More files than Spark logs for two batches: offsets, commits, and a checksum of each. Older files are synced."""

_RECORD = re.compile(r"(?P<query>.+)-(?P<batch>[0-9]+)\.json(?P<new>.*\.new)?")


@dataclass(frozen=True)
class BatchCounts:
    """The counts of one attempt."""

    events: int = 0
    rows: int = 0
    bad_lines: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """The record of a committed batch."""

    query_id: str
    batch_id: int
    moves: tuple[tuple[str, str], ...]
    """The staged path and the final path of each file."""
    written: BatchCounts
    staged: str
    files_bytes: int = 0

    def as_text(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_text(cls, text: str) -> "BatchRecord":
        """Parses the result of `as_text`."""
        try:
            stored = json.loads(text)
            moves = tuple((source, target) for source, target in stored.pop("moves"))
            return cls(moves=moves, written=BatchCounts(**stored.pop("written")), **stored)
        except (TypeError, ValueError, KeyError) as error:
            raise StorageError(f"the record of a batch was not written by millrace-spark: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Publishes the files of one query's batches; the module docstring describes the steps.

    Attributes:
        targets: The target folder of each staged folder, by its name.
        prefix: The prefix of all file names.
    """

    storage: Storage
    work: WorkFolder
    query_id: str
    targets: Mapping[str, str]
    prefix: str = ""

    def publish(self, batch_id: int, write: Callable[[str], BatchCounts]) -> tuple[BatchRecord, bool]:
        """Writes a batch, unless an earlier attempt has committed it, and publishes its files.

        `write` writes into a staging folder, with a subfolder for each of `targets`. Returns the record of the batch,
        and whether this attempt wrote it.

        Raises:
            StorageError: Files cannot be written, or another program has committed the batch. This attempt publishes
                nothing then.
        """
        path = joined(self.work.batches, f"{self.query_id}-{batch_id}.json")
        is_new = not self.storage.exists(path)
        record = self._write(batch_id, path, write) if is_new else BatchRecord.from_text(self.storage.read(path))
        finish(self.storage, record)
        self._remove_before(batch_id)
        return record, is_new

    def _write(self, batch_id: int, path: str, write: Callable[[str], BatchCounts]) -> BatchRecord:
        staging = self.work.staging
        for folder in {relative_to(file.path, staging).partition("/")[0] for file in self.storage.files(staging)}:
            if folder.startswith(f"{self.query_id}-"):
                self.storage.remove(joined(staging, folder))
        staged = joined(staging, f"{self.query_id}-{batch_id}-{uuid.uuid4().hex}")
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
        """Writes a record, unless another landing has written it in the meantime.

        This happens only without a lock, where a landing continues until it notices that its claim has ended.
        """
        is_first = self.storage.create(path, record.as_text())
        # If a response was lost and the call repeated, the existing record is that of this attempt.
        is_own = is_first or self.storage.read(path) == record.as_text()
        # Another landing that continued with later batches has removed the record of this one.
        is_late = any(
            known.batch_id > record.batch_id for known in _stored_records(self.storage, self.work, self.query_id)
        )
        if is_own and not is_late:
            return
        if is_own:
            self.storage.remove(path)
        self.storage.remove(record.staged)
        raise StorageError(
            f"{self.work.path}: another millrace-spark has landed batch {record.batch_id} in the meantime, so this one "
            "ends; run one at a time on a folder"
        )

    def _remove_before(self, batch_id: int) -> None:
        for known in _stored_records(self.storage, self.work, self.query_id):
            if known.batch_id < batch_id:
                self.storage.remove(known.path)


def sync_checkpoint(storage: Storage, work: WorkFolder) -> None:
    """Syncs Spark's log of offsets and commits, since Spark does not."""
    newest = sorted(storage.files(work.checkpoint), key=lambda file: file.modified_seconds)[-_LOGGED_FILES:]
    paths = [file.path for file in newest]
    while True:
        try:
            # In one call, so that each parent folder is synced once.
            storage.sync(paths)
        except StorageError:
            # Spark removes old files at any time.
            left = [path for path in paths if storage.exists(path)]
            if len(left) == len(paths):
                raise
            paths = left
        else:
            return


def finish(storage: Storage, record: BatchRecord) -> None:
    """Renames the files of a committed batch that are still staged, and syncs all its files."""
    for source, target in record.moves:
        move_into_place(storage, source, target)
    # Including files that were renamed before, since a crash may have come before their sync. Merged files are synced.
    storage.sync([target for _, target in record.moves if storage.exists(target)])
    storage.remove(record.staged)


def finish_all(storage: Storage, work: WorkFolder) -> None:
    """Finishes the committed batches of all queries."""
    last: dict[str, _StoredRecord] = {}
    for known in _stored_records(storage, work):
        if not known.is_unfinished and (known.query_id not in last or last[known.query_id].batch_id < known.batch_id):
            last[known.query_id] = known
    # The earlier batches of a query were finished before its last one began.
    for known in last.values():
        finish(storage, BatchRecord.from_text(storage.read(known.path)))


class _StoredRecord(NamedTuple):
    """The file of a record."""

    query_id: str
    batch_id: int
    path: str
    is_unfinished: bool
    """Whether a crash interrupted the write."""


def _stored_records(storage: Storage, work: WorkFolder, query_id: str | None = None) -> list[_StoredRecord]:
    """Returns the records of a query, or of all queries."""
    found = ((file.path, _RECORD.fullmatch(file.path.rpartition("/")[2])) for file in storage.files(work.batches))
    known = [_StoredRecord(name["query"], int(name["batch"]), path, bool(name["new"])) for path, name in found if name]
    return [record for record in known if query_id in {None, record.query_id}]
