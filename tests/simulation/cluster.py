"""Simulated servers, their channels, and the producers that send to these."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace_client._retries import Backoff
from millrace_client.producer import ProducerConfig
from tests.simulation.costs import Costs
from tests.simulation.resources import Clock, Process, Resource, Then

OnResponse = Callable[[bool], None]
DELIVERIES_MAX = 8
"""The most deliveries of a channel's consumer that are not acknowledged."""


@dataclass
class Account:
    """What became of every batch."""

    created: int = 0
    acknowledged: int = 0
    withheld: int = 0
    """Batches that a producer could not accept, since its buffer was full."""
    late: int = 0
    """Acknowledged more than a second after they were created."""
    longest_seconds: float = 0.0
    """The longest time between creation and acknowledgement."""
    repeats: int = 0
    """Attempts that a server recognised as already stored."""
    copies: dict[int, int] = field(default_factory=dict)
    """How often each batch was stored, by its number."""
    lost: int = 0
    """Acknowledged, and stored nowhere."""

    def store(self, number: int) -> None:
        self.copies[number] = self.copies.get(number, 0) + 1

    def acknowledge(self, number: int, waited_seconds: float) -> None:
        self.acknowledged += 1
        self.late += waited_seconds > 1.0
        self.longest_seconds = max(self.longest_seconds, waited_seconds)
        self.lost += number not in self.copies


class Channel:
    """A channel and its log, whose waiting commits share one write and sync. It outlives the server that has it.

    Attributes:
        server: The server that has it; None while none does.
        queued: Batches in the channel that no consumer has removed.
        consumed: Batches that a consumer has removed.
    """

    def __init__(
        self, clock: Clock, costs: Costs, account: Account, disk: Resource, *, deliveries_max: int = DELIVERIES_MAX
    ) -> None:
        self._clock, self._costs, self._account, self._disk = clock, costs, account, disk
        self._deliveries_max = deliveries_max
        self.server: Process | None = None
        self._life = 0
        self._is_writing = False
        self._unwritten: list[tuple[int, OnResponse]] = []
        self._open: dict[OnResponse, None] = {}
        self._deliveries = 0
        self._stamps: set[int] = set()
        self.queued = self.consumed = 0

    def append(self, number: int, on_response: OnResponse) -> None:
        """Stores a batch and responds True; False as soon as the client notices that it got no response."""
        if self.server is None:
            self._clock.after(self._costs.trip_seconds, lambda: on_response(False))
            return
        self._open[on_response] = None
        log = self._unless_closed(lambda: self._log(number, on_response))
        self.server.run(self._costs.append_seconds, log, self._costs.stall_seconds)

    def open(self, server: Process) -> None:
        """Has a server serve it."""
        self.server = server
        self._deliver()

    def close(self, notice_seconds: float) -> None:
        """Takes it from its server; clients notice the end of their calls after so long."""
        self.server = None
        self._life += 1
        self._is_writing = False
        self._unwritten, self._deliveries = [], 0
        for on_response in self._open:
            self._clock.after(notice_seconds, _failed(on_response))
        self._open = {}

    def _unless_closed(self, then: Then) -> Then:
        life = self._life

        def run() -> None:
            if self._life == life:
                then()

        return run

    def _log(self, number: int, on_response: OnResponse) -> None:
        self._unwritten.append((number, on_response))
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        self._is_writing = True
        written, self._unwritten = self._unwritten, []

        def done() -> None:
            for number, _ in written:
                self._store(number)
            # Closing the channel here leaves batches that are stored but not acknowledged.
            self._clock.after(self._costs.trip_seconds, self._unless_closed(lambda: self._respond(written)))
            self._is_writing = False
            if self._unwritten:
                self._write()

        self._disk.use(self._costs.write_seconds(len(written)), self._unless_closed(done))

    def _store(self, number: int) -> None:
        if number in self._stamps:
            self._account.repeats += 1
            return
        self._stamps.add(number)
        self._account.store(number)
        self.queued += 1
        self._deliver()

    def _respond(self, written: list[tuple[int, OnResponse]]) -> None:
        for _, on_response in written:
            del self._open[on_response]
            on_response(True)

    def _deliver(self) -> None:
        while self.server is not None and self._deliveries < min(self.queued, self._deliveries_max):
            self._deliveries += 1
            self.server.run(self._costs.consume_seconds, self._unless_closed(self._remove))

    def _remove(self) -> None:
        self._deliveries -= 1
        self.queued -= 1
        self.consumed += 1
        self._deliver()


def _failed(on_response: OnResponse) -> Then:
    return lambda: on_response(False)


class Producer:
    """Sends batches to one channel, with the limits, the pauses and the repeats of the client's Producer."""

    def __init__(self, clock: Clock, costs: Costs, account: Account, channel: Channel, draw: random.Random) -> None:
        self._clock, self._costs, self._account, self._channel = clock, costs, account, channel
        self._config = ProducerConfig()
        self._backoff = Backoff(self._config.backoff_seconds, self._config.backoff_seconds_max, draw)
        self._batches_max = self._config.buffer_bytes_max // costs.batch_bytes
        self._waiting: deque[tuple[int, float]] = deque()
        self._in_flight = 0
        self._is_pausing = False

    @property
    def unsettled(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._waiting) + self._in_flight

    def create_every(self, seconds: float, first_seconds: float) -> None:
        """Creates a batch at once every so often."""

        def create() -> None:
            self.create()
            self._clock.after(seconds, create)

        self._clock.after(first_seconds, create)

    def create(self) -> None:
        """Creates a batch, and sends it when it may."""
        if self.unsettled >= self._batches_max:
            self._account.withheld += 1
            return
        self._account.created += 1
        self._waiting.append((self._account.created, self._clock.now))
        self._send()

    def _send(self) -> None:
        while self._waiting and self._in_flight < self._config.inflight_batches_max and not self._is_pausing:
            self._in_flight += 1
            self._attempt(*self._waiting.popleft())

    def _attempt(self, number: int, created: float) -> None:
        def responded(is_stored: bool) -> None:  # noqa: FBT001 - the response of a call
            self._in_flight -= 1
            if is_stored:
                self._backoff.reset()
                self._account.acknowledge(number, self._clock.now - created)
            else:
                self._waiting.appendleft((number, created))
                self._pause()
            self._send()

        self._channel.append(number, responded)

    def _pause(self) -> None:
        if self._is_pausing:
            return
        self._is_pausing = True

        def resume() -> None:
            self._is_pausing = False
            self._send()

        self._clock.after(self._backoff.next_seconds(), resume)
