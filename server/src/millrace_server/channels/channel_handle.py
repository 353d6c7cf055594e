"""A channel as the registry holds it: open, replaying, another server's, or failed."""

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import NamedTuple

import structlog

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_file import ChannelMovedError
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.disk_space import DISK, STREAM
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.errors import (
    ChannelCorruptError,
    ChannelLogFailedError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
)
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.payload_codec import KeyMissingError
from millrace_server.wal.segments import LogCorruptError

_log = structlog.stdlib.get_logger(__name__)

_RETRY_DELAY_SECONDS = 0.5
_OWNER_DELAY_SECONDS = 0.2
_PROGRESS_SECONDS = 2.0

_WHY_NOT_OPENED: tuple[tuple[type[Exception], str], ...] = (
    (KeyMissingError, "an encryption key is missing, or a different key was given for it"),
    (ChannelMovedError, "millraced migrate moved it into an engine, and its directory says which"),
)
"""What clients may know."""


class ChannelState(enum.Enum):
    """Moves; any other is illegal.

    REPLAYING -> STANDING_BY  another server owns the channel, which is replicated
    STANDING_BY -> REPLAYING  this server is taking over
    OPEN -> STANDING_BY       it leaves the channel to another server, or has lost it
    REPLAYING -> OPEN         the log was read back
    REPLAYING -> LOG_FAILED   it could not be opened: a missing key, a directory in use, a disk that does not respond
    REPLAYING -> CORRUPT      what was synced is not what was written
    OPEN -> LOG_FAILED        a write or a sync failed
    OPEN -> CORRUPT           something was read that is not what was written
    OPEN -> STALLED           the disk does not respond; commits wait
    STALLED -> OPEN           it responds again
    OPEN -> DISK_FULL         the disk has no space for puts, or for checkpoints
    DISK_FULL -> OPEN         it has again
    STALLED -> LOG_FAILED     as from OPEN
    STALLED -> CORRUPT        as from OPEN
    DISK_FULL -> STALLED      as from OPEN, as to LOG_FAILED and CORRUPT
    STALLED -> DISK_FULL      it responds again
    """

    OPEN = "open"
    REPLAYING = "replaying"
    STANDING_BY = "standing by"
    LOG_FAILED = "log failed"
    CORRUPT = "corrupt"
    STALLED = "stalled"
    DISK_FULL = "disk full"


class Owner(NamedTuple):
    """The server that owns a replicated channel."""

    address: str
    """Where clients reach it; empty while no owner is known."""
    epoch: int
    """Grows with each new owner; 0 while none is known."""


