"""The files of the page, compressed once and cached by browsers."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from millrace_server.network.http_requests import accepts_gzip

INDEX = "index.html"

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "mjs": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
_INCOMPRESSIBLE = {"png", "woff2"}
_HASHED = re.compile(r"\.[0-9a-f]{8,}\.")

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


class _File(NamedTuple):
    content: bytes
    compressed: bytes | None
    etag: str
    media_type: str


class PageFiles:
    """All files of the page, in memory: no path of a request reaches the file system."""

    def __init__(self) -> None:
        self._files = dict(_read_all(files("millrace_server.console") / "page", ""))

    def response(self, request: Request, path: str) -> Response:
        """Returns a file of the page; 304 if the browser has it already, 404 if there is none."""
        file = self._files.get(path)
        if file is None:
            return Response("not found\n", 404, media_type="text/plain")
        is_versioned = "v" in request.query_params or _HASHED.search(path) is not None
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if is_versioned else "no-cache",
            "Content-Security-Policy": _PAGE_POLICY,
            "ETag": file.etag,
            "Vary": "Accept-Encoding",
        }
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = file.content
        if file.compressed is not None and accepts_gzip(request):
            content = file.compressed
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=file.media_type)


def _read_all(directory: Traversable, prefix: str) -> Iterator[tuple[str, _File]]:
    for entry in directory.iterdir():
        suffix = entry.name.rpartition(".")[2]
        if entry.is_dir():
            yield from _read_all(entry, f"{prefix}{entry.name}/")
        elif suffix in _TYPES:
            content = entry.read_bytes()
            compressed = None if suffix in _INCOMPRESSIBLE else gzip.compress(content, mtime=0)
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            yield f"{prefix}{entry.name}", _File(content, compressed, etag, _TYPES[suffix])
