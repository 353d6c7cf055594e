"""Names of channels where a configuration refers to them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from millrace_server.channels.names import CHANNEL_NAME_PATTERN


@dataclass(frozen=True)
class ChannelReference:
    """Marks a setting whose value names a channel: the configuration as a whole is checked for it."""

    is_own: bool
    """Whether it must be one of the channels of the source that the setting belongs to; else any channel does."""


ChannelName = Annotated[str, Field(pattern=rf"^(?:{CHANNEL_NAME_PATTERN})$")]
"""A channel, of this server or another one."""

KnownChannelName = Annotated[ChannelName, ChannelReference(is_own=False)]
"""A channel of the configuration."""

OwnChannelName = Annotated[ChannelName, ChannelReference(is_own=True)]
"""One of the source's channels."""
