"""Random histories of a log with errors, kills and power cuts, compared with an account of its responses."""

import errno
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millrace_server.wal.payload_codec import PayloadCodec
from tests.log_histories import CODECS, TWO_DIRECTORIES, RunningLog, make_small, replay
from tests.simulated_disk import SimulatedDisk

SEEDS = st.integers(0, (1 << 32) - 1)
PAYLOADS = st.lists(st.binary(max_size=40) | st.integers(0, 4000).map(bytes), min_size=1, max_size=4)
ERRORS = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EMFILE])
KINDS = st.sampled_from(
    ["write", "sync", "create", "rename", "truncate", "reserve", "unlink", "open_directory", "sync_directory"]
)


class LogMachine(RuleBasedStateMachine):
    """A log whose responses are recorded and compared with each replay."""

    def __init__(self) -> None:
        super().__init__()
        self._monkeypatch = pytest.MonkeyPatch()
        make_small(self._monkeypatch)

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        """Starts with an empty disk."""
        self.disk = SimulatedDisk(TWO_DIRECTORIES, seed)
        self.log = RunningLog(self.disk, TWO_DIRECTORIES)

    @rule(payloads=PAYLOADS, needs_sync=st.booleans(), resumes=st.booleans())
    def append(self, payloads: list[bytes], *, needs_sync: bool, resumes: bool) -> None:
        """Appends some records, perhaps dependent on refused ones; an empty log begins with a segment."""
        begins_segment = not self.log.log.first_segment_id
        self.log.submit(*payloads, needs_sync=needs_sync, begins_segment=begins_segment, resumes=resumes).exception()

    @rule(group=st.lists(st.tuples(PAYLOADS, st.booleans(), st.integers(0, 9)), min_size=2, max_size=6))
    @precondition(lambda self: self.log.log.first_segment_id)
    def append_together(self, group: list[tuple[list[bytes], bool, int]]) -> None:
        """Appends several submissions that wait at the same time, sometimes with one that begins a segment."""
        with self.log.together():
            responses = [
                self.log.submit(*payloads, needs_sync=needs_sync, begins_segment=not number)
                for payloads, needs_sync, number in group
            ]
        for response in responses:
            response.exception()

    @rule(payloads=PAYLOADS)
    def begin_segment(self, payloads: list[bytes]) -> None:
        """Begins the next segment."""
        self.log.submit(*payloads, begins_segment=True).exception()

    @rule(back=st.integers(0, 2))
    @precondition(lambda self: self.log.log.first_segment_id)
    def remove_segments(self, back: int) -> None:
        """Removes all segments except the last ones."""
        first, last = self.log.log.first_segment_id, max(self.log.log._segments)
        with suppress(OSError):
            self.log.remove_before(max(first, last - back))

    @rule(kind=KINDS, nth=st.integers(1, 3), error=ERRORS)
    def have_a_call_fail(self, kind: str, nth: int, error: int) -> None:
        """Makes one of the next calls fail."""
        self.disk.fail(kind, nth, error)

    @rule(space_bytes=st.integers(0, 6000))
    def fill_disk(self, space_bytes: int) -> None:
        """Leaves only this much space."""
        self.disk.capacity_bytes += space_bytes - self.disk.free_bytes(TWO_DIRECTORIES[0])

    @rule()
    def make_space(self) -> None:
        """Restores the space and ends the errors."""
        self.disk.capacity_bytes = 1 << 40
        self.disk.heal()

    @rule(codec=st.sampled_from(CODECS))
    def stop(self, codec: PayloadCodec) -> None:
        """Closes the log gracefully and opens it again, perhaps with another codec."""
        self.log.log.close()
        self._open(self.disk.copy(), codec)

    @rule()
    def kill(self) -> None:
        """Kills the process, and opens the log in another one."""
        self._open(self.disk.copy())

    @rule(seed=SEEDS)
    def cut_power(self, seed: int) -> None:
        """Cuts the power, and opens the log afterwards."""
        self._open(self.disk.crashed(seed))

    @rule(seed=SEEDS, kind=KINDS, nth=st.integers(1, 3), error=ERRORS)
    def open_badly(self, seed: int, kind: str, nth: int, error: int) -> None:
        """Kills the process, makes an error end the next opening, then cuts the power."""
        disk = self.disk.copy()
        disk.fail(kind, nth, error)
        with suppress(OSError):
            replay(disk, TWO_DIRECTORIES)
        self._open(disk.crashed(seed))

    def _open(self, disk: SimulatedDisk, codec: PayloadCodec = CODECS[-1]) -> None:
        account = self.log.account_now()
        self.log.log.close()
        disk.capacity_bytes = 1 << 40
        self.disk = disk
        self.log = RunningLog(disk, TWO_DIRECTORIES, codec)
        note(f"found {len(self.log.found)} records in {len(self.log.log._segments)} segments")
        account.check(self.log.found)

    @invariant()
    def opens_after_a_kill(self) -> None:
        """At any time, another process would find what the account says."""
        if hasattr(self, "log"):
            disk = self.disk.copy()
            disk.capacity_bytes = 1 << 40
            self.log.account_now().check(replay(disk, TWO_DIRECTORIES))

    def teardown(self) -> None:
        """Ends the writer's thread."""
        if hasattr(self, "log"):
            self.log.log.close()
        self._monkeypatch.undo()


def _run(example_count: int, step_count: int) -> None:
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=example_count, stateful_step_count=step_count, suppress_health_check=health, print_blob=True
        ),
    )


def test_log_in_random_histories_keeps_what_it_acknowledged() -> None:
    """In any history a log keeps what it acknowledged, and not what it refused."""
    _run(30, 25)


@pytest.mark.torture
def test_log_in_long_random_histories_keeps_what_it_acknowledged() -> None:
    """The same for longer."""
    _run(1000, 50)
