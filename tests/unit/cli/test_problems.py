from dataclasses import replace
from datetime import timedelta

from millrace_client import ChannelState, ClaimStatus
from millrace_client.cli.problems import Severity, channel_problem
from tests.unit.cli.fake_channel import GAUGES, ORDERS, START_TIME

WAITING = replace(ORDERS, gauges=replace(GAUGES, queued_events=3, oldest_commit_time=START_TIME))
CLAIM = ClaimStatus(reader_id="nightly", epoch=1, remaining_seconds=9.0)


def test_problem_of_a_channel_whose_reader_is_stuck_names_the_reader() -> None:
    """Its events wait, although it has a claim."""
    severity, problem = channel_problem(replace(WAITING, claim=CLAIM))
    assert severity is Severity.WARNING
    assert problem.startswith("nothing was taken for ")
    assert problem.endswith(" minutes while events wait; reader nightly holds a claim")


def test_channel_that_was_just_read_has_no_problem() -> None:
    """Also if its oldest event has waited for long."""
    later = replace(WAITING.gauges, last_take_time=START_TIME + timedelta(days=365_000))
    assert channel_problem(replace(WAITING, claim=CLAIM, gauges=later)) == (Severity.NONE, "")


def test_channel_that_nobody_has_read_has_no_problem() -> None:
    """It may be a store, whose events wait for a reader."""
    assert channel_problem(WAITING) == (Severity.NONE, "")


def test_problem_of_a_channel_without_its_engine_gives_the_reason() -> None:
    """The state alone sends an operator to the wrong place."""
    reason = "the engine has not responded since noon"
    waiting = replace(ORDERS, state=ChannelState.STANDING_BY, fault=reason)
    assert channel_problem(waiting) == (Severity.ERROR, f"no server owns it: {reason}")
    replaying = replace(ORDERS, state=ChannelState.REPLAYING, replayed_fraction=0.0, fault=reason)
    assert channel_problem(replaying) == (Severity.WARNING, f"replaying its log, 0% so far: {reason}")
