"""A sink is killed, or loses power, at any call of the operating system: each event is in one finished file."""

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from millrace_server.agent.sinks.files.config import FilesSinkConfig
from millrace_server.agent.sinks.files.event_files import EventFiles, WriteResult
from tests.crashing_os import CrashingOs, Killed
from tests.files_sink import config_of, lines_below, make_event_files, raw_of, unfinished_below

CHANNEL_ID = "c0ffee" * 5
DELIVERIES = [range(1, 5), range(5, 7), range(7, 12), range(12, 13)]
LATER = range(13, 15)


class Flow:
    """A channel that records what was settled, and a sink that empties it."""

    def __init__(self, root: Path) -> None:
        self.out = root / "out"
        self.state = root / "state"
        self.settled: set[int] = set()
        self._config: FilesSinkConfig = config_of(self.out / "{header:host}", roll_events=3)
        self._store: EventFiles | None = None

    def run(self, *later: range) -> None:
        """Writes all unsettled events, and later ones, to files and settles them."""
        store = self._store = make_event_files(self._config, self.state)
        store.open()
        left = [numbers for numbers in (*DELIVERIES, *later) if not self.settled.issuperset(numbers)]
        held = dict(enumerate(left, start=1))
        for number, numbers in list(held.items()):
            rows = [({"host": "ab"[event % 2]}, str(event).encode()) for event in numbers]
            self._settle(held, store.write(number, CHANNEL_ID, [(numbers[0], raw_of(rows))], now=float(number)))
        self._settle(held, store.finish_all())
        assert not held
        store.close()

    def _settle(self, held: dict[int, range], result: WriteResult) -> None:
        for number in result.completed:
            self.settled.update(held.pop(number))
        assert self._store is not None
        if result.completed:
            low = min((numbers[0] for numbers in held.values()), default=max(self.settled) + 1)
            self._store.delete_receipts_below(low)

    def forget_run(self) -> None:
        """Stands for the end of the process: its lock is free, and it writes nothing any more."""
        if self._store is not None:
            self._store._directory.close()
            for file in self._store._files:
                file._file.close()
            self._store = None

    def numbers(self) -> Sequence[int]:
        """The numbers of the events in finished files."""
        return sorted(int(line) for line in lines_below(self.out))


def _crashed_at(calls: int, flow: Flow, crashing: CrashingOs) -> bool:
    """Runs the flow until it is killed before one of the calls; returns whether it was."""
    crashing.calls_left = calls
    try:
        flow.run()
    except Killed:
        return True
    finally:
        crashing.calls_left = None
        flow.forget_run()
    return False


def _run_with_crashes(root: Path, calls: int, chance: random.Random | None, patch: pytest.MonkeyPatch) -> bool:
    root.mkdir()
    with patch.context() as installed:
        crashing = CrashingOs(root, installed)
        (root / "out").mkdir()
        (root / "state").mkdir()
        crashing.adopt()
        flow = Flow(root)
        is_killed = _crashed_at(calls, flow, crashing)
        if chance is not None:
            crashing.cut_power(chance)
        # The promise: settled events are in finished files, whatever was lost.
        assert flow.settled <= set(flow.numbers()), (calls, flow.numbers())
        if is_killed and chance is not None:
            _crashed_at(chance.randrange(40), flow, crashing)
            crashing.cut_power(chance)
        flow.run(LATER)
        assert flow.numbers() == list(range(1, 15)), (calls, flow.numbers())
        assert unfinished_below(root) == [], calls
        assert list((flow.state / "receipts").iterdir()) == [], calls
    return is_killed


def test_run_killed_before_any_call_has_each_event_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run writes each event exactly once, and leaves nothing unfinished."""
    for calls in count():
        if not _run_with_crashes(tmp_path / str(calls), calls, None, monkeypatch):
            break
    assert calls > 60


def test_run_after_power_cuts_has_each_event_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that was not synced may be lost, but no settled event is, and none is written twice."""
    for calls in count():
        if not _run_with_crashes(tmp_path / str(calls), calls, random.Random(calls), monkeypatch):
            break
    assert calls > 60


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(40))
def test_run_after_many_power_cuts_has_each_event_in_one_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with other random losses."""
    for calls in count():
        chance = random.Random(f"{seed}/{calls}")
        if not _run_with_crashes(tmp_path / str(calls), calls, chance, monkeypatch):
            break
