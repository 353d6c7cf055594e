"""Names of landed files."""

import posixpath
import re

from millrace_spark.landing.storage import StoredFile, relative_to

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
