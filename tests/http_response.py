"""What a client of HTTP gets, for tests of servers."""

import json
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any


@dataclass(frozen=True)
class Response:
    """A response over HTTP."""

    status: int
    headers: Message
    body: bytes

    @classmethod
    def parsed(cls, response: bytes) -> "Response":
        """The response that was received as a whole."""
        head, _, body = response.partition(b"\r\n\r\n")
        status, _, headers = head.partition(b"\r\n")
        return cls(int(status.split()[1]), BytesHeaderParser().parsebytes(headers), body)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """Why it was refused."""
        assert self.status >= 400, self.body
        reason: str = self.json()["reason"]
        return reason
