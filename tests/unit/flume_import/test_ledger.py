import time

from millrace_server.flume_import.ledger import Ledger, Outcome

COMPONENTS = 20_000


def test_omit_of_many_components_looks_at_the_properties_of_each_only_once() -> None:
    """The time of an import is in proportion to the file's size; it used to take minutes for these."""
    ledger = Ledger(f"a.sinks.k{index}{key}" for index in range(COMPONENTS) for key in ("", ".type", ".x.y"))
    began = time.process_time()
    for index in range(1, COMPONENTS):
        ledger.omit(f"a.sinks.k{index}", "it has no type")
    assert time.process_time() - began < 10
    assert set(ledger.outcomes.values()) == {Outcome.LEFT_OUT}
    assert ledger.unsettled == ["a.sinks.k0", "a.sinks.k0.type", "a.sinks.k0.x.y"]
