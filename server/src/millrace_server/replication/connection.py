"""A connection of nats-py that also sends messages in pieces."""

import asyncio
import itertools
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.parser import PERMISSIONS_ERR

from millrace_server.replication.engine_access import EngineAccess, EngineTls
from millrace_server.wal.disk import Piece

_log = structlog.stdlib.get_logger(__name__)

_NO_RESPONDERS = "503"
_CLOSE_SECONDS = 3.0
_PING_SECONDS = 3
_RECONNECT_SECONDS = 0.25
_FOREVER = -1

_DENIALS_MAX = 20
"""Different denials that a connection logs at most."""


class _Waiting(NamedTuple):
    """What has the response to a message, unless its caller has left, and what ends the wait for it."""

    response: "asyncio.Future[bytes]"
    timer: asyncio.TimerHandle

    def end(self, result: bytes | Exception) -> None:
        self.timer.cancel()
        if self.response.done():
            return
        if isinstance(result, Exception):
            self.response.set_exception(result)
        else:
            self.response.set_result(result)


class Connection(Client):
    """Adds a quicker way to append, since `publish` copies each message three times.

    The time that an append takes is that of the engine, of the copies, and of the hops between tasks. A copy of half a
    megabyte takes a tenth of a millisecond, and more where its memory is new. So this sends the pieces as they are, at
    once, and has one subscription for all responses.
    """

    def __init__(self, access: EngineAccess) -> None:
        super().__init__()
        self._access = access
        self._responses = ""
        self._numbers = itertools.count()
        # By the subjects of the responses; also those whose callers have left, until their time is over.
        self._waiting: dict[str, _Waiting] = {}
        self._on_loss: Callable[[], object]
        self._denials: set[str] = set()  # What the engine does not permit, as far as it was logged.

    async def open(self, servers: Sequence[str], on_loss: Callable[[], object]) -> None:
        """Connects to one of the servers, however long that takes, and later to any of them.

        Args:
            servers: URLs.
            on_loss: Called each time that the connection is lost, before it is made again.
        """
        self._on_loss = on_loss
        await self.connect(
            list(servers),
            name="millrace",
            error_cb=self._note,
            disconnected_cb=self._fail_waiting,
            max_reconnect_attempts=_FOREVER,
            reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type] # any number is accepted
            # A server that hangs is left after two of them.
            ping_interval=_PING_SECONDS,
        )
        responses = self.new_inbox()
        await self.subscribe(f"{responses}.*", cb=_ignore_late)
        self._responses = responses

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent: it is connected, and listens for responses."""
        return self.is_connected and bool(self._responses)

    async def ask(self, subject: str, headers: Mapping[str, str], pieces: Sequence[Piece], seconds: float) -> bytes:
        """Sends a message and returns the response; see `send`."""
        return await self.send(subject, headers, pieces, seconds)

    def send(
        self, subject: str, headers: Mapping[str, str], pieces: Sequence[Piece], seconds: float
    ) -> "asyncio.Future[bytes]":
        """Sends a message, and returns what will have the response.

        Args:
            subject: Where to.
            headers: Its headers, which need no escaping.
            pieces: The message.
            seconds: How long to wait for the response.

        Raises:
            ConnectionError: There is no connection; it was not sent.
            nats.errors.MaxPayloadError: It is larger than the engine takes; it was not sent.

        The future raises:
            ConnectionError: The connection was lost in the meantime.
            TimeoutError: There is no response in time.
            nats.errors.NoRespondersError: Nothing listens there.
        """
        if not self.is_open:
            # It would be sent later, when nothing expects it any more.
            raise ConnectionError("there is no connection to the engine")
        reply = f"{self._responses}.{next(self._numbers)}"
        self._send_now(_encoded(subject, reply, headers, pieces, self.max_payload))
        loop = asyncio.get_running_loop()
        # Not `asyncio.timeout`, which is for tasks, and takes longer.
        waiting = _Waiting(loop.create_future(), loop.call_later(seconds, self._give_up, reply))
        self._waiting[reply] = waiting
        return waiting.response

    def _give_up(self, reply: str) -> None:
        self._waiting.pop(reply).end(TimeoutError())

    def _send_now(self, message: Sequence[Piece]) -> None:
        """Sends a message after all that waits to be sent, without the task of the base class that does so."""
        assert self._transport is not None, "it is connected"
        try:
            self._transport.writelines([*self._pending, *message])  # type: ignore[list-item] # it takes views, too
        except RuntimeError as error:
            # The transport has noticed before the base class.
            raise ConnectionError("the connection to the engine was lost") from error
        self._pending, self._pending_data_size = [], 0

    async def _note(self, error: Exception) -> None:
        """Logs a problem; the request that is not permitted ends in a time-out, and is repeated for long."""
        message = str(error)
        if PERMISSIONS_ERR not in message:
            _log.debug("the connection to the engine has a problem", error=message)
        elif message not in self._denials and len(self._denials) < _DENIALS_MAX:
            self._denials.add(message)
            _log.warning("the engine's user lacks a permission that servers need", error=message)

    async def _fail_waiting(self) -> None:
        """Fails everything that waits for a response, since the connection was lost."""
        lost, self._waiting = self._waiting, {}
        for waiting in lost.values():
            waiting.end(ConnectionError("the connection to the engine was lost"))
        self._on_loss()

    async def close(self) -> None:
        """Closes the connection; never raises, and does not wait for an engine that hangs."""
        # It may break in the meantime.
        with suppress(nats.errors.Error, OSError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await super().close()
        self._close_transport()

    def _close_transport(self) -> None:
        """Closes the transport also where the base class was interrupted after it had noted that it is closed."""
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call] # nats-py has few types

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """What the next connection is made with: the files may have changed."""
        try:
            return (self._access.tls or EngineTls()).context()
        except (ValueError, OSError) as error:
            raise nats.errors.Error(str(error)) from error

    async def _connect_to_server(self, server: Any) -> None:
        """Closes the former connection first: where its beginning failed, the base class leaves it open."""
        self._close_transport()
        await super()._connect_to_server(server)

    def _connect_command(self) -> bytes:
        """Returns what is sent first, with the proof of who this is: the files may have changed."""
        if self._access.tls is not None and not self._server_info.get("tls_required"):
            # The secret, and all events, would be sent in plain text.
            raise nats.errors.Error("the engine's server does not ask for TLS, and `tls` is set")
        command: bytes = super()._connect_command()
        if not self._server_info.get("auth_required"):
            return command
        name, _, options = command.partition(b" ")
        try:
            proof = self._access.proof(self._server_info.get("nonce", ""))
        except ValueError as error:
            raise nats.errors.Error(f"a credentials file {error}") from error
        return b"".join([name, b" ", json.dumps(json.loads(options) | proof).encode(), b"\r\n"])

    async def _process_err(self, message: str) -> None:
        """Makes another connection; the base class would close for good, as if a secret were never renewed."""
        if "permissions violation" in message:
            await super()._process_err(message)
        else:
            await self._process_op_err(nats.errors.Error(message))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Gives a response to what waits for it, without the queue and the task that each subscription has."""
        waiting = self._waiting.pop(subject.decode(), None)
        if waiting is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif headers and (await self._process_headers(headers) or {}).get("Status") == _NO_RESPONDERS:
            waiting.end(nats.errors.NoRespondersError())
        else:
            waiting.end(data)


async def _ignore_late(_message: Msg) -> None:
    """Nothing waits for this response any more."""


def _encoded(
    subject: str, reply: str, headers: Mapping[str, str], pieces: Sequence[Piece], payload_bytes_max: int
) -> list[Piece]:
    lines = "".join([f"{key}: {value}\r\n" for key, value in headers.items()])
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    size = len(head) + sum(map(len, pieces))
    if size > payload_bytes_max:
        raise nats.errors.MaxPayloadError
    return [f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode() + head, *pieces, b"\r\n"]
