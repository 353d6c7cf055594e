"""Hadoop's configuration: the default file system, to which paths without a scheme belong."""

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?")
_NAMES = ("fs.defaultFS", "fs.default.name")
"""The setting, and its name in older releases."""

_SUPPORTED = {"abfs", "adl", "file", "gs", "hdfs", "oss", "s3", "webhdfs"}
"""Hadoop's schemes that have the same meaning in fsspec."""

DEFAULT_WANTED = "hdfs://NAMENODE:8020"
"""Stands for an unknown default file system."""


def default_file_system(environment: Mapping[str, str]) -> str | None:
    """Returns `fs.defaultFS` of core-site.xml in HADOOP_CONF_DIR; None if it cannot be read, or is local."""
    directory = environment.get("HADOOP_CONF_DIR")
    if not directory:
        return None
    try:
        # Expat limits the expansion of entities, and the file is the operator's own.
        root = ET.parse(Path(directory, "core-site.xml")).getroot()  # noqa: S314 - see above
    except (OSError, ValueError, ET.ParseError):
        return None
    found = {entry.findtext("name", "").strip(): entry.findtext("value", "").strip() for entry in root.iter("property")}
    named = next((found[name] for name in _NAMES if found.get(name)), "")
    match = _SCHEME.match(named)
    return None if match is None or match["scheme"].lower() == "file" else named.rstrip("/")


def with_plain_scheme(path: str) -> str:
    """Returns a path whose scheme, if any, is written as the sink `files` expects it: `FILE:/x` as `file:///x`."""
    match = _SCHEME.match(path)
    if match is None:
        return path
    scheme = match["scheme"].lower()
    rest = path[len(scheme) :]
    is_short = scheme == "file" and match["authority"] is None and rest.startswith(":/")
    return f"file://{rest[1:]}" if is_short else f"{scheme}{rest}"


def is_supported(path: str) -> bool:
    """Returns whether the sink `files` supports the file system of a path, if the path has a scheme."""
    match = _SCHEME.match(path)
    return match is None or (match["scheme"] in _SUPPORTED and match["authority"] is not None)


def has_scheme(path: str) -> bool:
    """Returns whether a path identifies its file system by scheme and host: `hdfs:///x` has no host."""
    match = _SCHEME.match(path)
    return match is not None and (bool(match["authority"]) or match["scheme"].lower() != "hdfs")


def below(file_system: str, path: str, user: str) -> str:
    """Returns a path in a file system; like Hadoop, it resolves a relative path in the user's home directory."""
    match = _SCHEME.match(path)
    rest = path[match.end() :] if match else path
    if not rest.startswith("/"):
        rest = f"/user/{user}/{rest}"
    return file_system + rest
