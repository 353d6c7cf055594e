"""Which server has a channel: always the same one for a file channel, and for replicated ones any that takes over."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

from millrace_client.producer import ProducerConfig
from millrace_server.replication.engine_settings import RENEWALS_PER_LEASE, EngineSettings
from millrace_server.replication.lease_bucket import _MOVES_AT_ONCE
from millrace_server.replication.owner_entries import Holder, Member
from millrace_server.replication.spreading import counts_of, is_below_share, planned_moves
from tests.simulation.cluster import Channel
from tests.simulation.costs import Costs
from tests.simulation.resources import Clock, Process

LEASE_SECONDS: float = EngineSettings.model_fields["lease_seconds"].default
_RENEW_SECONDS = LEASE_SECONDS / RENEWALS_PER_LEASE


def _notice_seconds(lost_seconds: float) -> float:
    """When clients give up calls at a lost machine, of which neither a response nor the end of a connection comes."""
    return min(ProducerConfig().timeout_seconds, lost_seconds)


class Homes:
    """Servers with one file channel each, which has to wait for its server."""

    def __init__(self, clock: Clock, costs: Costs, servers: Sequence[Process], channels: Sequence[Channel]) -> None:
        self._clock, self._costs, self._servers, self._channels = clock, costs, servers, channels
        for number in range(len(servers)):
            self._open(number)

    def restart(self, number: int) -> None:
        """Stops a server and starts it again."""
        self._end(number, self._costs.restart_seconds, self._costs.trip_seconds)

    def lose(self, number: int, seconds: float) -> None:
        """Loses a server with its machine, which comes back with its disk."""
        self._end(number, seconds, _notice_seconds(seconds))

    def _end(self, number: int, down_seconds: float, notice_seconds: float) -> None:
        self._servers[number].end()
        self._channels[number].close(notice_seconds)
        self._clock.after(down_seconds, partial(self._open, number))

    def _open(self, number: int) -> None:
        self._channels[number].open(self._servers[number])


class Owners:
    """Servers that share replicated channels by the rules of the real ones, with leases as the defaults are.

    Attributes:
        moves: How often a channel was moved, so that all servers have their share.
    """

    def __init__(
        self,
        clock: Clock,
        costs: Costs,
        servers: Sequence[Process],
        channels: Sequence[Channel],
        draw: random.Random,
    ) -> None:
        self._clock, self._costs, self._servers, self._draw = clock, costs, servers, draw
        self._channels = {f"channel-{number:05}": channel for number, channel in enumerate(channels)}
        self._holders: dict[str, Holder] = {}
        self._members: dict[str, Member] = {}
        self._running: dict[str, Process] = {}
        self._session_count = 0
        self._sessions = [self._begin(number) for number in range(len(servers))]
        self.moves = 0
        for number, name in enumerate(self._channels):
            self._holders[name] = Holder(session := self._sessions[number % len(servers)])
            self._open(name, session)
        self._clock.after(_RENEW_SECONDS, self._spread)

    @property
    def counts(self) -> Counter[str]:
        """How many channels each living server owns."""
        return counts_of(self._holders, self._members)

    def restart(self, number: int) -> None:
        """Stops a server, which hands over what it owns, and starts it again."""
        session = self._end(number, self._costs.trip_seconds)
        self._forget(session, self._costs.handover_seconds)
        self._clock.after(self._costs.restart_seconds, partial(self._join, number))

    def lose(self, number: int, seconds: float) -> None:
        """Loses a server with its machine; the others take over when its lease has ended, or has it back before."""
        session = self._end(number, _notice_seconds(seconds))
        # Its last sign of life was some time ago.
        left_seconds = LEASE_SECONDS - self._draw.uniform(0, _RENEW_SECONDS)
        self._clock.after(left_seconds, partial(self._forget, session, self._costs.takeover_seconds))
        self._clock.after(seconds, partial(self._join, number))

    def _begin(self, number: int) -> str:
        """Begins a session of a server, which would take all channels."""
        self._session_count += 1
        session = f"session-{self._session_count:05}"
        self._members[session] = Member(channels=tuple(self._channels), lease_seconds=LEASE_SECONDS)
        self._running[session] = self._servers[number]
        return session

    def _join(self, number: int) -> None:
        self._sessions[number] = self._begin(number)

    def _end(self, number: int, notice_seconds: float) -> str:
        """Ends a server; returns its session, of which the others do not know yet that it has ended."""
        session = self._sessions[number]
        self._running.pop(session).end()
        for name in self._owned(session):
            self._channels[name].close(notice_seconds)
        return session

    def _owned(self, session: str) -> list[str]:
        return [name for name, holder in self._holders.items() if holder.session == session]

    def _forget(self, session: str, opening_seconds: float) -> None:
        """Has the others take what a session owned, now that they know of its end."""
        del self._members[session]
        for name in self._owned(session):
            self._holders[name] = Holder()
            self._take(name, opening_seconds)

    def _take(self, name: str, opening_seconds: float) -> None:
        """Has a server own a channel: one that has less than its share, if there is any."""
        counts = self.counts
        running = [session for session in self._running if is_below_share(session, self._holders, self._members)]
        candidates = running or [
            one for one in self._running if counts[one] == min(counts[two] for two in self._running)
        ]
        if candidates:
            self._acquire(name, self._draw.choice(candidates), opening_seconds)
        else:
            self._clock.after(_RENEW_SECONDS, partial(self._take, name, opening_seconds))

    def _acquire(self, name: str, session: str, opening_seconds: float) -> None:
        self._holders[name] = Holder(session)
        self._clock.after(opening_seconds, partial(self._open, name, session))

    def _open(self, name: str, session: str) -> None:
        # Its owner may have ended meanwhile.
        if self._holders[name].session == session in self._running:
            self._channels[name].open(self._running[session])

    def _spread(self) -> None:
        """Moves channels from servers with more than their share, as many at once as a server moves."""
        left = Counter(dict.fromkeys(self._running, _MOVES_AT_ONCE))
        for move in planned_moves(self._holders, self._members):
            channel = self._channels[move.channel]
            if left[move.source] and channel.server is not None and move.target in self._running:
                left[move.source] -= 1
                self.moves += 1
                channel.close(self._costs.trip_seconds)
                self._acquire(move.channel, move.target, self._costs.handover_seconds)
        self._clock.after(_RENEW_SECONDS, self._spread)
