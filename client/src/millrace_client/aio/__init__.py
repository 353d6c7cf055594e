"""The client for asyncio: the same as `millrace_client`, with `await`, `async with` and `async for`.

    import millrace_client.aio as millrace

    async with millrace.connect("127.0.0.1:7070") as client:
        receipt = await client.channel("orders").append([b"one", b"two"])

Events, batches, limits and errors are those of `millrace_client`.
"""

from millrace_client.aio.channel import Channel, Claim, Transaction
from millrace_client.aio.client import Admin, Client, connect
from millrace_client.aio.consume import Deliveries, Delivery
from millrace_client.aio.consumer import AsyncConsumer, ConsumedEvent
from millrace_client.aio.consumer_tasks import ConsumerDelivery
from millrace_client.aio.producer import AsyncProducer
from millrace_client.producing.pages import AsyncSendFuture

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncSendFuture",
    "Channel",
    "Claim",
    "Client",
    "ConsumedEvent",
    "ConsumerDelivery",
    "Deliveries",
    "Delivery",
    "Transaction",
    "connect",
]
