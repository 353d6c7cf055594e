"""What the simulation predicts for several servers on this machine, beside what they do."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from tests.simulation.calibration import IN_FLIGHT, SERVERS, TURN_BATCHES, Calibration, loaded_servers
from tests.simulation.costs import Costs
from tests.simulation.load import Loader, Turn, take_turn
from tests.simulation.scenario import closed_loop_rate

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]

_ROUNDS_MIN, _ROUNDS_MAX = 6, 20
_ERROR_MAX = 0.2
_UNCERTAINTY_WANTED, _UNCERTAINTY_MAX = 0.03, 0.08
"""Standard errors of a median: of one that is measured no more, and of one that nothing is concluded from."""

_QUIET_SHARE = 0.75
"""Of the cores, what other programs leave of a quiet machine."""

# Of a normal distribution: the standard error of the median, by the distance of the quartiles and one sample.
_MEDIAN_ERROR = 1.253 / 1.349


class _Pair(NamedTuple):
    """What is predicted and what is measured within one second, so that other programs disturb both alike."""

    costs: Costs
    """Of the first server, with its processor time beside as many bare servers."""
    turn: Turn
    """Of so many servers."""

    @property
    def work_error(self) -> float:
        """Processor time of a batch as measured, of the prediction."""
        return self.turn.work_seconds / (self.costs.append_seconds + self.costs.client_seconds)

    def rate_error(self, servers: int) -> float:
        """Batches per second as measured, of the prediction for the processor time that other programs left."""
        return self.turn.batches_per_second / closed_loop_rate(servers, IN_FLIGHT, self.turn.cores, self.costs)


@dataclass
class Findings:
    """Errors of the prediction for 1, 2 and 3 servers, one from each pair; what is right has the error 1."""

    work_errors: Sequence[list[float]] = field(default_factory=lambda: [[] for _ in range(SERVERS)])
    rate_errors: Sequence[list[float]] = field(default_factory=lambda: [[] for _ in range(SERVERS)])
    cores: list[float] = field(default_factory=list)
    """What other programs left of the machine's cores."""

    def add(self, loaders: Sequence[Loader], calibration: Calibration) -> None:
        """Measures one round."""
        costs = calibration.costs()
        for servers in range(1, SERVERS + 1):
            # What is measured first may find other caches than what comes second.
            for is_predicted_first in (True, False):
                pair = _measured(loaders[:servers], calibration, costs, is_predicted_first=is_predicted_first)
                self.work_errors[servers - 1].append(pair.work_error)
                self.rate_errors[servers - 1].append(pair.rate_error(servers))
                self.cores.append(pair.turn.cores)

    @property
    def uncertainty(self) -> float:
        """The largest standard error of all medians."""
        return max(map(_uncertainty, (*self.work_errors, *self.rate_errors)))


def _measured(loaders: Sequence[Loader], calibration: Calibration, costs: Costs, *, is_predicted_first: bool) -> _Pair:
    turn = None if is_predicted_first else take_turn(loaders, TURN_BATCHES, IN_FLIGHT)
    beside = calibration.turn_beside(len(loaders) - 1)
    turn = turn or take_turn(loaders, TURN_BATCHES, IN_FLIGHT)
    crowded = replace(costs, append_seconds=beside.server_seconds, client_seconds=beside.client_seconds)
    return _Pair(crowded, turn)


def _uncertainty(errors: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(errors, n=4)
    return _MEDIAN_ERROR * (high - low) / math.sqrt(len(errors))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    found = Findings()
    with loaded_servers(tmp_path_factory.mktemp("servers")) as (loaders, calibration):
        for number in range(1, _ROUNDS_MAX + 1):
            found.add(loaders, calibration)
            if number >= _ROUNDS_MIN and found.uncertainty <= _UNCERTAINTY_WANTED:
                break
    return found


def _assert_predicted(errors: Sequence[Sequence[float]]) -> None:
    medians, uncertainty = list(map(statistics.median, errors)), max(map(_uncertainty, errors))
    print([round(median, 3) for median in medians], f"± {uncertainty:.3f} of {len(errors[0])}")  # noqa: T201 - for `pytest -s`
    if uncertainty > _UNCERTAINTY_MAX:
        pytest.skip(f"the machine is too busy to judge: {len(errors[0])} pairs say {medians} ± {uncertainty:.2f}")
    assert medians == pytest.approx([1.0] * len(medians), abs=_ERROR_MAX)


def test_processor_time_of_several_servers_is_what_the_simulation_predicts(findings: Findings) -> None:
    """A batch takes one, two and three servers the processor time that one takes beside as many bare servers."""
    _assert_predicted(findings.work_errors)


def test_rate_on_a_quiet_machine_is_what_the_simulation_predicts(findings: Findings) -> None:
    """One, two and three servers store in a second what is predicted."""
    # Where other programs take cores while a server waits for its disk, more seems to be taken from it than is; see
    # docs/scale.md.
    cores = statistics.median(findings.cores)
    if cores < _QUIET_SHARE * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to judge: other programs left {cores:.1f} cores")
    _assert_predicted(findings.rate_errors)
