"""The client of Millrace, transactional channels as a gRPC service.

    import millrace_client as millrace

    with millrace.connect("127.0.0.1:7070") as client:
        orders = client.channel("orders")
        orders.append([b"one", b"two"])
        with orders.transaction() as txn:
            for batch in txn.take():
                for event in batch:
                    print(event.sequence, event.body)

`millrace_client.aio` is the same for asyncio. `millrace_client.errors` has one class for each reason of an error, all
of them `MillraceError`s.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace_client.activity_info import ConsumerInfo, OpenTransaction, ProducerInfo
    from millrace_client.channel import Channel
    from millrace_client.channel_info import (
        ChannelConfig,
        ChannelCounters,
        ChannelGauges,
        ChannelInfo,
        ChannelLimits,
        ChannelState,
        ChannelType,
        ChannelUpdate,
        ClaimStatus,
        Compression,
        FsyncPolicy,
    )
    from millrace_client.claim import Claim
    from millrace_client.client import Admin, Client, connect
    from millrace_client.component_info import ComponentCounters, ComponentInfo, ComponentKind, ComponentState
    from millrace_client.consume import Deliveries, Delivery
    from millrace_client.consumer import ConsumedEvent, Consumer
    from millrace_client.consuming.config import ConsumerConfig, ConsumerHooks
    from millrace_client.consuming.core import ConsumerCloseReport
    from millrace_client.consuming.metrics import ConsumerMetrics, ConsumerRates
    from millrace_client.consuming.threads import ConsumerDelivery
    from millrace_client.errors import (
        BadArgumentError,
        BadNameError,
        BufferFullError,
        BytesFullError,
        CancelledError,
        ChannelClaimedError,
        ChannelConfiguredError,
        ChannelExistsError,
        ChannelFullError,
        ChannelNotEmptyError,
        ChannelNotFoundError,
        ClientClosedError,
        ClientForkedError,
        ComponentNotFoundError,
        CorruptError,
        DeadlineError,
        DiskFullError,
        DrainingError,
        EventDroppedError,
        EventTooLargeError,
        ForbiddenError,
        InternalError,
        LeaseExpiredError,
        LogFailedError,
        MessageTooLargeError,
        MillraceError,
        NotAChannelError,
        NotClaimedError,
        NotOwnerError,
        OffsetGapError,
        OverloadedError,
        ProducerClosedError,
        ProducerNotFoundError,
        QuotaExceededError,
        RefusedError,
        ReplayingError,
        RetryAdvice,
        SendFailedError,
        SequenceGoneError,
        StaleEpochError,
        StreamEndedError,
        TokenExpiredError,
        TooManyChannelsError,
        TooManyTxnsError,
        TxnCapacityError,
        TxnNotFoundError,
        TxnsOpenError,
        TxnStateError,
        UnauthenticatedError,
        UnavailableError,
    )
    from millrace_client.events import Batch, Event, FoundSequence, Receipt, Stamp
    from millrace_client.producer import (
        Overflow,
        Producer,
        ProducerCloseReport,
        ProducerConfig,
        ProducerHooks,
        ProducerMetrics,
        ProducerRates,
        Routing,
        SendAttempt,
        SendFuture,
        SendFutures,
        SendResult,
        SendSummary,
    )
    from millrace_client.security import Tls
    from millrace_client.transaction import Transaction

__all__ = [
    "Admin",
    "BadArgumentError",
    "BadNameError",
    "Batch",
    "BufferFullError",
    "BytesFullError",
    "CancelledError",
    "Channel",
    "ChannelClaimedError",
    "ChannelConfig",
    "ChannelConfiguredError",
    "ChannelCounters",
    "ChannelExistsError",
    "ChannelFullError",
    "ChannelGauges",
    "ChannelInfo",
    "ChannelLimits",
    "ChannelNotEmptyError",
    "ChannelNotFoundError",
    "ChannelState",
    "ChannelType",
    "ChannelUpdate",
    "Claim",
    "ClaimStatus",
    "Client",
    "ClientClosedError",
    "ClientForkedError",
    "ComponentCounters",
    "ComponentInfo",
    "ComponentKind",
    "ComponentNotFoundError",
    "ComponentState",
    "Compression",
    "ConsumedEvent",
    "Consumer",
    "ConsumerCloseReport",
    "ConsumerConfig",
    "ConsumerDelivery",
    "ConsumerHooks",
    "ConsumerInfo",
    "ConsumerMetrics",
    "ConsumerRates",
    "CorruptError",
    "DeadlineError",
    "Deliveries",
    "Delivery",
    "DiskFullError",
    "DrainingError",
    "Event",
    "EventDroppedError",
    "EventTooLargeError",
    "ForbiddenError",
    "FoundSequence",
    "FsyncPolicy",
    "InternalError",
    "LeaseExpiredError",
    "LogFailedError",
    "MessageTooLargeError",
    "MillraceError",
    "NotAChannelError",
    "NotClaimedError",
    "NotOwnerError",
    "OffsetGapError",
    "OpenTransaction",
    "Overflow",
    "OverloadedError",
    "Producer",
    "ProducerCloseReport",
    "ProducerClosedError",
    "ProducerConfig",
    "ProducerHooks",
    "ProducerInfo",
    "ProducerMetrics",
    "ProducerNotFoundError",
    "ProducerRates",
    "QuotaExceededError",
    "Receipt",
    "RefusedError",
    "ReplayingError",
    "RetryAdvice",
    "Routing",
    "SendAttempt",
    "SendFailedError",
    "SendFuture",
    "SendFutures",
    "SendResult",
    "SendSummary",
    "SequenceGoneError",
    "StaleEpochError",
    "Stamp",
    "StreamEndedError",
    "Tls",
    "TokenExpiredError",
    "TooManyChannelsError",
    "TooManyTxnsError",
    "Transaction",
    "TxnCapacityError",
    "TxnNotFoundError",
    "TxnStateError",
    "TxnsOpenError",
    "UnauthenticatedError",
    "UnavailableError",
    "connect",
]

_HOMES = (  # noqa: SIM905 - a list would take a line for each
    "errors activity_info channel_info component_info events security channel claim consume transaction client "
    "consumer consuming.config consuming.metrics producer"
).split()
"""The modules of the names above, in the order of what they import."""


def __getattr__(name: str) -> Any:
    """Imports a name on its first use: gRPC, asyncio and the producer take longer than many a program that uses few."""
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if name in vars(module):
                return globals().setdefault(name, vars(module)[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
