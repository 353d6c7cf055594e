"""The limits of a producer."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from millrace_client._call_sequences import REQUEST_HEAD_BYTES_MAX
from millrace_client._settings import MIB, REQUEST_BYTES_MAX
from millrace_client.errors import BadArgumentError

_ID_LENGTH_MAX = 128
_NUMBER_MAX = 1 << 62

_ChoiceT = TypeVar("_ChoiceT", bound=StrEnum)

EVENT_BYTES_MAX = REQUEST_BYTES_MAX - REQUEST_HEAD_BYTES_MAX
"""The largest event or batch: a server's default limit for messages."""


class Overflow(StrEnum):
    """What a send does when the buffer is full."""

    BLOCK = "block"
    """Waits for space, up to `max_block_seconds`; then raises BufferFullError."""
    RAISE = "raise"
    """Raises BufferFullError at once."""
    DROP_OLDEST = "drop_oldest"
    """Drops the oldest events that are in no batch yet: their futures fail with EventDroppedError. If all buffered
    events are in batches, the send raises BufferFullError."""


class Routing(StrEnum):
    """Which of several servers gets a batch. Failing servers are skipped until they have recovered."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    BY_KEY = "by_key"
    """Consistent hashing of the event's key: a key keeps its server while that is healthy, and when servers come or
    go, few keys change theirs. All producers agree on it. For events without a key the servers take turns."""
    FAILOVER = "failover"
    """The first healthy server of the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerConfig:
    """The limits of one producer; raises BadArgumentError if one is not allowed."""

    batch_bytes_max: int = 2 * MIB
    """A batch is sealed before it exceeds this encoded size. Lowered automatically if a server accepts less."""
    batch_events_max: int = 4_000
    """A batch is sealed at this many events. Lowered automatically if a channel accepts less at once."""
    linger_seconds: float = 0.01
    """A batch that is not full is sealed this long after its first event."""
    event_bytes_max: int | None = None
    """`send` refuses a larger event. None: `batch_bytes_max`. An event above `batch_bytes_max` is sent alone."""
    buffer_bytes_max: int = 64 * MIB
    """Memory for all events that are not settled, including an estimate of what Python adds to each."""
    overflow: Overflow = Overflow.BLOCK
    """What a send does when the buffer is full."""
    max_block_seconds: float = 60.0
    """How long a send waits for space in the buffer."""
    inflight_batches_max: int = 8
    """The maximum number of batches in flight to one server."""
    routing: Routing = Routing.ROUND_ROBIN
    """Which of several servers gets a batch."""
    timeout_seconds: float = 30.0
    """How long a server may take to respond to a batch. After that its pending batches are sent again. Must be longer
    than the channels' keep-alive, which is how long a full channel lets an append wait."""
    delivery_timeout_seconds: float = 120.0
    """An event that is not stored this long after `send` fails with the error of its last attempt, once an attempt in
    progress has ended. With `producer_id` the time starts when everything before the event in its channel is stored."""
    attempts_max: int | None = None
    """A batch fails after this many attempts. None: no limit."""
    backoff_seconds: float = 0.1
    """The pause before the second attempt, and how long a server gets no batches after a failure. It doubles with each
    further failure. The actual pause is random between its half and its whole, never less than the server asks."""
    backoff_seconds_max: float = 5.0
    """The longest such pause."""
    attempts_kept_max: int = 10
    """The most attempts that a result keeps, the last ones."""
    move_after_seconds: float | None = None
    """A batch that its server may have stored stays with that server, since only that server recognizes a repeat.
    After this time it may go to another server, and may then be stored on both. None: never."""
    context_headers: bool = False
    """Whether each event gets the headers `millrace-producer`, the producer's id, and `millrace-place`, which counts
    the events of a channel from 1 in the order of `send`; with `producer_id`, from `first_number` + 1."""
    resolve_seconds: float = 30.0
    """How often names are resolved again."""
    producer_id: str | None = None
    """Makes the producer resumable, see `Producer`: 1 to 128 printable ASCII characters, unique among producers. None:
    a random id."""
    first_number: int = 0
    """With `producer_id`: the number of the first event sent to a channel; each further event has the next number."""

    def __post_init__(self) -> None:
        for name in ("batch_events_max", "buffer_bytes_max", "inflight_batches_max", "attempts_kept_max"):
            _check(name, getattr(self, name), at_least=1)
        _check("batch_bytes_max", self.batch_bytes_max, at_least=1, at_most=EVENT_BYTES_MAX)
        _check("event_bytes_max", self.event_bytes_limit, at_least=1, at_most=EVENT_BYTES_MAX)
        for name in ("linger_seconds", "max_block_seconds", "backoff_seconds"):
            _check(name, getattr(self, name), at_least=0)
        for name in ("timeout_seconds", "delivery_timeout_seconds", "resolve_seconds"):
            if not getattr(self, name) > 0:
                raise BadArgumentError(f"{name}: is {getattr(self, name)}; it must be above 0")
        _check("backoff_seconds_max", self.backoff_seconds_max, at_least=self.backoff_seconds)
        if self.attempts_max is not None:
            _check("attempts_max", self.attempts_max, at_least=1)
        if self.move_after_seconds is not None:
            _check("move_after_seconds", self.move_after_seconds, at_least=0)
        if self.producer_id is not None:
            self._check_resumable(self.producer_id)
        elif self.first_number:
            raise BadArgumentError("first_number: needs producer_id; give both, or neither")
        # Strings are accepted as well, as configuration files have them.
        object.__setattr__(self, "overflow", _one_of("overflow", Overflow, self.overflow))
        object.__setattr__(self, "routing", _one_of("routing", Routing, self.routing))

    def _check_resumable(self, producer_id: str) -> None:
        if not (1 <= len(producer_id) <= _ID_LENGTH_MAX and producer_id.isascii() and producer_id.isprintable()):
            allowed = f"1 to {_ID_LENGTH_MAX} printable ASCII characters"
            raise BadArgumentError(f"producer_id: is {producer_id!r}; it must be {allowed}")
        _check("first_number", self.first_number, at_least=0, at_most=_NUMBER_MAX)
        if self.overflow == Overflow.DROP_OLDEST:
            raise BadArgumentError("overflow: is drop_oldest; with producer_id it must be block or raise")
        if self.move_after_seconds is not None:
            raise BadArgumentError(
                "move_after_seconds: is set; with producer_id an event belongs to one server, so leave it unset"
            )

    @property
    def is_resumable(self) -> bool:
        """Whether a later producer can continue where this one ends."""
        return self.producer_id is not None

    @property
    def event_bytes_limit(self) -> int:
        return self.batch_bytes_max if self.event_bytes_max is None else self.event_bytes_max


def _check(name: str, value: float, *, at_least: float, at_most: float | None = None) -> None:
    if not value >= at_least or (at_most is not None and value > at_most):
        allowed = f"at least {at_least}" if at_most is None else f"{at_least} to {at_most}"
        raise BadArgumentError(f"{name}: is {value}; it must be {allowed}")


def _one_of(name: str, choices: type[_ChoiceT], value: str) -> _ChoiceT:
    try:
        return choices(value)
    except ValueError:
        raise BadArgumentError(f"{name}: is {value!r}; it must be {' or '.join(choices)}") from None
