"""Server-sent events: a response that lasts until the client disconnects, or loses its permission."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millrace_server.errors import MillraceError

_HEARTBEAT = b":\n\n"


class EventStream(Response):
    """Sends documents as server-sent events. An error that ends them is sent as an event of type `refused`."""

    media_type = "text/event-stream"

    def __init__(self, documents: AsyncGenerator[dict[str, Any] | None]) -> None:
        """None in place of a document is sent as a comment, which detects a broken connection."""
        super().__init__()
        del self.headers["content-length"]
        self._documents = documents

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_wait_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.wait((sending, leaving))

    async def _send_all(self, send: Send) -> None:
        last = b""
        try:
            async with aclosing(self._documents) as documents:
                async for document in documents:
                    text = _HEARTBEAT if document is None else _encoded(document)
                    await send({"type": "http.response.body", "body": text, "more_body": True})
        except MillraceError as error:
            last = b"event: refused\n" + _encoded({"reason": error.reason, "message": str(error)})
        except asyncio.CancelledError:
            # The client has disconnected, or the server is stopping. The response is still completed.
            pass
        await send({"type": "http.response.body", "body": last})


def _encoded(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


async def _wait_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
