"""Small files of a landed folder become fewer, larger ones."""

import posixpath
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace_spark.landing.merges import CompactionLimits, Merge, plan_merges
from millrace_spark.landing.names import compacted_name, data_files, suffix_of
from millrace_spark.landing.places import WorkFolder
from millrace_spark.landing.storage import Storage, StorageError, joined
from millrace_spark.landing.swap import STAGING_PREFIX, Intent, recover, swap

Merger = Callable[[Sequence[str], str], None]
"""Writes the rows of files into one file in a new folder.

Raises:
    MergeError: They cannot be one file.
"""


class MergeError(Exception):
    """Returned when files cannot become one; the message is a sentence. Nothing has changed."""


@dataclass
class CompactionAccount:
    """What was merged.

    Attributes:
        files_before: How many files were replaced.
        files_after: By how many.
        bytes_before: How large they were.
        refusals: Why others could not be merged.
    """

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    refusals: tuple[str, ...] = ()


class Compactor:
    """Merges the files of one folder, and ends what an earlier one began.

    Attributes:
        account: What it has merged so far.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        work: WorkFolder,
        limits: CompactionLimits,
        merger: Merger,
    ) -> None:
        self.account = CompactionAccount()
        self._storage = storage
        self._folder = folder
        self._work = work
        self._limits = limits
        self._merger = merger

    def recover(self) -> int:
        """Finishes or undoes what a crash has left; returns how many swaps it finished."""
        return recover(self._storage, self._work)

    def compact(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Merges whatever the limits say; ends early, between two merges, where it is told to.

        Raises:
            StorageError: The file system refuses; the next start takes up from there.
        """
        for merge in plan_merges(self._storage.files(self._folder), self._limits, time.time()):
            if is_stopping():
                return
            try:
                self._merge(merge)
            except MergeError as error:
                told = f"{merge.folder}: its small files stay as they are, {error}"
                if told not in self.account.refusals:
                    self.account.refusals += (told,)

    def _merge(self, merge: Merge) -> None:
        compaction_id = uuid.uuid4().hex
        staged = joined(self._work.staging, STAGING_PREFIX + compaction_id)
        paths = [file.path for file in merge.files]
        try:
            self._merger(paths, staged)
        except MergeError:
            self._storage.remove(staged)
            raise
        merged = data_files(self._storage.files(staged), staged)
        if len(merged) != 1:
            raise StorageError(f"{staged}: holds {len(merged)} files where Spark was asked for one")
        name = compacted_name(compaction_id, suffix_of(merged[0].path), like=posixpath.basename(paths[0]))
        intent = Intent(staged=merged[0].path, target=joined(merge.folder, name), replaces=tuple(paths))
        swap(self._storage, self._work, intent)
        self.account.files_before += len(paths)
        self.account.files_after += 1
        self.account.bytes_before += merge.size_bytes
