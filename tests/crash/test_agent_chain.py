"""Whole flows under faults: each line written arrives once, and those of one log in order."""

import random
from pathlib import Path

import pytest

from tests.crash.agent_chain import COLLECTOR, RELAY, agent_chain, random_faults
from tests.crash.line_account import LineAccount
from tests.crash.log_writer import line_of

_TORMENTS_IN_THE_SUITE = 4
_ROUNDS = 6
_TORMENTS_IN_A_ROUND = 60


def _run_faults(folder: Path, chance: random.Random, fault_count: int, stop_seconds_max: float) -> None:
    fan_in = chance.choice([RELAY, COLLECTOR])
    plan = random_faults(chance, fault_count, stop_seconds_max)
    with agent_chain(folder, chance.getrandbits(32), fan_in) as chain:
        chain.begin()
        chain.cause(plan, chance)
        chain.settle()
        account = chain.account()
        logs = [log for writer in chain.writers.values() for log in writer.logs.values()]
        print(  # noqa: T201 - how much that was
            f"{len(plan)} faults {chain.counts}, {sum(log.line_count for log in logs)} lines, "
            f"{sum(log.rename_count for log in logs)} renamed, {sum(log.copy_count for log in logs)} copied and cut"
        )
        assert account == LineAccount(count=sum(chain.line_counts.values()))
        chain.stop()


def test_account_of_what_went_wrong_reports_it() -> None:
    """Lines that are missing, duplicated, late, or were never written are found."""
    first, second, third, fourth = (line_of("app", number) for number in range(4))
    arrived = [first, third, second, third, b"app 0000003 cut", line_of("app", 4)]
    account = LineAccount.of(arrived, {"app": 4})
    assert account == LineAccount(6, {"app": [3]}, [third], [second], arrived[4:])
    assert LineAccount.of([first, second, third, fourth], {"app": 4}) == LineAccount(4)


def test_flow_of_agents_under_faults_brings_each_line_once_in_order(tmp_path: Path, chance: random.Random) -> None:
    """Three agents in a chain and one that joins it are killed, paused and disconnected while logs are rotated."""
    _run_faults(tmp_path, chance, _TORMENTS_IN_THE_SUITE, 1.0)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("round_number", range(_ROUNDS))
def test_flow_of_agents_under_long_faults_brings_each_line_once_in_order(
    round_number: int, tmp_path: Path, chance: random.Random
) -> None:
    """The same for longer, with pauses that exceed every timeout."""
    _run_faults(tmp_path, chance, _TORMENTS_IN_A_ROUND, 7.0)
