from typing import Any

import pytest

from millrace_client import BadArgumentError, Overflow, ProducerConfig, Routing
from millrace_client.producing.config import EVENT_BYTES_MAX


def test_config_by_default_is_what_the_docs_say() -> None:
    """The defaults are consistent."""
    config = ProducerConfig()
    assert (config.batch_bytes_max, config.batch_events_max, config.linger_seconds) == (2 << 20, 4000, 0.01)
    assert (config.overflow, config.routing) == (Overflow.BLOCK, Routing.ROUND_ROBIN)
    assert config.event_bytes_limit == config.batch_bytes_max


def test_config_takes_words_for_policies() -> None:
    """Policies may be given as strings, as in configuration files."""
    config = ProducerConfig(overflow="drop_oldest", routing="by_key")  # type: ignore[arg-type] # what this is about
    assert (config.overflow, config.routing) == (Overflow.DROP_OLDEST, Routing.BY_KEY)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"batch_bytes_max": 0}, "batch_bytes_max: is 0"),
        ({"batch_bytes_max": EVENT_BYTES_MAX + 1}, "batch_bytes_max: is"),
        ({"event_bytes_max": 0}, "event_bytes_max: is 0"),
        ({"batch_events_max": 0}, "batch_events_max: is 0"),
        ({"linger_seconds": -1}, "linger_seconds: is -1; it must be at least 0"),
        ({"linger_seconds": float("nan")}, "linger_seconds: is nan"),
        ({"inflight_batches_max": 0}, "inflight_batches_max"),
        ({"timeout_seconds": 0}, "timeout_seconds: is 0; it must be above 0"),
        ({"backoff_seconds": 2, "backoff_seconds_max": 1}, "backoff_seconds_max: is 1; it must be at least 2"),
        ({"attempts_max": 0}, "attempts_max"),
        ({"move_after_seconds": -1}, "move_after_seconds"),
        ({"overflow": "explode"}, "overflow: is 'explode'; it must be block or raise or drop_oldest"),
        ({"routing": "east"}, "routing: is 'east'"),
    ],
)
def test_config_with_impossible_limits_is_refused(limits: dict[str, Any], message: str) -> None:
    """Each mistake is named with its value and what is allowed."""
    with pytest.raises(BadArgumentError, match=message):
        ProducerConfig(**limits)
