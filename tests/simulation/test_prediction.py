"""What the simulation predicts for several servers on this machine, beside what they do."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.simulation.calibration import IN_FLIGHT, SERVERS, TURN_BATCHES, loaded_servers, median_costs
from tests.simulation.costs import Costs
from tests.simulation.load import Turn, take_turn
from tests.simulation.scenario import closed_loop_rate

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]

_ROUNDS = 11
_ERROR_MAX = 0.2
_CONTROL_ERROR_MAX = 0.1


@dataclass
class Findings:
    """What was measured in turns: the costs of one server, and what one, two and three servers did.

    Nothing but the costs of the first server enters the predictions. The first server's turn is the control: it shows
    what the costs say of their own server some seconds later.
    """

    costs: Costs
    turns: Sequence[Sequence[Turn]] = field(repr=False)
    """Of 1, 2 and 3 servers, those of all rounds."""

    def work_errors(self) -> list[float]:
        """Processor time of a batch as measured, of the prediction, for 1, 2 and 3 servers."""
        one = self.costs.append_seconds + self.costs.client_seconds
        return [
            statistics.median(turn.work_seconds for turn in turns) / (one * crowding)
            for turns, crowding in zip(self.turns, self.costs.crowding, strict=True)
        ]

    def rate_errors(self) -> list[float]:
        """Batches per second as measured, of the prediction for the processor time that other programs left."""
        return [
            statistics.median(
                turn.batches_per_second / closed_loop_rate(count, IN_FLIGHT, turn.cores, self.costs) for turn in turns
            )
            for count, turns in enumerate(self.turns, 1)
        ]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    costs, turns = [], []
    with loaded_servers(tmp_path_factory.mktemp("servers")) as (loaders, calibration):
        for _ in range(_ROUNDS):
            costs.append(calibration.costs())
            turns.append([take_turn(loaders[:count], TURN_BATCHES, IN_FLIGHT) for count in range(1, SERVERS + 1)])
    found = Findings(median_costs(costs), list(zip(*turns, strict=True)))
    print(found)  # noqa: T201 - for `pytest -s`
    return found


def _assert_predicted(errors: Sequence[float]) -> None:
    print([round(error, 3) for error in errors])  # noqa: T201 - for `pytest -s`
    control, *others = errors
    if abs(control - 1) > _CONTROL_ERROR_MAX:
        pytest.skip(f"the machine is too busy to judge: one server alone had {control:.2f} times its own figure")
    assert others == pytest.approx([1.0] * len(others), abs=_ERROR_MAX)


def test_processor_time_of_several_servers_is_what_the_simulation_predicts(findings: Findings) -> None:
    """A batch takes two and three servers the processor time that one takes beside as many bare servers."""
    _assert_predicted(findings.work_errors())


def test_rate_of_several_servers_is_what_the_simulation_predicts(findings: Findings) -> None:
    """Two and three servers store what the simulation predicts for the processor time that other programs leave."""
    _assert_predicted(findings.rate_errors())
