from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig

TABLE = {"type": "syslog", "channels": ["logs"], "listen": ["tcp://127.0.0.1:5514", "udp://127.0.0.1:5514"]}


def problems(settings: Mapping[str, object]) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        SyslogSourceConfig.model_validate({**TABLE, **settings}, strict=True)
    return list(map(str, describe_problems(raised.value, SyslogSourceConfig)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listen": ["tcp://0.0.0.0:514", "udp://[::]:514"], "allow_plaintext": True},
        {"listen": ["udp://localhost:0", "udp://localhost:0"]},
        {"keep_fields": ["priority", "tag"], "long_messages": "drop", "framing": "octet_counting"},
        {"time_zone": "Europe/Berlin", "client_ip_header": "ip", "linger_seconds": 0},
    ],
)
def test_config_that_makes_sense_is_taken(settings: Mapping[str, object]) -> None:
    """Each of these configurations is valid."""
    SyslogSourceConfig.model_validate({**TABLE, **settings}, strict=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": []}, "listen: has no value; it must have at least 1"),
        (
            {"listen": ["127.0.0.1:5514"]},
            'listen[0]: is "127.0.0.1:5514"; it must be "tcp://host:port" or "udp://host:port"',
        ),
        (
            {"listen": ["tcp://a:b"]},
            (
                'listen[0]: is "tcp://a:b"; after //, its port must be a whole number from 0 to 65535, where 0 '
                "means any free port"
            ),
        ),
        (
            {"listen": ["udp://0.0.0.0:514"]},
            (
                'listen: is "udp://0.0.0.0:514", which other machines can reach, and nothing is encrypted; use a '
                "loopback address, or set allow_plaintext = true"
            ),
        ),
        ({"listen": ["udp://[::1]:514"] * 2}, 'listen: lists "udp://[::1]:514" twice; list each one once'),
        ({"message_bytes_max": 100}, "message_bytes_max: is 100; it must be a whole number from 480 to 16_777_216"),
        (
            {"time_zone": "Mars/Olympus"},
            'time_zone: is "Mars/Olympus"; it must be the name of a time zone on this machine, such as "Europe/Berlin"',
        ),
        ({"time_zone": "../../etc/passwd"}, None),
        ({"framing": "guess"}, 'framing: is "guess"; it must be "auto" or "newline" or "octet_counting"'),
    ],
)
def test_config_that_is_invalid_is_reported_in_a_sentence(settings: Mapping[str, object], problem: str | None) -> None:
    """The error shows the setting, its value, and what is allowed."""
    [reported] = problems(settings)
    assert problem is None or reported == problem
