"""Paths of folders, local or on a file system that Hadoop supports, and names of landed files."""

import hashlib
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace_spark.landing.storage import StoredFile, relative_to

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH_MAX = 64
_DIGEST_LENGTH = 8


def absolute_path(text: str) -> str:
    """A whole path without a slash at its end: of this machine without a scheme, else with it.

    Raises:
        ValueError: It is no path of a folder of its own.
    """
    found = _SCHEME.match(text)
    if found and found[1].lower() != "file":
        place = urlsplit(text)
        path = posixpath.normpath(place.path)
        if path in {"/", "."} or place.query or place.fragment:
            raise ValueError("a folder below the root, such as hdfs://namenode/landed/web")
        return f"{place.scheme}://{place.netloc}{path}"
    local = unquote(urlsplit(text).path) if found else text
    # An empty path is the working directory: landing in whatever that happens to be is never meant.
    if "\0" in local or Path(local) == Path() or Path(local).resolve() == Path("/"):
        raise ValueError("a folder of its own, such as landed/web")
    return str(Path(local).expanduser().absolute())


def is_local(path: str) -> bool:
    """Tells whether a whole path is one of this machine."""
    return path.startswith("/")


def file_system_of(path: str) -> str:
    """Names the file system of a whole path; empty for this machine's."""
    place = urlsplit(path)
    return "" if is_local(path) else f"{place.scheme}://{place.netloc}"


def as_uri(path: str) -> str:
    """A whole path as Spark takes it, whatever its default file system is."""
    # Not `Path.as_uri`: Hadoop takes what follows the scheme as it stands, a % too.
    return f"file://{path}" if is_local(path) else path


def name_of(path: str) -> str:
    """A name for a whole path, fit for file names and reader ids, that no other path has."""
    digest = hashlib.sha256(path.encode()).hexdigest()[:_DIGEST_LENGTH]
    last = _UNFIT.sub("-", posixpath.basename(path)).strip("-")[:_NAME_LENGTH_MAX]
    return f"{last}-{digest}"


@dataclass(frozen=True)
class WorkFolder:
    """Where a landing keeps what is no landed file.

    It lies beside the landed files, not among them, so that a reader finds nothing there but whole files, whichever
    pattern of names it looks for.
    """

    path: str

    @classmethod
    def beside(cls, landed: str) -> "WorkFolder":
        """The one that belongs to a folder of landed files where nobody says another."""
        return cls(landed + ".landing")

    @property
    def checkpoint(self) -> str:
        """Spark's own: which ranges belong to which batch, and which batches are done."""
        return self.path + "/checkpoint"

    @property
    def staging(self) -> str:
        """Files that nobody reads yet, a folder for each try."""
        return self.path + "/staging"

    @property
    def batches(self) -> str:
        """A record of each query's last batch: which files it consists of."""
        return self.path + "/batches"

    @property
    def intents(self) -> str:
        """Which files are about to be replaced by which."""
        return self.path + "/intents"

    @property
    def lock(self) -> str:
        """Held by the one program that works here."""
        return self.path + "/lock"

    @property
    def spark_log(self) -> str:
        """What Spark says."""
        return self.path + "/spark.log"


_BATCH_DIGITS = 9
_NUMBER_DIGITS = 5
_QUERY_LENGTH = 12
_LANDED = re.compile(r"(?P<prefix>.*-)?(?:[0-9a-f]{12}-b[0-9]{9,}|c[0-9a-f]{12})-[0-9]{5,}(?:\.\w+)*\.parquet")


def landed_name(query_id: str, batch_id: int, number: int, suffix: str, prefix: str = "") -> str:
    """The name of a file of a batch; of no other query, batch or number.

    Args:
        query_id: What Spark named the query in its checkpoint.
        batch_id: The batch's number, from 0 on.
        number: The file's number in its batch.
        suffix: What the file is, such as `.zstd.parquet`.
        prefix: What all files of a landing begin with.
    """
    query = query_id.replace("-", "")[:_QUERY_LENGTH]
    return f"{prefix}{query}-b{batch_id:0{_BATCH_DIGITS}}-{number:0{_NUMBER_DIGITS}}{suffix}"


def compacted_name(compaction_id: str, suffix: str, like: str) -> str:
    """The name of a file that replaces others, of which one is called `like`.

    Args:
        compaction_id: Names the merge; of no other.
        suffix: What the file is, such as `.zstd.parquet`.
        like: Another's name, whose prefix it takes over.
    """
    found = _LANDED.fullmatch(like)
    assert found, like
    compaction = compaction_id.replace("-", "")[:_QUERY_LENGTH]
    return f"{found['prefix'] or ''}c{compaction}-{0:0{_NUMBER_DIGITS}}{suffix}"


def is_landed(name: str) -> bool:
    """Tells whether a file has a name that landing or compaction gives: others' files are left alone."""
    return bool(_LANDED.fullmatch(name))


def suffix_of(path: str) -> str:
    """What a file is, such as `.zstd.parquet`; empty where Spark wrote it for itself, as `_SUCCESS`."""
    name = posixpath.basename(path)
    if name.startswith(("_", ".")) or "." not in name:
        return ""
    return name[name.index(".") :]


def data_files(files: list[StoredFile], folder: str) -> list[StoredFile]:
    """What Spark wrote for its readers, among all files below a folder.

    A task that Spark had given up may go on, and write to `_temporary` again after its job's end: that is nobody's.
    """
    return [file for file in files if suffix_of(file.path) and not _is_hidden(relative_to(file.path, folder))]


def _is_hidden(path: str) -> bool:
    """Whether a part of a path is Spark's own; one with `=` is a partition, whatever its column's name begins with."""
    return any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
