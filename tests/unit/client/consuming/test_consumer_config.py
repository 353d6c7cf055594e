from typing import Any

import pytest

from millrace_client import BadArgumentError, Consumer, ConsumerConfig
from millrace_client.consuming.config import SUBSCRIPTIONS_MAX, subscriptions_of


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prefetch": 0}, "prefetch: is 0; 1 to 1000 are allowed"),
        ({"prefetch": 1001}, "prefetch: is 1001"),
        ({"prefetch_bytes_max": 0}, "prefetch_bytes_max: is 0"),
        ({"delivery_events_max": -1}, "delivery_events_max: is -1"),
        ({"delivery_bytes_max": -1}, "delivery_bytes_max: is -1"),
        ({"idle_seconds": -1.0}, "idle_seconds: is -1.0; it must be a finite number of at least 0"),
        ({"reconnect_seconds": 0.0}, "reconnect_seconds: is 0.0; it must be a finite number above 0"),
        ({"retry_seconds_max": float("inf")}, "retry_seconds_max: is inf"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds: is nan"),
        ({"close_seconds": -0.1}, "close_seconds: is -0.1"),
    ],
)
def test_config_that_is_wrong_says_what_is_allowed(wrong: dict[str, Any], says: str) -> None:
    """Each value is checked when the configuration is created."""
    with pytest.raises(BadArgumentError, match=says):
        ConsumerConfig(**wrong)


@pytest.mark.parametrize(
    ("config", "lane_count", "bytes_max"),
    [
        (ConsumerConfig(prefetch=8, prefetch_bytes_max=8000), 1, 1000),
        (ConsumerConfig(prefetch=8, prefetch_bytes_max=8000), 4, 250),
        (ConsumerConfig(prefetch=8, prefetch_bytes_max=8), 4, 1),
        (ConsumerConfig(prefetch=8, prefetch_bytes_max=8000, delivery_bytes_max=10), 1, 10),
        (ConsumerConfig(prefetch=8, prefetch_bytes_max=8000, delivery_bytes_max=5000), 1, 1000),
    ],
)
def test_limits_share_the_bytes_among_lanes(config: ConsumerConfig, lane_count: int, bytes_max: int) -> None:
    """All deliveries that may be open at once stay within the bytes."""
    limits = config.limits(lane_count)
    assert (limits.prefetch, limits.max_bytes) == (8, bytes_max)


def test_names_given_as_one_string_are_one() -> None:
    """A string is one name, and duplicate names count once."""
    assert subscriptions_of("a:1", "orders") == [("a:1", "orders")]
    assert subscriptions_of(["a:1", "b:1", "a:1"], ["x", "y"]) == [
        ("a:1", "x"),
        ("b:1", "x"),
        ("a:1", "y"),
        ("b:1", "y"),
    ]


@pytest.mark.parametrize(
    ("endpoints", "channels", "says"),
    [
        ([], ["orders"], "endpoints: is empty"),
        (["a:1"], [], "channels: is empty"),
        (["a:1"], [str(number) for number in range(SUBSCRIPTIONS_MAX + 1)], "channels: 1001 with their servers"),
    ],
)
def test_consumer_of_nothing_is_refused(endpoints: list[str], channels: list[str], says: str) -> None:
    """A consumer needs a server and a channel, and not too many of them."""
    with pytest.raises(BadArgumentError, match=says):
        Consumer(endpoints, channels)
