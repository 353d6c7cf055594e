"""A file channel driven at random like a memory channel, with checkpoints, restarts, kills and power cuts."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.committer import ClaimRecord, Committer
from millrace_server.channels.config import ChannelConfig, DiskChannelConfig, FileChannelConfig, LogChannelConfig
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import MillraceError
from tests.channel_events import begin, open_channel
from tests.fuzz import channel_calls as calls
from tests.fuzz.channel_account import Account, ExpectedTxn
from tests.fuzz.channel_history import History
from tests.fuzz.test_channel_model import ENDED_MAX, SETTINGS, ChannelModel, drive_for_long
from tests.simulated_channels import DATA, EPOCHS_FROM, Held, make_simple, open_simulated_channel
from tests.simulated_disk import SimulatedDisk

SEEDS = st.integers(0, (1 << 32) - 1)
_SEGMENT_BYTES = 600
_APART_SECONDS = 1 / 4096


class _SmallConfig(FileChannelConfig):
    """A configuration with smaller segments than users can configure."""

    segment_bytes_max: int = _SEGMENT_BYTES


def _file_limits(limits: ChannelConfig) -> _SmallConfig:
    return _SmallConfig(type="file", **log_limits(limits))


def log_limits(limits: ChannelConfig) -> dict[str, Any]:
    """The same limits for a channel with a log, whose background work runs only where a rule says so."""
    same = {"capacity", "transaction_capacity", "byte_capacity", "byte_capacity_buffer_percentage"}
    return {
        "min_free_bytes": 0,
        "checkpoint_interval_seconds": 3600.0,
        "open_transactions_max": limits.open_transactions_max,
        "keep_alive_seconds": limits.keep_alive_seconds,
        **limits.model_dump(include=same),
    }


class _Witness:
    """Informs the history when calls take effect, which is before they get responses.

    Args:
        commits: The committer that is observed.
        history: The history that is informed.
    """

    def __init__(self, committer: Committer, history: History) -> None:
        self._committer = committer
        self._history = history

    @property
    def fault(self) -> MillraceError | None:
        return self._committer.fault

    @property
    def is_stalled(self) -> bool:
        return self._committer.is_stalled

    @property
    def disk_trouble(self) -> str:
        return self._committer.disk_trouble

    @property
    def memory_event_count(self) -> int:
        return self._committer.memory_event_count

    def enforce(self, config: ChannelConfig) -> None:
        self._committer.enforce(config)

    def refuse_unfit(self, commit: Commit) -> None:
        self._committer.refuse_unfit(commit)

    def submit(self, commit: Commit) -> None:
        task, on_committed = asyncio.current_task(), commit.on_committed

        def committed(commit: Commit) -> None:
            if on_committed is not None:
                on_committed(commit)
            self._history.has_effect(task)

        commit.on_committed = committed
        self._committer.submit(commit)

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        self._committer.record_rollback(txn_id, has_expired=has_expired)

    def record_claim(self, claim: ClaimRecord) -> "asyncio.Future[None] | None":
        self._history.has_effect(asyncio.current_task())
        return self._committer.record_claim(claim)


class RememberingAccount(Account):
    """An account that also records what the channel has forgotten: a power cut may restore it."""

    def __init__(self, limits: ChannelConfig) -> None:
        super().__init__(limits, ["foreign"], ENDED_MAX, EPOCHS_FROM)
        self.all_ended: list[tuple[str, ExpectedTxn]] = []
        self.synced_count = 0
        """How many of them are sure to be remembered after a power cut, as far as there is space."""

    def _end(self, txn_id: str, txn: ExpectedTxn, state: str, receipt: Receipt | None) -> None:
        super()._end(txn_id, txn, state, receipt)
        self.all_ended.append((txn_id, txn))
        if state == "committed":
            self.synced_count = len(self.all_ended)

    def is_all_synced(self) -> None:
        """Records that nothing done so far can be lost any more."""
        self.synced_count = len(self.all_ended)

    def lose(self, held: Held) -> None:
        """Forgets what a power cut may have lost: the rollbacks of transactions, and the end of a claim."""
        for count in range(len(self.all_ended), self.synced_count - 1, -1):
            remembered = self.all_ended[max(count - ENDED_MAX, 0) : count]
            if [txn_id for txn_id, _ in remembered] == list(held.ended):
                break
        else:
            raise AssertionError(
                f"ended are {held.ended}; known are {self.all_ended}, {self.synced_count} of them synced"
            )
        del self.all_ended[count:]
        self.ended = dict(remembered)
        self.is_all_synced()
        if held.claim and self.claim is None:
            assert self.last_claim is not None
            self.claim = self.last_claim
            self.restart()


class FileChannelModel(ChannelModel):
    """The same calls on a file channel, whose process ends from time to time.

    Its calls take time, and the account makes them one after the other, so no call is hasty here.
    """

    def __init__(self) -> None:
        super().__init__()
        monkeypatch = self._ending.enter_context(pytest.MonkeyPatch.context())
        make_simple(monkeypatch)

    async def _open(self, limits: Any) -> None:
        self.disk = SimulatedDisk([DATA])
        self._account = self._account_of(self._limits(limits))
        await self._open_again()
        self.history = History(self.channel, self._directory, 1, self._account)
        self.history.commits_later = True
        self._be_witnessed()
        self.deliveries: calls.Loans = []
        for sizes in ([3, 1], [0, 2]):
            self._calls.append(calls.Append(self._bodies(sizes), None))
            await self._settle()

    def _limits(self, limits: ChannelConfig) -> LogChannelConfig:
        return _file_limits(limits)

    def _account_of(self, limits: LogChannelConfig) -> RememberingAccount:
        return RememberingAccount(limits)

    async def _open_again(self) -> None:
        self._directory = TxnDirectory(100)
        self._other = open_channel("other", directory=self._directory, lease_seconds=3600)
        begin(self._other, "foreign")
        limits = self._account.limits
        assert isinstance(limits, DiskChannelConfig)
        self.opened = await open_simulated_channel(self.disk, limits, self._directory)
        self.channel: Channel = self.opened.channel
        self._set_clock()

    def _be_witnessed(self) -> None:
        witness = _Witness(self.channel._core.committer, self.history)
        self.channel._core.committer = self.channel.claims._committer = witness

    def _make(self, call: calls.Call, *, hasty: bool) -> None:
        if isinstance(call, calls.Update) and not isinstance(call.limits, LogChannelConfig):
            call.limits = self._limits(call.limits)
        # A commit needs its space before it frees any, and the account knows only one moment: no two calls may reach
        # the end of their waits in the same one.
        self._run(asyncio.sleep(_APART_SECONDS))
        super()._make(call, hasty=False)

    @rule()
    def checkpoint(self) -> None:
        """Writes a checkpoint if anything has changed."""
        self._run(self.opened.checkpoint())
        self._account.is_all_synced()

    @rule()
    def stop(self) -> None:
        """Stops the server gracefully, and opens the channel in the next one."""
        self._end_waiting()
        self._run(self.opened.close())
        self._restart(self.disk)

    @rule()
    def kill(self) -> None:
        """Kills the process; everything written stays."""
        self._end_waiting()
        self.opened.abandon()
        self._restart(self.disk.copy())

    @rule(seed=SEEDS)
    def cut_power(self, seed: int) -> None:
        """Cuts the power; unsynced data stays in part, or not at all."""
        self._end_waiting()
        self.opened.abandon()
        self._restart(self.disk.crashed(seed), is_cut=True)

    @precondition(lambda self: self.history.account.ended)
    @rule(choice=st.integers(0, ENDED_MAX - 1), is_killed=st.booleans())
    def commit_again_after_restart(self, choice: int, *, is_killed: bool) -> None:
        """Repeats a commit whose response was lost together with the server."""
        if is_killed:
            self.kill()
        else:
            self.stop()
        self.commit_again([choice], hasty=False)

    def _end_waiting(self) -> None:
        """Cancels the waiting calls."""
        for running in list(self.history.waiting):
            if running in self.history.waiting:
                self._make(calls.Cancel(running.task), hasty=False)

    def _restart(self, disk: SimulatedDisk, *, is_cut: bool = False) -> None:
        self.disk = disk
        self.deliveries.clear()
        self._account.restart()
        if not is_cut:
            self._account.is_all_synced()
        self._run(self._open_again())
        self._account.lose(Held.by(self.channel))
        self.history.go_on_with(self.channel, self._directory)
        self._be_witnessed()
        self._run(self._settle())

    async def _close(self) -> None:
        await super()._close()
        self.opened.abandon()


def test_file_channel_driven_at_random_keeps_its_account() -> None:
    """Whatever is called, and whenever its server ends, no event is lost or duplicated."""
    run_state_machine_as_test(FileChannelModel, settings=settings(SETTINGS, max_examples=30))


@pytest.mark.fuzz
@pytest.mark.torture
def test_file_channel_driven_for_long_keeps_its_account() -> None:
    """Longer histories, as many as there is time for; a failing one is printed as its calls."""
    drive_for_long(FileChannelModel)
