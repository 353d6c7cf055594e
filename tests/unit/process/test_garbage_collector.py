import gc

from millrace_server.process.memory import tuned_garbage_collector


class Ring:
    """Reaches itself."""

    def __init__(self) -> None:
        self.ring = self


def test_tuned_garbage_collector_leaves_alone_what_there_is_and_finds_what_comes() -> None:
    """It looks less often while the server runs, at what was made since; afterwards all is as it was."""
    threshold, frozen_count = gc.get_threshold(), gc.get_freeze_count()
    Ring()
    with tuned_garbage_collector():
        assert gc.get_threshold()[0] > threshold[0]
        assert gc.get_freeze_count() > frozen_count
        gc.collect()
        Ring()
        assert gc.collect() > 0
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == 0
