"""Whether a server can be reached and serves: what its health service says, for as long as the connection lives."""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

import grpc

from millrace_client.producing.loops import call_in
from millrace_client.producing.retrying import RetrySchedule

_WATCH_PATH = "/grpc.health.v1.Health/Watch"
# Messages of grpc.health.v1, which need no generated code: a request about the server as a whole is empty, and a status
# is one number.
_WHOLE_SERVER = b""
_SERVING = b"\x08\x01"


class Watched(Protocol):
    """A server."""

    @property
    def channel(self) -> grpc.Channel:
        """The connection to it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where it is told."""

    def note_state(self, *, is_ready: bool, is_down: bool) -> None:
        """Takes what was found."""

    def begin_thread(self, read: Callable[[], None], name: str) -> None:
        """Begins a thread."""


class HealthWatch:
    """Tells a server whenever it is found to serve, or not to.

    The watch is a stream that lives as long as the connection. So a connection that breaks shows at once, and so does
    one that cannot be made. A server that is stopping says so, too.
    """

    def __init__(self, server: Watched, schedule: RetrySchedule) -> None:
        self._server = server
        self._schedule = schedule
        self._watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = server.channel.unary_stream(_WATCH_PATH)
        self._has_answered = False
        self._is_ending = False
        self._news = threading.Event()
        self._call: grpc.RpcContext | None = None
        server.begin_thread(self._run, "health")

    def look(self) -> None:
        """Has it look again now, where it cannot watch all the time."""
        self._news.set()

    def end(self) -> None:
        """Ends it."""
        self._is_ending = True
        self._news.set()
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
        failure_count = 0
        while not self._is_ending:
            # Once it is known to be down, gRPC itself tries again and again, with pauses that grow, and tells at once.
            code = self._watch_until_it_ends(waits=failure_count > 0)
            if code is grpc.StatusCode.UNAVAILABLE or code is grpc.StatusCode.CANCELLED:
                failure_count = 1 if self._has_answered else failure_count + 1
                self._tell(is_ready=False, is_down=True)
                self._news.clear()
                if not self._is_ending:
                    self._news.wait(self._schedule.pause_seconds(failure_count, None))
            else:
                # It can be reached, and has no health service, or not for everybody. Appending will show the rest.
                failure_count = 0
                self._tell(is_ready=True, is_down=False)
                if not self._is_ending:
                    self._news.wait()
                    self._news.clear()

    def _watch_until_it_ends(self, *, waits: bool) -> grpc.StatusCode:
        self._has_answered = False
        try:
            call = self._watch(_WHOLE_SERVER, wait_for_ready=waits)
            self._call = call
            if self._is_ending:
                call.cancel()
            for status in call:
                self._has_answered = True
                self._tell(is_ready=status == _SERVING, is_down=status != _SERVING)
        except grpc.RpcError as failure:
            code: grpc.StatusCode = failure.code()
            return code
        except ValueError:
            # The channel was closed meanwhile.
            return grpc.StatusCode.CANCELLED
        return grpc.StatusCode.UNAVAILABLE

    def _tell(self, *, is_ready: bool, is_down: bool) -> None:
        call_in(self._server.loop, lambda: self._server.note_state(is_ready=is_ready, is_down=is_down))
