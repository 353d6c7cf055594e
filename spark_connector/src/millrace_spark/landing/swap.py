"""Replaces several files by one, safe against a crash at any time.

1. The merged file is written to the staging folder and synced.
2. An *intent* is written atomically: the staged file, its final name, and the files that it replaces.
3. The merged file is renamed into place.
4. The files that it replaces are removed, and the removal is synced.
5. The intent is removed.

After a crash before the intent, the next start removes the staged file. After the intent, the next start finishes the
swap. The merged file is published before the others are removed: a reader that lists the folder in these milliseconds,
or between a crash and the next start, sees rows twice, but no row is ever missing, even if the work folder is lost.
"""

import json
import posixpath
from dataclasses import asdict, dataclass

from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.storage import Storage, StorageError, joined, move_into_place, relative_to

STAGING_PREFIX = "compact-"
"""The prefix of the staging folders of merges; those of batches begin with the query's id."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A swap that is under way."""

    staged: str
    target: str
    replaces: tuple[str, ...]

    @classmethod
    def from_text(cls, text: str) -> "Intent":
        try:
            stored = json.loads(text)
            return cls(staged=stored["staged"], target=stored["target"], replaces=tuple(stored["replaces"]))
        except (TypeError, ValueError, KeyError) as error:
            raise StorageError(f"an intent was not written by millrace-spark: {error}") from error


def swap(storage: Storage, work: WorkFolder, intent: Intent) -> None:
    """Swaps files. After a crash in this function, `recover` finishes or undoes the swap."""
    storage.sync([intent.staged])
    path = joined(work.intents, posixpath.basename(intent.target) + ".json")
    storage.write(path, json.dumps(asdict(intent), indent=1))
    _finish(storage, path, intent)
    storage.remove(posixpath.dirname(intent.staged))


def recover(storage: Storage, work: WorkFolder) -> int:
    """Finishes interrupted swaps, and removes the staged files of other merges; returns the number of swaps."""
    count = 0
    for file in storage.files(work.intents):
        if file.path.endswith(".json"):
            _finish(storage, file.path, Intent.from_text(storage.read(file.path)))
            count += 1
    names = {relative_to(file.path, work.staging).partition("/")[0] for file in storage.files(work.staging)}
    for name in sorted(names):
        if name.startswith(STAGING_PREFIX):
            storage.remove(joined(work.staging, name))
    return count


def _finish(storage: Storage, path: str, intent: Intent) -> None:
    if storage.exists(intent.staged):
        move_into_place(storage, intent.staged, intent.target)
    # If the merged file is gone, another program has removed it, and perhaps the others on purpose.
    if storage.exists(intent.target):
        # Before the others are removed, or a power failure could leave neither.
        storage.sync([intent.target])
        for replaced in intent.replaces:
            storage.remove(replaced)
        # Before the intent is removed, or a power failure could restore the replaced files.
        storage.sync([intent.target])
    storage.remove(path)
