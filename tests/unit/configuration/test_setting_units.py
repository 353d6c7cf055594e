from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_server.configuration.settings import Settings, check_settings


def settings(**channel: Any) -> Settings:
    return check_settings({"channels": {"orders": {"type": "file", **channel}}}, "test")


def test_settings_with_units_are_numbers() -> None:
    """Counts have decimal units, sizes decimal and binary ones."""
    orders = settings(capacity="1.5M", transaction_capacity="5k", byte_capacity="8GB", segment_bytes_max="64MiB")
    channel = orders.channels["orders"]
    assert (channel.capacity, channel.transaction_capacity) == (1_500_000, 5_000)
    assert channel.byte_capacity == 8_000_000_000
    assert channel.log is not None
    assert channel.log.segment_bytes_max == 64 << 20


def test_settings_with_a_small_capacity_in_text_lower_the_defaults() -> None:
    """As a number does."""
    assert settings(capacity="1k").channels["orders"].transaction_capacity == 1_000


COUNTS = "it must be a whole number from 1 to 1_000_000_000"
SIZES = "it must be a whole number from 65_536 to 1_099_511_627_776"


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ({"capacity": "lots"}, f'capacity: is "lots"; {COUNTS}, or text such as "1M"'),
        ({"capacity": "100"}, f'capacity: is "100"; {COUNTS}, or text such as "1M"'),
        ({"capacity": "2G"}, f'capacity: is "2G"; {COUNTS}, or text such as "1M"'),
        ({"capacity": 1.5}, f"capacity: is 1.5; {COUNTS}"),
        ({"segment_bytes_max": "8 apples"}, f'segment_bytes_max: is "8 apples"; {SIZES}, or text such as "64MiB"'),
        ({"lease_seconds": "30s"}, 'lease_seconds: is "30s"; it must be a number above 0, at most 3_600'),
    ],
)
def test_settings_with_other_text_are_refused(channel: dict[str, Any], problem: str) -> None:
    """The sentence shows the form with a unit where there is one. Text without a unit is no number."""
    with pytest.raises(SettingsError) as refused:
        settings(**channel)
    assert list(map(str, refused.value.problems)) == [f"channels.orders.{problem}"]
