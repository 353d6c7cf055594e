"""A client without a server: one or more channels in this process, which fail when a test says so."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace, TracebackType
from typing import NamedTuple, Self

from millrace_client import (
    ChannelConfig,
    ChannelExistsError,
    ChannelFullError,
    ChannelInfo,
    ChannelNotEmptyError,
    ChannelUpdate,
    ClaimStatus,
    ComponentInfo,
    ComponentKind,
    ComponentNotFoundError,
    ConsumerInfo,
    Event,
    MillraceError,
    NotClaimedError,
    OpenTransaction,
    ProducerClosedError,
    ProducerConfig,
    ProducerHooks,
    ProducerInfo,
    Receipt,
    SendAttempt,
    SendResult,
    SendSummary,
    StaleEpochError,
    Stamp,
    Tls,
    TxnNotFoundError,
)
from tests.unit.cli.fake_channel import START_TIME, FakeChannel


class FakeFuture(NamedTuple):
    """One of the futures of `FakeFutures`."""

    place: int
    summary: SendSummary | None

    def done(self) -> bool:
        return self.summary is not None

    def settled(self, _timeout_seconds: float | None = None) -> SendResult:
        assert self.summary is not None
        assert self.summary.first_sequence is not None
        sequence = self.summary.first_sequence + self.place
        return SendResult("orders", True, sequence, False, (), 1, None, True)


class FakeFutures:
    """Replaces `SendFutures`: what was sent is offered to the channel each time that a result is requested."""

    def __init__(self, producer: "FakeProducer", events: Sequence[Event | bytes]) -> None:
        self._producer = producer
        self._events = events
        self._summary: SendSummary | None = None

    def __getitem__(self, index: int) -> "FakeFuture":
        return FakeFuture(index, self._summary)

    def summary(self, _timeout_seconds: float | None = None) -> SendSummary:
        if self._summary is None:
            self._summary = self._producer.store(self._events)
        return self._summary


class FakeProducer:
    """Replaces a `Producer` that can be resumed. Only a lack of space is retried."""

    def __init__(self, channel: FakeChannel, config: ProducerConfig, hooks: ProducerHooks) -> None:
        assert config.producer_id is not None
        self._channel = channel
        self._config = config
        self._hooks = hooks
        self._next_number = config.first_number
        self._sequences: list[int] = []
        self._error: MillraceError | None = None
        self._sent: list[FakeFutures] = []
        self.is_connected = True
        self.is_stopped = False
        """Whether it has heard by now that an event before those to come is not stored."""
        self.close_seconds: float | None = None

    def send_many(self, events: Sequence[Event | bytes]) -> FakeFutures:
        if self.is_stopped:
            raise ProducerClosedError("stopped")
        self._sent.append(FakeFutures(self, events))
        return self._sent[-1]

    def store(self, events: Sequence[Event | bytes]) -> SendSummary:
        count = first = last = new_count = 0
        failure: MillraceError | None = None
        while count < len(events) and failure is None:
            some = events[count : count + self._config.batch_events_max]
            try:
                receipt = self._append(some)
            except ChannelFullError as error:
                if self._config.attempts_max is None and self.close_seconds is None:
                    attempt = SendAttempt(START_TIME, "here", error.reason, error.message)
                    self._hooks.attempt_failed("orders", attempt, len(some), 0.1)
                    raise TimeoutError from error
                failure = error
            except MillraceError as error:
                failure = error
            else:
                self._hooks.batch_stored("orders", "here", len(some), 0.0)
                count += len(some)
                self._next_number += len(some)
                if receipt.first_sequence:
                    first, last = first or receipt.first_sequence, receipt.last_sequence
                    new_count += receipt.last_sequence - receipt.first_sequence + 1
        self._error = failure
        result = None if failure is None else SendResult("orders", False, None, False, (), 1, failure, True)
        return SendSummary(count, count - new_count, first or None, last or None, result)

    def _append(self, events: Sequence[Event | bytes]) -> Receipt:
        assert self._config.producer_id is not None
        if self._error is not None:
            raise ProducerClosedError("stopped")
        last_number = self._next_number + len(events) - 1
        return self._channel.append(events, Stamp(self._config.producer_id, self._next_number, last_number))

    def metrics(self) -> SimpleNamespace:
        return SimpleNamespace(servers=[SimpleNamespace(server="here:1", is_connected=self.is_connected)])

    def close(self, timeout_seconds: float) -> None:
        self.close_seconds = timeout_seconds
        for futures in self._sent:
            futures.summary()


@dataclass
class FakeAdmin:
    channels: dict[str, FakeChannel]
    components: list[ComponentInfo] = field(default_factory=list)
    errors: deque[BaseException] = field(default_factory=deque)
    update_message: str = ""
    last_config: ChannelConfig | None = None
    transactions: list[OpenTransaction] = field(default_factory=list)
    consumers: list[ConsumerInfo] = field(default_factory=list)
    producers: list[ProducerInfo] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)

    def list_channels(self) -> list[ChannelInfo]:
        if self.errors:
            raise self.errors.popleft()
        return [self.channels[name].info() for name in sorted(self.channels)]

    def list_components(self) -> list[ComponentInfo]:
        return list(self.components)

    def get_channel(self, name: str) -> ChannelInfo:
        if self.errors:
            raise self.errors.popleft()
        return self._existing(name).info()

    def append_capacity(self, name: str) -> int:
        return self.get_channel(name).config.transaction_capacity

    def create_channel(self, name: str, config: ChannelConfig) -> ChannelInfo:
        if name in self.channels:
            raise ChannelExistsError(f"channel {name!r} is there already", channel=name)
        self.last_config = config
        self.channels[name] = FakeChannel(name)
        return self.channels[name].info()

    def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        channel = self._existing(name)
        self.last_config = config
        return ChannelUpdate(channel=channel.info(), applied=not self.update_message, message=self.update_message)

    def delete_channel(self, name: str, *, force: bool = False) -> None:
        if self._existing(name).events and not force:
            raise ChannelNotEmptyError(f"channel {name!r} holds events", channel=name)
        del self.channels[name]

    def move_channel(self, name: str, server: str) -> None:
        self._existing(name)
        self.moves.append((name, server))

    def purge_channel(self, name: str) -> int:
        events = self._existing(name).events
        count = len(events)
        events.clear()
        return count

    def list_transactions(self, channel: str = "") -> list[OpenTransaction]:
        return [txn for txn in self.transactions if channel in ("", txn.channel)]

    def end_transaction(self, txn_id: str) -> None:
        if not any(txn.txn_id == txn_id for txn in self.transactions):
            raise TxnNotFoundError("not known", txn_id=txn_id)
        self.transactions = [txn for txn in self.transactions if txn.txn_id != txn_id]

    def list_consumers(self, channel: str = "") -> list[ConsumerInfo]:
        return [consumer for consumer in self.consumers if channel in ("", consumer.channel)]

    def list_producers(self, channel: str) -> list[ProducerInfo]:
        self._existing(channel)
        return list(self.producers)

    def forget_producer(self, channel: str, producer_id: str) -> None:
        self._existing(channel)
        self.producers = [producer for producer in self.producers if producer.producer_id != producer_id]

    def release_claim(self, channel: str, epoch: int | None) -> ClaimStatus:
        claim = self._existing(channel).claim
        if claim is None:
            raise NotClaimedError("no reader has claimed the channel", channel=channel)
        if epoch not in (None, claim.epoch):
            raise StaleEpochError("another epoch", channel=channel)
        self.channels[channel].claim = None
        return claim

    def retry_component(self, name: str, kind: ComponentKind | None) -> ComponentInfo:
        found = [one for one in self.components if one.name == name and kind in (None, one.kind)]
        if not found:
            raise ComponentNotFoundError("there is none")
        return found[0]

    def _existing(self, name: str) -> FakeChannel:
        channel = self.channels.get(name, FakeChannel(name, exists=False))
        channel.check()
        return channel


class FakeClient:
    """Replaces `Client`; has the channel `orders`."""

    def __init__(self) -> None:
        self.orders = FakeChannel("orders")
        self.admin = FakeAdmin({"orders": self.orders})
        self.endpoint = ""
        self.timeout_seconds = 0.0
        self.tls: Tls | None = None
        self.token: str | None = None
        self.token_file: str | None = None
        self.is_closed = False

    def orders_with(self, **limits: int) -> FakeChannel:
        """The channel `orders` with other limits."""
        self.orders.config = replace(self.orders.config, **limits)  # type: ignore[arg-type] # limits are numbers
        return self.orders

    def produce(
        self,
        _endpoint: str,
        channel: str,
        *,
        config: ProducerConfig,
        hooks: ProducerHooks,
        **security: object,
    ) -> FakeProducer:
        assert security == {"tls": self.tls, "token": self.token, "token_file": self.token_file}
        return FakeProducer(self.channel(channel), config, hooks)

    def connect(
        self, endpoint: str, *, timeout_seconds: float, tls: Tls | None, token: str | None, token_file: str | None
    ) -> Self:
        self.endpoint, self.timeout_seconds, self.tls = endpoint, timeout_seconds, tls
        self.token, self.token_file = token, token_file
        return self

    def channel(self, name: str) -> FakeChannel:
        return self.admin.channels.get(name, FakeChannel(name, exists=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.is_closed = True
