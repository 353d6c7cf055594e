"""One channel: its state, configuration, transactions, claim, producers, consumers and files."""

import time
from collections.abc import Collection
from itertools import islice
from typing import Any

from starlette.requests import Request

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.agent.components import ComponentKind
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.console.calls import Calls
from millrace_server.console.configuration import settings_of
from millrace_server.console.documents import document_of, time_of
from millrace_server.console.overview import row_document
from millrace_server.console.readings import ShownServer
from millrace_server.console.troubles import trouble_of_channel

LISTED_MAX = 200
"""Maximum number of transactions that are shown, and also of producers and of consumers."""

_PERMISSIONS = (Permission.PEEK, Permission.APPEND, Permission.TAKE, Permission.OPERATE, Permission.ADMIN)


class ChannelPage:
    """Describes one channel for each response."""

    def __init__(self, shown: ShownServer, calls: Calls) -> None:
        self._shown = shown
        self._calls = calls

    async def document(self, request: Request, name: str) -> dict[str, Any]:
        described = await self._calls.call(request, pb.GetChannelRequest(name=name))
        handle = self._shown.registry.find(name)
        reading = self._shown.read(handle)
        with self._calls.admitted(request, "GetChannel", pb.GetChannelRequest(name=name)) as call:
            may = {permission.value: call.may(permission, name) for permission in _PERMISSIONS}
        return (
            document_of(described.channel)
            | {
                "time": time.time(),
                "row": row_document(reading, trouble_of_channel(reading, self._shown.dead_letter_channels())),
                "config": settings_of(handle.config),
                "log": _log_document(handle),
                "writers": self._components_of(name, {ComponentKind.SOURCE}),
                "readers": self._components_of(name, {ComponentKind.SINK, ComponentKind.SINK_GROUP}),
                "may": may,
            }
            | _activity(handle.channel_if_open)
        )

    def _components_of(self, name: str, kinds: Collection[ComponentKind]) -> list[dict[str, str]]:
        return [
            {"kind": one.kind.key, "name": one.name, "type": one.type_name, "state": one.state.key}
            for one in self._shown.components
            if one.kind in kinds and name in one.channels
        ]


def _activity(channel: Channel | None) -> dict[str, Any]:
    """Returns the transactions, consumers and producers of a channel; none of one that is not open."""
    transactions = channel.list_transactions() if channel else []
    consumers = channel.list_consumers() if channel else []
    producers = list(islice(channel.ledger.describe(), LISTED_MAX)) if channel else []
    return {
        "transactions": [one._asdict() for one in transactions[:LISTED_MAX]],
        "transaction_count": len(transactions),
        "consumers": [one._asdict() for one in consumers[:LISTED_MAX]],
        "consumer_count": len(consumers),
        "producers": [one._asdict() | {"last_seen_time": time_of(one.last_seen)} for one in producers],
        "producer_count": channel.gauges().producers if channel else 0,
    }


def _log_document(handle: ChannelHandle) -> dict[str, Any] | None:
    store = handle.store
    if store is None:
        return None
    return {
        "bytes": store.log_bytes,
        "segment_count": store.segment_count,
        "checkpoint_time": store.checkpoint_time or None,
        "directories": [
            {"path": str(path).encode(errors="replace").decode(), "free_bytes": free_bytes}
            for path, free_bytes in store.disk_space.directories.items()
        ],
    }
