"""The entries that servers share in the engine: which of them live, and which of them owns each channel.

Entries decide who tries to own a channel, never who may append: that is decided by the fence in the channel's stream.
So a clock that is wrong costs time, not events.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple, Protocol, Self

from millrace_server.replication.engine_settings import LEASE_SECONDS_MAX

_SESSION = "session."


class EntryConflictError(Exception):
    """Raised when an entry is not what the writer took it for."""


class EntriesUnavailableError(Exception):
    """Raised when the engine does not respond; an entry may have been written or not."""


class Entry(NamedTuple):
    """An entry as it is stored."""

    value: bytes
    revision: int
    """Grows with each write, also one of the same value."""


class Bucket(Protocol):
    """The entries, which all servers share."""

    async def read(self, key: str) -> Entry | None:
        """Returns an entry; raises EntriesUnavailableError."""

    async def write(self, key: str, value: bytes, revision: int) -> int:
        """Replaces the entry of this revision, 0 where there is none; returns the new revision.

        Raises EntryConflictError if the entry has another revision, and EntriesUnavailableError.
        """

    async def remove(self, key: str, revision: int) -> None:
        """Removes the entry without a trace, unless it was written after this revision; EntriesUnavailableError."""


class _Value:
    """What an entry says, as JSON."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload] # subclasses are dataclasses

    @classmethod
    def decoded(cls, value: bytes) -> Self:
        """Returns what an entry says; what is missing, or has another type, as if it had not been written."""
        default = cls()
        try:
            found = json.loads(value, parse_constant=_refuse_constant)
            known = found if isinstance(found, dict) else {}
            return cls(
                **{
                    field.name: type(getattr(default, field.name))(known[field.name])
                    for field in fields(cls)  # type: ignore[arg-type] # subclasses are dataclasses
                    if isinstance(known.get(field.name), _json_type(getattr(default, field.name)))
                }
            )
        except (ValueError, RecursionError, OverflowError):
            # It is no JSON, nested too deeply, or has a number that no float can hold.
            return default


def _refuse_constant(name: str) -> object:
    # NaN is no JSON, and differs from itself: those who wait for a change of the entry would always find one.
    raise ValueError(name)


def _json_type(default: object) -> type | tuple[type, ...]:
    match default:
        case tuple():
            return list
        case float():
            return (float, int)
        case _:
            return type(default)


@dataclass(frozen=True, slots=True)
class Holder(_Value):
    """Who owns a channel."""

    session: str = ""
    """The session of the server; empty: no server's, and any may take the channel."""
    address: str = ""
    """Where clients reach the server."""
    epoch: int = 0
    """The newest epoch of the channel that an owner has confirmed; 0: none yet."""
    last_sequence: int = 0
    """The last message of the channel's stream that an owner has noted. A quorum of its replicas had it, so a stream
    that ends before it was set back."""
    reserved_for: str = ""
    """The session that is to take the channel before others."""
    is_pinned: bool = False
    """Whether an operator has moved the channel there, so that it is not moved to spread channels evenly."""
    is_deleting: bool = False
    """Whether it is decided that the channel is deleted: an owner does nothing else with it, also a later one."""
    is_deleted: bool = False
    """Whether the channel was deleted."""

    @property
    def sequence_known(self) -> int:
        """The last message that the channel's stream is known to have had; 0: it may never have existed."""
        return max(self.epoch, self.last_sequence)


@dataclass(frozen=True, slots=True)
class Member(_Value):
    """A session: a server that lives, from its start until it ends or falls silent."""

    address: str = ""
    """Where clients reach the server."""
    lease_seconds: float = 0.0
    """How long it owns its channels after its last sign of life."""
    channels: Sequence[str] = ()
    """The channels that it owns or would take."""
    is_ended: bool = False
    """Whether the session has ended. It never lives again: the server begins another one."""

    @property
    def silence_seconds_max(self) -> float:
        """How long it may be silent. No server's lease is longer than the limit, whatever the entry says."""
        return min(self.lease_seconds, LEASE_SECONDS_MAX)


def session_key(session: str) -> str:
    """Returns the key of a session's entry."""
    return f"{_SESSION}{session}"


def session_of(key: str) -> str | None:
    """Returns the session whose entry a key is; None if it is a channel's."""
    return key.removeprefix(_SESSION) if key.startswith(_SESSION) else None


def channel_key(channel: str) -> str:
    """Returns the key of a channel's entry. It has no dots, which sessions have."""
    return channel.replace(".", "=")


def channel_of(key: str) -> str:
    """Returns the channel whose entry a key is."""
    return key.replace("=", ".")
