"""What a replicated channel asks of the registry that hosts it."""

from collections.abc import Callable
from typing import NamedTuple

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_core import ChannelStorage


class OwnershipHooks(NamedTuple):
    """Called as the channel comes and goes."""

    serve: Callable[[ChannelStorage], Channel]
    """Opens the channel for calls."""
    cease: Callable[[], None]
    """Ends that."""
    deleted_elsewhere: Callable[[], None]
    """Another server has deleted the channel."""
