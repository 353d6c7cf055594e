"""How one file takes the place of several, whatever is killed when.

1. The merged file is written where no reader looks, and synced.
2. An *intent* is written, in one step: which staged file gets which name and which files go then.
3. The merged file is renamed into place.
4. The files that it replaces are removed, and the removal is synced.
5. The intent is removed.

A crash before the intent undoes all: the next start removes what was staged. From the intent on the next start
finishes it. The merged file comes before the others go: a reader that lists the folder in between, which takes some
milliseconds, or after a crash until the next start, sees rows twice, but none is ever missing, not even where
somebody loses the work folder.
"""

import json
import posixpath
from dataclasses import asdict, dataclass

from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.storage import Storage, StorageError, joined, move_into_place, relative_to

STAGING_PREFIX = "compact-"
"""What the staging folders of merges begin with; batches' begin with their query's id."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is to be swapped.

    Attributes:
        staged: The merged file, where no reader looks.
        target: Where it belongs.
        replaces: What it replaces.
    """

    staged: str
    target: str
    replaces: tuple[str, ...]

    def as_text(self) -> str:
        """The intent as it is stored."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_text(cls, text: str) -> "Intent":
        """What `as_text` gave.

        Raises:
            StorageError: Somebody else wrote it.
        """
        try:
            stored = json.loads(text)
            return cls(staged=stored["staged"], target=stored["target"], replaces=tuple(stored["replaces"]))
        except (TypeError, ValueError, KeyError) as error:
            raise StorageError(f"an intent is not what millrace-spark writes: {error}") from error


def swap(storage: Storage, work: WorkFolder, intent: Intent) -> None:
    """Swaps files. After a crash inside it `recover` ends it, or nothing has happened."""
    storage.sync([intent.staged])
    path = joined(work.intents, posixpath.basename(intent.target) + ".json")
    storage.write(path, intent.as_text())
    _finish(storage, path, intent)
    storage.remove(posixpath.dirname(intent.staged))


def recover(storage: Storage, work: WorkFolder) -> int:
    """Finishes the swaps that were begun and undoes the merges that were not; returns how many were finished."""
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
    # Where the merged file is gone, somebody else has removed it since, and perhaps the others on purpose.
    if storage.exists(intent.target):
        # Before the others go, also where it was renamed before a crash: a power cut could else leave neither.
        storage.sync([intent.target])
        for replaced in intent.replaces:
            storage.remove(replaced)
        # Before the intent goes, or a power cut could bring back what was replaced.
        storage.sync([intent.target])
    storage.remove(path)
