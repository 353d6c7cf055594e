"""The part of S3 that an uploader needs, in memory: objects, multipart uploads, and listings.

As in the real one, an object exists only once its upload is complete.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Response = tuple[int, bytes, dict[str, str]]
"""A response's status, body and headers."""


class FakeS3:
    """Buckets in memory.

    Attributes:
        endpoint: The address of the server, `host:port`.
        objects: The content of each object, by bucket and key.
        uploads: The parts of incomplete uploads.
        refuses: Whether every request is refused, as without credentials.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.refuses = False
        self._numbers = count(1)

    def respond(self, method: str, target: str, body: bytes) -> Response:
        """The status, body and headers that a request gets."""
        parts = urlsplit(target)
        key = unquote(parts.path).lstrip("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if self.refuses:
            return 403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", {}
        match method:
            case "HEAD":
                return self._head(key)
            case "PUT":
                return self._put(key, query, body)
            case "POST":
                return self._post(key, query)
            case "DELETE":
                self.objects.pop(key, None)
                self.uploads.pop(query.get("uploadId", [""])[0], None)
                return 204, b"", {}
            case _:
                return self._list(key, query.get("prefix", [""])[0])

    def _put(self, key: str, query: dict[str, list[str]], body: bytes) -> Response:
        if "uploadId" in query:
            self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.objects[key] = body
        return 200, b"", {"ETag": '"some"'}

    def _post(self, key: str, query: dict[str, list[str]]) -> Response:
        if "uploads" in query:
            upload = f"upload-{next(self._numbers)}"
            self.uploads[upload] = {}
            document = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return 200, document.encode(), {}
        parts = self.uploads.pop(query["uploadId"][0])
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return 200, b"<CompleteMultipartUploadResult><ETag>some</ETag></CompleteMultipartUploadResult>", {}

    def _head(self, key: str) -> Response:
        if "/" not in key:
            return 200, b"", {}
        if (content := self.objects.get(key)) is None:
            return 404, b"", {}
        return 200, b"", {"Content-Length": str(len(content)), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}

    def _list(self, bucket: str, prefix: str) -> Response:
        start = f"{bucket.rstrip('/')}/"
        found = [key.removeprefix(start) for key in sorted(self.objects) if key.startswith(start + prefix)]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[start + key])}</Size></Contents>" for key in found
        )
        counted = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        return 200, f"<ListBucketResult>{counted}{contents}</ListBucketResult>".encode(), {}


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    """A fake S3 on a free port of loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    s3 = FakeS3(f"127.0.0.1:{server.server_address[1]}")
    server.s3 = s3  # type: ignore[attr-defined] # the handler finds it there
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _respond(self) -> None:
        s3: FakeS3 = self.server.s3  # type: ignore[attr-defined] # set where the server is made
        status, body, headers = s3.respond(self.command, self.path, self._body())
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/xml", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - the names that http.server looks for

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return _without_frames(body)
        return body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's own name
        """Logs nothing."""


def _without_frames(body: bytes) -> bytes:
    """The payload of a body in AWS chunks with a trailing checksum."""
    payload = b""
    while True:
        size_line, _, rest = body.partition(b"\r\n")
        size = int(size_line.split(b";")[0], 16)
        if not size:
            return payload
        payload += rest[:size]
        body = rest[size + 2 :]
