"""A spillable channel driven at random like a file channel, and what it may and must lose when its process ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig, LogChannelConfig, SpillableChannelConfig
from millrace_server.channels.stamps import Stamp
from tests.fuzz.channel_account import Event, ExpectedTxn, Look
from tests.fuzz.test_channel_model import ENDED_MAX, SETTINGS, drive_for_long
from tests.fuzz.test_file_channel_model import FileChannelModel, RememberingAccount, log_limits
from tests.simulated_channels import Held
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import check_share, in_memory

_SEGMENT_BYTES = 600
_RESERVED_AHEAD = 30
_MEMORY_PART = 3
"""The fraction of the channel that is in memory: most histories spill, and most return to memory."""


class _SmallConfig(SpillableChannelConfig):
    """A configuration with smaller segments than users can configure."""

    segment_bytes_max: int = _SEGMENT_BYTES


def _spillable_limits(limits: ChannelConfig) -> _SmallConfig:
    memory: dict[str, Any] = {
        "memory_capacity": max(limits.capacity // _MEMORY_PART, 1),
        "memory_byte_capacity": max(limits.byte_capacity // _MEMORY_PART, 1),
    }
    return _SmallConfig(type="spillable", **log_limits(limits), **memory)


@dataclass(frozen=True)
class _Stored:
    """The events stored by one commit."""

    producer_id: str
    numbers: frozenset[int]
    sequences: range


class _LosingAccount(RememberingAccount):
    """An account that knows what a crash removes: events in memory, and the state that belongs to them."""

    def __init__(self, limits: LogChannelConfig) -> None:
        super().__init__(limits)
        self._stored: list[_Stored] = []
        self.in_memory: frozenset[int] = frozenset()
        """Sequences that a crash loses."""

    def _look_store(self, bodies: Sequence[bytes], takes: Sequence[Event], stamp: Stamp | None) -> Look:
        look = super()._look_store(bodies, takes, stamp)
        if look.is_wait:
            return look

        def store() -> None:
            first = self.next_sequence
            known = set(self.stamps.get(stamp.producer_id, ())) if stamp else set()
            look.effect()
            if stamp:
                numbers = frozenset(range(stamp.first, stamp.last + 1)) - known
                self._stored.append(_Stored(stamp.producer_id, numbers, range(first, self.next_sequence)))

        return replace(look, effect=store)

    def forget(self, producer_id: str) -> None:
        super().forget(producer_id)
        self._stored = [one for one in self._stored if one.producer_id != producer_id]

    def stop(self, held: Held) -> None:
        """Loses nothing."""
        assert held.events == tuple(sorted(self.held))
        assert held.next_sequence == self.next_sequence
        assert held.stamps == {producer_id: frozenset(numbers) for producer_id, numbers in self.stamps.items()}
        assert list(held.ended) == list(self.ended)
        self.synced_count = len(self.all_ended)

    def lose(self, held: Held) -> None:
        """Forgets the events that were only in memory; asserts that the others are there."""
        assert held.events == tuple(event for event in sorted(self.held) if event[0] not in self.in_memory)
        assert held.next_sequence >= self.next_sequence
        self._lose_stamps(held)
        self._lose_ended(held)
        # Each sequence is in one place; these are those of consumed events.
        gone = [*sorted(self.in_memory), *range(self.next_sequence, held.next_sequence)]
        self.consumed += [(sequence, b"") for sequence in gone]
        self.queue = list(held.events)
        self.next_sequence = held.next_sequence
        if held.claim and self.claim is None:
            # Its end was not synced.
            assert self.last_claim is not None
            self.claim = self.last_claim
            self.restart()

    def _lose_stamps(self, held: Held) -> None:
        there = {sequence for sequence, _ in held.events}
        for stored in self._stored:
            known = held.stamps.get(stored.producer_id, frozenset())
            if self.in_memory & set(stored.sequences):
                assert not stored.numbers & known, f"{stored} is lost; {known} are said to be stored"
            elif stored.sequences and there.issuperset(stored.sequences):
                assert stored.numbers <= known, f"{stored} is in the log; only {known} are said to be stored"
        for producer_id, numbers in held.stamps.items():
            assert numbers <= self.stamps.get(producer_id, set())
        self.stamps = {producer_id: set(numbers) for producer_id, numbers in held.stamps.items()}
        # Events that are stored again belong to another commit.
        self._stored = [
            one for one in self._stored if one.numbers and one.numbers <= self.stamps.get(one.producer_id, set())
        ]

    def _lose_ended(self, held: Held) -> None:
        there = {sequence for sequence, _ in held.events}
        for txn_id, txn in self.ended.items():
            if txn.receipt is None or not txn.receipt.first_sequence:
                continue
            sequences = set(range(txn.receipt.first_sequence, txn.receipt.last_sequence + 1))
            if sequences & self.in_memory:
                # An older outcome of the same id, forgotten since, may be restored.
                assert held.ended.get(txn_id) != (txn.state, txn.receipt), f"{txn_id} is lost"
            elif sequences <= there:
                assert txn_id in held.ended, f"{txn_id} is in the log"
        self.ended = {txn_id: self._known(txn_id, *outcome) for txn_id, outcome in held.ended.items()}
        self.is_all_synced()

    def _known(self, txn_id: str, state: str, receipt: object) -> ExpectedTxn:
        """A transaction with this outcome; an older one of the same id may be restored."""
        for known_id, txn in reversed(self.all_ended):
            if (known_id, txn.state, txn.receipt) == (txn_id, state, receipt):
                return txn
        raise AssertionError(f"{txn_id} never ended as {state} with {receipt}")


class SpillableChannelModel(FileChannelModel):
    """The same calls on a channel with a part in memory, of which a crash leaves nothing."""

    _account: _LosingAccount

    def __init__(self) -> None:
        super().__init__()
        self._ending.enter_context(mock.patch("millrace_server.channels.memory_tier.RESERVED_AHEAD", _RESERVED_AHEAD))

    def _limits(self, limits: ChannelConfig) -> LogChannelConfig:
        return _spillable_limits(limits)

    def _account_of(self, limits: LogChannelConfig) -> RememberingAccount:
        return _LosingAccount(limits)

    def _end_waiting(self) -> None:
        super()._end_waiting()
        self._check_parts(self.channel)
        self._account.in_memory = frozenset(in_memory(self.channel))

    def _restart(self, disk: SimulatedDisk, *, is_cut: bool = False) -> None:
        is_stopped = disk is self.disk
        self.disk = disk
        self.deliveries.clear()
        self._account.restart()
        self._run(self._open_again())
        if is_stopped:
            self._account.stop(Held.by(self.channel))
        else:
            self._account.lose(Held.by(self.channel))
        self.history.go_on_with(self.channel, self._directory)
        self._be_witnessed()
        self._run(self._settle())

    @precondition(lambda self: self.history.account.ended)
    @rule(choice=st.integers(0, ENDED_MAX - 1), is_killed=st.booleans())
    def commit_again_after_restart(self, choice: int, *, is_killed: bool) -> None:
        """Repeats a commit whose response, and perhaps effect, was lost together with the server."""
        if is_killed:
            self.kill()
        else:
            self.stop()
        if self.history.account.ended:
            self.commit_again([choice], hasty=False)

    def _check_parts(self, channel: Channel) -> None:
        witness, channel._core.committer = channel._core.committer, self.opened.store.storage.committer
        check_share(channel)
        channel._core.committer = witness


def test_spillable_channel_driven_at_random_keeps_its_account() -> None:
    """With any calls it behaves as any channel, and a crash loses only events in memory, with all their traces."""
    run_state_machine_as_test(SpillableChannelModel, settings=settings(SETTINGS, max_examples=30))


@pytest.mark.fuzz
@pytest.mark.torture
def test_spillable_channel_driven_for_long_keeps_its_account() -> None:
    """Longer histories, as many as there is time for; a failing one is printed as its calls."""
    drive_for_long(SpillableChannelModel)
