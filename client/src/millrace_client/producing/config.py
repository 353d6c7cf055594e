"""The limits of a producer."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from millrace_client._flows import REQUEST_HEAD_BYTES_MAX
from millrace_client._service_config import MIB, REQUEST_BYTES_MAX
from millrace_client.errors import BadArgumentError

_ID_LENGTH_MAX = 128
_NUMBER_MAX = 1 << 62

_WordT = TypeVar("_WordT", bound=StrEnum)

EVENT_BYTES_MAX = REQUEST_BYTES_MAX - REQUEST_HEAD_BYTES_MAX
"""No event or batch is larger: a server's default limit for messages."""


class Overflow(StrEnum):
    """What becomes of a send when the buffer is full."""

    BLOCK = "block"
    """It waits for room, up to `max_block_seconds`; then BufferFullError."""
    RAISE = "raise"
    """BufferFullError at once."""
    DROP_OLDEST = "drop_oldest"
    """The oldest events that are in no batch yet make room: their futures fail with EventDroppedError. Where all that
    the buffer holds is in batches, nothing can be dropped, and the send raises BufferFullError."""


class Routing(StrEnum):
    """Which of several servers gets a batch. Sick servers are passed over until they have recovered."""

    ROUND_ROBIN = "round_robin"
    """One after the other."""
    RANDOM = "random"
    """Any."""
    BY_KEY = "by_key"
    """Consistent hashing of the event's key: a key keeps its server while that is healthy, and when servers come or
    go, few keys change theirs. All producers agree about it. Events without a key go to one after the other."""
    FAILOVER = "failover"
    """The first of the list that is healthy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerConfig:
    """Limits of one producer. Checked as a whole when made: a value that is not allowed is a BadArgumentError."""

    batch_bytes_max: int = 2 * MIB
    """A batch is sealed before it would pass this encoded size. A server that takes less lowers it by itself."""
    batch_events_max: int = 4_000
    """A batch is sealed at this many events. A channel whose transaction capacity is lower lowers it by itself."""
    linger_seconds: float = 0.01
    """A batch is sealed this long after its first event, when it is not full before."""
    event_bytes_max: int | None = None
    """A larger event is refused by `send`. None: `batch_bytes_max`. Where it is above that, an event that fits into no
    batch with others goes alone."""
    buffer_bytes_max: int = 64 * MIB
    """Memory for all events that are not settled yet, with an estimate of what Python adds to each."""
    overflow: Overflow = Overflow.BLOCK
    """What becomes of a send when the buffer is full."""
    max_block_seconds: float = 60.0
    """How long a send waits for room."""
    inflight_batches_max: int = 8
    """Batches of one server that are sent and not answered."""
    routing: Routing = Routing.ROUND_ROBIN
    """Which of several servers gets a batch."""
    timeout_seconds: float = 30.0
    """A server that has not answered a batch for so long is taken for dead: its connection's batches are sent again.
    Must be above the keep-alive of the channels, which is how long a full channel lets an append wait."""
    delivery_timeout_seconds: float = 120.0
    """An event that is not stored so long after `send` fails with the error of its last attempt. An attempt that is
    under way then is waited for. With `producer_id` its time begins when all before it in its channel is stored."""
    attempts_max: int | None = None
    """A batch fails after so many attempts. None: only time counts."""
    backoff_seconds: float = 0.1
    """The pause before the second attempt, and how long a server is left alone that failed once. It doubles with each
    further failure. What is waited is drawn from the upper half of it, and never less than the server asked for."""
    backoff_seconds_max: float = 5.0
    """The longest such pause."""
    attempts_kept_max: int = 10
    """A result tells of the last so many attempts."""
    move_after_seconds: float | None = None
    """A batch of which it is not known whether its server stored it stays with that server, since only there a repeat
    is recognized. After so long it may go to another all the same, and then perhaps is stored on both. None: never."""
    context_headers: bool = False
    """Whether each event carries the headers `millrace-producer`, the same for all events of this producer, and
    `millrace-place`, which counts the events of a channel from 1 in the order of `send`; with `producer_id`, from
    `first_number` + 1."""
    resolve_seconds: float = 30.0
    """How often names are looked up anew."""
    producer_id: str | None = None
    """Makes the producer one that can be resumed, see `Producer`: 1 to 128 printable ASCII characters that nobody else
    uses. None: it has an id that nobody else has."""
    first_number: int = 0
    """With `producer_id`: the number of the first event that is sent to a channel. Each further event has the next."""

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
            raise BadArgumentError("first_number: is of use with producer_id only; give both, or neither")
        # Words are taken for what they stand for, as configuration files have them.
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
                "move_after_seconds: is set; with producer_id an event belongs to one server, so leave it"
            )

    @property
    def is_resumable(self) -> bool:
        """Whether a later producer can go on where this one ends."""
        return self.producer_id is not None

    @property
    def event_bytes_limit(self) -> int:
        """The largest event that is taken."""
        return self.batch_bytes_max if self.event_bytes_max is None else self.event_bytes_max


def _check(name: str, value: float, *, at_least: float, at_most: float | None = None) -> None:
    if not value >= at_least or (at_most is not None and value > at_most):
        allowed = f"at least {at_least}" if at_most is None else f"{at_least} to {at_most}"
        raise BadArgumentError(f"{name}: is {value}; it must be {allowed}")


def _one_of(name: str, words: type[_WordT], word: str) -> _WordT:
    try:
        return words(word)
    except ValueError:
        raise BadArgumentError(f"{name}: is {word!r}; it must be {' or '.join(words)}") from None
