"""Paths of folders, local or on a file system that Hadoop supports, and names of landed files."""

import hashlib
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace_spark.landing.storage import StoredFile, relative_to

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_SPECIAL = re.compile(r"[][{}*?\\]")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH_MAX = 64
_DIGEST_LENGTH = 8


def absolute_path(text: str) -> str:
    """Returns an absolute path without a trailing slash; a local one without a scheme, others with it.

    Raises:
        ValueError: The path is not that of a separate folder.
    """
    found = _SCHEME.match(text)
    if found and found[1].lower() != "file":
        place = urlsplit(text)
        path = posixpath.normpath(place.path)
        if path in {"/", "."} or place.query or place.fragment:
            raise ValueError("a folder below the root, such as hdfs://namenode/landed/web")
        return f"{place.scheme}://{place.netloc}{path}"
    local = unquote(urlsplit(text).path) if found else text
    # An empty path would be the working directory, which is never meant.
    if "\0" in local or Path(local) == Path() or Path(local).resolve() == Path("/"):
        raise ValueError("a folder of its own, such as landed/web")
    return str(Path(local).expanduser().absolute())


def is_local(path: str) -> bool:
    """Whether an absolute path is local."""
    return path.startswith("/")


def file_system_of(path: str) -> str:
    """Returns the file system of an absolute path; empty for the local one."""
    place = urlsplit(path)
    return "" if is_local(path) else f"{place.scheme}://{place.netloc}"


def as_uri(path: str) -> str:
    """Returns an absolute path as a URI for Spark, independent of its default file system."""
    # Not `Path.as_uri`, since Hadoop does not decode percent-encoded characters.
    return f"file://{path}" if is_local(path) else path


def as_pattern(path: str) -> str:
    """Returns an absolute path for Spark's readers, which take paths for patterns."""
    return as_uri(_SPECIAL.sub(r"\\\g<0>", path))


def name_of(path: str) -> str:
    """Returns a unique name for an absolute path, valid in file names and reader ids."""
    digest = hashlib.sha256(path.encode()).hexdigest()[:_DIGEST_LENGTH]
    last = _UNFIT.sub("-", posixpath.basename(path)).strip("-")[:_NAME_LENGTH_MAX]
    return f"{last}-{digest}"


@dataclass(frozen=True)
class WorkFolder:
    """The folder for everything but the landed files.

    It is next to the landed files, so that readers of those find only complete files, whatever names they match.
    """

    path: str

    @classmethod
    def beside(cls, landed: str) -> "WorkFolder":
        """Returns the default work folder of a folder of landed files."""
        return cls(landed + ".landing")

    @property
    def checkpoint(self) -> str:
        """Spark's checkpoint: the ranges of the batches, and which of them are committed."""
        return self.path + "/checkpoint"

    @property
    def staging(self) -> str:
        """Files that are not published yet, with a folder for each attempt."""
        return self.path + "/staging"

    @property
    def batches(self) -> str:
        """A record of the last batch of each query, with its files."""
        return self.path + "/batches"

    @property
    def intents(self) -> str:
        """The intents of swaps: which files replace which."""
        return self.path + "/intents"

    @property
    def lock(self) -> str:
        """The lock file of the program that uses the folder."""
        return self.path + "/lock"

    @property
    def spark_log(self) -> str:
        return self.path + "/spark.log"


_BATCH_DIGITS = 9
_NUMBER_DIGITS = 5
_QUERY_LENGTH = 12
_LANDED = re.compile(r"(?P<prefix>.*-)?(?:[0-9a-f]{12}-b[0-9]{9,}|c[0-9a-f]{12})-[0-9]{5,}(?:\.\w+)*\.parquet")


def landed_name(query_id: str, batch_id: int, number: int, suffix: str, prefix: str = "") -> str:
    """Returns the file name of a batch, unique to the query, batch and number."""
    query = query_id.replace("-", "")[:_QUERY_LENGTH]
    return f"{prefix}{query}-b{batch_id:0{_BATCH_DIGITS}}-{number:0{_NUMBER_DIGITS}}{suffix}"


def compacted_name(compaction_id: str, suffix: str, like: str) -> str:
    """Returns the name of a file that replaces others, with the prefix of `like`, one of them."""
    found = _LANDED.fullmatch(like)
    assert found, like
    compaction = compaction_id.replace("-", "")[:_QUERY_LENGTH]
    return f"{found['prefix'] or ''}c{compaction}-{0:0{_NUMBER_DIGITS}}{suffix}"


def is_landed(name: str) -> bool:
    """Whether a file has a name of a landing or a compaction; other files are ignored."""
    return bool(_LANDED.fullmatch(name))


def suffix_of(path: str) -> str:
    """Returns the suffix of a file, such as `.zstd.parquet`; empty for Spark's own files, such as `_SUCCESS`."""
    name = posixpath.basename(path)
    if name.startswith(("_", ".")) or "." not in name:
        return ""
    return name[name.index(".") :]


def data_files(files: list[StoredFile], folder: str) -> list[StoredFile]:
    """Returns the data files among all files in a folder.

    A task that Spark has abandoned may still write to `_temporary` after the end of its job; such files are ignored.
    """
    return [file for file in files if suffix_of(file.path) and not _is_hidden(relative_to(file.path, folder))]


def _is_hidden(path: str) -> bool:
    """Whether part of a path is Spark's own. A part with `=` is a partition, even if it begins with `_` or `.`."""
    return any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