class ChannelHandle:
    """A channel's name and state, and the channel once it is open; `store` is None without open files.

    `configured` is its configuration as the server's file has put it in force; None if the file does not name it.
    """

    def __init__(self, name: str, config: ChannelConfig, on_change: Callable[[str], None]) -> None:
        self.name = name
        self._config = config
        self._on_change = on_change
        self._channel: Channel | None = None
        self._fault: MillraceError | None = None
        self._owner_of: Callable[[], Owner] | None = None  # Set while this server stands by.
        self._waits_for: Callable[[], str] = str  # Why it cannot take the channel over, or read it back.
        self.store: LogStore | None = None
        self.configured: ChannelConfig | None = None
        self.progress = ReplayProgress()
        self.opened = asyncio.Event()  # Set once the channel is open, or cannot be opened.

    @property
    def config(self) -> ChannelConfig:
        return self._channel.config if self._channel else self._config

    @property
    def is_overridden(self) -> bool:
        return self.configured is not None and self.config != self.configured

    @property
    def state(self) -> ChannelState:
        if self._channel is None and self._fault is None:
            return ChannelState.REPLAYING if self._owner_of is None else ChannelState.STANDING_BY
        match self.fault:
            case None if self._channel is not None and self._channel.is_stalled:
                return ChannelState.STALLED
            case None if self._channel is not None and self._channel.disk_trouble:
                return ChannelState.DISK_FULL
            case None:
                return ChannelState.OPEN
            case ChannelCorruptError():
                return ChannelState.CORRUPT
            case _:
                return ChannelState.LOG_FAILED

    @property
    def replayed_fraction(self) -> float:
        """Fraction of its log that was replayed, from 0 to 1."""
        return self.progress.fraction if self.state is ChannelState.REPLAYING else 1.0

    @property
    def fault(self) -> MillraceError | None:
        """The error that callers get; None while the channel works, or is not open yet."""
        if self._channel is None:
            return self._fault
        if fault := self._channel.fault:
            return fault
        return None if self.store is None else self.store.fault

    @property
    def trouble(self) -> str:
        """The reason for the state, in a sentence; empty while the channel works."""
        if self.state is ChannelState.STALLED:
            return (DISK if self.config.replicated is None else STREAM).silence
        if self.state is ChannelState.DISK_FULL:
            return self.channel.disk_trouble
        if self.state in {ChannelState.STANDING_BY, ChannelState.REPLAYING}:
            return self._waits_for()
        return str(self.fault or "")

    @property
    def is_troubled(self) -> bool:
        """Whether the channel is not open here though it should be: to stand by for another server is in order."""
        if self.state is ChannelState.STANDING_BY:
            return bool(self._waits_for())
        return self.state is not ChannelState.OPEN

    @property
    def owner(self) -> Owner | None:
        """Which server owns the channel; None unless this server stands by."""
        return None if self._owner_of is None else self._owner_of()

    @property
    def channel_if_open(self) -> Channel | None:
        return self._channel

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            self.refuse_unless_open()
        assert self._channel is not None, "what is open has a channel"
        return self._channel

    def refuse_unless_open(self) -> None:
        if self._channel is not None:
            return
        if self._fault is not None:
            raise type(self._fault)(str(self._fault), channel=self.name)
        if (owner := self.owner) is not None:
            raise self.not_owner_error(owner)
        obstacle = self._waits_for()
        raise ReplayingError(
            f"channel {self.name!r} is replaying its log, {self.progress.fraction:.0%} so far"
            f"{': ' if obstacle else ''}{obstacle}",
            retry_delay_seconds=_RETRY_DELAY_SECONDS,
            channel=self.name,
        )

    def not_owner_error(self, owner: Owner) -> NotOwnerError:
        """Returns the error of calls while another server owns the channel, or none is known to."""
        obstacle = "" if owner.address or self._owner_of is None else self._waits_for()
        return NotOwnerError(
            f"channel {self.name!r} is owned by {owner.address or 'another server'}; this server stands by"
            f"{': ' if obstacle else ''}{obstacle}",
            retry_delay_seconds=None if owner.address else _OWNER_DELAY_SECONDS,
            channel=self.name,
            address=owner.address,
            epoch=str(owner.epoch),
        )

    def reconfigure(self, config: ChannelConfig) -> None:
        """Sets the configuration with which the channel is opened next."""
        assert self._channel is None, "an open channel has its own"
        self._config = config

    def mark_standing_by(self, owner_of: Callable[[], Owner], waits_for: "Callable[[], str] | None" = None) -> None:
        """Marks the channel as another server's; `owner_of` tells whose, at each call that is refused.

        `waits_for` says, at each look, what prevents this server from taking it over; empty if only the owner does.
        """
        self._config = self.config
        self._channel = self.store = None
        self._owner_of, self._waits_for = owner_of, waits_for or str
        self.opened.set()
        self._on_change(self.name)

    def mark_replaying(self, waits_for: "Callable[[], str] | None" = None) -> None:
        """Marks the channel as this server's, which reads its log now.

        `waits_for` says, at each look, what prevents that; empty while nothing does.
        """
        self._owner_of, self._waits_for = None, waits_for or str
        self.progress = ReplayProgress()
        self.opened.clear()
        self._on_change(self.name)

    def mark_open(self, channel: Channel) -> None:
        self._channel = channel
        self.opened.set()
        self._on_change(self.name)

    def mark_failed(self, error: Exception) -> None:
        """Marks the channel as failed until the server opens it again; only the log has the details."""
        _log.error("a channel cannot be opened", channel=self.name, error=str(error), kind=type(error).__name__)
        if isinstance(error, LogCorruptError | UnknownVersionError | ChannelCorruptError):
            self._fault = ChannelCorruptError(
                f"channel {self.name!r} cannot be opened: its log is damaged, or in a format that this server "
                "does not know; the server's log says where",
                channel=self.name,
            )
        else:
            why = next((f": {why}" for kind, why in _WHY_NOT_OPENED if isinstance(error, kind)), "")
            self._fault = ChannelLogFailedError(
                f"channel {self.name!r} cannot be opened{why}; see the server's log", channel=self.name
            )
        self.opened.set()
        self._on_change(self.name)

    def report_change(self, sentence: str) -> None:
        """Logs that the open channel has moved to another state, and notifies the watchers."""
        level = logging.INFO if self.state is ChannelState.OPEN else logging.ERROR
        _log.log(level, "channel changed its state", channel=self.name, state=self.state.value, reason=sentence)
        self._on_change(self.name)

    def log_progress_later(self) -> None:
        """Logs the progress of the opening at an interval, until it has ended."""
        asyncio.get_running_loop().call_later(_PROGRESS_SECONDS, self._log_progress)

    def _log_progress(self) -> None:
        if not self.opened.is_set():
            _log.info(
                "replaying",
                channel=self.name,
                percent=round(100 * self.progress.fraction),
                replayed_bytes=self.progress.bytes_done,
            )
            self.log_progress_later()
