"""A bucket of entries in memory that several servers share, each of which can be cut off."""

import asyncio
from collections.abc import Callable

from millrace_server.replication.lease import ChannelLease
from millrace_server.replication.membership import Membership
from millrace_server.replication.owner_entries import (
    Bucket,
    EntriesUnavailableError,
    Entry,
    EntryConflictError,
    channel_of,
    session_of,
)
from tests.virtual_clock import now

LEASE_SECONDS = 15.0
RENEW_SECONDS = 3.0


class SharedBucket:
    """The entries, and the servers that watch them.

    Attributes:
        entries: The entries by key.
        lost_responses: So many of the next writes succeed without a response.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.lost_responses = 0
        self._servers: dict[str, SharingServer] = {}
        self._cut_off: set[str] = set()
        self._revision = 0

    def server(self, name: str) -> "SharingServer":
        """A server, which has begun its session."""
        server = self._servers[name] = SharingServer(_Connection(self, name), f"{name}:7070")
        for key, entry in self.entries.items():
            server.note(key, entry)
        return server

    def cut_off(self, server: str) -> None:
        """Lets nothing through to or from a server any more."""
        self._cut_off.add(server)

    def connect(self, server: str) -> None:
        """Ends that, and shows the server what it has missed."""
        self._cut_off.discard(server)
        for key, entry in self.entries.items():
            self._servers[server].note(key, entry)

    def check_reachable(self, server: str) -> None:
        """Raises EntriesUnavailableError if a server is cut off."""
        if server in self._cut_off:
            raise EntriesUnavailableError("cut off")

    def store(self, key: str, value: bytes, revision: int) -> int:
        """Replaces an entry, and tells those that watch it."""
        if revision != (self.entries[key].revision if key in self.entries else 0):
            raise EntryConflictError(f"not {revision}")
        self._revision += 1
        entry = self.entries[key] = Entry(value, self._revision)
        for name, server in self._servers.items():
            if name not in self._cut_off:
                asyncio.get_running_loop().call_soon(server.note, key, entry)
        if self.lost_responses:
            self.lost_responses -= 1
            raise EntriesUnavailableError("no response")
        return entry.revision


class _Connection(Bucket):
    """One server's connection to the bucket."""

    def __init__(self, bucket: SharedBucket, server: str) -> None:
        self._bucket = bucket
        self._server = server

    async def read(self, key: str) -> Entry | None:
        self._bucket.check_reachable(self._server)
        return self._bucket.entries.get(key)

    async def write(self, key: str, value: bytes, revision: int) -> int:
        self._bucket.check_reachable(self._server)
        return self._bucket.store(key, value, revision)

    async def remove(self, key: str, revision: int) -> None:
        self._bucket.check_reachable(self._server)
        if (entry := self._bucket.entries.get(key)) is not None and entry.revision <= revision:
            del self._bucket.entries[key]


class SharingServer:
    """One server's session and its leases.

    Attributes:
        members: The servers that it sees.
        wants: Whether it should own more channels.
    """

    def __init__(self, bucket: Bucket, address: str) -> None:
        self.wants = True
        self.members = Membership(bucket, address, LEASE_SECONDS, now)
        self.members.on_lost = lambda: self._each(ChannelLease.lose)
        self._bucket = bucket
        self._leases: dict[str, ChannelLease] = {}
        self.members.start()

    def _each(self, act: Callable[[ChannelLease], None]) -> None:
        for lease in self._leases.values():
            act(lease)

    def lease(self, channel: str = "orders") -> ChannelLease:
        """A lease as this server sees it."""
        self._leases[channel] = ChannelLease(self._bucket, channel, self.members, lambda: self.wants)
        return self._leases[channel]

    def note(self, key: str, entry: Entry) -> None:
        """Notes a change of an entry."""
        if (session := session_of(key)) is not None:
            self.members.observe(session, entry)
            self._each(ChannelLease.reconsider)
        elif (lease := self._leases.get(channel_of(key))) is not None:
            lease.observe(entry)

    async def stop(self) -> None:
        """Ends its session."""
        await self.members.close()
