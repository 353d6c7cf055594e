"""Sources, sinks and interceptors of users' own, found by import path."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from millrace.setting_problems import shown_value
from millrace_server.channels.names import CHANNEL_NAME_PATTERN


def _check_importable(path: str) -> str:
    load_factory(path)
    return path


def load_factory(path: str) -> Callable[..., Any]:
    """The callable at `package.module:name`.

    Raises:
        ValueError: There is none; a sentence for the configuration's problems.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f'is {shown_value(path)}; it must be "package.module:name"')
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may do anything while it is imported
        said = " ".join(str(error).split()) or "no more is said"
        raise ValueError(f"is {shown_value(path)}, which cannot be imported ({type(error).__name__}: {said})") from None
    if not callable(factory):
        # A ValueError, since pydantic asks for it: what is wrong is the path.
        raise ValueError(f"is {shown_value(path)}, which cannot be called")  # noqa: TRY004 - see above
    found: Callable[..., Any] = factory
    return found


FactoryPath = Annotated[str, AfterValidator(_check_importable)]
"""Where a class or function is imported from: `package.module:name`."""


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
