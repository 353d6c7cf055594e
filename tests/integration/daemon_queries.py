"""Queries of the events and sources of real daemons."""

import json
import urllib.request
from typing import Any

import millrace_client
from tests.millraced import Millraced

_EVENTS_MAX = 1_000_000


def stored_bodies(server: Millraced, channel: str = "lines") -> list[bytes]:
    """The bodies of all events of a channel, in order; nothing is taken. Waits until the channel is open."""
    with millrace_client.connect(server.grpc) as client:
        return [event.body for batch in client.channel(channel).peek(1, _EVENTS_MAX) for event in batch]


def stored_count(server: Millraced, channel: str = "lines") -> int:
    """The number of events in a channel."""
    with millrace_client.connect(server.grpc) as client:
        return client.admin.get_channel(channel).gauges.queued_events


def component_of(server: Millraced, name: str) -> dict[str, Any]:
    """The state of a source in the HTTP service's response."""
    with urllib.request.urlopen(f"http://{server.http}/components", timeout=20.0) as response:
        components: dict[str, dict[str, Any]] = json.load(response)
    return components[f"SOURCE.{name}"]
